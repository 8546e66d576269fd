//! rsockets whose device does what a test says.

use core::ffi::c_int;
use core::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_abi::IbvPd;
use causeway_cancel::Allowed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::close::{end_all, rclose, rshutdown};
use super::connect::rconnect;
use super::link::{CONTROL_SLOTS, Link};
use super::message::{ConnData, Message, Region};
use super::option::{Options, rsetsockopt};
use super::socket::{Doze, Phase, Socket};
use super::stream::{Piece, Stream};
use crate::errno::last;
use crate::scripted::{self as verbs, Wire, wire};

/// Messages and bytes that the peer takes.
const CREDITS: u16 = 100;
const GRANT: u32 = 1 << 20;
/// What the tests send.
const LEN: usize = 100;
/// How long connections linger whose peers take nothing.
const LINGER: Duration = Duration::from_secs(1);
/// A look that does not wait.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A connection whose peer has said nothing yet.
fn connection() -> Arc<Socket> {
    let socket = Socket::create(libc::AF_INET, Options::new(0)).expect("descriptors");
    let mut state = socket.lock();
    socket.renew(&mut state).expect("an identifier");
    let (context, pd): (_, *mut IbvPd) = verbs::context();
    // SAFETY: the identifier was just made; context and domain live as long as the process.
    unsafe { ((*state.id).verbs, (*state.id).pd) = (context, pd) };
    let sizes = state.options.sizes;
    // SAFETY: as just made; the socket's state ends the stream before the identifier.
    let link = unsafe { Link::new(state.id, &sizes) }.expect("a queue pair");
    let mut stream = Stream::new(link, sizes);
    let region = |len| Region {
        addr: 0x1000,
        key: 1,
        len,
    };
    let peer = ConnData {
        credits: CREDITS,
        mappings: 0,
        slots: region(2),
        buffer: region(GRANT),
    };
    stream.introduce(&peer).expect("a peer");
    stream.connected = true;
    // It grants its second half, of which the peer has heard.
    stream.progress();
    wire(complete_all);
    stream.progress();
    state.stream = Some(stream);
    state.phase = Phase::Connected;
    drop(state);
    socket.publish();
    socket
}

fn with_stream<T>(socket: &Socket, f: impl FnOnce(&mut Stream) -> T) -> T {
    f(socket.lock().stream.as_mut().expect("a connection"))
}

/// Sends something, which goes on its way.
fn send(socket: &Socket) {
    let mut data = [7; LEN];
    let piece = Piece {
        start: data.as_mut_ptr(),
        len: LEN,
    };
    // SAFETY: the piece is a local's.
    let sent = with_stream(socket, |stream| unsafe { stream.send(piece) });
    assert_eq!(sent, Ok(LEN as u32));
}

fn arrive(message: Message) {
    wire(|wire| wire.arrive(Some(message.encode()), true));
}

/// All that is on its way has been taken.
fn complete_all(wire: &mut Wire) {
    while !wire.sends.is_empty() {
        wire.complete(true);
    }
}

/// Closes an rsocket whose peer takes all that is on its way.
fn close(socket: &Socket) {
    wire(|wire| wire.each_poll = Some(complete_all));
    assert_eq!(rclose(socket.fd), 0);
}

fn set<T>(socket: &Socket, name: c_int, value: T) {
    // SAFETY: the value is a local's.
    let done = unsafe {
        let value = (&raw const value).cast();
        let len = mem::size_of::<T>() as libc::socklen_t;
        rsetsockopt(socket.fd, libc::SOL_SOCKET, name, value, len)
    };
    assert_eq!(done, 0);
}

#[test]
fn data_on_its_way_outlives_the_ends_of_both_directions() {
    verbs::reset();
    let socket = connection();
    send(&socket);
    with_stream(&socket, |stream| {
        // As in `rclose`.
        (stream.readable, stream.writable) = (false, false);
        stream.tell(Message::Disconnect).unwrap();
        arrive(Message::Shutdown);
        stream.progress();
        assert!(stream.ended());
        assert!(!stream.all_placed(), "what was sent is still on its way");
        wire(complete_all);
        stream.progress();
        assert!(stream.all_placed());
        assert_eq!(stream.error, None);
    });
    close(&socket);
}

#[test]
fn an_end_is_told_though_the_peers_comes_first() {
    verbs::reset();
    let socket = connection();
    with_stream(&socket, |stream| {
        for _ in 0..CONTROL_SLOTS {
            stream.tell(Message::Keepalive).unwrap();
        }
        // As in `rshutdown`, which waits until there is room.
        stream.writable = false;
        arrive(Message::Shutdown);
        stream.progress();
        assert!(!stream.can_tell());
        wire(|wire| wire.complete(true));
        stream.progress();
        assert!(stream.can_tell());
        let before = wire(|wire| wire.sends.len());
        stream.tell(Message::Shutdown).unwrap();
        assert_eq!(wire(|wire| wire.sends.len()), before + 1);
    });
    close(&socket);
}

