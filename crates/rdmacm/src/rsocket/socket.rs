//! An rsocket: the descriptor, the identifier and the connection; and how calls wait for it.
//!
//! The number of an rsocket is the descriptor of its event channel, so it is never the number of
//! anything else. Everything of an rsocket is under one mutex, which nobody holds while asleep.
//!
//! A sleeper waits for the event channel, for the completion channel, and for what others take
//! from the latter (`sleepers`). Nothing is armed while a thread looks before it sleeps
//! (`causeway-look`).

use core::ffi::c_int;
use core::ptr;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use causeway_abi::{IbvPd, RdmaCmEvent, RdmaCmId, RdmaEventChannel};
use causeway_cancel::{Allowed, CANCELLED};
use causeway_look::{Lookers, Looks, Wait};
use parking_lot::{Mutex, MutexGuard, RwLock};
use rustix::fd::BorrowedFd;
use rustix::fs::OFlags;

use super::config::CONFIG;
use super::message::{CONN_DATA_LEN, ConnData};
use super::option::Options;
use super::sleepers::{Sleeper, Sleepers};
use super::stream::Stream;
use crate::channel::{Channel, Queue};
use crate::errno::{Errno, Result};
use crate::id::{self, PS_TCP};
use crate::{connect, event};

/// Threads that look for what happens to rsockets.
pub(super) static LOOKERS: Lookers = Lookers::new();
/// Passes at most in which what a peer sent before its end is taken.
const LAST_PASSES: usize = 64;

/// How far an rsocket has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// New, or bound to an address.
    Fresh,
    /// It takes connections.
    Listening,
    /// The peer was asked.
    Connecting,
    /// The peer was accepted, and may not know yet.
    Accepting,
    /// The connection was agreed on; it may be over.
    Connected,
    /// The peer did not want, or did not answer.
    Failed,
}

/// What a thread sleeps on.
pub(super) struct Doze {
    /// The event channel, and of a connection the completion channel and the bell; -1 for none.
    pub fds: [c_int; 3],
    sleeper: Option<Sleeper>,
}

/// What changes of an rsocket.
pub(super) struct State {
    pub id: *mut RdmaCmId,
    pub phase: Phase,
    pub stream: Option<Stream>,
    pub options: Options,
    /// `SO_ERROR`
    pub error: Option<Errno>,
    sleepers: Sleepers,
}

// SAFETY: the pointers are to objects that may be used from any thread, one at a time: the state is
// under a mutex.
unsafe impl Send for State {}

/// The locked state.
pub(super) type Guard<'a> = MutexGuard<'a, State>;

/// An rsocket.
pub(crate) struct Socket {
    pub(super) fd: c_int,
    pub(super) domain: c_int,
    channel: ChannelPointer,
    queue: Arc<Queue>,
    pid: u32,
    /// What is known of waits for it.
    pub(super) looks: Looks,
    state: Mutex<State>,
}

struct ChannelPointer(*mut RdmaEventChannel);

// SAFETY: a channel may be used from any thread; it is freed by the thread that drops the socket.
unsafe impl Send for ChannelPointer {}
// SAFETY: as above.
unsafe impl Sync for ChannelPointer {}

/// Every rsocket of the process.
static SOCKETS: LazyLock<RwLock<HashMap<c_int, Arc<Socket>>>> = LazyLock::new(RwLock::default);

/// The rsocket of this number.
pub(super) fn get(fd: c_int) -> Option<Arc<Socket>> {
    SOCKETS.read().get(&fd).cloned()
}

/// Runs `f` on an rsocket.
///
/// # Errors
/// EBADF if there is none of this number.
pub(super) fn with<T>(fd: c_int, f: impl FnOnce(&Socket) -> Result<T>) -> Result<T> {
    f(&*get(fd).ok_or(Errno(libc::EBADF))?)
}

/// Forgets an rsocket: nobody finds it any more.
pub(super) fn remove(fd: c_int) -> Result<Arc<Socket>> {
    SOCKETS.write().remove(&fd).ok_or(Errno(libc::EBADF))
}

