//! Requests of asynchronous I/O (io_submit(2)), each of them complete when it has been made: they
//! can what read(2) and write(2) cannot, neither block nor touch files of the program's.
//!
//! A request names its offset, so a file's position stays. An offset other than 0 is refused by
//! every socket, and ignored by what has no offsets.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::io::Errno;

/// Requests at a time that the context is asked to have room for. The kernel makes it room for
/// several for each processor; each is complete before its call returns.
const REQUESTS: libc::c_long = 1;
/// `aio_lio_opcode`: pread(2).
const PREAD: u16 = 0;
/// `aio_flags`: signal `aio_resfd`.
const RESFD: u32 = 1;
/// `aio_rw_flags`: do not block (`RWF_NOWAIT`).
const NOWAIT: i32 = 8;
/// An offset that no socket takes.
const NO_SOCKETS: i64 = 1;
/// What the kernel writes to the beginning of a context's ring (`fs/aio.c`).
const RING_MAGIC: u32 = 0xa10a_10a1;
/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Request {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fildes: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// The head of `struct aio_ring`, which the kernel maps for the holder of a context: where the
/// completions are that nobody here wants to read.
#[repr(C)]
struct Ring {
    id: u32,
    entries: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
}

/// The process's context, an address that the kernel gave; [`NO_CONTEXT`] if it gives none, 0 if it
/// was not asked yet. A child made by fork(2) inherits the number, under which it has none.
static CONTEXT: AtomicUsize = AtomicUsize::new(0);
pub(crate) const NO_CONTEXT: usize = usize::MAX;
/// The process that has made it, or is about to.
static MAKER: AtomicU32 = AtomicU32::new(0);

#[inline]
pub(crate) fn context() -> usize {
    match CONTEXT.load(Ordering::Acquire) {
        0 => make_context(0),
        context => context,
    }
}

/// Makes a context for this process in place of one that is none. Of several threads one does; the
/// others' are given back.
#[cold]
fn make_context(in_place_of: usize) -> usize {
    let mut made: libc::c_ulong = 0;
    // SAFETY: the kernel writes the context to a place that lives for the call.
    let done = unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut made) };
    let made = if done == 0 { made as usize } else { NO_CONTEXT };
    // First: another thread that finds the new context takes the process for its maker.
    MAKER.store(std::process::id(), Ordering::Release);
    let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
    match CONTEXT.compare_exchange(in_place_of, made, order, failed) {
        Ok(_) => made,
        Err(other) => {
            if made != NO_CONTEXT {
                // SAFETY: nobody else has seen this context.
                unsafe { libc::syscall(libc::SYS_io_destroy, made) };
            }
            other
        }
    }
}

impl Request {
    /// Asks for nothing, which fails at once, and has an eventfd signalled about that.
    pub fn signal(bell: BorrowedFd<'_>) -> Request {
        let number = bell.as_raw_fd().cast_unsigned();
        Request {
            opcode: PREAD,
            fildes: number,
            flags: RESFD,
            resfd: number,
            ..Request::default()
        }
    }

    /// Reads up to so many bytes, if there are any, to memory that is valid for that until it has
    /// been run.
    pub fn read(fd: BorrowedFd<'_>, to: *mut u8, bytes: usize) -> Request {
        Request {
            opcode: PREAD,
            rw_flags: NOWAIT,
            fildes: fd.as_raw_fd().cast_unsigned(),
            buffer: to.expose_provenance() as u64,
            bytes: bytes as u64,
            offset: NO_SOCKETS,
            ..Request::default()
        }
    }
}

/// Carries out a request. How that ended nobody hears.
///
/// # Errors
/// `EBADF` if what it names is no descriptor, or no eventfd where that is to be signalled; any
/// other if the kernel does not do this here: there is no asynchronous I/O, or a sandbox refuses
/// it, or (`EOPNOTSUPP`) what is to be read cannot be read without blocking.
///
/// # Safety
/// What a request reads is written to the memory that it names.
pub(crate) unsafe fn run(request: &mut Request) -> Result<(), Errno> {
    let context = context();
    // SAFETY: as the caller promises.
    match unsafe { submit(context, request) } {
        Ok(()) => Ok(()),
        Err(Errno::BADF) => Err(Errno::BADF),
        // SAFETY: as above.
        Err(error) => unsafe { run_otherwise(context, request, error) },
    }
}

/// The context that was tried carries out nothing: it is the parent's, or there is none.
#[cold]
unsafe fn run_otherwise(tried: usize, request: &mut Request, error: Errno) -> Result<(), Errno> {
    if MAKER.load(Ordering::Acquire) == std::process::id() {
        return Err(error);
    }
    // SAFETY: as `run`.
    unsafe { submit(make_context(tried), request) }
}

/// See [`run`].
unsafe fn submit(context: usize, request: &mut Request) -> Result<(), Errno> {
    if context == NO_CONTEXT {
        return Err(Errno::NOSYS);
    }
    let mut requests = [std::ptr::from_mut(request)];
    // SAFETY: the kernel reads the array of one pointer, and the request that it leads to, before
    // the call returns; what the request is for is as the caller of `run` promises.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_submit,
            context,
            requests.len() as libc::c_long,
            requests.as_mut_ptr(),
        )
    };
    let outcome = match done {
        1 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    };
    if matches!(outcome, Ok(()) | Err(Errno::AGAIN)) {
        take_completions(context);
    }
    outcome
}

/// Nobody reads completions: they are taken as read. Of two threads the one that is behind may put
/// the head back; then the next one takes them again.
fn take_completions(context: usize) {
    // SAFETY: a context is the address of its ring, which stays mapped while the process lives. The
    // kernel knew this one as the process's own.
    let ring = unsafe { &*(context as *const Ring) };
    if ring.magic == RING_MAGIC {
        let tail = ring.tail.load(Ordering::Acquire);
        ring.head.store(tail, Ordering::Release);
    }
}
