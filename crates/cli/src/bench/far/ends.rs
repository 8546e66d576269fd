//! Segments and interrupts of one side, connected to the other's.

use super::super::Error;
use super::super::net::control::{Control, Counted, PATIENCE, Sisci};
use super::super::net::until_asked;
use causeway_identity::PAGE;
use causeway_sisci::client::Client;
use causeway_sisci::copy::{Direction, between, copy, flush};
use causeway_sisci::dma::DmaQueue;
use causeway_sisci::interrupt::{Data, Kind, LocalInterrupt, Plain};
use causeway_sisci::local::LocalSegment;
use causeway_sisci::map::Map;
use causeway_sisci::remote::RemoteSegment;
use causeway_sisci::trigger::RemoteInterrupt;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// Bytes of the segment that are written to and counted. Behind them are the ping-pongs' words.
pub const AREA: usize = 4 << 20;
/// Where those are: of `SCIMemCpy`, and of stores.
const COPIED: usize = AREA;
const STORED: usize = AREA + 8;
/// Ids of the segments: one that the other side reaches, one that is copied from.
const TARGET: u32 = 0x00bf_0000;
const SOURCE: u32 = 0x00bf_0001;
/// Numbers of the interrupts.
const PLAIN: u32 = 0x00bf_0002;
const DATA: u32 = 0x00bf_0003;
/// How long a thread waits for an interrupt before it looks at the control connection.
const NAP: Duration = Duration::from_millis(20);
/// Threads that look during a ping-pong: two programs and two node daemons, which are on one
/// machine where the hosts are network namespaces.
pub const LOOKING: usize = 4;

/// What each side says of its own before they connect.
#[derive(Debug, Serialize, Deserialize)]
pub struct Meeting {
    /// Its node.
    pub node: u32,
}

/// How a range of the segment is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `SCIMemCpy`
    Copy,
    /// The same, with `SCI_FLAG_ERROR_CHECK`.
    CheckedCopy,
    /// `SCITransferBlock`
    Block,
    /// `SCIStartDmaTransfer` and `SCIWaitForDMAQueue`.
    Dma,
    /// A loop of 8-byte stores, and `SCIFlush`.
    Stores,
}

/// The objects of one side.
pub struct Ends {
    /// Fewer processors than threads that look.
    is_crowded: bool,
    client: Client,
    source: (Arc<LocalSegment>, Arc<Map>),
    own: Arc<Map>,
    other: (Arc<RemoteSegment>, Arc<Map>),
    queue: Arc<DmaQueue>,
    plain: Pair<Plain>,
    data: Pair<Data>,
    /// Number of the last ping-pong.
    turn: u64,
}

/// An interrupt of this side's, and the way to the other's.
struct Pair<K: Kind> {
    own: Arc<LocalInterrupt<K>>,
    other: Arc<RemoteInterrupt<K>>,
}

impl Ends {
    /// Makes this side's, then connects to the other's, which does the same at the other end of
    /// `control`. `wanted` is the node that it is to be, if any will not do.
    ///
    /// # Errors
    /// SISCI's; the connection's; the other side is another node.
    pub fn meet(client: Client, control: &mut Control, wanted: Option<u32>) -> Result<Ends, Error> {
        let (_, own) = client.offer(TARGET, AREA + PAGE)?;
        let source = client.offer(SOURCE, AREA)?;
        let (plain, data) = (client.interrupt(PLAIN)?, client.interrupt(DATA)?);
        control.say(&Meeting {
            node: client.node(),
        })?;
        let Meeting { node } = control.hear()?;
        if let Some(wanted) = wanted.filter(|&wanted| wanted != node) {
            return Err(format!("the other side is node {node}, not {wanted}").into());
        }
        let about =
            |what| move |error: causeway_sisci::Error| format!("node {node}, {what}: {error}");
        let other = client.connect_to(node, TARGET).map_err(about("segment"))?;
        let trigger = client.trigger_of(node, PLAIN);
        let plain = Pair {
            own: plain,
            other: trigger.map_err(about("interrupt"))?,
        };
        let trigger = client.trigger_of(node, DATA);
        let data = Pair {
            own: data,
            other: trigger.map_err(about("data interrupt"))?,
        };
        let queue = client.queue(1)?;
        let ends = Ends {
            is_crowded: available_parallelism().is_ok_and(|count| count.get() < LOOKING),
            client,
            source,
            own,
            other,
            queue,
            plain,
            data,
            turn: 0,
        };
        // Both have connected once both have said so.
        control.say(&true)?;
        match control.hear()? {
            true => Ok(ends),
            false => Err("the other side has not connected".into()),
        }
    }

    /// Writes the first `bytes` of the other's segment so many times, with `stamp` in each word.
    /// All have arrived when this returns. Nanoseconds for each.
    ///
    /// # Errors
    /// SISCI's.
    pub fn write(&self, way: Way, bytes: usize, stamp: u64, times: u64) -> Result<f64, Error> {
        let source = self.source.1.mapping().at(0, bytes)?.cast::<u64>();
        for index in 0..bytes / 8 {
            // SAFETY: inside of the map, and this process's alone.
            unsafe { source.add(index).write_volatile(stamp) };
        }
        let begun = Instant::now();
        for _ in 0..times {
            self.write_once(way, bytes, stamp)?;
        }
        self.client.settle(&self.other.1)?;
        Ok(begun.elapsed().as_nanos() as f64 / times as f64)
    }

