//! What an endpoint holds of its broker.

mod remember;

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use causeway_identity::Slot;
use rustix::io::Errno;

use crate::classes::Classes;
use crate::connections::Connections;
use crate::control::{Control, Event, LateReply};
use crate::error::{Error, Result};
use crate::fds::own_pid_namespace;
use crate::introduction::{Introduction, introduce};
use crate::limits::{ATTACH_ATTEMPTS, COMM_MAX, REATTACH_INTERVAL};
use crate::news::{EndpointLimits, sort_events};
use crate::remoting::{Call, Malformed, decode_body};
use crate::runtime::Address;
use crate::segments::{Quota, Segments, attach_fds, take_table};
use crate::services::{
    AttachRequest, BrokerStub, ConnectBody, Leave, PeerChange, PeerEvent, SERVICE, SegmentReply,
    SegmentRequest, SysfsRequest, WirePref,
};
use crate::slots::{present_slot, report};
use crate::wakeup::Wakeup;
use remember::remember;

/// How to attach.
#[derive(Debug)]
pub struct AttachOptions<'a> {
    /// Where the broker is; `None` takes [`Address::from_env`].
    pub broker: Option<&'a Address>,
    /// Wires the endpoint is willing to use.
    pub wire: WirePref,
    /// The endpoint's inbox: a memfd with [`crate::fds::SEALS`], handed to connected peers.
    pub inbox: BorrowedFd<'a>,
    /// The endpoint's doorbell: an eventfd, handed to connected peers.
    pub doorbell: BorrowedFd<'a>,
}

/// Which QPs to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// QP of this endpoint; its slot must have been added.
    pub local_qpn: u32,
    /// GID of the remote QP's port; `None` means this host.
    pub remote_gid: Option<[u8; 16]>,
    /// Whether `remote_gid` is among the addresses of this process's network namespace. Ignored
    /// if `remote_gid` is `None`.
    pub gid_is_local: bool,
    /// The remote QP.
    pub remote_qpn: u32,
    /// Protection domain of the local QP, by the number that its segments were created for.
    pub pd: u32,
    /// What the peer may do: `qp_access_flags` of `ibv_modify_qp(3)`.
    pub access: u32,
    /// The peer endpoint whose descriptors the caller has already, most likely this QP's; 0: none.
    pub known: u64,
}

/// An endpoint's attachment to the broker of its host.
///
/// Thread-safe: calls are serialised by a mutex, each bounded by
/// [`crate::limits::CALL_TIMEOUT`]. It belongs to the process that made it: in a forked child
/// every method fails with [`Error::Forked`] and dropping it touches nothing of the parent's.
#[derive(Debug)]
pub struct Attachment {
    pid: u32,
    broker: Address,
    wakeup: Wakeup,
    pub(crate) quota: Mutex<Quota>,
    /// The trace that the broker has told of last, or 0.
    pub(crate) trace: AtomicU64,
    /// Traffic classes by service level, as the broker has told them last.
    pub(crate) classes: Classes,
    state: Mutex<State>,
}

/// What the mutex of an [`Attachment`] guards.
#[derive(Debug)]
pub(crate) struct State {
    /// `None` from the loss of a broker to the next attachment.
    pub(crate) control: Option<Control>,
    endpoint: u64,
    pub(crate) identity: AttachRequest,
    inbox: OwnedFd,
    doorbell: OwnedFd,
    pub(crate) slots: BTreeMap<Slot, [OwnedFd; 2]>,
    pub(crate) addresses: Vec<[u8; 16]>,
    /// `None` until the first broker has made it.
    pub(crate) mr_table: Option<OwnedFd>,
    pub(crate) segments: Segments,
    pub(crate) connections: Connections,
    pub(crate) events: VecDeque<Event>,
    /// Limits on what is sent, as told last, until somebody takes them; whether there are any.
    pub(crate) limits: Option<EndpointLimits>,
    is_limited: bool,
}