/// Every rsocket there is.
pub(super) fn all() -> Vec<Arc<Socket>> {
    SOCKETS.read().values().cloned().collect()
}

/// When a time that a program names is over; never, if that is beyond what can be said.
pub(super) fn after(time: Duration) -> Option<Instant> {
    Instant::now().checked_add(time)
}

/// An event of the connection manager.
pub(super) struct Event {
    pub id: *mut RdmaCmId,
    pub kind: u32,
    pub status: c_int,
    pub peer: Option<ConnData>,
}

impl Socket {
    /// A new rsocket, in the table.
    pub fn create(domain: c_int, options: Options) -> Result<Arc<Socket>> {
        let channel = ChannelPointer(Channel::create()?);
        // SAFETY: the channel is new; from now on the socket frees it.
        let (fd, queue) = unsafe { ((*channel.0).fd, Channel::queue_of(channel.0)) };
        let socket = Arc::new(Socket {
            fd,
            domain,
            channel,
            queue,
            pid: std::process::id(),
            looks: Looks::new(),
            state: Mutex::new(State {
                id: ptr::null_mut(),
                phase: Phase::Fresh,
                stream: None,
                options,
                error: None,
                sleepers: Sleepers::default(),
            }),
        });
        // SAFETY: the descriptor is the channel's, which lives.
        let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::fs::fcntl_setfl(descriptor, OFlags::NONBLOCK)?;
        Ok(socket)
    }

    /// Lets calls find the rsocket.
    pub fn publish(self: &Arc<Self>) {
        SOCKETS.write().insert(self.fd, self.clone());
    }

    /// Gives the rsocket an identifier of its own, instead of the one it had.
    pub fn renew(&self, state: &mut State) -> Result<()> {
        state.discard();
        // SAFETY: the channel lives as long as the socket, which destroys the identifier.
        state.id = unsafe { id::create(self.channel.0, ptr::null_mut(), PS_TCP, None) }?;
        state.phase = Phase::Fresh;
        Ok(())
    }

    /// Takes over an identifier that a listener got.
    ///
    /// # Safety
    /// `id` is one of ours, and nobody else's.
    pub unsafe fn adopt(&self, state: &mut State, id: *mut RdmaCmId) -> Result<()> {
        // SAFETY: as the caller promises; the channel lives as long as the socket.
        unsafe { id::migrate(id, self.channel.0) }?;
        state.id = id;
        Ok(())
    }

