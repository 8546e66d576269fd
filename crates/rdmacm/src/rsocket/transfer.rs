//! Sending and receiving: `rsend`, `rrecv` and their relatives.

use core::ffi::{c_int, c_void};
use core::slice;
use std::time::Instant;

use causeway_cancel::{Allowed, CANCELLED};

use super::name;
use super::socket::{self, Guard, Phase, Socket, State};
use super::stream::{Piece, Stream};
use crate::errno::{Errno, INVALID, Result, code};

/// `IOV_MAX`
const PIECES_MAX: usize = 1024;
/// The kernel's limit on one transfer (`read(2)`).
const TRANSFER_MAX: usize = 0x7FFF_F000;

/// What a call returns: a number of bytes, or -1 with `errno` set.
fn bytes(result: Result<usize>) -> isize {
    match result {
        Ok(bytes) => bytes as isize,
        Err(errno) => code(Err(errno)) as isize,
    }
}

/// The program's pieces.
///
/// # Safety
/// `iov` is null or names `count` pieces.
unsafe fn pieces(iov: *const libc::iovec, count: usize) -> Result<Vec<Piece>> {
    if count > PIECES_MAX || (iov.is_null() && count > 0) {
        return Err(INVALID);
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: as the caller promises.
    let iov = unsafe { slice::from_raw_parts(iov, count) };
    let mut left = TRANSFER_MAX;
    let pieces = iov.iter().map(|v| {
        let len = v.iov_len.min(left);
        left -= len;
        Piece {
            start: v.iov_base.cast(),
            len,
        }
    });
    Ok(pieces.collect())
}

/// One piece.
fn piece(start: *const c_void, len: usize) -> [Piece; 1] {
    [Piece {
        start: start.cast_mut().cast(),
        len: len.min(TRANSFER_MAX),
    }]
}

/// What a transfer returns that goes no further: how much it moved, or why it moved nothing.
/// A thread that is cancelled ends in any case.
fn so_far(moved: usize, errno: Errno) -> Result<usize> {
    match errno {
        Errno(CANCELLED) => Err(errno),
        _ if moved > 0 => Ok(moved),
        _ => Err(errno),
    }
}

impl Socket {
    /// Waits until the peer is there.
    fn await_peer(
        &self,
        state: &mut Guard<'_>,
        flags: c_int,
        deadline: Option<Instant>,
        allowed: Allowed,
    ) -> Result<()> {
        loop {
            match state.phase {
                Phase::Connected => return Ok(()),
                Phase::Connecting | Phase::Accepting => {}
                Phase::Failed => {
                    return Err(state.error.take().unwrap_or(Errno(libc::ENOTCONN)));
                }
                Phase::Fresh | Phase::Listening => return Err(Errno(libc::ENOTCONN)),
            }
            self.progress(state);
            let waits = |state: &State| matches!(state.phase, Phase::Connecting | Phase::Accepting);
            if !waits(state) {
                continue;
            }
            if state.options.nonblocking(flags) {
                return Err(Errno(libc::EAGAIN));
            }
            self.wait(state, deadline, allowed, |state| !waits(state))?;
        }
    }

    /// Waits until `test` of the connection holds, or it can't be written to any more.
    pub(super) fn await_room(
        &self,
        state: &mut Guard<'_>,
        flags: c_int,
        deadline: Option<Instant>,
        allowed: Allowed,
        test: impl Fn(&Stream) -> bool,
    ) -> Result<()> {
        self.await_peer(state, flags, deadline, allowed)?;
        loop {
            let Some(stream) = state.stream.as_mut() else {
                return Err(Errno(libc::ENOTCONN));
            };
            if !stream.writable {
                return Err(closed(stream));
            }
            if stream.mappings.pending() {
                // The peer must know of them before it gets what follows.
                if stream.outgoing.has_room() {
                    stream.tell_mapping()?;
                    continue;
                }
            } else if test(stream) {
                return Ok(());
            }
            let ready = |state: &State| {
                state.stream.as_ref().is_none_or(|stream| {
                    let room = stream.outgoing.has_room();
                    !stream.writable
                        || match stream.mappings.pending() {
                            true => room,
                            false => test(stream),
                        }
                })
            };
            self.progress(state);
            if ready(state) {
                continue;
            }
            if state.options.nonblocking(flags) {
                return Err(Errno(libc::EAGAIN));
            }
            self.wait(state, deadline, allowed, ready)?;
        }
    }

    /// Sends the pieces: all of them, unless the rsocket does not block or something fails.
    ///
    /// # Safety
    /// The pieces can be read.
    unsafe fn send(&self, pieces: &[Piece], flags: c_int) -> Result<usize> {
        if flags & libc::MSG_OOB != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let mut state = self.lock();
        let deadline = state.options.send_deadline();
        let mut sent = 0;
        for piece in pieces {
            let mut at = 0;
            while at < piece.len {
                let room = Stream::has_room;
                let waited = self.await_room(&mut state, flags, deadline, Allowed::AS_IT_IS, room);
                if let Err(errno) = waited {
                    return so_far(sent, errno);
                }
                let Some(stream) = state.stream.as_mut() else {
                    return Err(Errno(libc::ENOTCONN));
                };
                // SAFETY: as the caller promises.
                let outcome = unsafe {
                    let rest = Piece {
                        start: piece.start.add(at),
                        len: piece.len - at,
                    };
                    stream.send(rest)
                };
                match outcome {
                    Ok(len) => {
                        at += len as usize;
                        sent += len as usize;
                    }
                    Err(errno) => {
                        stream.lost(Some(errno));
                        return so_far(sent, errno);
                    }
                }
            }
        }
        Ok(sent)
    }

    /// Receives into the pieces: what is there, or all of them with `MSG_WAITALL`.
    ///
    /// # Safety
    /// The pieces can be written.
    unsafe fn receive(&self, pieces: &[Piece], flags: c_int) -> Result<usize> {
        if flags & libc::MSG_OOB != 0 {
            return Err(INVALID);
        }
        let want: usize = pieces.iter().map(|piece| piece.len).sum();
        let peek = flags & libc::MSG_PEEK != 0;
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        let mut state = self.lock();
        let deadline = state.options.receive_deadline();
        let mut got = 0;
        self.await_peer(&mut state, flags, deadline, Allowed::AS_IT_IS)?;
        loop {
            let outcome = match state.stream.as_mut() {
                // SAFETY: as the caller promises.
                Some(stream) => unsafe { stream.receive(pieces, got, peek) },
                None => Err(Errno(libc::ENOTCONN)),
            };
            got += outcome?;
            if got == want || (got > 0 && !all) {
                return Ok(got);
            }
            let news = |state: &State| state.stream.as_ref().is_none_or(Stream::has_news);
            self.progress(&mut state);
            if !news(&state) {
                if state.options.nonblocking(flags) {
                    return so_far(got, Errno(libc::EAGAIN));
                }
                if let Err(errno) = self.wait(&mut state, deadline, Allowed::AS_IT_IS, news) {
                    return so_far(got, errno);
                }
            }
            let end = state
                .stream
                .as_mut()
                .filter(|stream| stream.incoming.unread() == 0);
            if let Some(stream) = end {
                // The end; how it came about is told once.
                return match stream.error.take() {
                    Some(errno) if got == 0 => Err(errno),
                    _ => Ok(got),
                };
            }
        }
    }
}

/// Why nothing can be sent.
fn closed(stream: &mut Stream) -> Errno {
    let over = if stream.ended() && !stream.silenced {
        libc::ECONNRESET
    } else {
        libc::EPIPE
    };
    stream.error.take().unwrap_or(Errno(over))
}

/// `rrecv`; a cancellation point
pub(crate) unsafe extern "C" fn rrecv(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    let pieces = piece(buf, len);
    // SAFETY: the program passes room for as many bytes as it says.
    bytes(socket::with(fd, |socket| unsafe {
        socket.receive(&pieces, flags)
    }))
}

/// `rrecvfrom`; a cancellation point
pub(crate) unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut libc::sockaddr,
    addr_len: *mut libc::socklen_t,
) -> isize {
    let pieces = piece(buf, len);
    bytes(socket::with(fd, |socket| {
        // SAFETY: the program passes room for as many bytes as it says, twice.
        unsafe {
            let got = socket.receive(&pieces, flags)?;
            if !addr.is_null() && !addr_len.is_null() {
                let peer = name::peer(socket, &socket.lock())?;
                name::write(peer, addr, addr_len)?;
            }
            Ok(got)
        }
    }))
}

