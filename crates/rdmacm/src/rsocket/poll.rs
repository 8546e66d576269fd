//! Waiting for many: `rpoll`, `rselect`, for rsockets and other descriptors alike.

use core::ffi::{c_int, c_short};
use core::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_cancel::{Allowed, CANCELLED, Ended};
use causeway_look::Wait;

use super::config::CONFIG;
use super::connect::number;
use super::socket::{self, LOOKERS, Phase, Socket, State};
use crate::errno::{Errno, INVALID, Result};

/// What a rsocket reports without being asked.
const ALWAYS: c_short = libc::POLLERR | libc::POLLHUP;

/// Sleeps until a descriptor is readable, or the time is over.
///
/// # Errors
/// EINTR, [`CANCELLED`].
pub(super) fn sleep(fds: &[c_int], patience: Option<Duration>, allowed: Allowed) -> Result<()> {
    let mut fds: Vec<libc::pollfd> = fds.iter().map(|fd| entry(*fd, libc::POLLIN)).collect();
    wait(&mut fds, patience, allowed)
}

fn entry(fd: c_int, events: c_short) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// `ppoll(2)`, by a raw system call: a library that stands before the program's `poll` calls us.
fn wait(fds: &mut [libc::pollfd], patience: Option<Duration>, allowed: Allowed) -> Result<()> {
    let time = patience.map(|patience| libc::timespec {
        tv_sec: libc::time_t::try_from(patience.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    });
    causeway_cancel::poll(fds, time, None, allowed).map_err(|ended| match ended {
        Ended::Cancelled => Errno(CANCELLED),
        Ended::Failed(error) => error.into(),
    })
}

/// What is so of a rsocket.
fn events(socket: &Socket, state: &State) -> c_short {
    match state.phase {
        Phase::Fresh => libc::POLLOUT | libc::POLLHUP,
        Phase::Listening if socket.has_events() => libc::POLLIN,
        Phase::Listening | Phase::Connecting | Phase::Accepting => 0,
        Phase::Failed => libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP,
        Phase::Connected => state.stream.as_ref().map_or(libc::POLLERR, |stream| {
            let mut events = 0;
            if stream.has_news() {
                events |= libc::POLLIN;
            }
            if !stream.readable {
                events |= libc::POLLRDHUP;
            }
            if stream.has_room() {
                events |= libc::POLLOUT;
            }
            // As of the kernel's sockets, programs take it for the end of everything.
            if stream.ended() && stream.incoming.unread() == 0 {
                events |= libc::POLLHUP;
            }
            if stream.error.is_some() {
                events |= libc::POLLERR;
            }
            events
        }),
    }
}

/// Ordinary data has another name in each direction (poll(2)).
fn with_other_names(events: c_short) -> c_short {
    let other = |name, other| match events & name {
        0 => 0,
        _ => other,
    };
    events | other(libc::POLLIN, libc::POLLRDNORM) | other(libc::POLLOUT, libc::POLLWRNORM)
}

/// One of the program's entries.
struct Watched {
    socket: Option<Arc<Socket>>,
    asked: libc::pollfd,
}

impl Watched {
    fn new(asked: libc::pollfd) -> Watched {
        Watched {
            socket: socket::get(asked.fd),
            asked,
        }
    }

    /// Looks; whether there is something to report.
    fn look(&mut self) -> bool {
        let Some(socket) = &self.socket else {
            return self.asked.revents != 0;
        };
        let mut state = socket.lock();
        socket.progress(&mut state);
        let seen = with_other_names(events(socket, &state));
        self.asked.revents = seen & (self.asked.events | ALWAYS);
        self.asked.revents != 0
    }
}

/// Looks at every entry; how many have something to report.
fn look(watched: &mut [Watched]) -> Result<usize> {
    let plain = |w: &&mut Watched| w.socket.is_none();
    let mut kernel: Vec<libc::pollfd> = watched.iter_mut().filter(plain).map(|w| w.asked).collect();
    if !kernel.is_empty() {
        wait(&mut kernel, Some(Duration::ZERO), Allowed::NO)?;
        for (watched, seen) in watched.iter_mut().filter(plain).zip(&kernel) {
            watched.asked.revents = seen.revents;
        }
    }
    Ok(watched
        .iter_mut()
        .filter_map(|w| w.look().then_some(()))
        .count())
}

/// How long to sleep at most.
fn patience(watched: &[Watched], deadline: Option<Instant>) -> Option<Duration> {
    let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
    let sockets = watched.iter().filter_map(|one| one.socket.as_ref());
    let own = sockets.filter_map(|socket| socket.lock().patience(None));
    own.chain(left).min()
}

/// Sleeps until something may have happened, or the time is over.
fn doze(watched: &mut [Watched], deadline: Option<Instant>) -> Result<()> {
    let mut kernel = Vec::with_capacity(2 * watched.len());
    let mut dozes = Vec::with_capacity(watched.len());
    for one in watched.iter() {
        let Some(socket) = &one.socket else {
            kernel.push(entry(one.asked.fd, one.asked.events));
            continue;
        };
        let doze = socket.doze(&mut socket.lock());
        let fds = doze.fds.iter().filter(|fd| **fd >= 0);
        kernel.extend(fds.map(|fd| entry(*fd, libc::POLLIN)));
        dozes.push((socket.clone(), doze));
    }
    // Whatever happened before the completion queues were armed is not announced.
    let slept = match look(watched) {
        Ok(0) => {
            let patience = patience(watched, deadline);
            wait(&mut kernel, patience, Allowed::AS_IT_IS)
        }
        Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    };
    for (socket, doze) in dozes {
        socket.lock().woke(doze);
    }
    slept
}

/// Waits for the entries; how many have something to report.
fn poll_until(watched: &mut [Watched], deadline: Option<Instant>) -> Result<usize> {
    let ready = look(watched)?;
    let start = Instant::now();
    if ready > 0 || deadline.is_some_and(|deadline| start >= deadline) {
        return Ok(ready);
    }
    // What is known of one tells of all: they are waited for together.
    let first = watched.iter().find_map(|one| one.socket.clone());
    let mut wait = first.as_ref().map(|first| first.looks.begin(&LOOKERS));
    loop {
        let looks = wait.as_mut().is_some_and(Wait::again);
        if !looks && start.elapsed() >= CONFIG.polling {
            doze(watched, deadline)?;
        }
        let ready = look(watched)?;
        if ready > 0 {
            if let Some(wait) = wait {
                wait.over();
            }
            return Ok(ready);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(0);
        }
    }
}

/// `rpoll`; a cancellation point
pub(crate) unsafe extern "C" fn rpoll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: c_int,
) -> c_int {
    // SAFETY: the program passes as many entries as it says.
    number(unsafe { poll(fds, count, timeout) })
}

