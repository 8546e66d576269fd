//! Windows as their owner has them, and what concerns all of the process.

use std::fmt;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use causeway_recover as recover;

use crate::backing::Backing;
use crate::clock;
use crate::core::Core;
use crate::forks;
use crate::handler;
use crate::limits::{BYTES, PAGE};
use crate::memory::Memory;
use crate::remote::Remote;
use crate::signals::Blocked;
use crate::table;
#[cfg(target_arch = "x86_64")]
use crate::{decode, registers};

/// How a window is to be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where it begins: an address of a page, where nothing is mapped. Null: anywhere.
    pub at: *mut u8,
    /// Stores fault, as they do on memory that is mapped for reading.
    pub read_only: bool,
    /// Loops of stores are interpreted ([the crate](crate)). Without that each of their stores is a
    /// trap, until they are so many that their page is opened.
    pub loops: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            at: ptr::null_mut(),
            read_only: false,
            loops: true,
        }
    }
}

/// A range of addresses that stands for remote memory. Dropping it drains and unmaps it; in a child
/// made by fork(2), whose parent has made it, nothing happens.
pub struct Window {
    slot: usize,
    start: *mut u8,
    len: usize,
}

// SAFETY: the pointer is an address that is given away; everything else is behind the table.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Window");
        shown
            .field("start", &self.start)
            .field("len", &self.len)
            .finish()
    }
}

impl Window {
    /// A window onto the first `len` bytes of `remote`, anywhere. It installs the handler of
    /// SIGSEGV ([`install`]). Nothing is read yet.
    ///
    /// # Errors
    /// As [`with`](Window::with).
    pub fn new(len: usize, remote: Box<dyn Remote>) -> io::Result<Window> {
        Window::with(len, Options::default(), remote)
    }

    /// The same with options.
    ///
    /// # Errors
    /// EINVAL if `len` is 0 or more than [`BYTES`](crate::limits::BYTES), or pages have another
    /// size than [`PAGE`](crate::limits::PAGE); EEXIST if something is mapped at the address that
    /// was asked for; ENOMEM, also where there are [`WINDOWS`](crate::limits::WINDOWS) already.
    pub fn with(len: usize, options: Options, remote: Box<dyn Remote>) -> io::Result<Window> {
        // SAFETY: a question.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if len == 0 || len > BYTES || page != PAGE as i64 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let _blocked = Blocked::new();
        prepare()?;
        let memory = Memory::new(options.at, len.next_multiple_of(PAGE))?;
        let start = memory.start();
        let slot = table::reserve().ok_or(io::Error::from_raw_os_error(libc::ENOMEM))?;
        forks::claim(slot);
        let backing = Backing::new(memory, len, !options.read_only, remote);
        let core = Core::new(backing, slot, options.loops);
        table::publish(slot, Box::new(core));
        Ok(Window { slot, start, len })
    }

    /// Where it begins.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Its bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no window is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Ends the way to the remote memory: from now on stores vanish and loads give ones. What is in
    /// pages that are open stays there until the next sync point.
    pub fn lose(&self) {
        table::get(self.slot).backing.lose();
    }

    /// Whether that has happened, or the remote memory was found to be lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let core = table::get(self.slot);
        core.backing.is_lost() || core.is_parents()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if forks::is_parents(self.slot) {
            return;
        }
        let blocked = Blocked::new();
        table::get(self.slot).sync();
        let core = table::remove(self.slot);
        drop(blocked);
        drop(core);
        table::release(self.slot);
    }
}

/// What has to be there before the first fault.
fn prepare() -> io::Result<()> {
    static DONE: AtomicBool = AtomicBool::new(false);
    forks::prepare()?;
    #[cfg(target_arch = "x86_64")]
    {
        decode::prepare();
        registers::prepare();
    }
    if !DONE.swap(true, Ordering::AcqRel) {
        // Without the handler a child's accesses fault, and that is all.
        // SAFETY: the function is allowed in a child.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(table::in_child)) };
    }
    recover::serve_by(handler::serve);
    recover::install();
    Ok(())
}

/// Gets in front of a handler of SIGSEGV that the program has installed since the last window was
/// made, which would otherwise see the windows' faults. Thread-safe; two cheap system calls.
pub fn install() {
    recover::install();
}

/// A sync point: sends what the program has stored to any window of the process so far, in this
/// thread or, as far as it has been seen to happen before, in others. Pages are closed and counts
/// begin anew. It does not wait until the bytes are placed: their order is the remote's. Not to be
/// called in a handler of a signal.
pub fn sync() {
    if !table::all().any(|core| core.is_touched()) {
        return;
    }
    let blocked = Blocked::new();
    table::all().for_each(|core| core.sync());
    drop(blocked);
}

/// When [`close_due`] has something to do, if it ever has: 1 ms after the first page became
/// accessible, or the moment of the call if that is over. [`set_bell`](crate::set_bell) tells when
/// that changes from None.
#[must_use]
pub fn deadline() -> Option<Instant> {
    let earliest = table::all().filter_map(|core| core.deadline()).min();
    earliest.map(clock::instant)
}

/// Closes the pages of windows whose [`deadline`] is not after `now`, and sends what was changed in
/// them. It is no sync point for the counts of loads.
pub fn close_due(now: Instant) {
    let blocked = Blocked::new();
    let now = clock::of(now);
    table::all().for_each(|core| core.close_due(now));
    drop(blocked);
}