impl Attachment {
    /// Attaches this process to the broker, starting it if there is none. Keeps duplicates of the
    /// inbox and the doorbell, to present them again.
    ///
    /// # Errors
    /// [`Error::Start`], [`Error::RuntimeDir`], [`Error::NoBroker`], or [`Error::Refused`]:
    /// `EACCES` if this user is not admitted, `EINVAL` if inbox or doorbell are not what they must
    /// be, `EMFILE` if the broker has no room, `EDQUOT` if the tenant has none.
    pub fn attach(options: &AttachOptions<'_>) -> Result<Attachment> {
        let broker = options.broker.cloned().unwrap_or_else(Address::from_env);
        let attachment = Attachment {
            pid: std::process::id(),
            broker,
            wakeup: Wakeup::new()?,
            quota: Mutex::default(),
            trace: AtomicU64::new(0),
            classes: Classes::default(),
            state: Mutex::new(State {
                control: None,
                endpoint: 0,
                identity: AttachRequest {
                    wire: options.wire,
                    comm: own_comm(),
                    reserved: 0,
                    pid_namespace: false,
                },
                inbox: duplicate(options.inbox)?,
                doorbell: duplicate(options.doorbell)?,
                slots: BTreeMap::new(),
                addresses: Vec::new(),
                mr_table: None,
                segments: Segments::default(),
                connections: Connections::default(),
                events: VecDeque::new(),
                limits: None,
                is_limited: false,
            }),
        };
        attachment.reattach()?;
        Ok(attachment)
    }