#[test]
fn a_lost_connection_is_not_waited_for() {
    verbs::reset();
    let socket = connection();
    send(&socket);
    send(&socket);
    with_stream(&socket, |stream| {
        (stream.readable, stream.writable) = (false, false);
        arrive(Message::Shutdown);
        stream.progress();
        wire(|wire| wire.complete(false));
        stream.progress();
        assert!(stream.all_placed());
        // Both ends had ended it: nobody reads the error.
        assert_eq!(stream.error, None);
    });
    close(&socket);
}

/// The result of `rconnect`, or its error.
fn connect(socket: &Socket) -> c_int {
    // SAFETY: an address of plain numbers, which lives for the call.
    unsafe {
        let mut peer: libc::sockaddr_in = mem::zeroed();
        peer.sin_family = libc::AF_INET as libc::sa_family_t;
        let len = mem::size_of_val(&peer) as libc::socklen_t;
        match rconnect(socket.fd, (&raw const peer).cast(), len, Allowed::NO) {
            -1 => last().0,
            result => result,
        }
    }
}

#[test]
fn connecting_again_says_how_far_it_is() {
    verbs::reset();
    let socket = connection();
    assert_eq!(connect(&socket), 0);
    socket.lock().phase = Phase::Connecting;
    let briefly = libc::timeval {
        tv_sec: 0,
        tv_usec: 1,
    };
    set(&socket, libc::SO_SNDTIMEO, briefly);
    assert_eq!(connect(&socket), libc::EINPROGRESS);
    socket.lock().options = Options::new(libc::SOCK_NONBLOCK);
    assert_eq!(connect(&socket), libc::EINPROGRESS);
    close(&socket);
}

#[test]
fn shutting_waits_until_the_peer_has_the_connection() {
    verbs::reset();
    let socket = connection();
    {
        let mut state = socket.lock();
        state.phase = Phase::Accepting;
        state.stream.as_mut().unwrap().connected = false;
    }
    // The call itself looks first; the peer says something while it waits.
    wire(|wire| {
        wire.polls = 0;
        wire.each_poll = Some(|wire| {
            if wire.polls == 2 {
                wire.arrive(Some(Message::Keepalive.encode()), true);
            }
            complete_all(wire);
        });
    });
    assert_eq!(rshutdown(socket.fd, libc::SHUT_WR), 0);
    with_stream(&socket, |stream| {
        assert!(!stream.writable && stream.readable && stream.all_placed());
    });
    close(&socket);
}

#[test]
fn peers_that_take_nothing_hold_the_end_of_a_process_up_together() {
    verbs::reset();
    let sockets: Vec<_> = (0..3).map(|_| connection()).collect();
    for socket in &sockets {
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: LINGER.as_secs() as c_int,
        };
        set(socket, libc::SO_LINGER, linger);
        send(socket);
    }
    let before = wire(|wire| wire.sends.len());
    let begun = Instant::now();
    end_all(sockets.clone());
    let took = begun.elapsed();
    // One after the other they would take as long for each.
    let each = LINGER * sockets.len() as u32;
    assert!(LINGER <= took && took < each, "{took:?}");
    assert_eq!(wire(|wire| wire.sends.len()), before + sockets.len());
    sockets.iter().for_each(|socket| close(socket));
}

/// Whether a thread that sleeps on this would wake.
fn wakes(doze: &Doze) -> bool {
    let fds = doze.fds.iter().filter(|fd| **fd >= 0);
    // SAFETY: the descriptors are those of the socket, which lives, and of the sleeper.
    let fds = fds.map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
    let mut fds: Vec<_> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    poll(&mut fds, Some(&NOW)).expect("a look") > 0
}

/// A thread that waits for something else falls asleep.
fn sleep(socket: &Socket) -> Doze {
    let mut state = socket.lock();
    let doze = socket.doze(&mut state);
    socket.progress(&mut state);
    doze
}

/// It wakes, and looks.
fn wake(socket: &Socket, doze: Doze) {
    assert!(wakes(&doze));
    let mut state = socket.lock();
    state.woke(doze);
    socket.progress(&mut state);
}

#[test]
fn each_sleeper_wakes_for_an_event_and_sleeps_again() {
    verbs::reset();
    let socket = connection();
    let (mut first, mut second) = (sleep(&socket), sleep(&socket));
    for _ in 0..3 {
        assert!(!wakes(&first) && !wakes(&second));
        arrive(Message::Keepalive);
        wake(&socket, second);
        second = sleep(&socket);
        // The event is there until the first has seen it.
        wake(&socket, first);
        first = sleep(&socket);
        wake(&socket, second);
        second = sleep(&socket);
    }
    assert!(!wakes(&first) && !wakes(&second));
    for doze in [first, second] {
        socket.lock().woke(doze);
    }
    close(&socket);
}

#[test]
fn a_sleeper_hears_of_what_another_takes() {
    verbs::reset();
    let socket = connection();
    let (first, second) = (sleep(&socket), sleep(&socket));
    arrive(Message::Keepalive);
    wake(&socket, second);
    let second = sleep(&socket);
    wake(&socket, first);
    // It comes before the channel is armed again, so that no event tells of it.
    arrive(Message::Data(1));
    let first = sleep(&socket);
    assert!(!wakes(&first));
    wake(&socket, second);
    with_stream(&socket, |stream| assert!(stream.has_news()));
    socket.lock().woke(first);
    close(&socket);
}
