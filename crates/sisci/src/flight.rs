//! What is known of a queue pair's requests: how many are under way, and what has gone wrong.

use crate::error::Error;
use crate::place::Place;

/// Requests whose keys and slots are remembered: as many as can be under way.
const REMEMBERED: usize = 64;
/// Keys that are known to have been refused.
const REFUSED: usize = 16;

/// What the program has stored to other hosts' segments goes there before what follows.
#[inline]
pub(crate) fn drain() {
    if causeway_pio::exist() {
        causeway_pio::sync();
    }
}

/// Why a request was not carried out, or may not have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Memory of this process is not there.
    Memory,
    /// The other host has refused the access.
    Refused,
    /// There is no queue pair, or there was none at some time.
    Broken,
    /// Nothing has been acknowledged for long.
    Quiet,
    /// It was to stop.
    Stopped,
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        match fault {
            Fault::Stopped => Error::CANCELLED,
            _ => Error::TRANSFER_FAILED,
        }
    }
}

/// How a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// All has arrived.
    Ok,
    /// Something may be missing, and can be stored again.
    Retriable,
    /// It does not pay to store yet.
    Pending,
    /// The memory is lost.
    NotRetriable,
}

/// The requests of a link, of all its queue pairs. They complete in their order.
///
/// Each has as many numbers as it takes slots, one at least.
#[derive(Debug)]
pub(crate) struct Flight {
    /// The first number of the next request.
    pub next: u64,
    /// The first number of the oldest request that has not ended.
    pub done: u64,
    /// How often something that was posted, or was to be, may have got lost.
    pub faults: u64,
    /// There will be no other queue pair.
    pub over: bool,
    /// Nothing has been acknowledged for long.
    quiet: bool,
    /// Keys of the requests under way, and how many numbers they have, each at its first number.
    keys: [u32; REMEMBERED],
    spans: [u8; REMEMBERED],
    /// Keys that were refused, each at its number modulo the size.
    refused: [u32; REFUSED],
    refusals: usize,
}

impl Default for Flight {
    fn default() -> Flight {
        Flight {
            next: 0,
            done: 0,
            faults: 0,
            over: false,
            quiet: false,
            keys: [0; REMEMBERED],
            spans: [1; REMEMBERED],
            refused: [0; REFUSED],
            refusals: 0,
        }
    }
}

impl Flight {
    /// How many numbers the requests under way have.
    pub fn under_way(&self) -> u64 {
        self.next - self.done
    }

    /// One more request is under way, with so many numbers; its key is 0 if it has none. Its first
    /// number.
    pub fn begin(&mut self, key: u32, span: u8) -> u64 {
        let number = self.next;
        self.keys[number as usize % REMEMBERED] = key;
        self.spans[number as usize % REMEMBERED] = span;
        self.next += u64::from(span);
        number
    }

    /// The oldest has arrived.
    pub fn note_done(&mut self) {
        self.done += u64::from(self.spans[self.done as usize % REMEMBERED]);
        self.quiet = false;
    }

    /// The oldest was refused: nothing goes there by its key any more.
    pub fn note_refused(&mut self) {
        let key = self.keys[self.done as usize % REMEMBERED];
        self.refused[self.refusals % REFUSED] = key;
        self.refusals += 1;
    }

    /// The queue pair has broken: what was under way may be missing.
    pub fn note_broken(&mut self) {
        self.done = self.next;
        self.faults += 1;
        self.quiet = false;
    }

    /// Something could not be posted: unless that has broken the queue pair, which counts by
    /// itself, this is a fault of its own.
    pub fn note_fault(&mut self, why: Fault) {
        self.faults += u64::from(why == Fault::Quiet);
    }

    /// Nothing has been acknowledged for long.
    pub fn set_quiet(&mut self) {
        self.quiet = true;
    }

    /// Whether nothing has, of what is under way.
    pub fn is_quiet(&self) -> bool {
        self.quiet && self.under_way() > 0
    }

    /// Whether an access to a place was refused.
    pub fn has_refused(&self, there: &Place) -> bool {
        let key = there.key();
        key != 0 && self.refused.contains(&key)
    }

    /// How a sequence stands that began when there were so many faults.
    pub fn judge(&self, faults: u64, there: &Place) -> Standing {
        if self.over || self.has_refused(there) {
            Standing::NotRetriable
        } else if self.faults != faults {
            Standing::Retriable
        } else {
            Standing::Ok
        }
    }
}

/// Why there is no queue pair.
pub(crate) enum LinkError {
    /// Something of this process.
    Local(Error),
    /// The daemon, or the way to it.
    Refused(causeway_fabric::Error),
}

impl From<Error> for LinkError {
    fn from(error: Error) -> LinkError {
        LinkError::Local(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_is_to_be_repeated_after_a_fault_and_is_over_after_a_refusal() {
        let mut flight = Flight::default();
        let (one, other) = (Place::new(0, 7), Place::new(0, 8));
        flight.begin(7, 1);
        flight.begin(8, 1);
        assert_eq!(flight.judge(0, &one), Standing::Ok);
        flight.note_done();
        flight.note_refused();
        flight.note_broken();
        assert_eq!(flight.under_way(), 0);
        assert_eq!(flight.judge(0, &one), Standing::Retriable);
        assert_eq!(flight.judge(1, &one), Standing::Ok);
        assert_eq!(flight.judge(1, &other), Standing::NotRetriable);
        // It is reached by another key now.
        other.set(0, 9);
        assert_eq!(flight.judge(1, &other), Standing::Ok);
        flight.over = true;
        assert_eq!(flight.judge(1, &one), Standing::NotRetriable);
    }

    #[test]
    fn a_request_of_several_slots_ends_as_one() {
        let mut flight = Flight::default();
        assert_eq!((flight.begin(7, 3), flight.begin(8, 1)), (0, 3));
        assert_eq!(flight.under_way(), 4);
        flight.note_done();
        assert_eq!((flight.done, flight.under_way()), (3, 1));
        flight.note_refused();
        assert_eq!(flight.judge(0, &Place::new(0, 8)), Standing::NotRetriable);
        assert_eq!(flight.judge(0, &Place::new(0, 7)), Standing::Ok);
    }

    #[test]
    fn what_finds_no_room_is_a_fault_and_an_acknowledgment_ends_the_quiet() {
        let mut flight = Flight::default();
        let place = Place::new(0, 7);
        flight.begin(7, 1);
        flight.set_quiet();
        assert!(flight.is_quiet());
        flight.note_fault(Fault::Quiet);
        assert_eq!(flight.judge(0, &place), Standing::Retriable);
        flight.note_done();
        assert!(!flight.is_quiet());
    }
}
