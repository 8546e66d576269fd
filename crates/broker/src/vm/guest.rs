//! The state of one VM: its sessions, and the segments and doorbells behind its handles.
//!
//! A session is a Unix socket pair: one end is a client of the broker like any other, the other is
//! here. So the broker's loop, its limits and its dispatch do not know of virtqueues. Here
//! descriptors become handles and handles become descriptors, and nothing else is understood of
//! what passes. All of it runs on the VM's own thread, which alone waits for QEMU.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use causeway_fabric::fds::{check_eventfd, check_memfd, reopen, sealed_memfd};
use causeway_fabric::launch::timespec;
use causeway_fabric::limits::SEGMENT_BYTES;
use causeway_fabric::remoting::{Header, Kind, Malformed, Received, receive, send};
use causeway_shm::lock::{Watched, wake_in};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fstat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::messages::{Answer, Event, Grant, Request, SleepWord};
use super::sleepers::Sleepers;
use super::window::{Mapper, PAGE, RANGE_BYTES, Window};
use crate::guest_tables::may_show;
use crate::ids::VmId;

mod detach_grace;
mod refused;

pub use detach_grace::DETACH_GRACE;
use refused::refuse;

/// Most sessions of a VM.
pub const SESSIONS_MAX: usize = 256;
/// Most segments and doorbells of a VM.
pub const OBJECTS_MAX: usize = 4096;
/// Largest segment that a guest may make.
pub const CREATE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of all segments that a guest has made.
pub const CREATED_BYTES_MAX: u64 = 256 << 20;
/// Token of sessions in the epoll instance; else it is a doorbell's handle.
const TOKEN_SESSION: u64 = 1 << 32;

/// Makes a session's socket a client of the broker.
pub trait Admit {
    /// The process of the guest has this user, as its kernel says.
    ///
    /// # Errors
    /// The broker is ending.
    fn admit(&self, socket: OwnedFd, uid: u32) -> Result<(), Errno>;

    /// The VM that the guest is.
    fn vm(&self) -> VmId;

    /// The guest reaches nothing any more of what it was shown.
    fn fenced(&self);
}

#[derive(Debug)]
enum Object {
    /// Memory that can be shown in the window.
    Segment {
        fd: OwnedFd,
        length: u64,
        /// Its ranges that are shown: where they begin in it, and in the window.
        shown: BTreeMap<u64, u64>,
        /// Bytes counted against the guest.
        created: u64,
    },
    /// A doorbell that the guest waits for.
    Own(OwnedFd),
    /// A doorbell that it may ring.
    Bell(OwnedFd),
}

/// A VM's tables.
#[derive(Debug)]
pub struct Guest<Q, A> {
    qemu: Q,
    broker: A,
    window: Window,
    sessions: HashMap<u32, OwnedFd>,
    objects: HashMap<u32, Object>,
    last_handle: u32,
    created: u64,
    epoll: OwnedFd,
    /// Was to be told when there was no buffer.
    put_back: Option<Event>,
    /// Made when it is first needed.
    sleepers: Option<Sleepers>,
    /// It is given nothing any more.
    retired: bool,
    /// It is to be told so, and when it loses the rest.
    ending: bool,
    grace_until: Option<Instant>,
}

