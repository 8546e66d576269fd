//! A session: what a process that is no endpoint of the RDMA device has at its broker. It has a
//! life, and whatever the services it uses have given it.
//!
//! A [`Session`] is the transport, the same for all services. Its owner keeps a *registry* of what
//! it has, which is locked together with the connection: every call changes both or neither. When a
//! broker ends, the registry is presented to the next one ([`Registry::present`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use causeway_shm::layout::LIFE_BYTES;
use causeway_shm::{Life, LifeTable, Segment};
use rustix::io::Errno;

use crate::attachment::own_comm;
use crate::control::{Control, LateReply, RawEvent};
use crate::error::{Error, Result};
use crate::limits::{ATTACH_ATTEMPTS, REATTACH_INTERVAL};
use crate::remoting::Malformed;
use crate::runtime::Address;
use crate::services::broker::BrokerStub;
use crate::services::session::{LifeBody, OpenReply, OpenRequest, SessionStub};
use crate::wakeup::Wakeup;

/// What the owner of a session keeps.
pub trait Registry {
    /// Presents all there is to a broker that does not know it. What it refuses is lost, and to be
    /// told as an event; `Err` is for what leaves the broker of no use.
    ///
    /// # Errors
    /// The connection's: [`Error::BrokerGone`] and [`Error::Timeout`] above all.
    fn present(&mut self, broker: &mut Control, opened: &Opened) -> Result<()>;

    /// Takes an event that the broker sent.
    ///
    /// # Errors
    /// [`Malformed`] if it can't be understood: the broker is left.
    fn absorb(&mut self, event: RawEvent) -> std::result::Result<(), Malformed>;

    /// Gives back what a call got that had timed out, or has it ready for the next such call: the
    /// broker keeps it for this session, and nobody here knows of it. A service that hands out
    /// nothing has nothing to do.
    fn give_back(&mut self, _broker: &mut Control, _late: LateReply) {}

    /// Takes note that the broker is gone, or still is.
    fn broker_gone(&mut self);

    /// Whether there is something that [`Session::poll`]'s caller would take.
    fn has_news(&self) -> bool;
}

/// How a broker took the session in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The session's life.
    pub life: Life,
    /// False if it had another before: those that knew that one take the session for dead.
    pub same_life: bool,
}

/// A session with the broker of this host.
///
/// Thread-safe: calls are serialised by a mutex, each bounded by
/// [`crate::limits::CALL_TIMEOUT`]. It belongs to the process that made it: in a forked child every
/// method fails with [`Error::Forked`] and dropping it touches nothing of the parent's.
#[derive(Debug)]
pub struct Session<B> {
    pid: u32,
    broker: Address,
    wakeup: Wakeup,
    state: Mutex<State<B>>,
}

#[derive(Debug)]
struct State<B> {
    /// `None` from the loss of a broker to the next connection.
    control: Option<Control>,
    membership: Option<Membership>,
    registry: B,
}

/// What the first broker gave and the next is shown.
#[derive(Debug)]
struct Membership {
    life: Life,
    table: LifeTable,
    table_fd: OwnedFd,
    ticket: OwnedFd,
}

impl<B: Registry> Session<B> {
    /// Opens a session with the broker at an address, or where [`Address::from_env`] says, starting
    /// it if there is none.
    ///
    /// # Errors
    /// [`Error::Start`], [`Error::RuntimeDir`], [`Error::NoBroker`], or [`Error::Refused`]:
    /// `EACCES` if this user is not admitted, `EMFILE` if the broker has no room, `EDQUOT` if the
    /// tenant has none.
    pub fn open(broker: Option<&Address>, registry: B) -> Result<Session<B>> {
        let session = Session {
            pid: std::process::id(),
            broker: broker.cloned().unwrap_or_else(Address::from_env),
            wakeup: Wakeup::new()?,
            state: Mutex::new(State {
                control: None,
                membership: None,
                registry,
            }),
        };
        session.reattach()?;
        Ok(session)
    }

    /// Runs calls over the connection, with the registry at hand. If the broker turns out to be
    /// gone, the registry is presented to the next one and `call` runs once more.
    ///
    /// # Errors
    /// What `call` returns, [`Error::Forked`], or as [`Session::open`].
    pub fn call<T>(&self, mut call: impl FnMut(&mut Control, &mut B) -> Result<T>) -> Result<T> {
        let mut state = self.lock()?;
        let outcome = match self.attempt(&mut state, &mut call) {
            Err(Error::BrokerGone) => self.attempt(&mut state, &mut call),
            outcome => outcome,
        };
        self.resume(&state);
        outcome
    }

    /// Runs a call if there is a broker, which is not started for it: what is to be given up needs
    /// none. `None` if there is none.
    ///
    /// # Errors
    /// What `call` returns, other than [`Error::BrokerGone`]; [`Error::Forked`].
    pub fn call_if_attached<T>(
        &self,
        call: impl FnOnce(&mut Control, &mut B) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut state = self.lock()?;
        let State {
            control, registry, ..
        } = &mut *state;
        let outcome = control.as_mut().map(|control| call(control, registry));
        self.settle(&mut state);
        self.resume(&state);
        match outcome {
            Some(Err(Error::BrokerGone)) => Ok(None),
            outcome => outcome.transpose(),
        }
    }

