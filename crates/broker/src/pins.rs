//! Says whether anybody else refers to pages of a segment, for owners that may not ask the kernel
//! themselves about pages that others map (`CAP_SYS_NICE`).
//!
//! A process that asks holds up threads of its own until it has the answer, which takes up to some
//! milliseconds. So a thread beside the event loop answers. Only memfds that a broker made are
//! looked at, and a descriptor of anything else is closed elsewhere, since to close it may take as
//! long as a file system likes.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use causeway_fabric::fds::check_private_memfd;
use causeway_fabric::limits::SEGMENT_BYTES;
use causeway_pins::remote::{Answerer, Heard, Question};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::admission::Holder;
use crate::closers;

/// Sockets of one process: it asks by one for each interface that moves memory.
const SOCKETS_PER_PROCESS: usize = 4;
/// Of all processes.
const SOCKETS_MAX: usize = 8192;
/// Events taken from the kernel at once.
const EVENTS_PER_WAIT: usize = 16;

/// The thread's end of a socket, and the user at the other.
type Asker = (i32, Holder, Arc<OwnedFd>);

#[derive(Debug)]
struct Service {
    epoll: OwnedFd,
    /// The oldest first.
    askers: Mutex<VecDeque<Asker>>,
}

/// A socket for a process to ask by; `None` if the kernel does not tell this process, or there are
/// too many. The oldest of a process that has several ends.
pub fn lend(pid: i32, holder: Holder) -> Option<OwnedFd> {
    service()?.lend(pid, holder).ok()
}

/// Begins to answer, where the kernel tells this process: what that takes is taken at once.
pub fn start() {
    service();
}

fn service() -> Option<&'static Arc<Service>> {
    static SERVICE: OnceLock<Option<Arc<Service>>> = OnceLock::new();
    SERVICE.get_or_init(Service::start).as_ref()
}

impl Service {
    fn start() -> Option<Arc<Service>> {
        let Some(answerer) = Answerer::start() else {
            tracing::info!("the kernel does not say who refers to pages (CAP_SYS_NICE)");
            return None;
        };
        let service = Arc::new(Service {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).ok()?,
            askers: Mutex::default(),
        });
        let body = Arc::clone(&service);
        let thread = std::thread::Builder::new().name("pins".to_owned());
        thread.spawn(move || body.run(&answerer)).ok()?;
        Some(service)
    }

    fn askers(&self) -> MutexGuard<'_, VecDeque<Asker>> {
        self.askers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lend(&self, pid: i32, holder: Holder) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let mut askers = self.askers();
        let own = |(of, ..): &&Asker| *of == pid;
        if askers.iter().filter(own).count() >= SOCKETS_PER_PROCESS
            && let Some(oldest) = askers.iter().position(|(of, ..)| *of == pid)
        {
            askers.remove(oldest);
        }
        if askers.len() >= SOCKETS_MAX {
            return Err(Errno::MFILE);
        }
        let token = EventData::new_u64(ours.as_raw_fd() as u64);
        epoll::add(&self.epoll, &ours, token, EventFlags::IN)?;
        askers.push_back((pid, holder, Arc::new(ours)));
        Ok(theirs)
    }

    fn run(&self, answerer: &Answerer) {
        let owner = rustix::process::geteuid().as_raw();
        let mut events = Vec::with_capacity(EVENTS_PER_WAIT);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return tracing::error!(%errno, "nobody is told who refers to pages"),
            }
            for event in events.drain(..) {
                let raw = event.data.u64();
                let found = self
                    .askers()
                    .iter()
                    .find(|(.., fd)| fd.as_raw_fd() as u64 == raw)
                    .map(|(_, holder, fd)| (*holder, Arc::clone(fd)));
                if let Some((holder, socket)) = found
                    && !serve(answerer, &socket, holder, owner)
                {
                    self.askers().retain(|(.., fd)| !Arc::ptr_eq(fd, &socket));
                }
            }
        }
    }
}

/// Answers one question. False if there will be no more.
fn serve(answerer: &Answerer, socket: &OwnedFd, holder: Holder, owner: u32) -> bool {
    let (question, fd): (Question, _) = match Answerer::hear(socket.as_fd()) {
        Heard::Question(question, Some(fd)) => (question, fd),
        Heard::Nothing => return true,
        Heard::Refused(fds) => {
            closers::close(holder, fds);
            return false;
        }
        Heard::Question(_, None) | Heard::End => return false,
    };
    if check_private_memfd(&fd, SEGMENT_BYTES, owner).is_err() {
        // A client that sends such a thing is served no more.
        closers::close(holder, vec![fd]);
        return false;
    }
    answerer.answer(socket.as_fd(), question, &fd)
}