    fn write_once(&self, way: Way, bytes: usize, stamp: u64) -> Result<(), Error> {
        let (segment, from) = &self.source;
        let (remote, to) = &self.other;
        match way {
            Way::Copy | Way::CheckedCopy => {
                let memory = from.mapping().at(0, bytes)?;
                let check = way == Way::CheckedCopy;
                // SAFETY: the source is as long.
                unsafe { copy(memory, to, 0, bytes, Direction::Write, check)? };
            }
            Way::Block => between((from, 0), (to, 0), bytes, false)?,
            Way::Dma => {
                self.client
                    .transfer(&self.queue, (segment, remote), bytes, false)?;
                self.queue.wait(None).1?;
            }
            Way::Stores => {
                let words = to.mapping().at(0, bytes)?.cast::<u64>();
                for index in 0..bytes / 8 {
                    // SAFETY: inside of the map.
                    unsafe { words.add(index).write_volatile(stamp) };
                }
                flush();
            }
        }
        Ok(())
    }

    /// A number to and fro, by copies or by stores. Nanoseconds of one way.
    ///
    /// # Errors
    /// SISCI's; silence.
    pub fn ping(&mut self, by_store: bool, turns: u64) -> Result<f64, Error> {
        let begun = Instant::now();
        for _ in 0..turns {
            self.turn += 1;
            self.put(by_store)?;
            let asked = Instant::now();
            while !self.has_come(by_store, self.turn) {
                self.look_again();
                if asked.elapsed() > PATIENCE {
                    return Err("no word comes back through the segment".into());
                }
            }
        }
        Ok(begun.elapsed().as_nanos() as f64 / (2 * turns) as f64)
    }

    fn echo(&mut self, control: &Control, by_store: bool) -> Result<(), Error> {
        until_asked(control, || {
            let due = self.has_come(by_store, self.turn + 1);
            if due {
                self.turn += 1;
                self.put(by_store)?;
            } else {
                self.look_again();
            }
            Ok::<bool, Error>(due)
        })
    }

    /// Between two looks at a word: where this machine has fewer processors than threads that look,
    /// the others have their turn.
    fn look_again(&self) {
        match self.is_crowded {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
    }

    fn put(&self, by_store: bool) -> Result<(), Error> {
        let to = &self.other.1;
        if by_store {
            let word = to.mapping().at(STORED, 8)?.cast::<u64>();
            // SAFETY: inside of the map, and aligned.
            unsafe { word.write_volatile(self.turn) };
            flush();
        } else {
            let mut number = self.turn;
            let memory = (&raw mut number).cast();
            // SAFETY: eight bytes are there.
            unsafe { copy(memory, to, COPIED, 8, Direction::Write, false)? };
        }
        Ok(())
    }

    fn has_come(&self, by_store: bool, turn: u64) -> bool {
        let at = if by_store { STORED } else { COPIED };
        self.word(at).load(Ordering::Acquire) == turn
    }

    /// A word of this side's own segment.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.own.mapping().len());
        // SAFETY: aligned and inside of the map, which `self` keeps; who else writes it does so
        // from another process.
        unsafe { AtomicU64::from_ptr(self.own.mapping().as_ptr().add(at).cast()) }
    }

    /// Bytes of the segment's words that are `stamp`.
    fn count(&self, stamp: u64) -> u64 {
        let is_it = |at: &usize| self.word(*at).load(Ordering::Acquire) == stamp;
        8 * (0..AREA).step_by(8).filter(is_it).count() as u64
    }

    /// Interrupts to and fro, `rest` apart. Nanoseconds there and back.
    ///
    /// # Errors
    /// SISCI's; silence.
    pub fn interrupt(&self, data: bool, turns: u64, rest: Duration) -> Result<f64, Error> {
        let mut spent = Duration::ZERO;
        for turn in 0..turns {
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
            let begun = Instant::now();
            let by = Some(begun + PATIENCE);
            match data {
                true => {
                    self.data.other.trigger(&turn.to_le_bytes())?;
                    self.data.own.receive(by, |_| true)?;
                }
                false => {
                    self.plain.other.trigger(&[])?;
                    self.plain.own.wait(by)?;
                }
            }
            spent += begun.elapsed();
        }
        Ok(spent.as_nanos() as f64 / turns as f64)
    }

    fn answer_interrupts(&self, control: &Control, data: bool) -> Result<(), Error> {
        let heard = Instant::now();
        let mut payload = Vec::new();
        while !control.is_asked() && heard.elapsed() < PATIENCE {
            let by = Some(Instant::now() + NAP);
            let came = match data {
                true => self.data.own.receive(by, |bytes| {
                    payload = bytes.to_vec();
                    true
                }),
                false => self.plain.own.wait(by),
            };
            match (came, data) {
                (Ok(()), true) => self.data.other.trigger(&payload)?,
                (Ok(()), false) => self.plain.other.trigger(&[])?,
                (Err(causeway_sisci::Error::TIMEOUT), _) => {}
                (Err(error), _) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Does what the other side asks for, until it asks for something else.
    ///
    /// # Errors
    /// SISCI's and the connection's.
    pub fn answer(&mut self, control: &Control, what: Sisci) -> Result<Counted, Error> {
        let mut counted = Counted::default();
        match what {
            Sisci::Rest => {}
            Sisci::CopyEcho => self.echo(control, false)?,
            Sisci::StoreEcho => self.echo(control, true)?,
            Sisci::Trigger => self.answer_interrupts(control, false)?,
            Sisci::Data => self.answer_interrupts(control, true)?,
            Sisci::Count(stamp) => counted.bytes = self.count(stamp),
        }
        Ok(counted)
    }
}