/// `rrecvmsg`: without control messages; a cancellation point
pub(crate) unsafe extern "C" fn rrecvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) -> isize {
    bytes(socket::with(fd, |socket| {
        // SAFETY: the program passes a message whose pieces can be written.
        unsafe {
            let msg = msg.as_mut().ok_or(INVALID)?;
            let got = socket.receive(&pieces(msg.msg_iov, msg.msg_iovlen)?, flags)?;
            msg.msg_controllen = 0;
            msg.msg_namelen = 0;
            msg.msg_flags = 0;
            Ok(got)
        }
    }))
}

/// `rread`; a cancellation point
pub(crate) unsafe extern "C" fn rread(fd: c_int, buf: *mut c_void, len: usize) -> isize {
    // SAFETY: as the program promises.
    unsafe { rrecv(fd, buf, len, 0) }
}

/// `rreadv`; a cancellation point
pub(crate) unsafe extern "C" fn rreadv(fd: c_int, iov: *const libc::iovec, count: c_int) -> isize {
    bytes(socket::with(fd, |socket| {
        let count = usize::try_from(count).map_err(|_| INVALID)?;
        // SAFETY: the program passes as many pieces as it says.
        unsafe { socket.receive(&pieces(iov, count)?, 0) }
    }))
}

/// `rsend`; a cancellation point
pub(crate) unsafe extern "C" fn rsend(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    let pieces = piece(buf, len);
    // SAFETY: the program passes as many bytes as it says.
    bytes(socket::with(fd, |socket| unsafe {
        socket.send(&pieces, flags)
    }))
}

