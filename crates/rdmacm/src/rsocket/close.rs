//! Ends of connections: `rshutdown`, `rclose`, and the end of the process.

use core::ffi::c_int;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use causeway_cancel::Allowed;

use super::message::Message;
use super::socket::{self, Guard, Phase, Socket, State};
use super::stream::Stream;
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
        await_accepted(socket, &mut state, None);
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

/// Ends directions of a connection: what the peer is to be told, if anything.
fn leave(stream: &mut Stream, how: c_int) -> Result<Option<Message>> {
    let (reading, writing) = ends(how)?;
    let before = (stream.readable, stream.writable);
    stream.readable &= !reading;
    stream.writable &= !writing;
    stream.silenced |= writing;
    Ok(match (before, (stream.readable, stream.writable)) {
        (before, after) if before == after => None,
        (_, (false, false)) => Some(Message::Disconnect),
        ((_, true), (true, false)) => Some(Message::Shutdown),
        // The peer need not know that nobody reads.
        _ => None,
    })
}

/// Ends directions of a connection, and waits until the peer has all that was sent.
fn shut(socket: &Socket, state: &mut Guard<'_>, how: c_int, end: Option<Instant>) -> Result<()> {
    let Some(stream) = state.stream.as_mut().filter(|stream| stream.connected) else {
        return Ok(());
    };
    if let Some(message) = leave(stream, how)? {
        let can_tell = |state: &State| state.stream.as_ref().is_none_or(|s| s.can_tell());
        settle(socket, state, end, can_tell);
        let stream = state.stream.as_mut();
        if let Some(stream) = stream.filter(|stream| stream.can_tell()) {
            stream.tell(message)?;
        }
        settle(socket, state, end, all_placed);
    }
    Ok(())
}

fn all_placed(state: &State) -> bool {
    state.stream.as_ref().is_none_or(|s| s.all_placed())
}

/// Waits until `done`, as long as the peer goes on taking what is on its way, and until `end` at
/// most.
fn settle(
    socket: &Socket,
    state: &mut Guard<'_>,
    end: Option<Instant>,
    done: impl Fn(&State) -> bool,
) {
    let under_way = |state: &State| state.stream.as_ref().map_or(0, |s| s.under_way());
    loop {
        let before = under_way(state);
        let stall = Instant::now() + STALL;
        let deadline = end.map_or(stall, |end| end.min(stall));
        let moved = |state: &State| done(state) || under_way(state) < before;
        let waited = socket.wait(state, Some(deadline), Allowed::NO, moved);
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
            let end_by = state.options.linger().and_then(socket::after);
            end(&socket, &mut state, end_by);
        }
        // What is left ends with the last call that uses it.
    }))
}

/// Waits until a peer that was accepted has the connection, which it may have already.
fn await_accepted(socket: &Socket, state: &mut Guard<'_>, end: Option<Instant>) {
    let stall = Instant::now() + STALL;
    let deadline = end.map_or(stall, |end| end.min(stall));
    let known = |state: &State| state.phase != Phase::Accepting;
    while !known(state) {
        match socket.wait(state, Some(deadline), Allowed::NO, known) {
            // A signal does not end it.
            Ok(()) | Err(Errno(libc::EINTR)) => {}
            Err(_) => return,
        }
    }
}

/// Ends a connection in order.
fn end(socket: &Socket, state: &mut Guard<'_>, end: Option<Instant>) {
    socket.progress(state);
    await_accepted(socket, state, end);
    // It fails if there is nothing to end.
    let _ = shut(socket, state, libc::SHUT_RDWR, end);
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
    end_all(socket::all());
}

/// Ends connections in order. All peers are told before the first is waited for, so that those that
/// take nothing hold up the process together no longer than one of them.
pub(super) fn end_all(mut sockets: Vec<Arc<Socket>>) {
    sockets.retain(|socket| socket.is_ours());
    sockets.retain(|socket| match socket.try_lock(EXIT_LOCK) {
        Some(mut state) => {
            announce(socket, &mut state);
            true
        }
        None => false,
    });
    let begun = Instant::now();
    for socket in sockets {
        if let Some(mut state) = socket.try_lock(EXIT_LOCK) {
            let limit = state.options.linger().unwrap_or(STALL);
            let end_by = begun.checked_add(limit);
            end(&socket, &mut state, end_by);
            settle(&socket, &mut state, end_by, all_placed);
        }
    }
}

/// Tells the peer of the end of a connection, if that can be done at once.
fn announce(socket: &Socket, state: &mut Guard<'_>) {
    socket.progress(state);
    let stream = state.stream.as_mut();
    let Some(stream) = stream.filter(|stream| stream.connected && stream.can_tell()) else {
        return;
    };
    if let Ok(Some(message)) = leave(stream, libc::SHUT_RDWR) {
        // Where that fails, there is nothing to wait for.
        let _ = stream.tell(message);
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
