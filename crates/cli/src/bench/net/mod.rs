//! `causeway bench net`: queue pairs to another host, beside bare UDP and TCP to the same host.
//!
//! The host to be reached runs `causeway bench net --serve`. Both sides look all the time, at a
//! queue pair as at a socket, so no figure contains a wake-up.

pub mod control;
pub mod queue_pair;
mod sockets;

use super::{Error, Rounds, Row, Table, median};
use control::{Control, Counted, Hello, PATIENCE, Request};
use queue_pair::{AREA, QueuePair, SEND_MAX};
use sockets::Sockets;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Turns of a ping-pong, and how long a stream flows, in one measurement.
const TURNS: u64 = 5_000;
const TIME: Duration = Duration::from_millis(300);
/// Looks between two at the control connection.
const LOOKS: u32 = 256;
/// Bytes of the streams' messages.
const SHORT: usize = 64 << 10;
const LONG: usize = 1 << 20;
/// A path that carries less is worth a word.
const JUMBO: u32 = 9000;

const _: () = assert!(LONG <= AREA);

/// Does what `step` does, which says whether there was anything to do, until the other side asks
/// for something else.
///
/// # Errors
/// Those of `step`; silence.
pub fn until_asked<E: Into<Error>>(
    control: &Control,
    mut step: impl FnMut() -> Result<bool, E>,
) -> Result<(), Error> {
    let mut heard = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if step().map_err(Into::into)? {
                heard = Instant::now();
            }
        }
        if control.is_asked() {
            return Ok(());
        }
        if heard.elapsed() > PATIENCE {
            return Err("the other side is silent".into());
        }
    }
}

/// One of the two.
pub struct Side {
    /// To the other.
    pub control: Control,
    /// Beside the queue pair.
    pub sockets: Sockets,
    /// Joined to the other's.
    pub queue_pair: QueuePair,
}

impl Side {
    /// Introduces both to each other; `data` makes the second connection once they are.
    fn meet(
        stream: TcpStream,
        data: impl FnOnce() -> Result<TcpStream, Error>,
    ) -> Result<Side, Error> {
        let mut control = Control::new(stream)?;
        let (own, peer) = control.addresses()?;
        let (udp, port) = sockets::bind(own)?;
        let mut queue_pair = QueuePair::new()?;
        control.say(&queue_pair.hello(port))?;
        let hello: Hello = control.hear()?;
        queue_pair.join((own, peer.ip()), &hello)?;
        let mut to = peer;
        to.set_port(hello.udp);
        let sockets = Sockets::new(udp, to, data()?)?;
        Ok(Side {
            control,
            sockets,
            queue_pair,
        })
    }

    /// The measuring side, over a connection to the other.
    ///
    /// # Errors
    /// The connection's and the device's.
    pub fn of(stream: TcpStream) -> Result<Side, Error> {
        let peer = stream.peer_addr()?;
        Side::meet(stream, || Ok(TcpStream::connect_timeout(&peer, PATIENCE)?))
    }

    /// The other side, once one comes.
    ///
    /// # Errors
    /// The port is taken; the connection's and the device's.
    pub fn accept(port: u16) -> Result<Side, Error> {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let listener = TcpListener::bind(any)
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
            .map_err(|error| format!("port {port}: {error}"))?;
        let (stream, peer) = listener.accept()?;
        Side::meet(stream, || {
            loop {
                let (data, other) = listener.accept()?;
                if other.ip() == peer.ip() {
                    return Ok(data);
                }
            }
        })
    }

    /// Has the other side do something while `measure` measures it.
    ///
    /// # Errors
    /// Those of `measure`; the connection's.
    pub fn during<T>(
        &mut self,
        request: Request,
        measure: impl FnOnce(&mut Side) -> Result<(T, u64), Error>,
    ) -> Result<(T, Counted), Error> {
        self.control.say(&request)?;
        let _: Counted = self.control.hear()?;
        let (figure, sent) = measure(self)?;
        self.control.say(&Request::Stop { sent })?;
        Ok((figure, self.control.hear()?))
    }

    /// Datagrams of 8 bytes to and fro. Nanoseconds of one way.
    ///
    /// # Errors
    /// The connection's and the socket's.
    pub fn ping_udp(&mut self, turns: u64) -> Result<f64, Error> {
        let measured = self.during(Request::UdpEcho, |side| {
            Ok((side.sockets.ping_udp(turns)?, 0))
        })?;
        Ok(measured.0)
    }

