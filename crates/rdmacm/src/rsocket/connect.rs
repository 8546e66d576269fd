//! How rsockets come to be connected: `rsocket`, `rbind`, `rlisten`, `raccept`, `rconnect`.

use core::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

use causeway_abi::RdmaConnParam;
use causeway_cancel::Allowed;

use super::link::Link;
use super::message::{CONN_DATA_LEN, ConnData};
use super::name;
use super::option::Options;
use super::socket::{self, Event, Guard, Phase, Socket, State};
use super::stream::Stream;
use crate::errno::{Errno, INVALID, Result, code};
use crate::event::{ADDR_RESOLVED, CONNECT_REQUEST, ROUTE_RESOLVED};
use crate::{address, connect, id, sockaddr};

/// Retries: for ever, where receives are missing.
const RETRIES: u8 = 7;

/// The number that a call returns, or -1 with `errno` set.
pub(super) fn number(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|errno| code(Err(errno)))
}

/// `rsocket`. Streams only: datagrams are ENOTSUP, as are other families and protocols.
pub(crate) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let offered = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & !flags == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if !offered {
        return code(Err(Errno(libc::ENOTSUP)));
    }
    let made = Socket::create(domain, Options::new(flags)).and_then(|socket| {
        socket.renew(&mut socket.lock())?;
        socket.publish();
        Ok(socket.fd)
    });
    number(made)
}

/// `rbind`
pub(crate) unsafe extern "C" fn rbind(
    fd: c_int,
    addr: *const libc::sockaddr,
    _len: libc::socklen_t,
) -> c_int {
    code(socket::with(fd, |socket| {
        // SAFETY: the program passes an address or null.
        let address = unsafe { sockaddr::read(addr) }?;
        let state = socket.lock();
        match state.phase {
            // SAFETY: the identifier lives.
            Phase::Fresh => unsafe { address::bind(state.id, address) },
            _ => Err(INVALID),
        }
    }))
}

/// `rlisten`
pub(crate) extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    code(socket::with(fd, |socket| {
        let mut state = socket.lock();
        match state.phase {
            Phase::Fresh | Phase::Listening => {
                // SAFETY: the identifier lives.
                unsafe { address::start_listening(state.id, requests(backlog)) }?;
                state.phase = Phase::Listening;
                Ok(())
            }
            _ => Err(INVALID),
        }
    }))
}

/// How many requests wait, in the words of `rdma_listen(3)`, to which 0 is the most. As the kernel
/// has it for `listen(2)`, a negative number is that, and 0 is one.
fn requests(backlog: c_int) -> c_int {
    match backlog {
        0 => 1,
        some => some.max(0),
    }
}

/// `raccept`; a cancellation point
pub(crate) unsafe extern "C" fn raccept(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
    allowed: Allowed,
) -> c_int {
    number(socket::with(fd, |listener| {
        let socket = accept(listener, allowed)?;
        if !addr.is_null() && !len.is_null() {
            let peer = name::peer(&socket, &socket.lock());
            // A peer that is gone already has no name.
            let peer = peer.unwrap_or_else(|_| name::unspecified(socket.domain));
            // SAFETY: the program passes room for as many bytes as it says.
            unsafe { name::write(peer, addr, len) }?;
        }
        Ok(socket.fd)
    }))
}

fn accept(listener: &Socket, allowed: Allowed) -> Result<Arc<Socket>> {
    let mut state = listener.lock();
    let deadline = state.options.receive_deadline();
    loop {
        if state.phase != Phase::Listening {
            return Err(INVALID);
        }
        match listener.next_event() {
            Ok(event) if event.kind == CONNECT_REQUEST => {
                let options = state.options.inherited();
                // One that cannot be taken is refused; the program need not know.
                if let Ok(socket) = take(listener.domain, options, &event) {
                    return Ok(socket);
                }
            }
            Ok(_) => {}
            Err(Errno(libc::EAGAIN)) if state.options.nonblocking(0) => {
                return Err(Errno(libc::EAGAIN));
            }
            Err(Errno(libc::EAGAIN)) => {
                listener.wait(&mut state, deadline, allowed, |_| listener.has_events())?;
            }
            Err(errno) => return Err(errno),
        }
    }
}

/// Accepts a request.
fn take(domain: c_int, options: Options, event: &Event) -> Result<Arc<Socket>> {
    let made = Socket::create(domain, options).and_then(|socket| {
        // SAFETY: the identifier came with the event, and is nobody else's.
        unsafe { socket.adopt(&mut socket.lock(), event.id) }?;
        Ok(socket)
    });
    let socket = made.inspect_err(|_| {
        // SAFETY: as above; this refuses the request.
        unsafe { id::destroy_id(event.id) };
    })?;
    let mut state = socket.lock();
    let peer = event.peer.ok_or(Errno(libc::EPROTO))?;
    let mut stream = open(&state)?;
    stream.introduce(&peer)?;
    let data = stream.conn_data();
    state.stream = Some(stream);
    // SAFETY: the identifier lives.
    unsafe { with_param(&data, |param| connect::grant(state.id, param)) }?;
    state.phase = Phase::Accepting;
    drop(state);
    socket.publish();
    Ok(socket)
}

