//! Sockets that no forked child keeps. Close-on-exec is not enough: a child that lives on without
//! exec holds its parent's ports, and connections whose end tells of the parent's death.

use std::cell::UnsafeCell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use causeway_owned::Identity;

/// A socket of which fork(2) leaves the child nothing: its number is then that of an eventfd which
/// nobody uses, so that closing it a second time closes no other file. vfork(2) and what is built
/// on it shares the parent's and execs, which closes them; clone(2) by a raw system call keeps it.
///
/// Where the program has closed it and has another file under its number, that is left alone.
pub(crate) struct Unforked<T: AsFd> {
    inner: Option<T>,
    known: Option<Identity>,
}

impl<T: AsFd> Unforked<T> {
    /// Makes a socket, or takes one over, while nobody forks.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn new(make: impl FnOnce() -> io::Result<T>) -> io::Result<Unforked<T>> {
        watch_forks();
        let mut kept = KEPT.lock();
        let inner = make()?;
        let known = Identity::of(inner.as_fd());
        let fd = inner.as_fd().as_raw_fd();
        kept.fds().extend(known.map(|known| (fd, known)));
        let inner = Some(inner);
        Ok(Unforked { inner, known })
    }
}

impl<T: AsFd> AsFd for Unforked<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: AsFd> Drop for Unforked<T> {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else {
            return;
        };
        let mut kept = KEPT.lock();
        let fd = inner.as_fd().as_raw_fd();
        // A child has none of its parent's.
        kept.fds().retain(|(one, _)| *one != fd);
        if self.known.is_some() && Identity::of(inner.as_fd()) == self.known {
            drop(inner);
        } else {
            std::mem::forget(inner);
        }
    }
}

impl<T: AsFd> Deref for Unforked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner
            .as_ref()
            .expect("it is there until it is dropped")
    }
}

impl<T: AsFd> DerefMut for Unforked<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner
            .as_mut()
            .expect("it is there until it is dropped")
    }
}

/// Their numbers, under a lock that a child can let go of, whatever waits for it: no queue of
/// waiters, which would be that of threads the child does not have.
struct Kept {
    locked: AtomicBool,
    fds: UnsafeCell<Vec<(RawFd, Identity)>>,
}

static KEPT: Kept = Kept {
    locked: AtomicBool::new(false),
    fds: UnsafeCell::new(Vec::new()),
};

// SAFETY: the numbers are only reached with the lock held.
unsafe impl Sync for Kept {}

struct Locked(&'static Kept);

impl Kept {
    fn lock(&'static self) -> Locked {
        // Held for a few system calls.
        while self.locked.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Locked(self)
    }
}

impl Locked {
    fn fds(&mut self) -> &mut Vec<(RawFd, Identity)> {
        // SAFETY: the lock is held as long as this borrow.
        unsafe { &mut *self.0.fds.get() }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.locked.store(false, Ordering::Release);
    }
}

fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions of ours that use nothing but the lock and, in the child, system calls
        // that may be made there. It fails only without memory: then children keep the sockets.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    std::mem::forget(KEPT.lock());
}

extern "C" fn in_parent() {
    drop(Locked(&KEPT));
}

extern "C" fn in_child() {
    let mut kept = Locked(&KEPT);
    // SAFETY: plain system calls; a number that stays open where there are no descriptors left is
    // closed instead.
    unsafe {
        let nothing = libc::eventfd(0, libc::EFD_CLOEXEC);
        for (fd, known) in kept.fds().drain(..) {
            if Identity::of(BorrowedFd::borrow_raw(fd)) != Some(known) {
                continue;
            }
            if nothing < 0 || libc::dup3(nothing, fd, libc::O_CLOEXEC) < 0 {
                libc::close(fd);
            }
        }
        if nothing >= 0 {
            libc::close(nothing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// What a child finds: 0 if the descriptor is no socket any more, but is one that is open.
    fn look(fd: RawFd) -> i32 {
        // SAFETY: system calls on a local.
        unsafe {
            let mut kind: libc::c_int = 0;
            let mut len = size_of::<libc::c_int>() as libc::socklen_t;
            let of = (&raw mut kind).cast();
            let is_socket = libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, of, &raw mut len);
            i32::from(is_socket == 0) + 2 * i32::from(libc::fcntl(fd, libc::F_GETFD) < 0)
        }
    }

    fn in_a_child(f: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child makes system calls only.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                libc::_exit(f());
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::WEXITSTATUS(status)
        }
    }

    #[test]
    fn a_child_has_none_and_the_parent_keeps_its_own() {
        let one = Unforked::new(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let ordinary = TcpListener::bind("127.0.0.1:0").unwrap();
        let (fd, other) = (one.as_raw_fd(), ordinary.as_raw_fd());
        assert_eq!(in_a_child(|| look(fd)), 0);
        assert_eq!(in_a_child(|| look(other)), 1);
        assert_eq!(look(fd), 1, "here it is a socket");
        let at = one.local_addr().unwrap();
        assert!(std::net::TcpStream::connect(at).is_ok());
        drop(one);
        assert!(
            std::net::TcpStream::connect(at).is_err(),
            "nobody else has it"
        );
    }

    #[test]
    fn another_file_under_its_number_is_left_to_child_and_parent() {
        let one = Unforked::new(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = one.as_raw_fd();
        // SAFETY: the number is the test's own.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
        assert_eq!(in_a_child(|| look(fd)), 1);
        drop(one);
        assert_eq!(look(fd), 1);
    }
}