    /// The state, locked.
    pub fn lock(&self) -> Guard<'_> {
        self.state.lock()
    }

    /// The state, unless somebody holds it for longer than this.
    pub fn try_lock(&self, patience: Duration) -> Option<Guard<'_>> {
        self.state.try_lock_for(patience)
    }

    /// Whether this process made the rsocket, and not one that it was forked from.
    pub fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Whether the connection manager has something to say.
    pub fn has_events(&self) -> bool {
        self.queue.has_events()
    }

    /// The next event of the connection manager.
    pub fn next_event(&self) -> Result<Event> {
        if !self.has_events() {
            return Err(Errno(libc::EAGAIN));
        }
        let mut event: *mut RdmaCmEvent = ptr::null_mut();
        // SAFETY: the channel lives; the event is one of `event::get`, acknowledged once, and
        // neither the socket's identifier nor a listener's new one is destroyed meanwhile.
        unsafe {
            event::get(self.channel.0, &raw mut event, Allowed::NO)?;
            let param = (*event).param.conn;
            let (data, len) = (param.private_data, usize::from(param.private_data_len));
            let peer = (!data.is_null() && len >= CONN_DATA_LEN)
                .then(|| data.cast::<[u8; CONN_DATA_LEN]>().read_unaligned());
            let taken = Event {
                id: (*event).id,
                kind: (*event).event,
                status: (*event).status,
                peer: peer.and_then(|bytes| ConnData::decode(&bytes)),
            };
            event::acknowledge(event);
            Ok(taken)
        }
    }

    /// Takes everything that has happened.
    pub fn progress(&self, state: &mut State) {
        if state.phase != Phase::Listening && !state.id.is_null() {
            while let Ok(event) = self.next_event() {
                state.happened(&event);
            }
        }
        let Some(stream) = state.stream.as_mut() else {
            return;
        };
        stream.progress();
        if state.phase == Phase::Accepting && stream.heard() {
            state.connected();
        }
    }

    /// Prepares for sleeping: what to wait for. A look whether that is needed, and then
    /// [`State::woke`], must follow.
    pub fn doze(&self, state: &mut State) -> Doze {
        let Some(stream) = &state.stream else {
            return Doze {
                fds: [self.fd, -1, -1],
                sleeper: None,
            };
        };
        let sleeper = state.sleepers.add(&stream.link);
        Doze {
            fds: [self.fd, stream.link.fd(), sleeper.fd()],
            sleeper: Some(sleeper),
        }
    }

    /// Waits until `done`.
    ///
    /// # Errors
    /// EINTR after a signal; without a deadline, only after one whose handler interrupts system
    /// calls, as of the kernel's sockets (signal(7)). EAGAIN when the deadline has passed.
    /// [`CANCELLED`].
    pub fn wait(
        &self,
        state: &mut Guard<'_>,
        deadline: Option<Instant>,
        allowed: Allowed,
        done: impl Fn(&State) -> bool,
    ) -> Result<()> {
        let mut wait = self.looks.begin(&LOOKERS);
        if !self.spin(state, &mut wait, &done) {
            self.sleep(state, deadline, allowed, &done)?;
        }
        wait.over();
        Ok(())
    }

    /// Sleeps until `done`.
    fn sleep(
        &self,
        state: &mut Guard<'_>,
        deadline: Option<Instant>,
        allowed: Allowed,
        done: &impl Fn(&State) -> bool,
    ) -> Result<()> {
        loop {
            let doze = self.doze(state);
            self.progress(state);
            if done(state) {
                state.woke(doze);
                return Ok(());
            }
            let patience = state.patience(deadline);
            let asleep = || super::poll::sleep(&doze.fds, patience, allowed);
            let slept = MutexGuard::unlocked(state, asleep);
            state.woke(doze);
            if slept == Err(Errno(CANCELLED)) {
                return slept;
            }
            self.progress(state);
            if done(state) {
                return Ok(());
            }
            match slept {
                Err(Errno(libc::EINTR)) if deadline.is_none() && !causeway_cancel::interrupt() => {}
                other => other?,
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Errno(libc::EAGAIN));
            }
        }
    }

    /// Polls for a while: as long as the administrator has said, and on where looks are worth it.
    fn spin(
        &self,
        state: &mut Guard<'_>,
        wait: &mut Wait<'_>,
        done: &impl Fn(&State) -> bool,
    ) -> bool {
        let start = Instant::now();
        loop {
            self.progress(state);
            if done(state) {
                return true;
            }
            // Others may have the processor meanwhile, and need the lock for what this one is for.
            let looks = MutexGuard::unlocked_fair(state, || wait.again());
            let polls = looks || start.elapsed() < CONFIG.polling;
            if state.stream.is_none() || !polls {
                return false;
            }
        }
    }
}

impl State {
    /// The protection domain of the identifier, once it is bound to a device.
    pub fn domain(&self) -> Option<*mut IbvPd> {
        if self.id.is_null() {
            return None;
        }
        // SAFETY: the identifier lives.
        Some(unsafe { (*self.id).pd }).filter(|pd| !pd.is_null())
    }

    /// Sleeping is over.
    pub fn woke(&mut self, doze: Doze) {
        if let Some(sleeper) = doze.sleeper {
            self.sleepers.remove(sleeper);
        }
    }

