//! Moved memory and fork: what a child gets.
//!
//! Mappings of stores are not inherited (`MADV_DONTFORK`): a child must not share what its parent
//! has as private memory. Handlers of `pthread_atfork(3)` give the child private copies instead: it
//! reads them from the stores, and the parent's forking thread waits, so that the child has what
//! this thread had. What other threads write meanwhile, the child may have or not, page by page.
//! After `ibv_fork_init(3)` it gets nothing, as with hardware; nor does a child made by the bare
//! system call. `vfork(2)` and `posix_spawn(3)` share the parent's memory, and are left alone.
//!
//! In the child, movers of the parent are dead: they have no threads there.

use crate::mover::{Core, Inner};
use crate::number::Number;
use crate::span::{PAGE, Span};
use crate::sys::{self, Area, at};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::pipe::PipeFlags;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, Weak};

/// The movers that have moved something.
static MOVERS: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());
/// The fork going on, of which there is one at a time since it holds the lock of [`MOVERS`].
static FORK: AtomicPtr<Fork> = AtomicPtr::new(ptr::null_mut());

/// Pages that a child copies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied {
    pub span: Span,
    pub offset: usize,
    pub fd: Number,
    pub prot: ProtFlags,
}

/// What is held from before the fork until after it. It lies in a mapping of its own, as does the
/// list of what is copied: until that is done, the child lacks parts of its heap.
struct Fork {
    // Dropped in this order: each lock before what it is in.
    movers: Vec<(MutexGuard<'static, Inner>, Arc<Core>)>,
    copied: *const Copied,
    count: usize,
    /// Closed at its writing end when the child has its copies, or is dead.
    pipe: Option<(OwnedFd, OwnedFd)>,
    list: MutexGuard<'static, Vec<Weak<Core>>>,
    /// Where all this is.
    _area: Area,
}

impl Fork {
    /// What the child copies, by index: it must not follow pointers to the heap.
    fn part(&self, index: usize) -> Copied {
        assert!(index < self.count);
        // SAFETY: written by `prepare`, in the area.
        unsafe { self.copied.add(index).read() }
    }
}

/// From now on children get their copies of what this mover moves.
pub(crate) fn watch(core: &Arc<Core>) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // Fails only for lack of memory; then children lack what is moved.
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
    let mut list = MOVERS.lock().unwrap_or_else(PoisonError::into_inner);
    list.retain(|mover| mover.strong_count() > 0);
    list.push(Arc::downgrade(core));
}

/// Before the fork: no mover is at work, and what they have moved is known.
extern "C" fn prepare() {
    let list = MOVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut movers = Vec::new();
    let mut copied = Vec::new();
    for core in list.iter().filter_map(Weak::upgrade) {
        let guard = core.lock();
        guard.copied(&mut copied);
        // SAFETY: the mutex is in the Arc that is kept beside the guard, and dropped after it.
        let guard: MutexGuard<'static, Inner> = unsafe { std::mem::transmute(guard) };
        movers.push((guard, core));
    }
    let bytes = size_of::<Fork>() + align_of::<Fork>() + size_of_val(&*copied);
    let span = Span::new(0, bytes.next_multiple_of(PAGE));
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // Without it the child would share locks that nobody unlocks.
    let area = Area::reserve(span).and_then(|area| area.map(None, rw).map(|()| area));
    let area = area.expect("no memory for a fork");
    let pipe = (!copied.is_empty()).then(|| rustix::pipe::pipe_with(PipeFlags::CLOEXEC).ok());
    let place = at(area.span().start).cast::<Fork>();
    // SAFETY: the area has room for the one and, behind it, for the others; both are aligned.
    unsafe {
        let parts = place.add(1).cast::<Copied>();
        const { assert!(align_of::<Copied>() <= align_of::<Fork>()) };
        parts.copy_from_nonoverlapping(copied.as_ptr(), copied.len());
        place.write(Fork {
            movers,
            copied: parts,
            count: copied.len(),
            pipe: pipe.flatten(),
            list,
            _area: area,
        });
    }
    FORK.store(place, Ordering::Release);
}

/// What `prepare` has left, to be read out of its area, once.
fn take() -> Option<Fork> {
    let fork = FORK.swap(ptr::null_mut(), Ordering::Acquire);
    // SAFETY: what `prepare` has written, moved out once.
    (!fork.is_null()).then(|| unsafe { fork.read() })
}

/// The function that is told of forks for which memory was copied.
static TOLD: OnceLock<fn(usize)> = OnceLock::new();

/// Has `tell` called after each fork(2) for which memory was copied, in the parent, with the bytes.
/// The first that was named stays.
pub fn tell_of_copies(tell: fn(usize)) {
    let _ = TOLD.set(tell);
}

/// After the fork, in the parent: waits for the child's copies.
extern "C" fn parent() {
    let Some(mut fork) = take() else {
        return;
    };
    let bytes: usize = (0..fork.count).map(|part| fork.part(part).span.len()).sum();
    if let Some((reader, writer)) = fork.pipe.take() {
        close(writer);
        // Ends when the child closes its end, or dies.
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(&reader, &mut [0u8; 1]));
        close(reader);
    }
    drop(fork);
    if let Some(tell) = TOLD.get()
        && bytes > 0
    {
        tell(bytes);
    }
}

/// Closes an end of the pipe by the bare system call: close(3) does nothing in this library once
/// the program has closed descriptors of it ([`causeway_owned`]), and the wait would never end.
fn close(end: OwnedFd) {
    // SAFETY: the pipe was made for this fork, and nobody else knows of it.
    unsafe { rustix::io::close(end.into_raw_fd()) };
}

/// After the fork, in the child.
extern "C" fn child() {
    let Some(mut fork) = take() else {
        return;
    };
    for index in 0..fork.count {
        // A part that there is no memory for is absent.
        let _ = copy(fork.part(index));
    }
    for (mut guard, _) in std::mem::take(&mut fork.movers) {
        guard.die();
    }
    fork.list.clear();
}

/// Bytes filled at a time: little enough that what was just cleared is in the cache.
const FILL: usize = 256 << 10;

/// Gives the child a private copy.
fn copy(part: Copied) -> Result<(), Errno> {
    let Copied {
        span,
        offset,
        fd,
        prot,
    } = part;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: nothing is mapped there in the child, or nothing happens; the store's descriptor was
    // open at the fork. What is filled is the new mapping.
    unsafe {
        rustix::mm::mmap_anonymous(at(span.start), span.len(), rw, flags)?;
        let fd = fd.get().ok_or(Errno::BADF)?;
        let mut done = 0;
        while done < span.len() {
            let to = at(span.start + done).cast::<u8>();
            let (rest, from) = (span.len() - done, (offset + done) as libc::off_t);
            let rest = rest.min(FILL);
            // In one call what would be a fault for each page. Where it fails, those do it.
            let _ = libc::madvise(to.cast(), rest, libc::MADV_POPULATE_WRITE);
            match libc::pread(fd.as_raw_fd(), to.cast(), rest, from) {
                got if got > 0 => done += got as usize,
                0 => break,
                _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                _ => return Err(Errno::IO),
            }
        }
        sys::protect(span, prot)
    }
}