    /// Looks into the registry, or changes them, without a call. Waits for those under way.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn with_registry<T>(&self, with: impl FnOnce(&mut B) -> T) -> Result<T> {
        let mut state = self.lock()?;
        let outcome = with(&mut state.registry);
        self.announce(&state);
        self.resume(&state);
        Ok(outcome)
    }

    /// A descriptor for `poll(2)` and the like: readable if and only if [`Session::poll`] has
    /// something to do. It stays the same for the life of the session. Do not read from it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.fd()
    }

    /// Takes in all events that have arrived, without blocking, then lets `take` have the registry.
    /// `None` while another thread is inside a call; the descriptor stays readable then.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn poll<T>(&self, take: impl FnOnce(&mut B) -> T) -> Result<Option<T>> {
        self.check_process()?;
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        self.wakeup.lower();
        let retry = self.wakeup.take_retry();
        match state.control.as_mut() {
            Some(control) => control.drain(),
            None if retry => state.registry.broker_gone(),
            None => {}
        }
        self.settle(&mut state);
        self.wakeup.lower();
        let taken = take(&mut state.registry);
        self.announce(&state);
        Ok(Some(taken))
    }

    /// Connects again after the broker's end: to the next one, which is started if there is none,
    /// and presents life and registry. Nothing happens if the broker is there.
    ///
    /// # Errors
    /// As [`Session::open`]. [`Registry::broker_gone`] is called again after
    /// [`crate::limits::REATTACH_INTERVAL`], as a reminder to repeat this.
    pub fn reattach(&self) -> Result<()> {
        let mut state = self.lock()?;
        if let Some(control) = state.control.as_mut() {
            control.drain();
        }
        self.settle(&mut state);
        let outcome = self.attach(&mut state);
        self.resume(&state);
        outcome
    }

    /// Whether there is a broker, as far as is known.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn is_attached(&self) -> Result<bool> {
        let state = self.lock()?;
        self.resume(&state);
        Ok(state.control.is_some())
    }

    /// The session's life. A new one after a restart of the broker only if the old one's place was
    /// taken by then ([`Opened::same_life`]).
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn life(&self) -> Result<Life> {
        self.membership(|membership| membership.life)
    }

    /// The tenant's life table. It is kept up to date by this broker and the next ones.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn life_table(&self) -> Result<LifeTable> {
        self.membership(|membership| membership.table.clone())
    }

    /// Asks the broker whether something is alive: for a caller that doubts the table, since the
    /// broker that wrote it may have died.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub fn confirm(&self, life: Life) -> Result<bool> {
        let Life { index, generation } = life;
        self.call(|control, _| {
            let request = LifeBody { index, generation };
            SessionStub(control)
                .confirm(&request, &[])
                .map(|(alive, _)| alive)
        })
    }

    /// The broker's `/dev/userfaultfd`, open, if it has one and trusts this process's user with it
    /// (as [`crate::Attachment::userfaultfd`]).
    ///
    /// # Errors
    /// As [`Session::call`].
    pub fn userfaultfd(&self) -> Result<Option<OwnedFd>> {
        self.call(|control, _| {
            let (_, fds) = BrokerStub(control).userfaultfd(&(), &[])?;
            Ok(fds.into_iter().next())
        })
    }

    /// A socket by which the broker can be asked whether anybody refers to pages (as
    /// [`crate::Attachment::asker`]).
    ///
    /// # Errors
    /// As [`Session::call`].
    pub fn asker(&self) -> Result<Option<OwnedFd>> {
        self.call(|control, _| {
            let (_, fds) = BrokerStub(control).asker(&(), &[])?;
            Ok(fds.into_iter().next())
        })
    }

    fn membership<T>(&self, get: impl FnOnce(&Membership) -> T) -> Result<T> {
        let state = self.lock()?;
        self.resume(&state);
        // There since `open` returned.
        state.membership.as_ref().map(get).ok_or(Error::BrokerGone)
    }

    fn check_process(&self) -> Result<()> {
        if std::process::id() == self.pid {
            Ok(())
        } else {
            Err(Error::Forked)
        }
    }

    /// Locked by a thread that is going to call. It takes what comes off the socket meanwhile:
    /// nobody else need wake for it. To be followed by [`Session::resume`].
    fn lock(&self) -> Result<MutexGuard<'_, State<B>>> {
        self.check_process()?;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(control) = &state.control {
            self.wakeup.pause(control.socket());
        }
        Ok(state)
    }

    fn resume(&self, state: &State<B>) {
        if let Some(control) = &state.control {
            self.wakeup.resume(control.socket());
        }
    }

    fn attempt<T>(
        &self,
        state: &mut State<B>,
        call: &mut impl FnMut(&mut Control, &mut B) -> Result<T>,
    ) -> Result<T> {
        self.attach(state)?;
        let State {
            control, registry, ..
        } = state;
        let outcome = call(control.as_mut().ok_or(Error::BrokerGone)?, registry);
        self.settle(state);
        outcome
    }

    /// Takes over what a use of the connection left: events, or its end.
    fn settle(&self, state: &mut State<B>) {
        let State {
            control, registry, ..
        } = state;
        if let Some(open) = control.as_mut() {
            // Before the events: what came too late may have ended since.
            for late in open.take_late() {
                registry.give_back(open, late);
            }
            let events = open.take_events();
            if !events
                .into_iter()
                .all(|event| registry.absorb(event).is_ok())
            {
                open.give_up();
            }
        }
        if let Some(gone) = control.take_if(|control| control.is_gone()) {
            self.wakeup.unwatch(gone.socket());
            registry.broker_gone();
        }
        self.announce(state);
    }

    /// Makes the event descriptor readable if there is news.
    fn announce(&self, state: &State<B>) {
        if state.registry.has_news() {
            self.wakeup.raise();
        }
    }

    /// Connects unless that is done. A failure is followed by a reminder: a session without broker
    /// does not hear of deaths.
    fn attach(&self, state: &mut State<B>) -> Result<()> {
        if state.control.is_some() {
            return Ok(());
        }
        if state.membership.is_some() && causeway_owned::is_lost() {
            // What would be presented to a broker is the program's.
            return Err(Error::BrokerGone);
        }
        let outcome = self.attach_anew(state);
        if outcome.is_err() {
            self.wakeup.retry_after(REATTACH_INTERVAL);
        }
        outcome
    }

    fn attach_anew(&self, state: &mut State<B>) -> Result<()> {
        for _ in 0..ATTACH_ATTEMPTS {
            let mut control = Control::new(crate::launch::connect_or_start(&self.broker)?);
            match state.present(&mut control) {
                // A broker on its way out: the next attempt finds or starts another.
                Err(Error::BrokerGone) => continue,
                outcome => outcome?,
            }
            self.wakeup.watch(control.socket())?;
            if control.is_in_guest() {
                crate::guest::reach_outside();
            }
            state.control = Some(control);
            self.settle(state);
            return Ok(());
        }
        Err(Error::BrokerGone)
    }
}