    /// How long to sleep at most. Another thread's call can take the event that connects, so a
    /// thread that sleeps until then looks again at times.
    pub fn patience(&self, deadline: Option<Instant>) -> Option<Duration> {
        if self.stream.as_ref().is_some_and(Stream::is_unfinished) {
            return Some(Duration::ZERO);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let sure = match self.phase {
            Phase::Listening => true,
            phase => phase == Phase::Connected && self.sleepers.armed,
        };
        match sure {
            true => left,
            false => Some(left.map_or(CONFIG.wake_up, |left| left.min(CONFIG.wake_up))),
        }
    }

    /// The peer is ready.
    pub fn connected(&mut self) {
        self.phase = Phase::Connected;
        if let Some(stream) = self.stream.as_mut().filter(|stream| !stream.ended()) {
            stream.connected = true;
        }
    }

    /// There is no connection, for this reason.
    fn failed(&mut self, errno: Errno) {
        self.error = Some(errno);
        match (self.phase, self.stream.as_mut()) {
            (Phase::Accepting, Some(stream)) => {
                stream.lost(Some(errno));
                self.phase = Phase::Connected;
            }
            (_, stream) => {
                // What its queue pair gives back is no error of its own.
                if let Some(stream) = stream {
                    stream.lost(None);
                }
                self.phase = Phase::Failed;
            }
        }
    }

    /// An event of the connection.
    fn happened(&mut self, event: &Event) {
        match (event.kind, self.phase) {
            (event::ESTABLISHED, Phase::Connecting) => {
                let introduced = match (&event.peer, self.stream.as_mut()) {
                    (Some(peer), Some(stream)) => stream.introduce(peer),
                    _ => Err(Errno(libc::EPROTO)),
                };
                match introduced {
                    Ok(()) => self.connected(),
                    Err(errno) => self.failed(errno),
                }
            }
            (event::ESTABLISHED, Phase::Accepting) => self.connected(),
            (event::REJECTED, Phase::Connecting) => self.failed(Errno(libc::ECONNREFUSED)),
            (event::UNREACHABLE, Phase::Connecting) => self.failed(Errno(libc::ETIMEDOUT)),
            (event::CONNECT_ERROR, Phase::Connecting) => {
                self.failed(Errno(event.status.saturating_abs()));
            }
            (event::DISCONNECTED, Phase::Connected) => self.disconnected(),
            (event::DISCONNECTED, Phase::Accepting) => {
                // It was connected, which was not heard of.
                self.connected();
                self.disconnected();
            }
            (
                event::DISCONNECTED
                | event::REJECTED
                | event::UNREACHABLE
                | event::CONNECT_ERROR
                | event::TIMEWAIT_EXIT,
                Phase::Connecting | Phase::Accepting,
            ) => self.failed(Errno(libc::ECONNRESET)),
            _ => {}
        }
    }

    /// The peer, or its process, is gone. What it sent before has arrived.
    fn disconnected(&mut self) {
        let Some(stream) = self.stream.as_mut() else {
            return;
        };
        for _ in 0..LAST_PASSES {
            stream.progress();
            if !stream.is_unfinished() {
                break;
            }
        }
        // Unless it had said so, what was sent may be incomplete.
        stream.lost(Some(Errno(libc::ECONNRESET)));
        // Others that sleep until something arrives hear of it by their receives.
        // SAFETY: the identifier lives.
        let _ = unsafe { crate::qp::shut(self.id) };
    }

    /// Ends the connection, and frees what belongs to it.
    fn discard(&mut self) {
        if self.id.is_null() {
            return;
        }
        // SAFETY: the identifier lives until it is destroyed, when nothing of it is used any more.
        unsafe {
            if self.stream.is_some() {
                // An error: there is nothing to be ended.
                let _ = connect::end(self.id);
            }
            self.stream = None;
            id::destroy_id(self.id);
        }
        // The next connection's channel is another.
        self.sleepers.armed = false;
        self.id = ptr::null_mut();
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.is_ours() {
            // A forked child: the objects are its parent's.
            let state = self.state.get_mut();
            core::mem::forget(state.stream.take());
            return;
        }
        // A call that another thread's `rclose` has outlived may end here.
        causeway_cancel::off(|| {
            self.state.get_mut().discard();
            // SAFETY: no identifier uses the channel any more, and nobody else has the socket.
            unsafe { Channel::destroy(self.channel.0) };
        });
    }
}