impl<Q: Mapper, A: Admit> Guest<Q, A> {
    /// Empty tables.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(qemu: Q, broker: A) -> Result<Self, Errno> {
        Ok(Guest {
            qemu,
            broker,
            window: Window::default(),
            sessions: HashMap::new(),
            objects: HashMap::new(),
            last_handle: 0,
            created: 0,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            put_back: None,
            sleepers: None,
            retired: false,
            ending: false,
            grace_until: None,
        })
    }

    /// Readable while [`Guest::next_event`] has something.
    pub fn readiness(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Forgets everything: the guest's device was reset, or the VM is gone.
    pub fn reset(&mut self) {
        self.sessions.clear();
        for object in std::mem::take(&mut self.objects).into_values() {
            self.forget(&object);
        }
        self.created = 0;
        self.put_back = None;
        self.sleepers = None;
        self.window.clear(&self.qemu);
    }

    /// QEMU is gone, and the VM with it.
    pub fn leave(&mut self) {
        self.reset();
        self.broker.fenced();
    }

    /// Carries out a request. What the guest says wrongly costs it an errno value.
    pub fn answer(&mut self, request: Request) -> Answer {
        if self.retired {
            let left = request == Request::Left && self.grace_until.is_some();
            if left {
                self.retire();
            }
            return left
                .then(Answer::default)
                .unwrap_or(Answer::failed(Errno::NODEV));
        }
        let outcome = match request {
            Request::Begin => {
                self.reset();
                Ok(Answer::default())
            }
            Request::Open { session, uid } => self.open(session, uid),
            Request::Close { session } => {
                self.sessions.remove(&session);
                Ok(Answer::default())
            }
            Request::Send {
                session,
                handles,
                message,
            } => self.send(session, &handles, &message),
            Request::Create { length } => self.create(length),
            Request::Doorbell => self.doorbell(),
            Request::Release { handle } => self.release(handle),
            Request::Ring { handle } => self.ring(handle),
            Request::Show { handle, from } => self.show(handle, from),
            Request::Hide { handle, from } => self.hide(handle, from),
            Request::Watch { handle } => self.watch(handle),
            Request::Wake {
                handle,
                offset,
                count,
            } => self.wake(handle, offset, count),
            Request::Sleep { handle, words } => self.sleep(handle, &words),
            Request::Rise { handle } => {
                self.rise(handle);
                Ok(Answer::default())
            }
            Request::Punch {
                handle,
                from,
                length,
            } => self.punch(handle, from, length),
            // It was not told to.
            Request::Left => Err(Errno::INVAL),
        };
        outcome.unwrap_or_else(Answer::failed)
    }

    fn open(&mut self, session: u32, uid: u32) -> Result<Answer, Errno> {
        if self.sessions.contains_key(&session) {
            return Err(Errno::EXIST);
        }
        if self.sessions.len() >= SESSIONS_MAX {
            return Err(Errno::MFILE);
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let token = EventData::new_u64(TOKEN_SESSION | u64::from(session));
        epoll::add(&self.epoll, &ours, token, EventFlags::IN)?;
        self.broker.admit(theirs, uid)?;
        self.sessions.insert(session, ours);
        Ok(Answer::default())
    }

    fn send(&mut self, session: u32, handles: &[u32], message: &[u8]) -> Result<Answer, Errno> {
        let socket = self.sessions.get(&session).ok_or(Errno::NOTCONN)?;
        let header = match Header::decode(message) {
            Ok((header, _)) => header,
            // A library of another release: the service refuses it, and names both versions.
            Err(Malformed::Version(_)) => {
                send(socket, message, &[])?;
                return Ok(Answer::default());
            }
            Err(_) => return Err(Errno::BADMSG),
        };
        if usize::from(header.fds) != handles.len() {
            return Err(Errno::BADMSG);
        }
        let fds: Option<Vec<_>> = handles
            .iter()
            .map(|handle| Some(self.objects.get(handle)?.fd()))
            .collect();
        send(socket, message, &fds.ok_or(Errno::BADF)?)?;
        Ok(Answer::default())
    }

    fn create(&mut self, length: u64) -> Result<Answer, Errno> {
        if length == 0 || length > CREATE_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        if self.created + length > CREATED_BYTES_MAX {
            return Err(Errno::DQUOT);
        }
        if !length.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        let fd = sealed_memfd("causeway-guest", length)?;
        let handle = self.free_handle()?;
        self.created += length;
        let object = Object::Segment {
            fd,
            length,
            shown: BTreeMap::new(),
            created: length,
        };
        self.objects.insert(handle, object);
        Ok(Answer {
            handle,
            length,
            ..Answer::default()
        })
    }

    /// Only what a guest touches takes a mapping of QEMU's. One that finds no room is told so
    /// (`ENOSPC`), and hides what it has not touched for longest.
    fn show(&mut self, handle: u32, from: u64) -> Result<Answer, Errno> {
        let Some(Object::Segment {
            fd, length, shown, ..
        }) = self.objects.get_mut(&handle)
        else {
            return Err(Errno::BADF);
        };
        let offset = match shown.get(&from) {
            Some(offset) => *offset,
            None => {
                let extent = self.window.show(&self.qemu, fd, (from, *length))?;
                shown.insert(from, extent.offset);
                extent.offset
            }
        };
        Ok(Answer {
            status: 0,
            handle,
            offset,
            length: RANGE_BYTES.min(*length - from),
        })
    }

    fn hide(&mut self, handle: u32, from: u64) -> Result<Answer, Errno> {
        let Some(Object::Segment { shown, .. }) = self.objects.get_mut(&handle) else {
            return Err(Errno::BADF);
        };
        if let Some(offset) = shown.remove(&from) {
            self.window.hide(&self.qemu, offset);
        }
        Ok(Answer::default())
    }

    /// Any holder of an eventfd on the host could read it as well: nothing is given by this.
    fn watch(&mut self, handle: u32) -> Result<Answer, Errno> {
        match self.objects.remove(&handle) {
            Some(Object::Bell(fd)) => {
                let token = EventData::new_u64(u64::from(handle));
                let added = epoll::add(&self.epoll, &fd, token, EventFlags::IN);
                let object = match added {
                    Ok(()) => Object::Own(fd),
                    Err(_) => Object::Bell(fd),
                };
                self.objects.insert(handle, object);
                added.map(|()| Answer::default())
            }
            other => {
                let known = matches!(other, Some(Object::Own(_)));
                other.map(|object| self.objects.insert(handle, object));
                known.then(Answer::default).ok_or(Errno::BADF)
            }
        }
    }

    /// The segment that has a word.
    fn segment_with(&self, handle: u32, offset: u64) -> Result<&OwnedFd, Errno> {
        let Some(Object::Segment { fd, length, .. }) = self.objects.get(&handle) else {
            return Err(Errno::BADF);
        };
        let inside = offset < *length && offset.is_multiple_of(size_of::<u32>() as u64);
        inside.then_some(fd).ok_or(Errno::INVAL)
    }

    fn wake(&mut self, handle: u32, offset: u64, count: u32) -> Result<Answer, Errno> {
        wake_in(self.segment_with(handle, offset)?, offset, count)?;
        Ok(Answer::default())
    }

    fn sleep(&mut self, handle: u32, words: &[SleepWord]) -> Result<Answer, Errno> {
        let Some(Object::Own(bell)) = self.objects.get(&handle) else {
            return Err(Errno::BADF);
        };
        let bell = bell.try_clone().map_err(|_| Errno::MFILE)?;
        let words: Result<Vec<_>, Errno> = words
            .iter()
            .map(|word| {
                let segment = self.segment_with(word.segment, word.offset)?;
                Watched::new(segment, word.offset, word.expected)
            })
            .collect();
        let words = words?;
        let sleepers = match self.sleepers.take() {
            Some(sleepers) => sleepers,
            None => Sleepers::new()?,
        };
        self.sleepers.insert(sleepers).add(handle, bell, words)?;
        Ok(Answer::default())
    }

    /// No sleeper is left that this doorbell wakes.
    fn rise(&self, handle: u32) {
        if let Some(sleepers) = &self.sleepers {
            sleepers.remove(handle);
        }
    }

    /// A process that may write to a segment may empty it: zeros could be written as well. A peer
    /// that keeps the file's lock holds up this VM's thread, and no other.
    fn punch(&self, handle: u32, from: u64, bytes: u64) -> Result<Answer, Errno> {
        let Some(Object::Segment { fd, length, .. }) = self.objects.get(&handle) else {
            return Err(Errno::BADF);
        };
        let end = from.checked_add(bytes).ok_or(Errno::INVAL)?;
        let whole = from.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
        if !whole || bytes == 0 || end > *length {
            return Err(Errno::INVAL);
        }
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(fd, mode, from, bytes)?;
        Ok(Answer::default())
    }

    fn doorbell(&mut self) -> Result<Answer, Errno> {
        let handle = self.free_handle()?;
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let token = EventData::new_u64(u64::from(handle));
        epoll::add(&self.epoll, &fd, token, EventFlags::IN)?;
        self.objects.insert(handle, Object::Own(fd));
        Ok(Answer {
            handle,
            ..Answer::default()
        })
    }

    fn release(&mut self, handle: u32) -> Result<Answer, Errno> {
        let object = self.objects.remove(&handle).ok_or(Errno::BADF)?;
        self.rise(handle);
        self.forget(&object);
        Ok(Answer::default())
    }

    /// Undoes what there is of an object beside its entry.
    fn forget(&mut self, object: &Object) {
        match object {
            Object::Segment { shown, created, .. } => {
                self.created -= created;
                for offset in shown.values() {
                    self.window.hide(&self.qemu, *offset);
                }
            }
            // Explicit, since others hold duplicates, which would keep it registered.
            Object::Own(fd) => drop(epoll::delete(&self.epoll, fd)),
            Object::Bell(_) => {}
        }
    }

    fn ring(&mut self, handle: u32) -> Result<Answer, Errno> {
        let Some(Object::Bell(bell) | Object::Own(bell)) = self.objects.get(&handle) else {
            return Err(Errno::BADF);
        };
        // The process that waits for it may have made it block, and full: it is rung already then.
        let mut room = [PollFd::new(bell, PollFlags::OUT)];
        if poll(&mut room, Some(&timespec(Duration::ZERO)))? > 0 {
            rustix::io::write(bell, &1u64.to_ne_bytes())?;
        }
        Ok(Answer::default())
    }

    /// A handle that nothing has.
    fn free_handle(&mut self) -> Result<u32, Errno> {
        if self.objects.len() >= OBJECTS_MAX {
            return Err(Errno::MFILE);
        }
        loop {
            self.last_handle = self.last_handle.wrapping_add(1).max(1);
            if !self.objects.contains_key(&self.last_handle) {
                return Ok(self.last_handle);
            }
        }
    }

    /// There was no buffer for an event: it is the next one.
    pub fn put_back(&mut self, event: Event) {
        match event {
            Event::Ending => self.ending = true,
            event => self.put_back = Some(event),
        }
    }

    /// The next event for the guest.
    pub fn next_event(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.ending) {
            return Some(Event::Ending);
        }
        if let Some(event) = self.put_back.take() {
            return Some(event);
        }
        loop {
            let mut ready = Vec::with_capacity(1);
            let now = timespec(Duration::ZERO);
            match epoll::wait(&self.epoll, spare_capacity(&mut ready), Some(&now)) {
                Err(Errno::INTR) => continue,
                Ok(1..) => {}
                _ => return None,
            }
            let token = ready[0].data.u64();
            let event = if token & TOKEN_SESSION == 0 {
                self.rung(token as u32)
            } else {
                self.received(token as u32)
            };
            if event.is_some() {
                return event;
            }
        }
    }

    fn rung(&mut self, handle: u32) -> Option<Event> {
        let Some(Object::Own(bell)) = self.objects.get(&handle) else {
            return None;
        };
        // Others hold it too, and may have made it one that blocks.
        let rung = causeway_shm::drain(bell.as_fd()).unwrap_or(false);
        rung.then_some(Event::Rung { handle })
    }

    fn received(&mut self, session: u32) -> Option<Event> {
        let socket = self.sessions.get(&session)?;
        let (grants, message) = match receive(socket) {
            Err(Errno::AGAIN) => return None,
            Ok(Received::Message(header, body, fds)) => match self.grant(fds) {
                Ok(grants) => (grants, header.encode(&body)),
                Err(errno) => {
                    let socket = self.sessions.get(&session)?;
                    (Vec::new(), refuse(socket, (header, &body), errno))
                }
            },
            Ok(Received::Incomplete(header, body)) if header.kind == Kind::Reply => {
                (Vec::new(), refuse(socket, (header, &body), Errno::MFILE))
            }
            _ => {
                self.sessions.remove(&session);
                return Some(Event::Ended { session });
            }
        };
        Some(Event::Message {
            session,
            grants,
            message,
        })
    }

    /// Makes handles of what came with a message: of all, or of nothing.
    fn grant(&mut self, fds: Vec<OwnedFd>) -> Result<Vec<Grant>, Errno> {
        if self.retired && !fds.is_empty() {
            return Err(Errno::NODEV);
        }
        let mut grants: Vec<Grant> = Vec::new();
        for fd in fds {
            match self.grant_one(fd) {
                Ok(grant) => grants.push(grant),
                Err(errno) => {
                    for grant in grants {
                        let (Grant::Segment { handle, .. } | Grant::Bell { handle }) = grant;
                        // Made a moment ago.
                        let _ = self.release(handle);
                    }
                    return Err(errno);
                }
            }
        }
        Ok(grants)
    }

    /// What a guest is shown of what it may only read. QEMU maps for writing whatever is asked
    /// (11.1), and a guest's kernel obeys nobody but itself: that is enough for what is the VM's
    /// own, or was made for it. Anything else it can't have.
    fn for_window(&self, fd: &OwnedFd) -> Result<OwnedFd, Errno> {
        if may_show(fd, self.broker.vm()) {
            reopen(fd, true)
        } else {
            Err(Errno::ACCESS)
        }
    }

    fn grant_one(&mut self, fd: OwnedFd) -> Result<Grant, Errno> {
        let handle = self.free_handle()?;
        if check_eventfd(&fd).is_ok() {
            self.objects.insert(handle, Object::Bell(fd));
            return Ok(Grant::Bell { handle });
        }
        let length = u64::try_from(fstat(&fd)?.st_size).map_err(|_| Errno::INVAL)?;
        check_memfd(&fd, length)?;
        let writable = fcntl_getfl(&fd)? & OFlags::ACCMODE == OFlags::RDWR;
        if !length.is_multiple_of(PAGE) || length > SEGMENT_BYTES {
            return Err(Errno::FBIG);
        }
        let fd = match writable {
            true => fd,
            false => self.for_window(&fd)?,
        };
        let object = Object::Segment {
            fd,
            length,
            shown: BTreeMap::new(),
            created: 0,
        };
        self.objects.insert(handle, object);
        Ok(Grant::Segment {
            handle,
            length,
            writable,
        })
    }
}

impl Object {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Object::Segment { fd, .. } | Object::Own(fd) | Object::Bell(fd) => fd.as_fd(),
        }
    }
}

impl<Q, A> AsRawFd for Guest<Q, A> {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.epoll.as_raw_fd()
    }
}
