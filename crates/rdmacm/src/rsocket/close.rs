//! Ends of connections: `rshutdown`, `rclose`, and the end of the process.

use core::ffi::c_int;
use std::sync::Once;
use std::time::{Duration, Instant};

use super::message::Message;
use super::socket::{self, Guard, Phase, Socket, State};
use crate::errno::{Errno, INVALID, Result, code};

/// How long closing waits while the peer takes nothing of what is on its way.
const STALL: Duration = Duration::from_secs(5);
/// How long a process that ends waits for a lock that another thread holds.
const EXIT_LOCK: Duration = Duration::from_millis(100);

/// `rshutdown`
pub(crate) extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    code(socket::with(fd, |socket| {
        let mut state = socket.lock();
        socket.progress(&mut state);
        if state.phase != Phase::Connected {
            return Err(Errno(libc::ENOTCONN));
        }
        shut(socket, &mut state, how, None)
    }))
}

/// What ends with `how`: reading, writing.
fn ends(how: c_int) -> Result<(bool, bool)> {
    match how {
        libc::SHUT_RD => Ok((true, false)),
        libc::SHUT_WR => Ok((false, true)),
        libc::SHUT_RDWR => Ok((true, true)),
        _ => Err(INVALID),
    }
}

/// Ends directions of a connection, and waits until the peer has all that was sent.
fn shut(socket: &Socket, state: &mut Guard<'_>, how: c_int, limit: Option<Duration>) -> Result<()> {
    let (reading, writing) = ends(how)?;
    let Some(stream) = state.stream.as_mut().filter(|stream| stream.connected) else {
        return Ok(());
    };
    let before = (stream.readable, stream.writable);
    stream.readable &= !reading;
    stream.writable &= !writing;
    stream.silenced |= writing;
    let message = match (before, (stream.readable, stream.writable)) {
        (before, after) if before == after => None,
        (_, (false, false)) => Some(Message::Disconnect),
        ((_, true), (true, false)) => Some(Message::Shutdown),
        // The peer need not know that nobody reads.
        _ => None,
    };
    if let Some(message) = message {
        let can_tell = |state: &State| state.stream.as_ref().is_none_or(|s| s.can_tell());
        settle(socket, state, limit, can_tell);
        let stream = state.stream.as_mut();
        if let Some(stream) = stream.filter(|stream| stream.can_tell()) {
            stream.tell(message)?;
        }
        settle(socket, state, limit, all_placed);
    }
    Ok(())
}

fn all_placed(state: &State) -> bool {
    state.stream.as_ref().is_none_or(|s| s.all_placed())
}

/// Waits until `done`, as long as the peer goes on taking what is on its way.
fn settle(
    socket: &Socket,
    state: &mut Guard<'_>,
    limit: Option<Duration>,
    done: impl Fn(&State) -> bool,
) {
    let under_way = |state: &State| state.stream.as_ref().map_or(0, |s| s.under_way());
    let end = limit.map(|limit| Instant::now() + limit);
    loop {
        let before = under_way(state);
        let stall = Instant::now() + STALL;
        let deadline = end.map_or(stall, |end| end.min(stall));
        let moved = |state: &State| done(state) || under_way(state) < before;
        let waited = socket.wait(state, Some(deadline), moved);
        let over = end.is_some_and(|end| Instant::now() >= end);
        match waited {
            _ if done(state) || over => return,
            // A signal does not end it, nor does slow progress.
            Ok(()) | Err(Errno(libc::EINTR)) => {}
            Err(_) => return,
        }
    }
}

/// `rclose`
pub(crate) extern "C" fn rclose(fd: c_int) -> c_int {
    code(socket::remove(fd).map(|socket| {
        if socket.is_ours() {
            let mut state = socket.lock();
            let limit = state.options.linger();
            end(&socket, &mut state, limit);
        }
        // What is left ends with the last call that uses it.
    }))
}

/// Ends a connection in order.
fn end(socket: &Socket, state: &mut Guard<'_>, limit: Option<Duration>) {
    socket.progress(state);
    if state.phase == Phase::Accepting {
        // The peer waits for the connection, or has it already.
        let deadline = Instant::now() + limit.unwrap_or(STALL).min(STALL);
        let waiting = |state: &State| state.phase == Phase::Accepting;
        let _ = socket.wait(state, Some(deadline), |state| !waiting(state));
    }
    // It fails if there is nothing to end.
    let _ = shut(socket, state, libc::SHUT_RDWR, limit);
}

/// Has connections that are open when the process ends end in order, as the kernel's do.
pub(super) fn end_with_process() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the function stays: the library is never unloaded. Without memory for it the
        // connections end as they do when a process is killed.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    for socket in socket::all() {
        if !socket.is_ours() {
            continue;
        }
        if let Some(mut state) = socket.try_lock(EXIT_LOCK) {
            let limit = state.options.linger().or(Some(STALL));
            end(&socket, &mut state, limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_are_named_as_sockets_name_them() {
        assert_eq!(ends(libc::SHUT_RD), Ok((true, false)));
        assert_eq!(ends(libc::SHUT_WR), Ok((false, true)));
        assert_eq!(ends(libc::SHUT_RDWR), Ok((true, true)));
        assert_eq!(ends(3), Err(INVALID));
    }
}