    fn ping_tcp(&mut self, bytes: usize, turns: u64) -> Result<f64, Error> {
        let measured = self.during(Request::TcpEcho(bytes), |side| {
            Ok((side.sockets.ping_tcp(bytes, turns)?, 0))
        })?;
        Ok(measured.0)
    }

    fn ping_send(&mut self, bytes: usize, turns: u64) -> Result<f64, Error> {
        let measured = self.during(Request::SendEcho(bytes), |side| {
            Ok((side.queue_pair.ping_send(bytes, turns)?, 0))
        })?;
        Ok(measured.0)
    }

    /// WRITEs of so many bytes to and fro. Nanoseconds of one way.
    ///
    /// # Errors
    /// The connection's and the queue pair's.
    pub fn ping_write(&mut self, bytes: usize, turns: u64) -> Result<f64, Error> {
        let measured = self.during(Request::WriteEcho(bytes), |side| {
            Ok((side.queue_pair.ping_write(bytes, turns)?, 0))
        })?;
        Ok(measured.0)
    }

    fn write_stream(&mut self, bytes: usize, time: Duration) -> Result<f64, Error> {
        let measured = self.during(Request::Writes, |side| {
            Ok((side.queue_pair.stream(bytes, time)?, 0))
        })?;
        Ok(measured.0)
    }

    fn tcp_stream(&mut self, bytes: usize, time: Duration) -> Result<f64, Error> {
        let (_, counted) = self.during(Request::TcpCount, |side| {
            Ok(((), side.sockets.stream_tcp(bytes, time)?))
        })?;
        per_message(counted, bytes)
    }

    /// Nanoseconds for so many bytes in a stream of full datagrams.
    ///
    /// # Errors
    /// The connection's and the socket's.
    pub fn udp_stream(&mut self, bytes: usize, time: Duration) -> Result<f64, Error> {
        let (_, counted) = self.during(Request::UdpCount, |side| {
            Ok(((), side.sockets.stream_udp(time)?))
        })?;
        per_message(counted, bytes)
    }

    /// Does what the other side asks for, until it asks for nothing more.
    ///
    /// # Errors
    /// The connection's, and those of `answer`.
    pub fn serve(
        &mut self,
        mut answer: impl FnMut(&mut Side, Request) -> Result<Counted, Error>,
    ) -> Result<(), Error> {
        loop {
            match self.control.hear()? {
                Request::End => return Ok(()),
                request => {
                    self.control.say(&Counted::default())?;
                    let counted = answer(self, request)?;
                    self.control.say(&counted)?;
                }
            }
        }
    }

    /// The other side ends what it asked for. Returns how many bytes it has sent.
    ///
    /// # Errors
    /// The connection's; it asks for something else.
    pub fn stopped(&mut self) -> Result<u64, Error> {
        match self.control.hear()? {
            Request::Stop { sent } => Ok(sent),
            _ => Err("the other side asked for two things at a time".into()),
        }
    }

    /// Does what the other side asks for. Returns what was counted, of requests that count.
    ///
    /// # Errors
    /// What is asked for makes no sense here; the connection's, the sockets' and the device's.
    pub fn answer(&mut self, request: Request) -> Result<Counted, Error> {
        let within = |bytes: usize, most: usize| match bytes.is_multiple_of(8) && bytes > 0 {
            true if bytes <= most => Ok(bytes),
            _ => Err(format!(
                "the other side asked for messages of {bytes} bytes"
            )),
        };
        let mut counted = Counted::default();
        let mut tally = sockets::Tally::default();
        let control = &self.control;
        match request {
            Request::UdpEcho => self.sockets.echo_udp(control)?,
            Request::TcpEcho(bytes) => self.sockets.echo_tcp(control, within(bytes, AREA)?)?,
            Request::SendEcho(bytes) => {
                let bytes = within(bytes, SEND_MAX)?;
                self.queue_pair.echo_send(control, bytes)?;
            }
            Request::WriteEcho(bytes) => {
                let bytes = within(bytes, AREA)?;
                self.queue_pair.echo_write(control, bytes)?;
            }
            Request::UdpCount => counted = self.sockets.count_udp(control)?,
            Request::TcpCount => tally = self.sockets.count_tcp(control)?,
            Request::Writes => self.queue_pair.serve(control)?,
            Request::UdpWake => self.sockets.wake_udp(control)?,
            Request::Sisci(_) => return Err("there are no segments here".into()),
            Request::Stop { .. } | Request::End => return Err("nothing is to be stopped".into()),
        }
        let sent = self.stopped()?;
        if request == Request::TcpCount {
            self.sockets.drain_tcp(&mut tally, sent)?;
            counted = tally.counted();
        }
        Ok(counted)
    }
}

