//! What the same two hosts do without Causeway: a UDP socket and a TCP connection at each end, both
//! looked at all the time.

use super::super::Error;
use super::control::{Control, Counted, PATIENCE};
use super::until_asked;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// A datagram that is not answered in that time is lost.
const LOST: Duration = Duration::from_millis(20);
/// Most bytes and datagrams of one system call, as the kernel's segmentation takes them.
const BATCH_BYTES: usize = 64_000;
const BATCH_DATAGRAMS: usize = 64;
/// How long a thread sleeps that waits for a datagram, before it looks at the control connection.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// Bytes of a read.
const READ: usize = 1 << 16;
/// Headers before the payload of a datagram.
const HEADERS_V4: u32 = 20 + 8;
const HEADERS_V6: u32 = 40 + 8;

/// The sockets of one side.
pub struct Sockets {
    udp: UdpSocket,
    tcp: TcpStream,
    /// Largest packet that the route takes, and the payload of a datagram of that length.
    pub mtu: u32,
    payload: usize,
}

/// A UDP socket at an address, and its port.
///
/// # Errors
/// What `socket(2)` and `bind(2)` report.
pub fn bind(at: IpAddr) -> Result<(UdpSocket, u16), Error> {
    let udp = UdpSocket::bind(SocketAddr::new(at, 0))?;
    let port = udp.local_addr()?.port();
    Ok((udp, port))
}