    /// Asks for the wire between a QP of this endpoint and a remote QP. An earlier connection of
    /// `local_qpn` is disconnected first; segments stale by that are told as events.
    ///
    /// The first of two QPs that name each other creates the ring (side 0), the second joins it
    /// (side 1). A ring belongs to exactly one incarnation of both: a side that disconnected is
    /// never joined again, while a side that has not joined yet is open to whichever incarnation
    /// of the named QP connects next, since the two may be reset and connected again in any
    /// order.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EINVAL` for numbers outside their ranges or a slot that is not this
    /// endpoint's, `EDQUOT` beyond the limit of connected QPs, `ENFILE` or `EMFILE` if the broker
    /// has no descriptors left.
    pub fn connect(&self, request: &ConnectRequest) -> Result<Introduction> {
        let body = ConnectBody {
            local_qpn: request.local_qpn,
            remote_gid: request.remote_gid,
            gid_is_local: request.gid_is_local,
            remote_qpn: request.remote_qpn,
            nonce: 0,
            pd: request.pd,
            access: request.access,
            known: request.known,
        };
        let mut state = self.lock()?;
        let earlier = Leave {
            local_qpn: request.local_qpn,
            ..Leave::default()
        };
        let stale = self.leave_locked(&mut state, &earlier)?;
        state.queue_stale(&stale);
        self.announce(&state);
        let (reply, fds) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).connect(&body, &[])
        })?;
        let introduction = introduce(&reply, fds, request.known)?;
        remember(&mut state.connections, &body, &reply, &introduction);
        Ok(introduction)
    }

    /// Forgets the connection of a QP: call it when the QP is reset, destroyed or in error.
    /// Returns the segments that became stale by it, as [`Event::SegmentStale`] tells of others.
    /// Succeeds for a QP without connection, and without broker; in the latter case every segment
    /// is stale that the peer may have been granted.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Forked`]. Segments that may be stale are told as events then.
    pub fn disconnect(&self, local_qpn: u32) -> Result<Vec<u64>> {
        self.leave(&Leave {
            local_qpn,
            ..Leave::default()
        })
    }

    /// As [`Attachment::disconnect`], and gives back the ring of a QP that is reset or destroyed:
    /// what this process does with it must be over. A ring that it keeps mapped may be that of a
    /// later connection to the same endpoint, until [`Event::RingGivenUp`], the end of this broker,
    /// or a [`Attachment::connect`] that does not say that it knows the endpoint.
    ///
    /// # Errors
    /// As [`Attachment::disconnect`].
    pub fn leave(&self, leave: &Leave) -> Result<Vec<u64>> {
        let mut state = self.lock_quietly()?;
        match state.connections.get(leave.local_qpn) {
            None if leave.ring == 0 => return Ok(Vec::new()),
            Some(connection) if !connection.trusted => {}
            _ => return self.leave_locked(&mut state, leave),
        }
        drop(state);
        let mut state = self.lock()?;
        self.leave_locked(&mut state, leave)
    }

    /// A descriptor for `poll(2)` and the like: readable if and only if
    /// [`Attachment::poll_events`] has something to do. It stays the same for the life of the
    /// attachment. Do not read from it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.fd()
    }

    /// Takes all events that have arrived, without blocking. While another thread is inside a
    /// call nothing is returned; the descriptor stays readable.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn poll_events(&self) -> Result<Vec<Event>> {
        self.check_process()?;
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(Vec::new()),
        };
        self.wakeup.lower();
        let retry = self.wakeup.take_retry();
        match state.control.as_mut() {
            Some(control) => control.drain(),
            None if retry => state.events.push_back(Event::BrokerGone),
            None => {}
        }
        self.settle(&mut state);
        self.wakeup.lower();
        Ok(state.events.drain(..).collect())
    }

    /// Attaches again after [`Event::BrokerGone`]: connects to a broker, or starts one, and
    /// presents inbox, doorbell, MR table, slots, segments and connections. Nothing happens if the
    /// broker is there. Connections that the new broker does not accept are reported as
    /// [`Event::PeerDead`], segments as [`Event::SegmentStale`].
    ///
    /// # Errors
    /// As [`Attachment::attach`] and [`Attachment::add_slot`]. [`Event::BrokerGone`] comes again
    /// after [`crate::limits::REATTACH_INTERVAL`], as a reminder to repeat the call.
    pub fn reattach(&self) -> Result<()> {
        let mut state = self.lock()?;
        if let Some(control) = state.control.as_mut() {
            control.drain();
        }
        self.settle(&mut state);
        self.attach_locked(&mut state)
    }

    /// Creates the view of sysfs and `/dev` for this network namespace and returns the directory
    /// that stands for `/`. It lives as long as the broker.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn sysfs_view(&self, device: &SysfsRequest) -> Result<PathBuf> {
        let probe = crate::sysfs::namespace_socket()?;
        let mut state = self.lock()?;
        let (reply, _) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).sysfs_view(device, &[probe.as_fd()])
        })?;
        Ok(self.broker.path_of_view(&reply.root))
    }

    /// The traffic class of datagrams of a service level, as the broker's configuration has it:
    /// DSCP in the upper six bits.
    pub fn class_of(&self, service_level: u8) -> u8 {
        self.classes.of(service_level)
    }

    /// The number by which peers know this endpoint ([`Introduction::Ring`], `peer`); a new one
    /// after each [`Attachment::reattach`].
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn endpoint(&self) -> Result<u64> {
        Ok(self.lock()?.endpoint)
    }

    /// Whether there is a broker, as far as is known.
    pub(crate) fn is_attached(&self) -> Result<bool> {
        Ok(self.lock()?.control.is_some())
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        if std::process::id() == self.pid {
            Ok(())
        } else {
            Err(Error::Forked)
        }
    }

    pub(crate) fn lock(&self) -> Result<Calling<'_>> {
        self.check_process()?;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(control) = &state.control {
            self.wakeup.pause(control.socket());
        }
        Ok(Calling {
            state,
            wakeup: &self.wakeup,
        })
    }

    /// The state, for what asks nothing of the broker.
    pub(crate) fn lock_quietly(&self) -> Result<MutexGuard<'_, State>> {
        self.check_process()?;
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs one call; if the broker turns out to be gone, attaches to the next one and runs it
    /// once more.
    pub(crate) fn with_broker<T>(
        &self,
        state: &mut State,
        mut call: impl FnMut(&mut Control, u64) -> Result<T>,
    ) -> Result<T> {
        self.attach_locked(state)?;
        let outcome = state.call(&mut call);
        self.settle(state);
        match outcome {
            Err(Error::BrokerGone) => {
                self.attach_locked(state)?;
                let outcome = state.call(&mut call);
                self.settle(state);
                outcome
            }
            outcome => outcome,
        }
    }

    /// Takes over what a use of the control connection left: events, or its end.
    pub(crate) fn settle(&self, state: &mut State) {
        let Some(control) = state.control.as_mut() else {
            return;
        };
        give_back_late(control);
        let news = sort_events(control);
        let gone = control.is_gone();
        state.absorb_stale(news.stale);
        for event in news.peers {
            state.absorb(&event);
        }
        let given_up = news.rings.into_iter();
        let given_up = given_up.map(|ring| Event::RingGivenUp { ring });
        state.events.extend(given_up);
        if let Some(trace) = news.trace {
            self.trace.store(trace, Ordering::Release);
            state.events.push_back(Event::TraceChanged);
        }
        state.absorb_limits(news.limits);
        if gone && let Some(control) = state.control.take() {
            self.wakeup.unwatch(control.socket());
            // A trace ends with the broker that it was asked of.
            self.trace.store(0, Ordering::Release);
            state.events.push_back(Event::BrokerGone);
        }
        self.announce(state);
    }

    /// Makes the event descriptor readable if there is an event.
    pub(crate) fn announce(&self, state: &State) {
        if !state.events.is_empty() {
            self.wakeup.raise();
        }
    }

    /// Attaches unless that is done. A failure is followed by another [`Event::BrokerGone`] a
    /// little later: an endpoint without broker must not stay so for ever, since it would not
    /// hear of its peers' deaths.
    fn attach_locked(&self, state: &mut State) -> Result<()> {
        if state.control.is_some() {
            return Ok(());
        }
        let outcome = self.attach_anew(state);
        if outcome.is_err() {
            self.wakeup.retry_after(REATTACH_INTERVAL);
        }
        outcome
    }

    fn attach_anew(&self, state: &mut State) -> Result<()> {
        if state.mr_table.is_some() && causeway_owned::is_lost() {
            // What would be presented to a broker is the program's.
            return Err(Error::BrokerGone);
        }
        for _ in 0..ATTACH_ATTEMPTS {
            let mut control = Control::new(crate::launch::connect_or_start(&self.broker)?);
            match state.present(&mut control, &self.classes) {
                // A broker on its way out: the next attempt finds or starts another.
                Err(Error::BrokerGone) => continue,
                outcome => outcome?,
            }
            self.wakeup.watch(control.socket())?;
            state.control = Some(control);
            state.forget_limits();
            self.settle(state);
            return Ok(());
        }
        Err(Error::BrokerGone)
    }
}