/// `rsendto`: to the peer that the rsocket is connected with; a cancellation point
pub(crate) unsafe extern "C" fn rsendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const libc::sockaddr,
    addr_len: libc::socklen_t,
) -> isize {
    if !addr.is_null() || addr_len != 0 {
        return bytes(Err(Errno(libc::EISCONN)));
    }
    // SAFETY: as the program promises.
    unsafe { rsend(fd, buf, len, flags) }
}

/// `rsendmsg`: without control messages; a cancellation point
pub(crate) unsafe extern "C" fn rsendmsg(
    fd: c_int,
    msg: *const libc::msghdr,
    flags: c_int,
) -> isize {
    bytes(socket::with(fd, |socket| {
        // SAFETY: the program passes a message whose pieces can be read.
        unsafe {
            let msg = msg.as_ref().ok_or(INVALID)?;
            if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
                return Err(Errno(libc::ENOTSUP));
            }
            socket.send(&pieces(msg.msg_iov, msg.msg_iovlen)?, flags)
        }
    }))
}

/// `rwrite`; a cancellation point
pub(crate) unsafe extern "C" fn rwrite(fd: c_int, buf: *const c_void, len: usize) -> isize {
    // SAFETY: as the program promises.
    unsafe { rsend(fd, buf, len, 0) }
}

/// `rwritev`; a cancellation point
pub(crate) unsafe extern "C" fn rwritev(fd: c_int, iov: *const libc::iovec, count: c_int) -> isize {
    bytes(socket::with(fd, |socket| {
        let count = usize::try_from(count).map_err(|_| INVALID)?;
        // SAFETY: the program passes as many pieces as it says.
        unsafe { socket.send(&pieces(iov, count)?, 0) }
    }))
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;

    #[test]
    fn a_transfer_has_a_limit() {
        let iov = [libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: TRANSFER_MAX / 2 + 1,
        }; 3];
        // SAFETY: three pieces are named; what they name is not touched.
        let read = unsafe { pieces(iov.as_ptr(), iov.len()) }.unwrap();
        let lengths: Vec<usize> = read.iter().map(|piece| piece.len).collect();
        assert_eq!(lengths, [TRANSFER_MAX / 2 + 1, TRANSFER_MAX / 2 - 1, 0]);
    }

    #[test]
    fn a_cancelled_thread_ends_though_something_was_moved() {
        assert_eq!(so_far(5, Errno(libc::EAGAIN)), Ok(5));
        assert_eq!(so_far(0, Errno(libc::EAGAIN)), Err(Errno(libc::EAGAIN)));
        assert_eq!(so_far(5, Errno(CANCELLED)), Err(Errno(CANCELLED)));
    }

    #[test]
    fn pieces_are_read_as_they_are() {
        let mut data = [1u8, 2, 3];
        let iov = [libc::iovec {
            iov_base: data.as_mut_ptr().cast(),
            iov_len: 3,
        }];
        // SAFETY: one piece is named, or none.
        unsafe {
            let read = pieces(iov.as_ptr(), 1).unwrap();
            assert_eq!((read.len(), read[0].len), (1, 3));
            assert!(pieces(ptr::null(), 0).unwrap().is_empty());
            assert_eq!(pieces(ptr::null(), 1).err(), Some(INVALID));
        }
    }
}