/// The queue pair and buffers of a connection to be.
fn open(state: &State) -> Result<Stream> {
    let sizes = state.options.sizes;
    // SAFETY: the identifier is bound to a device, and outlives the stream.
    let link = unsafe { Link::new(state.id, &sizes) }?;
    super::close::end_with_process();
    Ok(Stream::new(link, sizes))
}

/// The parameters of a connection, with private data.
fn with_param<T>(data: &ConnData, f: impl FnOnce(RdmaConnParam) -> T) -> T {
    let private = data.encode();
    f(RdmaConnParam {
        private_data: private.as_ptr().cast::<c_void>(),
        private_data_len: CONN_DATA_LEN as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: 0,
    })
}

/// `rconnect`; a cancellation point
pub(crate) unsafe extern "C" fn rconnect(
    fd: c_int,
    addr: *const libc::sockaddr,
    _len: libc::socklen_t,
    allowed: Allowed,
) -> c_int {
    code(socket::with(fd, |socket| {
        // SAFETY: the program passes an address or null.
        let peer = unsafe { sockaddr::read(addr) }?;
        let mut state = socket.lock();
        socket.progress(&mut state);
        match state.phase {
            Phase::Fresh => {}
            Phase::Failed => match state.error.take() {
                // The outcome of the attempt before, which nobody has asked for.
                Some(errno) => return Err(errno),
                None => socket.renew(&mut state)?,
            },
            Phase::Connecting => return outcome(socket, &mut state, allowed),
            // Any error but EINPROGRESS has librspreload give the connection up and try TCP. The
            // kernel, too, says this to the first call after it has connected.
            Phase::Accepting | Phase::Connected => return Ok(()),
            Phase::Listening => return Err(INVALID),
        }
        if let Err(errno) = request(socket, &mut state, peer) {
            state.phase = Phase::Failed;
            return Err(errno);
        }
        outcome(socket, &mut state, allowed)
    }))
}

/// Waits until a connection that was asked for is there, or not; unless the rsocket does not block.
fn outcome(socket: &Socket, state: &mut Guard<'_>, allowed: Allowed) -> Result<()> {
    if state.options.nonblocking(0) {
        return Err(Errno(libc::EINPROGRESS));
    }
    let deadline = state.options.send_deadline();
    let known = |state: &State| state.phase != Phase::Connecting;
    let waited = socket.wait(state, deadline, allowed, known);
    waited.map_err(|errno| match errno {
        // The time of `SO_SNDTIMEO` is over (socket(7)).
        Errno(libc::EAGAIN) => Errno(libc::EINPROGRESS),
        errno => errno,
    })?;
    match state.phase {
        Phase::Connected => Ok(()),
        _ => Err(state.error.take().unwrap_or(Errno(libc::ECONNREFUSED))),
    }
}

/// Asks the peer for a connection.
fn request(socket: &Socket, state: &mut State, peer: SocketAddr) -> Result<()> {
    // SAFETY: the identifier lives.
    unsafe {
        address::resolve(state.id, None, peer)?;
        expect(socket, ADDR_RESOLVED)?;
        address::route(state.id)?;
        expect(socket, ROUTE_RESOLVED)?;
        let stream = open(state)?;
        let data = stream.conn_data();
        state.stream = Some(stream);
        with_param(&data, |param| connect::request(state.id, param))?;
    }
    state.phase = Phase::Connecting;
    Ok(())
}

/// Takes the event of a step that is done at once.
fn expect(socket: &Socket, kind: u32) -> Result<()> {
    let event = socket.next_event()?;
    match event.kind == kind {
        true => Ok(()),
        false => Err(Errno(match event.status.saturating_abs() {
            0 => libc::EIO,
            status => status,
        })),
    }
}

/// `rgetpeername`
pub(crate) unsafe extern "C" fn rgetpeername(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    code(socket::with(fd, |socket| {
        let peer = name::peer(socket, &socket.lock())?;
        // SAFETY: the program passes room for as many bytes as it says.
        unsafe { name::write(peer, addr, len) }
    }))
}

/// `rgetsockname`
pub(crate) unsafe extern "C" fn rgetsockname(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    code(socket::with(fd, |socket| {
        let local = name::local(socket, &socket.lock());
        // SAFETY: the program passes room for as many bytes as it says.
        unsafe { name::write(local, addr, len) }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_means_what_listen_says() {
        assert_eq!((requests(0), requests(1), requests(9)), (1, 1, 9));
        assert_eq!(requests(-1), 0, "the most that rdma_listen(3) takes");
    }
}