/// Nanoseconds for `bytes` of a stream.
fn per_message(counted: Counted, bytes: usize) -> Result<f64, Error> {
    match counted.bytes {
        0 => Err("nothing of a stream arrived".into()),
        all => Ok(counted.ns as f64 * bytes as f64 / all as f64),
    }
}

/// `causeway bench net --serve`: does what one client asks, until that ends.
///
/// # Errors
/// The port is taken; the client's and the connection's.
pub fn serve(port: u16) -> Result<(), Error> {
    Side::accept(port)?.serve(Side::answer)
}

/// What may make it faster, if anything.
fn advice(mtu: u32) -> Option<String> {
    (mtu < JUMBO).then(|| {
        format!(
            "The path takes packets of {mtu} bytes. Where all that lies between the hosts takes \
             {JUMBO}, `ip link set INTERFACE mtu {JUMBO}` on both makes streams faster."
        )
    })
}

/// One way of ours beside one without, and how to measure both.
type Way = fn(&mut Side, u64, Duration) -> Result<f64, Error>;
/// Names and ways: ours, then the other.
const DUELS: [(&str, Way, &str, Way); 8] = [
    (
        "SEND, 8 B, one way",
        |s, n, _| s.ping_send(8, n),
        UDP_PING,
        |s, n, _| s.ping_udp(n),
    ),
    (
        "SEND, 8 B, one way",
        |s, n, _| s.ping_send(8, n),
        "TCP, 8 B, one way",
        |s, n, _| s.ping_tcp(8, n),
    ),
    (
        "WRITE, 8 B, one way",
        |s, n, _| s.ping_write(8, n),
        UDP_PING,
        |s, n, _| s.ping_udp(n),
    ),
    (
        "SEND, 4 KiB, one way",
        |s, n, _| s.ping_send(SEND_MAX, n),
        "TCP, 4 KiB, one way",
        |s, n, _| s.ping_tcp(SEND_MAX, n),
    ),
    (
        "WRITE, 64 KiB, one way",
        |s, n, _| s.ping_write(SHORT, n / 5),
        "TCP, 64 KiB, one way",
        |s, n, _| s.ping_tcp(SHORT, n / 5),
    ),
    (
        "WRITE, 64 KiB, in a stream",
        |s, _, t| s.write_stream(SHORT, t),
        "TCP, 64 KiB, in a stream",
        |s, _, t| s.tcp_stream(SHORT, t),
    ),
    (
        "WRITE, 64 KiB, in a stream",
        |s, _, t| s.write_stream(SHORT, t),
        "UDP, full datagrams, for 64 KiB",
        |s, _, t| s.udp_stream(SHORT, t),
    ),
    (
        "WRITE, 1 MiB, in a stream",
        |s, _, t| s.write_stream(LONG, t),
        "TCP, 1 MiB, in a stream",
        |s, _, t| s.tcp_stream(LONG, t),
    ),
];
const UDP_PING: &str = "UDP, 8 B, one way";

/// `causeway bench net HOST`
///
/// # Errors
/// Nobody serves there; the connection's and the device's.
pub fn measure(host: &str, port: u16, rounds: Rounds) -> Result<Table, Error> {
    let mut side = Side::of(connect((host, port), "causeway bench net --serve")?)?;
    let (turns, time) = (TURNS / rounds.divisor, TIME / rounds.divisor as u32);
    let mut rows = Vec::new();
    for (what, our_way, rival, their_way) in DUELS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds.count {
            ours.push(our_way(&mut side, turns, time)?);
            theirs.push(their_way(&mut side, turns, time)?);
        }
        rows.push(Row::new(what, median(ours), rival, median(theirs)));
    }
    side.control.say(&Request::End)?;
    let mtu = side.sockets.mtu;
    Ok(Table {
        rows,
        mtu: Some(mtu),
        advice: advice(mtu),
    })
}

/// A connection to a host, at which `program` is to run.
///
/// # Errors
/// Nobody answers there.
pub fn connect((host, port): (&str, u16), program: &str) -> Result<TcpStream, Error> {
    let mut failed = None;
    let found = (host, port).to_socket_addrs();
    for address in found.map_err(|error| format!("{host}: {error}"))? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = Some(error),
        }
    }
    let why = failed.map_or("it has no address".to_owned(), |error| error.to_string());
    Err(format!("{host}, port {port}: {why}; `{program}` is to run there").into())
}