impl<B> Drop for Session<B> {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            // A child does not have the mapping, and must not unmap what is there now.
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(state.membership.take());
        }
    }
}

impl<B: Registry> State<B> {
    fn present(&mut self, control: &mut Control) -> Result<()> {
        let request = OpenRequest { comm: own_comm() };
        let old = self.membership.as_ref();
        let brought: Vec<_> = old
            .iter()
            .flat_map(|old| [old.table_fd.as_fd(), old.ticket.as_fd()])
            .collect();
        let (reply, fds) = SessionStub(control).open(&request, &brought)?;
        let membership = take_membership(self.membership.take(), &reply, fds);
        // One that goes wrong leaves what there was: it is shown to the next broker.
        let (membership, outcome) = membership;
        self.membership = membership;
        outcome?;
        let opened = Opened {
            life: life_of(&reply.life),
            same_life: reply.same_life,
        };
        self.registry.present(control, &opened)
    }
}

fn life_of(body: &LifeBody) -> Life {
    Life {
        index: body.index,
        generation: body.generation,
    }
}

/// What the session is after an open reply, and whether the reply could be used.
fn take_membership(
    old: Option<Membership>,
    reply: &OpenReply,
    fds: Vec<OwnedFd>,
) -> (Option<Membership>, Result<()>) {
    let mut fds = fds.into_iter();
    let table = (!reply.same_table).then(|| fds.next());
    let ticket = (!reply.same_life).then(|| fds.next());
    let table = match table {
        None => None,
        Some(fd) => match fd.ok_or(Malformed::Descriptors.into()).and_then(map_table) {
            Ok(mapped) => Some(mapped),
            Err(error) => return (old, Err(error)),
        },
    };
    if matches!(ticket, Some(None)) || fds.next().is_some() {
        return (old, Err(Malformed::Descriptors.into()));
    }
    let (old_table, old_ticket) = match old {
        Some(old) => (Some((old.table, old.table_fd)), Some(old.ticket)),
        None => (None, None),
    };
    match (table.or(old_table), ticket.flatten().or(old_ticket)) {
        (Some((table, table_fd)), Some(ticket)) => {
            let membership = Membership {
                life: life_of(&reply.life),
                table,
                table_fd,
                ticket,
            };
            (Some(membership), Ok(()))
        }
        // A broker that takes a newcomer for an old one.
        _ => (None, Err(Malformed::Descriptors.into())),
    }
}

fn map_table(fd: OwnedFd) -> Result<(LifeTable, OwnedFd)> {
    let failed = |errno| Error::System {
        what: "map the life table",
        errno,
    };
    let kept = crate::attachment::duplicate(fd.as_fd())?;
    let segment = Segment::map_read_only(fd, LIFE_BYTES).map_err(|_| failed(Errno::INVAL))?;
    let table = LifeTable::open(Arc::new(segment)).map_err(|_| failed(Errno::PROTO))?;
    Ok((table, kept))
}
