//! `causeway bench sisci --node N`: segments and interrupts of another host's node, beside verbs
//! WRITEs of the same sizes and bare UDP to the same host.
//!
//! The other host runs `causeway bench sisci --serve`. Of what is written the other side counts
//! afterwards what is there, so a row whose bytes have not arrived says so.

mod ends;

use super::net::control::{Request, Sisci};
use super::net::queue_pair::DEPTH;
use super::net::{Side, connect};
use super::{Error, Moved, Rounds, Row, Table, in_turn};
use causeway_sisci::client::Client;
use ends::{AREA, Ends, LOOKING, Way};
use rustix::event::{EventfdFlags, eventfd};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What runs on the other host.
const SERVER: &str = "causeway bench sisci --serve";
/// Sizes of what is written, and what they are called.
const SIZES: [(usize, &str); 7] = [
    (8, "8 B"),
    (512, "512 B"),
    (4 << 10, "4 KiB"),
    (8 << 10, "8 KiB"),
    (64 << 10, "64 KiB"),
    (1 << 20, "1 MiB"),
    (4 << 20, "4 MiB"),
];
/// From this size on figures are of a stream, and are held to that of a WRITE or of UDP.
const LARGE: usize = 64 << 10;
/// Bytes that are written in one measurement, and how often at most.
const VOLUME: usize = 16 << 20;
const TIMES: u64 = 2_000;
/// A window costs a READ for each page beside the WRITE, and two faults.
const STORED_VOLUME: usize = 4 << 20;
/// Turns of a ping-pong in one measurement, and of one that wakes a thread; how long nothing
/// happens before each of these, so that it sleeps.
const TURNS: u64 = 1_000;
const WAKES: u64 = 50;
const REST: Duration = Duration::from_millis(2);
/// How long a stream of datagrams flows.
const FLOW: Duration = Duration::from_millis(200);

// What the ratios are held to, of times.
/// 0.95 of the bytes that WRITE carries.
const TO_WRITE: f64 = 1.0 / 0.95;
/// 0.4 of them: a page that was opened costs a READ as well.
const TO_WRITE_BY_STORES: f64 = 1.0 / 0.4;
/// To the bare socket.
const TO_UDP: f64 = 1.3;

const _: () = assert!(AREA >= SIZES[SIZES.len() - 1].0);

/// One of the two sides.
struct Far {
    net: Side,
    ends: Ends,
    rounds: Rounds,
    stamp: u64,
}

/// `causeway bench sisci --serve`: does what one client asks, until that ends.
///
/// # Errors
/// The port is taken; the client's, the connection's and SISCI's.
pub fn serve(port: u16) -> Result<(), Error> {
    let client = Client::open()?;
    let mut net = Side::accept(port)?;
    let mut ends = Ends::meet(client, &mut net.control, None)?;
    net.serve(|net, request| match request {
        Request::Sisci(what) => {
            let counted = ends.answer(&net.control, what)?;
            net.stopped()?;
            Ok(counted)
        }
        request => net.answer(request),
    })
}

/// `causeway bench sisci --node N`
///
/// # Errors
/// The node is none of another host's, or nobody serves there; the connection's and SISCI's.
pub fn measure(node: u32, port: u16, rounds: Rounds) -> Result<Table, Error> {
    let client = Client::open()?;
    let mut net = Side::of(reach(&client, node, port)?)?;
    let ends = Ends::meet(client, &mut net.control, Some(node))?;
    let mut far = Far {
        net,
        ends,
        rounds,
        stamp: 0,
    };
    let mut rows = Vec::new();
    far.measure_turns(&mut rows)?;
    for (bytes, size) in SIZES {
        far.measure_writes(bytes, size, &mut rows)?;
    }
    far.net.control.say(&Request::End)?;
    Ok(Table {
        rows,
        mtu: Some(far.net.sockets.mtu),
        advice: Some(ADVICE.to_owned()),
    })
}

