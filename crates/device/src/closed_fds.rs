//! Descriptors that the program has closed behind the device's back.
//!
//! A program that becomes a daemon closes every descriptor that it does not know, and opens others
//! under their numbers. Nothing of the device may be read from or written to those. Eventfds are
//! signalled and drained by calls that reach nothing else (`causeway-owned`); for the sockets' sake
//! a thread that has slept, and the helper on each of its ticks, looks whether the numbers still
//! stand for what they did. If one does not, the device has failed for good, and nothing that it
//! has is ever closed: the numbers are the program's.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;

use rustix::fs::fstat;

use crate::endpoint::{self, Shared};
use crate::qp_entry::Link;
use crate::state::State;

/// Some descriptors, and which files they stood for.
#[derive(Debug)]
pub(crate) struct Numbers(Vec<(RawFd, (u64, u64))>);

impl Numbers {
    /// What these stand for now.
    pub fn of<'a>(fds: impl IntoIterator<Item = BorrowedFd<'a>>) -> Numbers {
        let number = |fd: BorrowedFd<'_>| Some((fd.as_raw_fd(), identity(fd)?));
        Numbers(fds.into_iter().filter_map(number).collect())
    }

    /// Adds one.
    pub fn add(&mut self, fd: BorrowedFd<'_>) {
        let known = identity(fd);
        self.0.extend(known.map(|known| (fd.as_raw_fd(), known)));
    }

    /// Whether all of them still do.
    fn are_intact(&self) -> bool {
        self.0.iter().all(|(number, known)| {
            // SAFETY: the number is asked what it stands for, and nothing else: if it has been
            // closed, that fails or tells of another file.
            let fd = unsafe { BorrowedFd::borrow_raw(*number) };
            identity(fd) == Some(*known)
        })
    }
}

/// Device and inode.
fn identity(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let found = fstat(fd).ok()?;
    Some((found.st_dev, found.st_ino))
}

impl Shared {
    /// Heeds what a call on a descriptor of the endpoint's own has said: it fails only if there is
    /// none any more.
    pub fn heed<T>(&self, outcome: std::io::Result<T>) {
        if outcome.is_err() {
            self.lose();
        }
    }

    /// Looks whether the endpoint has its descriptors yet; false if the device has failed.
    pub fn has_descriptors(&self) -> bool {
        if !self.common.lost.load(Ordering::Relaxed) && !self.numbers.read().are_intact() {
            self.lose();
        }
        !self.common.lost.load(Ordering::Relaxed)
    }

    #[cold]
    pub fn lose(&self) {
        if !self.common.lost.swap(true, Ordering::SeqCst) {
            causeway_owned::lose();
            eprintln!(
                "causeway: the program has closed descriptors of the open device cway0, which has \
                 failed"
            );
            self.news.tell_of_failure();
        }
    }
}

/// A descriptor of the process's endpoint is none any more.
#[cold]
pub(crate) fn report() {
    if let Some(shared) = endpoint::current() {
        shared.lose();
    }
}

impl State {
    /// The device has failed: so do all connected queue pairs, and they let go of nothing.
    #[cold]
    #[inline(never)]
    pub fn abandon(&mut self) -> bool {
        let mut any = false;
        let State { qps, core, .. } = self;
        qps.each(|entry| {
            if matches!(entry.link, Link::None) {
                return;
            }
            let qpn = entry.qp.qpn();
            entry.break_off(core);
            std::mem::forget(std::mem::replace(&mut entry.link, Link::None));
            entry.qp.set_direct(false);
            (entry.wanting, entry.hot) = (false, false);
            (entry.pending, entry.unsettled) = (false, false);
            core.set_watch(qpn, None);
            any = true;
        });
        self.rings = 0;
        self.udp.abandon();
        self.hot.clear();
        self.unsettled.clear();
        self.pending.clear();
        self.broker_requests.clear();
        self.timers.clear();
        any
    }
}
