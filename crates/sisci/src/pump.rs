//! The event thread: it takes the broker's events, and hands each to the object that it is about.
//!
//! It sleeps while there are none, and never calls the program.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use causeway_fabric::services::sisci::CellChange;
use causeway_fabric::sisci::{Event, Sisci};
use causeway_owned::Owned;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use crate::error::{Error, Result};
use crate::library::Library;
use crate::remote::RemoteSegment;

/// Name of the thread.
const THREAD: &str = "causeway-sisci";

/// Wakes the thread, and ends it.
#[derive(Debug)]
pub(crate) struct Control {
    fd: Owned,
    stopped: AtomicBool,
}

impl Control {
    /// Has it look again.
    pub fn kick(&self) {
        // Fails only if the counter is full, and then it is readable already.
        let _ = self.fd.signal();
    }

    /// Ends it.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.kick();
    }
}

/// Starts it.
pub(crate) fn start(library: &'static Library, sisci: Arc<Sisci>) -> Result<Arc<Control>> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let control = Arc::new(Control {
        fd: Owned::new(
            fd.map_err(|_| Error::SYSTEM)?,
            "what wakes the thread of SISCI",
        ),
        stopped: AtomicBool::new(false),
    });
    let own = control.clone();
    let thread = std::thread::Builder::new().name(THREAD.into());
    let run = move |_| while turn(library, &sisci, &own) {};
    causeway_recover::spawn(thread, run).map_err(|_| Error::SYSTEM)?;
    Ok(control)
}

/// Waits for events, and hands them out. Returns whether to go on.
fn turn(library: &Library, sisci: &Sisci, control: &Control) -> bool {
    let next = expire(library);
    let timeout = next.map(timespec);
    let mut fds = [
        PollFd::from_borrowed_fd(sisci.event_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(control.fd.as_fd(), PollFlags::IN),
    ];
    // Whatever interrupts it, it looks.
    let _ = poll(&mut fds, timeout.as_ref());
    if !fds[1].revents().is_empty() && control.fd.drain().is_err() {
        return false;
    }
    if control.stopped.load(Ordering::SeqCst) {
        return false;
    }
    if fds[0].revents().is_empty() {
        return true;
    }
    match sisci.poll_events() {
        // Another thread is inside a call: until it is out, there is nothing to be had.
        Ok(events) if events.is_empty() => sisci.session().with_registry(|_| ()).is_ok(),
        Ok(events) => {
            for event in events {
                hand_out(library, sisci, event);
            }
            true
        }
        Err(_) => false,
    }
}

fn hand_out(library: &Library, sisci: &Sisci, event: Event) {
    causeway_fault::point("sisci.event");
    // Looked up under the lock, and told without it.
    let registry = || library.registry.lock();
    match event {
        Event::Local {
            segment,
            change,
            node,
            ..
        } => {
            let segment = registry().local(segment);
            if let Some(segment) = segment {
                segment.note(library, change, node);
            }
        }
        Event::Remote { connection, change } => {
            let connection = registry().remote(connection);
            if let Some(connection) = connection {
                connection.note(library, change);
            }
        }
        Event::Interrupt {
            interrupt,
            change,
            cell,
        } => {
            let owner = registry().interrupt(interrupt);
            match (owner, change) {
                (Some(owner), CellChange::Added) => owner.added(sisci),
                (Some(owner), CellChange::Removed) => owner.removed(Some(cell)),
                (None, _) => {}
            }
        }
        Event::RemoteInterrupt {
            connection,
            change,
            cell,
        } => {
            let owner = registry().trigger(connection);
            match (owner, change) {
                (Some(owner), CellChange::Added) => owner.added(sisci),
                (Some(owner), CellChange::Removed) => owner.removed(Some(cell)),
                (None, _) => {}
            }
        }
        Event::InterruptForgotten { interrupt } => {
            let owner = registry().interrupt(interrupt);
            if let Some(owner) = owner {
                owner.removed(None);
            }
        }
        Event::SegmentForgotten { segment } => {
            let segment = registry().local(segment);
            if let Some(segment) = segment {
                segment.forgotten(library, sisci.node());
            }
        }
        Event::Returned { ticket } => library.returns.tell(ticket),
        // If it fails, the event comes again.
        Event::BrokerGone => drop(sisci.session().reattach()),
    }
}

/// Ends asynchronous connects whose time is over. Returns how long until the next one's is.
fn expire(library: &Library) -> Option<Duration> {
    // Those that are pending no more, or gone, are forgotten.
    let mut pending: Vec<Arc<RemoteSegment>> = Vec::new();
    library.awaited.lock().retain(|remote| {
        let remote = remote
            .upgrade()
            .filter(|remote| remote.deadline().is_some());
        pending.extend(remote.clone());
        remote.is_some()
    });
    let now = Instant::now();
    let mut next: Option<Instant> = None;
    for remote in pending {
        match remote.deadline() {
            Some(by) if by <= now => remote.expire(library),
            Some(by) => next = Some(next.map_or(by, |next| next.min(by))),
            None => {}
        }
    }
    next.map(|by| by.saturating_duration_since(now))
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().min(i32::MAX as u64) as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
