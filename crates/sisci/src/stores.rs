//! Maps of other hosts' segments: their loads and stores become READs and WRITEs, by a software
//! window (`causeway_pio`).
//!
//! A thread of this module closes pages that were opened for dense access in time. It is started
//! with the first such map, sleeps while no page is open, and never calls the program.

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use causeway_pio::{Lost, Options, Remote};

use crate::error::{Error, Result};
use crate::flight::Fault;
pub(crate) use crate::flight::drain;
use crate::interpose;
use crate::life_table::{Lives, Owner};
use crate::memory::{Mapping, PAGE, Place};
use crate::window::Window;

/// How long a load waits for another queue pair: longer than a process tries to come back
/// ([`crate::peer`]), after which the memory is lost.
const RETURN: Duration = Duration::from_secs(15);
/// The setting that leaves loops of stores to the processor.
const LOOPS: &str = "CAUSEWAY_SISCI_LOOPS";
/// Name of the thread.
const THREAD: &str = "causeway-stores";

/// A segment of another host, and its owner's life.
#[derive(Clone, Debug)]
pub(crate) struct Far {
    /// The way to its bytes.
    pub window: Window,
    /// Where the life is kept.
    pub lives: Arc<Lives>,
    /// Whose it is.
    pub owner: Owner,
}

/// The way that the loads and stores of one map go.
struct Way {
    far: Far,
    /// Where the map's first page begins in the segment.
    base: usize,
}

impl Way {
    /// Nothing is asked of a segment that is known to be lost: the refusal would break the queue
    /// pair, by which other segments are reached, too. A group lives on in its other members.
    fn is_there(&self) -> core::result::Result<(), Lost> {
        match self.far.window.group().is_some() || self.far.owner.is_alive() {
            true => Ok(()),
            false => Err(Lost),
        }
    }

    /// Whether a fault is the memory's end. Another passes: stores are missing then, and sequences
    /// say so. What was refused may have been another segment's.
    fn judge(&self, fault: Fault) -> core::result::Result<(), Lost> {
        if fault == Fault::Refused && self.far.window.is_refused() {
            self.far.lives.end(self.far.owner.life);
        }
        match self.far.owner.is_alive() {
            true => Ok(()),
            false => Err(Lost),
        }
    }
}

impl Remote for Way {
    fn write(&self, offset: usize, bytes: &[u8]) -> core::result::Result<(), Lost> {
        self.is_there()?;
        let posted = self.far.window.post(self.base + offset, bytes);
        posted.or_else(|fault| self.judge(fault))
    }

    fn write_runs(
        &self,
        offset: usize,
        bytes: &[u8],
        runs: &[Range<usize>],
    ) -> core::result::Result<(), Lost> {
        self.is_there()?;
        let posted = self.far.window.post_runs(self.base + offset, bytes, runs);
        posted.or_else(|fault| self.judge(fault))
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) -> core::result::Result<(), Lost> {
        self.is_there()?;
        let window = &self.far.window;
        while let Err(fault) = window.read(self.base + offset, bytes) {
            self.judge(fault)?;
            // A load has nothing to give until there is another queue pair, or none any more.
            if !window.wait(RETURN) {
                self.judge(fault)?;
                bytes.fill(u8::MAX);
                break;
            }
        }
        Ok(())
    }

    fn flush(&self) -> core::result::Result<(), Lost> {
        self.far.window.flush();
        Ok(())
    }
}

/// Maps a part of a segment of another host. The mapping's addresses are the window's.
///
/// # Errors
/// [`Error::ILLEGAL_ADDRESS`], [`Error::NOSPC`], [`Error::SYSTEM`].
pub(crate) fn map(far: Far, place: Place) -> Result<(Mapping, causeway_pio::Window)> {
    if !place.address.is_multiple_of(PAGE) {
        return Err(Error::ILLEGAL_ADDRESS);
    }
    start()?;
    let inside = place.offset % PAGE;
    let options = Options {
        at: ptr::with_exposed_provenance_mut(place.address),
        read_only: place.read_only,
        loops: causeway_setting::setting(LOOPS).is_none_or(|value| value != "off"),
    };
    let way = Way {
        base: place.offset - inside,
        far,
    };
    let stores = causeway_pio::Window::with(inside + place.len, options, Box::new(way));
    let stores = stores.map_err(|error| from_window(&error))?;
    interpose::watch();
    Ok((Mapping::given(stores.as_ptr(), place), stores))
}

fn from_window(error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EEXIST | libc::EINVAL) => Error::ILLEGAL_ADDRESS,
        Some(libc::ENOMEM) => Error::NOSPC,
        _ => Error::SYSTEM,
    }
}

/// The thread of the process with the number beside it.
static CLOSER: AtomicPtr<Thread> = AtomicPtr::new(ptr::null_mut());
static OF_PROCESS: AtomicU32 = AtomicU32::new(0);

/// Starts the thread, unless this process has one.
fn start() -> Result<()> {
    let process = std::process::id();
    if OF_PROCESS.swap(process, Ordering::AcqRel) == process {
        return Ok(());
    }
    let thread = std::thread::Builder::new().name(THREAD.into());
    let started = causeway_recover::spawn(thread, |_| close_in_time()).map_err(|_| {
        OF_PROCESS.store(0, Ordering::Release);
        Error::SYSTEM
    })?;
    // Never freed: the bell may be about to use it.
    let handle = Box::into_raw(Box::new(started.thread().clone()));
    CLOSER.store(handle, Ordering::Release);
    causeway_pio::set_bell(wake);
    wake();
    Ok(())
}

/// Wakes the thread. Also called in the handler of a fault: it takes no lock.
fn wake() {
    // SAFETY: null, or what `start` has left there for ever.
    if let Some(thread) = unsafe { CLOSER.load(Ordering::Acquire).as_ref() } {
        thread.unpark();
    }
}

fn close_in_time() {
    loop {
        let Some(due) = causeway_pio::deadline() else {
            std::thread::park();
            continue;
        };
        // Read afterwards: what is overdue is due at the moment that was asked.
        let now = Instant::now();
        match due > now {
            true => std::thread::park_timeout(due - now),
            false => causeway_pio::close_due(now),
        }
    }
}