/// The state, locked by a thread that is going to call the broker.
pub(crate) struct Calling<'a> {
    state: MutexGuard<'a, State>,
    wakeup: &'a Wakeup,
}

impl Deref for Calling<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Calling<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if let Some(control) = &self.state.control {
            self.wakeup.resume(control.socket());
        }
    }
}

impl State {
    fn call<T>(&mut self, call: &mut impl FnMut(&mut Control, u64) -> Result<T>) -> Result<T> {
        let endpoint = self.endpoint;
        call(self.control.as_mut().ok_or(Error::BrokerGone)?, endpoint)
    }

    /// Presents all that this endpoint is and has to a broker that does not know it.
    fn present(&mut self, control: &mut Control, classes: &Classes) -> Result<()> {
        // Opened each time: it never changes, and a descriptor kept would be one more in the
        // program's table. To a virtual machine's broker it would mean nothing.
        let namespace = (!control.is_in_guest()).then(own_pid_namespace).flatten();
        self.identity.pid_namespace = namespace.is_some();
        let last = [namespace.as_ref(), self.mr_table.as_ref()];
        let fds = attach_fds(&self.inbox, &self.doorbell, last);
        let (reply, fds) = BrokerStub(control).attach(&self.identity, &fds)?;
        self.endpoint = reply.endpoint;
        classes.set(&reply.classes);
        take_table(&mut self.mr_table, fds)?;
        if !self.addresses.is_empty() {
            report(control, &self.addresses)?;
        }
        for (&slot, kept) in &self.slots {
            present_slot(control, slot, kept)?;
        }
        let refused = self.segments.present(control)?;
        self.absorb_stale(refused);
        self.present_connections(control)
    }

    pub(crate) fn absorb(&mut self, event: &PeerEvent) {
        if !self.connections.note(event) {
            return;
        }
        let PeerEvent {
            local_qpn,
            generation,
            ..
        } = *event;
        self.events.push_back(match event.change {
            PeerChange::Dead => Event::PeerDead {
                local_qpn,
                generation,
            },
            PeerChange::Exited => Event::PeerExited {
                local_qpn,
                generation,
            },
            PeerChange::Left => Event::PeerLeft {
                local_qpn,
                generation,
            },
            PeerChange::Joined => Event::PeerJoined {
                local_qpn,
                generation,
            },
        });
    }
}

/// Gives back the segments that came after who wanted them had stopped waiting.
fn give_back_late(control: &mut Control) {
    for late in control.take_late() {
        if late.service == SERVICE {
            // Without a broker nobody keeps it.
            let _ = give_back(&mut control.one_way(), &late);
        }
    }
}

/// Gives back what a call got whose caller has it not.
pub(crate) fn give_back<C: Call>(broker: &mut C, late: &LateReply) -> Result<()> {
    if late.method == "create_segment" {
        let SegmentReply { segment } = decode_body(&late.body)?;
        BrokerStub(broker).destroy_segment(&SegmentRequest { segment }, &[])?;
    }
    Ok(())
}

pub(crate) fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    fd.try_clone_to_owned().map_err(|error| Error::System {
        what: "duplicate a descriptor",
        errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    })
}

/// The one descriptor that comes with a reply.
pub(crate) fn single(fds: Vec<OwnedFd>) -> Result<OwnedFd> {
    let [fd] = fds.try_into().map_err(|_| Malformed::Descriptors)?;
    Ok(fd)
}

/// The one descriptor that comes with a reply, and a duplicate to be shown to the next broker.
pub(crate) fn with_copy(fds: Vec<OwnedFd>) -> Result<(OwnedFd, OwnedFd)> {
    let fd = single(fds)?;
    let copy = duplicate(fd.as_fd())?;
    Ok((fd, copy))
}

pub(crate) fn own_comm() -> String {
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    comm.trim_end().chars().take(COMM_MAX).collect()
}
