//! Whether this kernel, and this sandbox, tell the truth: asked once before the answers count.

use crate::pagemap::Pagemap;
use crate::question::{Answer, Holes, ask};
use crate::sys::Reach;
use crate::{PAGE, sys};
use causeway_owned::Owned;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::pipe::PipeFlags;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often the kernel may not tell: the page is under way to another place.
const TRIES: usize = 5;
/// For how long a page that nobody holds may seem to be held: other work of the kernel refers to it
/// for a moment, and on a busy machine whoever does that may have lost its processor.
const PATIENCE: Duration = Duration::from_millis(100);

/// What descriptors are called if the program closes them.
const WHAT: &str = "what asks about pages";

/// A page, unmapped when dropped.
struct Page(*mut libc::c_void);

impl Page {
    fn map(fd: Option<&OwnedFd>) -> Result<Page, Errno> {
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping where the kernel likes it.
        let at = unsafe {
            match fd {
                Some(fd) => rustix::mm::mmap(null, PAGE, rw, MapFlags::SHARED, fd, 0)?,
                None => rustix::mm::mmap_anonymous(null, PAGE, rw, MapFlags::PRIVATE)?,
            }
        };
        // SAFETY: the page just mapped. It exists from here on.
        unsafe { at.cast::<u8>().write_volatile(1) };
        Ok(Page(at))
    }

    fn addr(&self) -> usize {
        self.0.expose_provenance()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        let _ = unsafe { rustix::mm::munmap(self.0, PAGE) };
    }
}

/// Whether the answers for pages of a memfd can be relied on, and, with [`Reach::Own`], those for
/// private memory: a page that a pipe holds (`vmsplice(2)`) must be busy, and free once the pipe is
/// closed. With [`Reach::All`] the page is mapped twice meanwhile. False where the kernel has no
/// such call, or a sandbox forbids it.
pub fn self_test(pagemap: &Pagemap, reach: Reach) -> bool {
    let file = || {
        let fd = rustix::fs::memfd_create("causeway-pins", MemfdFlags::CLOEXEC)?;
        let fd = Owned::new(fd, WHAT);
        rustix::fs::ftruncate(fd.check()?, PAGE as u64)?;
        let page = Page::map(Some(&fd))?;
        let other = match reach {
            Reach::Own => None,
            Reach::All => Some(Page::map(Some(&fd))?),
        };
        let told = tells(pagemap, &page, reach, Holes::Filled);
        drop(other);
        told
    };
    let private = || tells(pagemap, &Page::map(None)?, reach, Holes::Allowed);
    let holds = |test: &dyn Fn() -> Result<bool, Errno>| test().unwrap_or(false);
    holds(&file) && (reach == Reach::All || holds(&private))
}

fn tells(pagemap: &Pagemap, page: &Page, reach: Reach, holes: Holes) -> Result<bool, Errno> {
    let ask = || ask(pagemap, page.addr(), PAGE, reach, holes);
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let [reader, writer] = [reader, writer].map(|end| Owned::new(end, WHAT));
    let vector = libc::iovec {
        iov_base: page.0,
        iov_len: PAGE,
    };
    // SAFETY: one vector, of a page that is mapped.
    let held = unsafe { libc::vmsplice(writer.check()?.as_raw_fd(), &raw const vector, 1, 0) };
    if sys::check(held as libc::c_long)? != PAGE as libc::c_long || !is_busy(ask) {
        return Ok(false);
    }
    drop((reader, writer));
    Ok(becomes_free(PATIENCE, ask))
}

/// What is said of a page that is held.
fn is_busy(mut ask: impl FnMut() -> Answer) -> bool {
    let told = (0..TRIES)
        .map(|_| ask())
        .find(|said| *said != Answer::Unknown);
    told == Some(Answer::Busy)
}

/// What is said of a page that nobody holds any more.
fn becomes_free(patience: Duration, mut ask: impl FnMut() -> Answer) -> bool {
    let begun = Instant::now();
    while ask() != Answer::Free {
        if begun.elapsed() > patience {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_tell_at_once_is_asked_again() {
        let mut said = [Answer::Unknown, Answer::Busy].into_iter();
        assert!(is_busy(|| said.next().expect("no third time")));
        assert!(!is_busy(|| Answer::Unknown));
        let mut said = [Answer::Free, Answer::Busy].into_iter();
        assert!(!is_busy(|| said.next().expect("no third time")), "a lie");
    }

    #[test]
    fn a_page_may_be_busy_for_a_moment() {
        let mut left = 1000;
        let passing = || {
            left -= 1;
            if left > 0 { Answer::Busy } else { Answer::Free }
        };
        // Only a test that fails takes so long.
        assert!(becomes_free(Duration::from_secs(60), passing));
        assert!(!becomes_free(Duration::from_millis(1), || Answer::Busy));
    }
}
