//! A secured connection in use, two UD queue pairs with an association, and somebody on the path
//! between them who loses, delays and reorders datagrams, repeats them, cuts and changes copies of
//! them, and makes up others.

use std::collections::VecDeque;

#[path = "tampering_connection.rs"]
mod connection;
#[path = "tampering_ud.rs"]
mod ud;

use crate::script::Script;
use connection::Connected;
use ud::Associated;

/// Datagrams on the way to a side; what is more is lost.
const FLIGHT_MAX: usize = 64;
/// Delivered datagrams that are kept to be repeated and changed.
const HEARD_MAX: usize = 64;

/// Bytes of a forged datagram that the script brings: its header, and some.
const MADE_UP_MAX: usize = 48;

/// Each step is a byte, whose lower half says what is done and whose upper half to which side, and
/// operands. Returns how many datagrams were forged.
pub fn run(data: &[u8]) -> u64 {
    let mut script = Script { rest: data };
    let (mut connected, mut associated) = (Connected::new(), Associated::new());
    let mut count = 0;
    while let Some(step) = script.byte() {
        let (what, to) = (step & 0xF, usize::from(step >> 4) % 4);
        let said = match to {
            0 | 1 => connected.step(to, what, &mut script),
            _ => associated.step(what, &mut script),
        };
        count += u64::from(said);
    }
    connected.finish();
    associated.finish();
    count
}

/// What an honest step does to a way. Returns what is delivered.
fn honest(way: &mut Way, what: u8, script: &mut Script<'_>) -> Option<Vec<u8>> {
    match what {
        LOSE => {
            way.flight.pop_front();
            None
        }
        REORDER => way.take(usize::from(script.byte()?)),
        _ => way.take(0),
    }
}

/// What the steps do. From `FORGE` on they are forgeries.
const LOSE: u8 = 0;
const REORDER: u8 = 1;
// 2 delivers the oldest.
const WAIT: u8 = 3;
const FORGE: u8 = 4;

/// The datagrams of one kind on their way to one side.
#[derive(Default)]
struct Way {
    flight: VecDeque<Vec<u8>>,
    heard: VecDeque<Vec<u8>>,
}

impl Way {
    fn send(&mut self, datagram: Vec<u8>) {
        if self.flight.len() < FLIGHT_MAX {
            self.flight.push_back(datagram);
        }
    }

    /// Takes what is to be delivered now.
    fn take(&mut self, at: usize) -> Option<Vec<u8>> {
        let at = at.checked_rem(self.flight.len())?;
        let datagram = self.flight.remove(at)?;
        if self.heard.len() == HEARD_MAX {
            self.heard.pop_front();
        }
        self.heard.push_back(datagram.clone());
        Some(datagram)
    }

    /// A datagram that was delivered already.
    fn delivered(&self, at: usize) -> Option<&Vec<u8>> {
        self.heard.get(at.checked_rem(self.heard.len())?)
    }

    /// One to be copied and changed: delivered, or on its way.
    fn any(&self, at: usize) -> Option<&Vec<u8>> {
        let at = at.checked_rem(self.heard.len() + self.flight.len())?;
        self.heard.iter().chain(&self.flight).nth(at)
    }
}

/// What the intruder says to a side.
fn forged(way: &Way, what: u8, script: &mut Script<'_>) -> Option<Vec<u8>> {
    let which = usize::from(script.byte()?);
    match what {
        // The same again.
        FORGE..=6 => way.delivered(which).cloned(),
        // A copy with a byte changed.
        7..=10 => {
            let mut copy = way.any(which)?.clone();
            let at = usize::from(script.u16()) % copy.len();
            copy[at] ^= script.byte()?.max(1);
            Some(copy)
        }
        // The beginning of a copy.
        11 => {
            let mut copy = way.any(which)?.clone();
            copy.truncate(usize::from(script.u16()) % copy.len());
            Some(copy)
        }
        // The beginning of a copy, and bytes of the script's own.
        _ => {
            let copy = way.any(which)?;
            let kept = usize::from(script.byte()?) % copy.len();
            let made = usize::from(script.byte()?) % MADE_UP_MAX;
            let made = made.min(script.rest.len());
            let (own, rest) = script.rest.split_at(made);
            script.rest = rest;
            let made = [&copy[..kept], own].concat();
            (made != *copy).then_some(made)
        }
    }
}
