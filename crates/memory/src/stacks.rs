//! Where threads' stacks are.
//!
//! A stack could be moved as other memory is, but not all that lies at its top: a thread that joins
//! another waits at a word there, by a key that changes when the page becomes a file's.

use crate::span::{PAGE, Span};
use crate::sys::at;
use crate::vma::Vma;
use causeway_owned::Owned;
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, ProtFlags};
use std::mem::MaybeUninit;

/// Of directory entries that are read at a time.
const ENTRIES_BYTES: usize = 4096;

/// The address that a thread's list of robust mutexes begins at: glibc keeps it in the thread's
/// control block, above its stack in the same mapping (`get_robust_list(2)`). 0 if it has none.
fn control_block(thread: i32) -> usize {
    let mut head = 0usize;
    let mut len = 0usize;
    // SAFETY: both results are valid for writes.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            thread,
            &raw mut head,
            &raw mut len,
        )
    };
    if ret == 0 { head } else { 0 }
}

/// Whether a part of the mapping is a thread's stack, or the caller's.
pub(crate) fn meets(vma: &Vma, part: Span) -> bool {
    let here = 0u8;
    let caller = (&raw const here).expose_provenance();
    if vma.span.contains(caller) || grows_down(part) {
        return true;
    }
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(threads) = threads() else {
        return true;
    };
    threads.into_iter().any(|thread| {
        let block = control_block(thread);
        if thread == process {
            // Its stack is elsewhere.
            return part.meets(Span::new(block & !(PAGE - 1), block + PAGE));
        }
        // Where a stack ends below is not known; above its control block there is none.
        vma.span.contains(block) && part.start <= block
    })
}

/// The numbers of this process's threads.
fn threads() -> Result<Vec<i32>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let tasks = rustix::fs::open("/proc/self/task", flags, Mode::empty())?;
    // opendir(3) would close whatever has its number by then.
    let tasks = Owned::new(tasks, "what tells of threads");
    let mut buffer = [MaybeUninit::uninit(); ENTRIES_BYTES];
    let mut entries = RawDir::new(tasks.check()?, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_str();
        found.extend(name.ok().and_then(|name| name.parse::<i32>().ok()));
    }
    // A directory of the program's would tell of other numbers.
    tasks.check()?;
    Ok(found)
}

/// Whether the mapping's beginning moves down when it is touched below (`mprotect(2)`: only such
/// mappings know PROT_GROWSDOWN). The protection it has is set again.
fn grows_down(part: Span) -> bool {
    let same = MprotectFlags::from_bits_retain((ProtFlags::READ | ProtFlags::WRITE).bits());
    // SAFETY: the mapping is readable and writable, and stays so.
    unsafe { rustix::mm::mprotect(at(part.start), PAGE, same | MprotectFlags::GROWSDOWN).is_ok() }
}