fn option(fd: &impl AsFd, (level, name): (libc::c_int, libc::c_int)) -> std::io::Result<u32> {
    let mut value: libc::c_int = 0;
    let mut len = size_of_val(&value) as libc::socklen_t;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the pointers describe `value` and `len`, which outlive the call.
    let rc = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    match rc {
        0 => Ok(u32::try_from(value).unwrap_or(0)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn set_option(fd: &impl AsFd, name: libc::c_int, value: usize) -> std::io::Result<()> {
    let value = value as libc::c_int;
    let len = size_of_val(&value) as libc::socklen_t;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the pointer and length describe `value`, which outlives the call.
    let rc = unsafe { libc::setsockopt(fd, libc::SOL_UDP, name, (&raw const value).cast(), len) };
    match rc {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Whether an operation of a non-blocking socket is to be tried again.
fn waits(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
    )
}

impl Sockets {
    /// Of a UDP socket that is bound, and a connection to the same host.
    ///
    /// # Errors
    /// What `connect(2)` and `setsockopt(2)` report.
    pub fn new(udp: UdpSocket, to: SocketAddr, tcp: TcpStream) -> Result<Sockets, Error> {
        udp.connect(to)?;
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        tcp.set_nodelay(true)?;
        // Without it a batch comes datagram by datagram, which is slower and nothing else.
        let _ = set_option(&udp, libc::UDP_GRO, 1);
        let (route, headers) = match to {
            SocketAddr::V4(_) => ((libc::IPPROTO_IP, libc::IP_MTU), HEADERS_V4),
            SocketAddr::V6(_) => ((libc::IPPROTO_IPV6, libc::IPV6_MTU), HEADERS_V6),
        };
        let mtu = option(&udp, route)?;
        let payload = (mtu.saturating_sub(headers) as usize).clamp(1, BATCH_BYTES);
        Ok(Sockets {
            udp,
            tcp,
            mtu,
            payload,
        })
    }

    /// Sends datagrams of 8 bytes to and fro. Nanoseconds of one way.
    ///
    /// # Errors
    /// The socket's; no answer for a long time.
    pub fn ping_udp(&self, turns: u64) -> Result<f64, Error> {
        let begun = Instant::now();
        for turn in 0..turns {
            self.exchange(turn, std::hint::spin_loop)?;
        }
        Ok(begun.elapsed().as_nanos() as f64 / (2 * turns) as f64)
    }

    /// As [`Sockets::ping_udp`], `rest` apart, by a thread that sleeps until the answer comes.
    /// Nanoseconds there and back.
    ///
    /// # Errors
    /// As there.
    pub fn ping_udp_rested(&self, turns: u64, rest: Duration) -> Result<f64, Error> {
        let mut spent = Duration::ZERO;
        for turn in 0..turns {
            std::thread::sleep(rest);
            let begun = Instant::now();
            self.exchange(turn, || self.sleep())?;
            spent += begun.elapsed();
        }
        Ok(spent.as_nanos() as f64 / turns as f64)
    }

    /// Sends a datagram and takes its answer; calls `wait` where there is none yet.
    fn exchange(&self, turn: u64, wait: impl Fn()) -> Result<(), Error> {
        let (asked, mut answer) = (Instant::now(), [0; 8]);
        while asked.elapsed() < PATIENCE {
            self.udp.send(&turn.to_le_bytes()).or_else(retried)?;
            let sent = Instant::now();
            while sent.elapsed() < LOST {
                match self.udp.recv(&mut answer) {
                    Ok(8) if answer == turn.to_le_bytes() => return Ok(()),
                    Err(error) if !waits(&error) => return Err(error.into()),
                    // A late answer to a datagram that was sent twice, or none yet.
                    _ => wait(),
                }
            }
        }
        Err("no datagram of UDP comes back: is UDP filtered between the hosts?".into())
    }

    /// The other side of [`Sockets::ping_udp`].
    ///
    /// # Errors
    /// The socket's.
    pub fn echo_udp(&self, control: &Control) -> Result<(), Error> {
        let mut buffer = [0; 64];
        until_asked(control, || match self.udp.recv(&mut buffer) {
            Ok(len) => self.udp.send(&buffer[..len]).or_else(retried).map(|_| true),
            Err(error) => retried(error).map(|_| false),
        })
    }

    /// Sleeps until a datagram comes, for [`NAP`] at most.
    fn sleep(&self) {
        let mut polled = [PollFd::new(&self.udp, PollFlags::IN)];
        let _ = poll(&mut polled, Some(&NAP));
    }

    /// As [`Sockets::echo_udp`], by a thread that sleeps until a datagram comes.
    ///
    /// # Errors
    /// The socket's.
    pub fn wake_udp(&self, control: &Control) -> Result<(), Error> {
        let mut buffer = [0; 64];
        let heard = Instant::now();
        while !control.is_asked() && heard.elapsed() < PATIENCE {
            self.sleep();
            match self.udp.recv(&mut buffer) {
                Ok(len) => _ = self.udp.send(&buffer[..len]).or_else(retried)?,
                Err(error) => _ = retried(error)?,
            }
        }
        Ok(())
    }

    /// Sends `bytes` to and fro by TCP. Nanoseconds of one way.
    ///
    /// # Errors
    /// The connection's.
    pub fn ping_tcp(&mut self, bytes: usize, turns: u64) -> Result<f64, Error> {
        let mut buffer = vec![0; bytes];
        let begun = Instant::now();
        for _ in 0..turns {
            self.write(&buffer)?;
            self.read(&mut buffer)?;
        }
        Ok(begun.elapsed().as_nanos() as f64 / (2 * turns) as f64)
    }

    /// The other side of [`Sockets::ping_tcp`].
    ///
    /// # Errors
    /// The connection's.
    pub fn echo_tcp(&mut self, control: &Control, bytes: usize) -> Result<(), Error> {
        let (mut buffer, mut filled) = (vec![0; bytes], 0);
        until_asked(control, || {
            match (&self.tcp).read(&mut buffer[filled..]) {
                Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof)),
                Ok(read) => filled += read,
                Err(error) => return retried(error).map(|_| false),
            }
            if filled == bytes {
                filled = 0;
                self.write_all(&buffer)?;
            }
            Ok(true)
        })
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.write_all(bytes)?)
    }

    fn write_all(&self, bytes: &[u8]) -> std::io::Result<()> {
        let (begun, mut rest) = (Instant::now(), bytes);
        while !rest.is_empty() {
            match (&self.tcp).write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if begun.elapsed() > PATIENCE => return Err(error),
                Err(error) => _ = retried(error)?,
            }
        }
        Ok(())
    }

    fn read(&self, buffer: &mut [u8]) -> Result<(), Error> {
        let (begun, mut filled) = (Instant::now(), 0);
        while filled < buffer.len() {
            match (&self.tcp).read(&mut buffer[filled..]) {
                Ok(0) => return Err("the other side has ended".into()),
                Ok(read) => filled += read,
                Err(error) if begun.elapsed() > PATIENCE => return Err(error.into()),
                Err(error) => _ = retried(error)?,
            }
        }
        Ok(())
    }

    /// Sends full datagrams for a while. Returns how many bytes.
    ///
    /// # Errors
    /// The socket's.
    pub fn stream_udp(&self, time: Duration) -> Result<u64, Error> {
        let datagrams = (BATCH_BYTES / self.payload).clamp(1, BATCH_DATAGRAMS);
        let cut = set_option(&self.udp, libc::UDP_SEGMENT, self.payload).is_ok();
        let batch = vec![7; self.payload * if cut { datagrams } else { 1 }];
        let (begun, mut sent) = (Instant::now(), 0);
        while begun.elapsed() < time {
            sent += self.udp.send(&batch).or_else(retried)? as u64;
        }
        let _ = set_option(&self.udp, libc::UDP_SEGMENT, 0);
        Ok(sent)
    }

    /// Writes to the TCP stream for a while, `bytes` at a time. Returns how many in all.
    ///
    /// # Errors
    /// The connection's.
    pub fn stream_tcp(&self, bytes: usize, time: Duration) -> Result<u64, Error> {
        let buffer = vec![7; bytes];
        let (begun, mut sent) = (Instant::now(), 0);
        while begun.elapsed() < time {
            self.write_all(&buffer)?;
            sent += bytes as u64;
        }
        Ok(sent)
    }

    /// Counts datagrams until something is asked.
    ///
    /// # Errors
    /// The socket's.
    pub fn count_udp(&self, control: &Control) -> Result<Counted, Error> {
        let (mut buffer, mut tally) = (vec![0; READ], Tally::default());
        until_asked(control, || match self.udp.recv(&mut buffer) {
            Ok(len) => Ok(tally.add(len)),
            Err(error) => retried(error).map(|_| false),
        })?;
        Ok(tally.counted())
    }

    /// Counts bytes of the TCP stream until something is asked.
    ///
    /// # Errors
    /// The connection's.
    pub fn count_tcp(&self, control: &Control) -> Result<Tally, Error> {
        let (mut buffer, mut tally) = (vec![0; READ], Tally::default());
        until_asked(control, || match (&self.tcp).read(&mut buffer) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => Ok(tally.add(len)),
            Err(error) => retried(error).map(|_| false),
        })?;
        Ok(tally)
    }

    /// Goes on counting until `sent` bytes have come.
    ///
    /// # Errors
    /// The connection's.
    pub fn drain_tcp(&self, tally: &mut Tally, sent: u64) -> Result<(), Error> {
        let mut buffer = vec![0; READ];
        let begun = Instant::now();
        while tally.all < sent {
            match (&self.tcp).read(&mut buffer) {
                Ok(0) => return Err("the other side has ended".into()),
                Ok(len) => _ = tally.add(len),
                Err(error) if begun.elapsed() > PATIENCE => return Err(error.into()),
                Err(error) => _ = retried(error)?,
            }
        }
        Ok(())
    }
}

/// Nothing was done, and it is to be tried again.
fn retried(error: std::io::Error) -> std::io::Result<usize> {
    match waits(&error) {
        true => Ok(0),
        false => Err(error),
    }
}

/// Bytes that came, and when.
#[derive(Debug, Default)]
pub struct Tally {
    all: u64,
    after_first: u64,
    times: Option<(Instant, Instant)>,
}

impl Tally {
    fn add(&mut self, bytes: usize) -> bool {
        let now = Instant::now();
        self.all += bytes as u64;
        match &mut self.times {
            None => self.times = Some((now, now)),
            Some((_, last)) => {
                self.after_first += bytes as u64;
                *last = now;
            }
        }
        true
    }

    /// What has come after the first arrival, and in what time.
    pub fn counted(&self) -> Counted {
        let ns = self.times.map(|(first, last)| (last - first).as_nanos());
        Counted {
            bytes: self.after_first,
            ns: ns.unwrap_or(0) as u64,
        }
    }
}
