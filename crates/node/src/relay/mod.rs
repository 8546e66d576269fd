//! The relay: takes processes of this host to other hosts' node daemons, where they have no network
//! to go there by themselves, as in a virtual machine or a container.
//!
//! A process connects to a data interrupt of the daemon's and names one of its own. By this pipe it
//! sends what it would send over TCP, and the relay passes it on ([`process`]), but says itself who
//! the process is: one of its own node. Bytes go by a segment of the process's and a queue pair of
//! the relay's ([`transfers`]).
//!
//! What comes from a process is another trust domain's. Nothing of it is believed but its tenant
//! and its node, which are the broker's word.

mod process;
mod transfers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use causeway_fabric::Error;
use causeway_fabric::launch::timespec;
use causeway_fabric::services::relay::RELAY_NUMBER;
use causeway_fabric::services::sisci::CellChange;
use causeway_fabric::sisci::{Cell, Event, Sisci};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::limits::{RELAY_NUMBER_INTERVAL, RELAYED_MAX, SCARCITY};
use crate::shared::Shared;

/// Name of the thread that takes processes.
const THREAD: &str = "causeway-relay";
/// Name of the thread of each.
const THREAD_OF_PROCESS: &str = "causeway-carry";

/// A place among the processes that are carried for, until it is dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Place> {
        let place = Place(Arc::clone(taken));
        // The place is given back if it is one too many.
        (taken.fetch_add(1, Ordering::AcqRel) < RELAYED_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Begins to take processes, in a thread of its own.
pub fn begin(shared: &Arc<Shared>) {
    let node = shared.own.node();
    let sisci = match Sisci::open_as(Some(&shared.broker), Some(node)) {
        Ok(sisci) => sisci,
        Err(error) => {
            return tracing::warn!(%error, node, "no relay for processes without a network");
        }
    };
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name(THREAD.into());
    let spawned = thread.spawn(move || {
        if let Some(interrupt) = await_number(&sisci) {
            take_processes(&shared, &sisci, interrupt);
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no relay for processes without a network: no thread");
    }
}

/// The interrupt that processes come to, once this daemon has it. A broker that was started anew
/// keeps the number for the daemon before, which does not come back where that was too; it tells
/// nobody when it stops that.
fn await_number(sisci: &Sisci) -> Option<u32> {
    let mut told = false;
    loop {
        let error = match sisci.create_interrupt(Some(RELAY_NUMBER), true, false) {
            Ok(made) => {
                tracing::info!("the relay serves processes without a network");
                return Some(made.interrupt);
            }
            Err(error) => error,
        };
        if !is_passing(&error) {
            tracing::warn!(%error, "no relay for processes without a network");
            return None;
        }
        if !told {
            told = true;
            tracing::info!(%error, "the relay waits until the broker gives it its interrupt");
        }
        // A broker's end shows by the call.
        let _ = poll(&mut [], Some(&timespec(RELAY_NUMBER_INTERVAL)));
        if matches!(sisci.session().is_attached(), Ok(false)) {
            // If it fails, the next call says so.
            drop(sisci.session().reattach());
        }
    }
}

/// Whether the number can be had later: it is another's, or there is no broker at the moment.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Refused { errno, .. } => *errno == Errno::EXIST,
        Error::BrokerGone | Error::Timeout => true,
        _ => false,
    }
}

fn take_processes(shared: &Arc<Shared>, sisci: &Sisci, interrupt: u32) {
    let taken = Arc::new(AtomicUsize::new(0));
    loop {
        let mut fds = [PollFd::from_borrowed_fd(sisci.event_fd(), PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(why) => return tracing::error!(%why, "the relay takes no more processes"),
        }
        let Ok(events) = sisci.poll_events() else {
            return;
        };
        for event in events {
            match event {
                Event::Interrupt {
                    change: CellChange::Added,
                    ..
                } => match sisci.take_cells(interrupt, true) {
                    Ok(cells) => cells
                        .into_iter()
                        .for_each(|cell| carry(shared, cell, &taken)),
                    Err(error) => {
                        tracing::warn!(%error, "the relay cannot take a process");
                        let _ = poll(&mut [], Some(&timespec(SCARCITY)));
                    }
                },
                Event::InterruptForgotten { .. } => {
                    return tracing::error!(
                        "the broker has given the relay's interrupt to another session"
                    );
                }
                // If it fails, the event comes again.
                Event::BrokerGone => drop(sisci.session().reattach()),
                _ => {}
            }
        }
    }
}

/// Carries for a process until its end, in a thread of its own.
fn carry(shared: &Arc<Shared>, cell: Cell, taken: &Arc<AtomicUsize>) {
    let Some(place) = Place::take(taken) else {
        return tracing::warn!("refused: the relay serves too many processes already");
    };
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name(THREAD_OF_PROCESS.into());
    let spawned = thread.spawn(move || {
        process::serve(&shared, cell);
        drop(place);
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "refused: no thread for another process");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_taken_is_waited_for_and_no_other_refusal() {
        let refused = |errno| Error::Refused {
            method: "create_interrupt",
            errno,
        };
        assert!(is_passing(&refused(Errno::EXIST)) && is_passing(&Error::BrokerGone));
        assert!(!is_passing(&refused(Errno::ACCESS)) && !is_passing(&refused(Errno::MFILE)));
    }

    #[test]
    fn places_are_limited_and_given_back() {
        let taken = Arc::new(AtomicUsize::new(0));
        let mut held: Vec<Place> = (0..RELAYED_MAX)
            .map(|_| Place::take(&taken).unwrap())
            .collect();
        assert!(Place::take(&taken).is_none());
        assert!(Place::take(&taken).is_none(), "refusals take none");
        held.pop();
        assert!(Place::take(&taken).is_some());
    }
}
