//! The connection by which the two sides agree on what is measured: a JSON document on each line.

use super::super::Error;
use rustix::net::{RecvFlags, recv};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

/// Longest line that is read.
const LINE_MAX: u64 = 4096;
/// What it means that something else than this program answers.
const NO_BENCH: &str = "the other side said what is no answer: no `causeway bench` is there";
/// How long one side waits for the other.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What each side says of itself first.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Its release: figures of two different ones would be nobody's.
    pub version: String,
    /// Port of its UDP socket.
    pub udp: u16,
    /// Number of its queue pair, and the first sequence number it sends.
    pub qpn: u32,
    /// See there.
    pub psn: u32,
    /// The memory that the peer may write to.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
}

/// What the measuring side asks for. Until it says [`Request::Stop`] the other answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Datagrams are sent back.
    UdpEcho,
    /// So many bytes of the TCP stream are sent back each time they are complete.
    TcpEcho(usize),
    /// SENDs of so many bytes are answered by the same.
    SendEcho(usize),
    /// WRITEs of so many bytes, the last eight of which are a number that counts up, are answered
    /// by the same.
    WriteEcho(usize),
    /// Datagrams are received and counted.
    UdpCount,
    /// Bytes of the TCP stream are received and counted.
    TcpCount,
    /// WRITEs arrive.
    Writes,
    /// Datagrams are sent back by a thread that sleeps until one comes.
    UdpWake,
    /// Something is done with segments or interrupts of SISCI.
    Sisci(Sisci),
    /// It is over; `sent` bytes were sent.
    Stop {
        /// See there.
        sent: u64,
    },
    /// All is over.
    End,
}

/// What is done with segments and interrupts, of `bench sisci` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sisci {
    /// Nothing: the segment's node daemon takes what comes.
    Rest,
    /// A number that counts up is answered by the same, by `SCIMemCpy`.
    CopyEcho,
    /// The same, by a store and `SCIFlush`.
    StoreEcho,
    /// Interrupts are answered by an interrupt.
    Trigger,
    /// Data interrupts are answered by the same.
    Data,
    /// Bytes of the segment are counted that belong to words of this value.
    Count(u64),
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Counted {
    /// Bytes after the first arrival.
    pub bytes: u64,
    /// Nanoseconds from the first arrival to the last.
    pub ns: u64,
}

/// The connection.
pub struct Control {
    lines: BufReader<TcpStream>,
}

impl Control {
    /// Over a connected stream.
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub fn new(stream: TcpStream) -> Result<Control, Error> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let lines = BufReader::new(stream);
        Ok(Control { lines })
    }

    /// The addresses of both ends: this one's and the peer's.
    ///
    /// # Errors
    /// What `getsockname(2)` and `getpeername(2)` report.
    pub fn addresses(&self) -> Result<(IpAddr, SocketAddr), Error> {
        let stream = self.lines.get_ref();
        let peer = stream.peer_addr()?;
        let plain = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        Ok((stream.local_addr()?.ip().to_canonical(), plain))
    }

    /// Says something.
    ///
    /// # Errors
    /// The connection's.
    pub fn say(&mut self, what: &impl Serialize) -> Result<(), Error> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        Ok(self.lines.get_mut().write_all(&line)?)
    }

    /// Waits for what the peer says.
    ///
    /// # Errors
    /// The connection's, and what the peer says that it should not.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let mut line = String::new();
        let read = (&mut self.lines).take(LINE_MAX).read_line(&mut line);
        match read {
            Ok(0) => Err("the other side has ended".into()),
            Ok(_) => {
                Ok(serde_json::from_str(&line).map_err(|error| format!("{NO_BENCH}: {error}"))?)
            }
            Err(error) => Err(match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => "the other side is silent".into(),
                ErrorKind::InvalidData => NO_BENCH.into(),
                _ => format!("the connection to the other side: {error}").into(),
            }),
        }
    }

    /// Whether the peer has said something, or has ended.
    pub fn is_asked(&self) -> bool {
        let mut byte = [0_u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let looked = recv(self.lines.get_ref(), &mut byte, flags);
        !self.lines.buffer().is_empty() || !looked.is_err_and(|e| e == rustix::io::Errno::AGAIN)
    }
}
