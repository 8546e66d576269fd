//! Moving by the driver of a virtual machine's guest (`guest/driver/inplace.c`): stores are
//! segments of the machine's window, which userfaultfd knows nothing of.
//!
//! The driver maps a segment over private memory in one piece with taking its contents, and empties
//! pages that the program gives up. What the program unmaps is found out when its registration
//! ends, from what is mapped then; it cannot move such memory to other addresses.
//!
//! While a chunk is held, on its way back, the calling thread touches nothing but its stack. What
//! another thread gives up (`MADV_DONTNEED`) in that moment may keep its old contents, in private
//! memory: the driver empties the segment, which may have been read already.

use crate::error::Unmovable;
use crate::extents::Freed;
use crate::pieces::Piece;
use crate::shared::View;
use crate::span::Span;
use crate::store::{Handle, Store};
use crate::sys::{self, Area, NoSignals, at};
use crate::vma::Vma;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// What the driver moves in one go (`CAUSEWAY_SPAN_MAX`).
const MOVE: usize = 1 << 20;

/// `struct causeway_span` of guest/driver/causeway_ioctl.h.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
}

/// `_IOW(0xca, number, struct causeway_span)`
const fn request_number(number: libc::Ioctl) -> libc::Ioctl {
    1 << 30 | (size_of::<Request>() as libc::Ioctl) << 16 | 0xca << 8 | number
}

const MOVE_IN: libc::Ioctl = request_number(0x17);
const PUNCH: libc::Ioctl = request_number(0x18);
const HOLD: libc::Ioctl = request_number(0x19);
/// `_IO(0xca, 0x1a)`
const LET_GO: libc::Ioctl = 0xca << 8 | 0x1a;

fn request(fd: BorrowedFd<'_>, number: libc::Ioctl, span: Span) -> Result<(), Errno> {
    let mut argument = Request {
        start: span.start as u64,
        length: span.len() as u64,
    };
    loop {
        // SAFETY: the structure is the one that the request's number names. Memory that the driver
        // replaces keeps its contents.
        if unsafe { libc::ioctl(fd.as_raw_fd(), number, &raw mut argument) } >= 0 {
            return Ok(());
        }
        let os = std::io::Error::last_os_error().raw_os_error();
        match Errno::from_raw_os_error(os.unwrap_or(libc::EIO)) {
            Errno::INTR => {}
            error => return Err(error),
        }
    }
}

/// Empties pages of a segment.
pub(crate) fn punch(fd: BorrowedFd<'_>, span: Span) -> Result<(), Errno> {
    request(fd, PUNCH, span)
}

/// Threads that touch a chunk wait until this is dropped.
struct Held<'a>(BorrowedFd<'a>);

impl Held<'_> {
    fn new(fd: BorrowedFd<'_>, chunk: Span) -> Result<Held<'_>, Errno> {
        request(fd, HOLD, chunk).map(|()| Held(fd))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = request(self.0, LET_GO, Span::default());
    }
}

/// Moves by the driver.
#[derive(Debug)]
pub(crate) struct Guest(Box<View>);

impl Guest {
    /// # Errors
    /// No `/proc`.
    pub fn start() -> Result<Guest, Unmovable> {
        Ok(Guest(Box::new(View::open()?)))
    }

    pub fn view(&self) -> &View {
        &self.0
    }

    /// As `Engine::move_run`. The emptied mapping is address space only: what a chunk is when it
    /// comes back is mapped there first.
    pub fn move_run(&self, store: &Store, span: Span) -> (Option<Freed>, Result<(), Unmovable>) {
        let store = &store.handle();
        let mut area = match Area::reserve(span) {
            Ok(area) => area,
            Err(error) => return (None, Err(error.into())),
        };
        let emptied = area.span().start;
        let mut result = Ok(());
        for chunk in span.cut_at(MOVE) {
            result = self.move_chunk(store, chunk);
            if result.is_err() {
                break;
            }
            area.advance(chunk.len());
        }
        let moved = Span::new(span.start, span.end - area.span().len());
        let freed = Freed {
            span: moved,
            emptied,
        };
        ((!moved.is_empty()).then_some(freed), result)
    }

    fn move_chunk(&self, store: &Handle<'_>, chunk: Span) -> Result<(), Unmovable> {
        request(store.as_fd(), MOVE_IN, chunk).map_err(|error| match error {
            Errno::BUSY => Unmovable::Pinned,
            Errno::INVAL => Unmovable::NotPlain,
            error => error.into(),
        })?;
        causeway_fault::point("move.placed");
        self.list(store, chunk);
        Ok(())
    }

    /// The mover asks for room before it moves anything.
    fn list(&self, store: &Handle<'_>, chunk: Span) {
        self.0.table().pieces.insert(Piece {
            span: chunk,
            offset: chunk.start,
            store: store.id(),
            fd: store.number(),
            idle: false,
        });
    }

    /// As `Engine::return_run`.
    pub fn return_run(
        &self,
        store: &Store,
        vma: &Vma,
        emptied: usize,
    ) -> (Vec<Freed>, Option<Errno>) {
        let store = &store.handle();
        for chunk in vma.span.cut_at(MOVE) {
            let done = chunk.start - vma.span.start;
            let shell = chunk.at(emptied + done);
            if let Err(error) = self.return_chunk(store, vma.prot, chunk, shell) {
                let rest = Span::new(vma.offset + done, vma.offset + vma.span.len());
                let kept = Freed {
                    span: rest,
                    emptied: emptied + done,
                };
                return (vec![kept], Some(error));
            }
        }
        (Vec::new(), None)
    }

    fn return_chunk(
        &self,
        store: &Handle<'_>,
        prot: ProtFlags,
        chunk: Span,
        shell: Span,
    ) -> Result<(), Errno> {
        if causeway_fault::fails("back.memory") {
            return Err(Errno::NOMEM);
        }
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the emptied mapping is the mover's own address space.
        unsafe { rustix::mm::mmap_anonymous(at(shell.start), shell.len(), RW, flags)? };
        let _signals = NoSignals::new();
        causeway_fault::point("back.begun");
        let held = Held::new(store.as_fd(), chunk)?;
        // SAFETY: nobody else knows of the emptied mapping.
        unsafe { fill(store.as_fd(), shell, chunk.start)? };
        if prot != RW {
            // SAFETY: as above.
            unsafe { sys::protect(shell, prot)? };
        }
        // SAFETY: the emptied mapping has the chunk's contents, which nobody has changed since.
        unsafe { sys::place(shell.start, chunk)? };
        drop(held);
        self.0.table().pieces.cut(chunk);
        Ok(())
    }
}

/// Reads a segment's pages from an offset on.
///
/// # Safety
/// `to` is memory that nobody else uses.
unsafe fn fill(fd: BorrowedFd<'_>, to: Span, offset: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < to.len() {
        let start = at(to.start + done).cast::<MaybeUninit<u8>>();
        // SAFETY: as the caller promises.
        let rest = unsafe { std::slice::from_raw_parts_mut(start, to.len() - done) };
        match rustix::io::pread(fd, rest, (offset + done) as u64) {
            Ok((read, _)) if !read.is_empty() => done += read.len(),
            Ok(_) => return Err(Errno::IO),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