/// # Safety
/// As [`rpoll`].
unsafe fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> Result<c_int> {
    let count = usize::try_from(count).map_err(|_| INVALID)?;
    let fds: &mut [libc::pollfd] = match count {
        0 => &mut [],
        _ if fds.is_null() => return Err(Errno(libc::EFAULT)),
        // SAFETY: as the caller promises.
        _ => unsafe { core::slice::from_raw_parts_mut(fds, count) },
    };
    let deadline = u64::try_from(timeout)
        .ok()
        .map(|timeout| Instant::now() + Duration::from_millis(timeout));
    let mut watched: Vec<Watched> = fds.iter().map(|fd| Watched::new(*fd)).collect();
    let ready = poll_until(&mut watched, deadline)?;
    for (fd, watched) in fds.iter_mut().zip(&watched) {
        fd.revents = watched.asked.revents;
    }
    c_int::try_from(ready).map_err(|_| INVALID)
}

/// What each of the three sets of `select(2)` asks for, and what puts a descriptor into it.
const SETS: [(c_short, c_short); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// `rselect`; a cancellation point
pub(crate) unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    // SAFETY: the program passes sets and a time, or null.
    number(unsafe { select(count, [read, write, except], timeout) })
}

/// # Safety
/// As [`rselect`].
unsafe fn select(
    count: c_int,
    sets: [*mut libc::fd_set; 3],
    timeout: *mut libc::timeval,
) -> Result<c_int> {
    if !(0..=libc::FD_SETSIZE as c_int).contains(&count) {
        return Err(INVALID);
    }
    // SAFETY: as the caller promises; the numbers are those of a set.
    unsafe {
        let deadline = match timeout.as_ref() {
            None => None,
            Some(time) => {
                let seconds = u64::try_from(time.tv_sec).map_err(|_| INVALID)?;
                let micros = u64::try_from(time.tv_usec).map_err(|_| INVALID)?;
                let wait = Duration::from_secs(seconds) + Duration::from_micros(micros);
                socket::after(wait)
            }
        };
        let asked = |fd: c_int| {
            sets.iter().zip(SETS).fold(0, |events, (&set, (asks, _))| {
                match !set.is_null() && libc::FD_ISSET(fd, set) {
                    true => events | asks,
                    false => events,
                }
            })
        };
        let entries = (0..count).map(|fd| entry(fd, asked(fd)));
        let mut watched: Vec<Watched> = entries
            .filter(|entry| entry.events != 0)
            .map(Watched::new)
            .collect();
        poll_until(&mut watched, deadline)?;
        if watched
            .iter()
            .any(|w| w.asked.revents & libc::POLLNVAL != 0)
        {
            return Err(Errno(libc::EBADF));
        }
        let mut found = 0;
        for (set, (asks, puts)) in sets.into_iter().zip(SETS) {
            if set.is_null() {
                continue;
            }
            let mut result: libc::fd_set = mem::zeroed();
            for w in &watched {
                if w.asked.events & asks != 0 && w.asked.revents & puts != 0 {
                    libc::FD_SET(w.asked.fd, &raw mut result);
                    found += 1;
                }
            }
            set.write(result);
        }
        Ok(found)
    }
}