/// What the column of aims does not say.
const ADVICE: &str = "Beyond the ratio, a store may take as long as two page faults do. With fewer \
                      than four processors, threads that look keep each other from running.";

/// A connection to the node's host.
fn reach(client: &Client, node: u32, port: u16) -> Result<TcpStream, Error> {
    if node == client.node() {
        return Err(format!("node {node} is this one: bench sisci without --node").into());
    }
    let mut failed = format!("node {node} has no address in the broker's configuration").into();
    for address in client.addresses(node)? {
        match connect((&address.to_string(), port), SERVER) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl Far {
    /// The medians of two figures that are measured in turn.
    fn compare(
        &mut self,
        ours: impl FnMut(&mut Far) -> Result<f64, Error>,
        theirs: impl FnMut(&mut Far) -> Result<f64, Error>,
    ) -> Result<(f64, f64), Error> {
        let times = self.rounds.count;
        in_turn(self, times, ours, theirs)
    }

    fn sisci(
        &mut self,
        what: Sisci,
        measure: impl FnOnce(&mut Ends) -> Result<f64, Error>,
    ) -> Result<f64, Error> {
        let Far { net, ends, .. } = self;
        let measured = net.during(Request::Sisci(what), |_| Ok((measure(ends)?, 0)))?;
        Ok(measured.0)
    }

    /// What goes to and fro.
    fn measure_turns(&mut self, rows: &mut Vec<Row>) -> Result<(), Error> {
        let (turns, wakes) = (TURNS / self.rounds.divisor, WAKES / self.rounds.divisor);
        let udp = |far: &mut Far| far.net.ping_udp(turns);
        let there_and_back =
            |far: &mut Far| -> Result<f64, Error> { Ok(2.0 * far.net.ping_udp(turns)?) };
        let asleep = |far: &mut Far| -> Result<f64, Error> {
            let woken = far.net.during(Request::UdpWake, |side| {
                Ok((side.sockets.ping_udp_rested(wakes, REST)?, 0))
            })?;
            // Each way ends with a thread that the datagram's receiver wakes.
            Ok(woken.0 + 2.0 * wake_by_eventfd(wakes)?)
        };
        let mut add = |what, rival, (ours, theirs), held_to, processors| {
            let mut row = Row::new(what, ours, rival, theirs);
            row.held_to = held_to;
            row.processors = processors;
            rows.push(row);
        };
        let times = self.compare(|far| far.net.ping_write(8, turns), udp)?;
        add("WRITE, 8 B, one way", UDP, times, None, None);
        for (what, by_store, asked) in [
            ("SCIMemCpy, 8 B, one way", false, Sisci::CopyEcho),
            ("store + SCIFlush, 8 B, one way", true, Sisci::StoreEcho),
        ] {
            let ours = |far: &mut Far| far.sisci(asked, |ends| ends.ping(by_store, turns));
            let times = self.compare(ours, udp)?;
            add(what, UDP, times, Some(TO_UDP), Some(LOOKING));
        }
        for (looking, sleeping, data, asked, held_to) in [
            (
                "trigger to who looks, and back",
                "trigger to who sleeps, and back",
                false,
                Sisci::Trigger,
                Some(TO_UDP),
            ),
            (
                "data interrupt to who looks, and back",
                "data interrupt to who sleeps, and back",
                true,
                Sisci::Data,
                None,
            ),
        ] {
            let ours = |far: &mut Far| {
                far.sisci(asked, |ends| ends.interrupt(data, turns, Duration::ZERO))
            };
            let times = self.compare(ours, there_and_back)?;
            add(looking, UDP_BACK, times, held_to, Some(LOOKING));
            let ours = |far: &mut Far| far.sisci(asked, |ends| ends.interrupt(data, wakes, REST));
            let times = self.compare(ours, asleep)?;
            add(sleeping, UDP_WAKE, times, held_to, None);
        }
        Ok(())
    }

    /// What writes so many bytes.
    fn measure_writes(
        &mut self,
        bytes: usize,
        size: &str,
        rows: &mut Vec<Row>,
    ) -> Result<(), Error> {
        let divisor = self.rounds.divisor;
        let times = (((VOLUME / bytes) as u64).min(TIMES) / divisor).max(2);
        let large = bytes >= LARGE;
        let stream = move |far: &mut Far| far.write_times(bytes, times, DEPTH);
        let singly = move |far: &mut Far| far.write_times(bytes, times, 1);
        let write = format!("WRITE, {size}, in a stream");
        if large {
            let flow = FLOW / divisor as u32;
            let times = self.compare(stream, |far| far.net.udp_stream(bytes, flow))?;
            let rival = format!("UDP, full datagrams, for {size}");
            rows.push(Row::new(write.clone(), times.0, rival, times.1));
        }
        for (name, way) in [
            ("SCIMemCpy", Way::Copy),
            ("SCIMemCpy, ERROR_CHECK", Way::CheckedCopy),
            ("SCITransferBlock", Way::Block),
            ("DMA", Way::Dma),
            (
                if large {
                    "loop of stores"
                } else {
                    "store + SCIFlush"
                },
                Way::Stores,
            ),
        ] {
            let times = match way {
                Way::Stores => times.min((STORED_VOLUME / bytes).max(1) as u64),
                _ => times,
            };
            self.stamp += 1;
            let stamp = self.stamp;
            let ours =
                |far: &mut Far| far.sisci(Sisci::Rest, |ends| ends.write(way, bytes, stamp, times));
            // A call that waits is compared with a WRITE that is waited for.
            let waits = matches!(way, Way::CheckedCopy | Way::Dma);
            let (compared, rival) = match waits {
                true => (
                    self.compare(ours, singly)?,
                    format!("WRITE, {size}, one at a time"),
                ),
                false => (self.compare(ours, stream)?, write.clone()),
            };
            let mut row = Row::new(format!("{name}, {size}"), compared.0, rival, compared.1);
            row.held_to = large.then_some(match way {
                Way::Stores => TO_WRITE_BY_STORES,
                _ => TO_WRITE,
            });
            let arrived = self.arrived(stamp)?;
            row.moved = Some(Moved { bytes, arrived });
            rows.push(row);
        }
        Ok(())
    }

    fn write_times(&mut self, bytes: usize, times: u64, depth: usize) -> Result<f64, Error> {
        let measured = self.net.during(Request::Writes, |side| {
            Ok((side.queue_pair.write_times(bytes, times, depth)?, 0))
        })?;
        Ok(measured.0)
    }

    /// Bytes of the other's segment that are words of this value.
    fn arrived(&mut self, stamp: u64) -> Result<u64, Error> {
        let counted = self
            .net
            .during(Request::Sisci(Sisci::Count(stamp)), |_| Ok(((), 0)))?;
        Ok(counted.1.bytes)
    }
}

const UDP: &str = "UDP, 8 B, one way";
const UDP_BACK: &str = "UDP, 8 B, and back";
const UDP_WAKE: &str = "UDP and eventfd, asleep, and back";

/// Nanoseconds until a thread runs that sleeps on an eventfd(2), and the one that woke it has heard
/// so, by half.
fn wake_by_eventfd(turns: u64) -> Result<f64, Error> {
    let (there, back) = (
        eventfd(0, EventfdFlags::CLOEXEC)?,
        eventfd(0, EventfdFlags::CLOEXEC)?,
    );
    let mut spent = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..turns {
                let _ = rustix::io::read(&there, &mut [0; 8]);
                let _ = rustix::io::write(&back, &1_u64.to_ne_bytes());
            }
        });
        for _ in 0..turns {
            std::thread::sleep(REST);
            let begun = Instant::now();
            rustix::io::write(&there, &1_u64.to_ne_bytes())?;
            rustix::io::read(&back, &mut [0; 8])?;
            spent += begun.elapsed();
        }
        Ok(spent.as_nanos() as f64 / (2 * turns) as f64)
    })
}
