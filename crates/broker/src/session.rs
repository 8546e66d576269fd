//! One control connection.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use causeway_fabric::limits::BACKLOG_BYTES_MAX;
use causeway_fabric::remoting::{Header, Kind, ONE_WAY, send};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::admission::Holder;
use crate::config::Tenant;
use crate::ids::{EndpointId, OWN_TENANT_ID, SessionId, TenantId, VmId};

/// What a service answers to a request of which it has done a part: the rest is done in further
/// turns of the event loop, so that the others' requests do not wait for all of it.
pub const UNFINISHED: Errno = Errno::INPROGRESS;

/// The process at the other end.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Tenant, by the socket it came to.
    pub tenant: TenantId,
    /// Whether it is trusted with the broker's userfaultfd device.
    pub userfaultfd: bool,
    /// Process; 0 if it lives in a foreign PID namespace.
    pub pid: i32,
    /// User; of a VM's process, as its kernel says.
    pub uid: u32,
    /// Its virtual machine.
    pub vm: Option<VmId>,
}

impl Peer {
    /// Whether it is a process of the broker's own user or root, and of this host: within a VM
    /// anybody may be root.
    pub fn is_own(&self) -> bool {
        self.tenant == OWN_TENANT_ID && self.vm.is_none()
    }

    /// The tenant of which it may see what there is; `None` is all of them.
    pub fn seen(&self) -> Option<TenantId> {
        (!self.is_own()).then_some(self.tenant)
    }

    /// Whether it may see what a tenant has.
    pub fn sees(&self, tenant: TenantId) -> bool {
        self.seen().is_none_or(|seen| seen == tenant)
    }

    /// The user whose place its connection has.
    pub fn holder(&self) -> Holder {
        Holder {
            tenant: self.tenant,
            vm: self.vm,
            uid: self.uid,
        }
    }
}

/// Who makes a request of a service.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Its connection.
    pub session: SessionId,
    /// What the kernel says of it.
    pub peer: Peer,
    /// Its tenant.
    pub tenant: &'a Tenant,
}

/// A message that waits for room in the socket.
#[derive(Debug)]
struct Pending {
    message: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// A connection, with what could not be sent yet.
#[derive(Debug)]
pub struct Session {
    socket: OwnedFd,
    /// The process at the other end.
    pub peer: Peer,
    /// The endpoint that it made itself.
    pub endpoint: Option<EndpointId>,
    /// Of an endpoint or member: readable once its process has died, even if a child of it still
    /// holds the socket.
    pub pidfd: Option<OwnedFd>,
    backlog: VecDeque<Pending>,
    backlog_bytes: usize,
    /// A request whose reply must wait.
    deferred: Option<(Header, Vec<u8>)>,
    /// Whether a request of it was granted.
    pub has_asked: bool,
    /// What its socket is watched for.
    pub watched: EventFlags,
}

/// The client does not read what it is sent, or is gone: end the session.
#[derive(Debug)]
pub struct Overrun;

impl Session {
    /// A session over a connected socket.
    pub fn new(socket: OwnedFd, peer: Peer) -> Session {
        Session {
            socket,
            peer,
            endpoint: None,
            pidfd: None,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            deferred: None,
            has_asked: false,
            watched: EventFlags::IN,
        }
    }

    /// The socket.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether something waits for room. While it does, no request of this client is read: one
    /// that does not take its replies gets no more of them.
    pub fn is_congested(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// What its socket is to be watched for: its end only, while a reply to it must wait.
    pub fn interest(&self) -> EventFlags {
        if self.is_congested() {
            EventFlags::OUT
        } else if self.deferred.is_some() {
            EventFlags::empty()
        } else {
            EventFlags::IN
        }
    }

    /// Keeps a request that cannot be answered yet. Until it is, no other of this client is read.
    pub fn defer(&mut self, header: &Header, body: &[u8]) {
        self.deferred = Some((*header, body.to_vec()));
    }

    /// Takes the request that was kept.
    pub fn take_deferred(&mut self) -> Option<(Header, Vec<u8>)> {
        self.deferred.take()
    }

    /// Answers a request.
    ///
    /// # Errors
    /// [`Overrun`].
    pub fn reply(
        &mut self,
        to: &Header,
        outcome: Result<(Vec<u8>, Vec<OwnedFd>), Errno>,
    ) -> Result<(), Overrun> {
        if to.request == ONE_WAY && to.kind == Kind::Request && to.method != 0 {
            return Ok(());
        }
        let (status, body, fds) = match outcome {
            Ok((body, fds)) => (0, body, fds),
            Err(errno) => (errno.raw_os_error(), Vec::new(), Vec::new()),
        };
        let header = Header {
            kind: Kind::Reply,
            status,
            fds: fds.len() as u8,
            ..*to
        };
        self.push(header.encode(&body), fds)
    }

    /// Sends an event of a service: its number and its body.
    ///
    /// # Errors
    /// [`Overrun`].
    pub fn event(&mut self, service: u16, number: u16, body: &[u8]) -> Result<(), Overrun> {
        self.event_with(service, number, body, Vec::new())
    }

    /// As [`Session::event`], with descriptors.
    ///
    /// # Errors
    /// [`Overrun`].
    pub fn event_with(
        &mut self,
        service: u16,
        number: u16,
        body: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Overrun> {
        let header = Header {
            kind: Kind::Event,
            service,
            method: number,
            request: 0,
            status: 0,
            fds: fds.len() as u8,
        };
        self.push(header.encode(body), fds)
    }

    fn push(&mut self, message: Vec<u8>, fds: Vec<OwnedFd>) -> Result<(), Overrun> {
        self.backlog_bytes += message.len();
        self.backlog.push_back(Pending { message, fds });
        self.flush()?;
        if self.backlog_bytes > BACKLOG_BYTES_MAX {
            Err(Overrun)
        } else {
            Ok(())
        }
    }

    /// Sends what there is room for.
    ///
    /// # Errors
    /// [`Overrun`] if the client is gone.
    pub fn flush(&mut self) -> Result<(), Overrun> {
        while let Some(next) = self.backlog.front() {
            let fds: Vec<_> = next.fds.iter().map(AsFd::as_fd).collect();
            match send(&self.socket, &next.message, &fds) {
                Ok(()) => {
                    self.backlog_bytes -= next.message.len();
                    self.backlog.pop_front();
                }
                // ETOOMANYREFS: the user has too many descriptors in flight; room comes when
                // some are received.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS) => break,
                Err(_) => return Err(Overrun),
            }
        }
        Ok(())
    }
}
