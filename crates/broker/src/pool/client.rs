//! The pool service's methods, for one client.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::OwnedFd;
use std::time::Instant;

use causeway_fabric::remoting::Answer;
use causeway_fabric::services::pool::{
    AdoptReply, AllocateReply, AllocateRequest, BlockInfo, BlockPage, BlockRequest, BringRequest,
    CreatePoolRequest, FindRequest, GrantRequest, ListRequest, MemberPage, NameRequest,
    NoteRequest, OpenReply, OpenRequest, PoolCursor, PoolNameRequest, PoolPage, PoolReply,
    PoolRequest, PoolService, RefreshRequest, RestoreBlockRequest, RestorePoolRequest,
    ResumeRequest, TicketRequest, WaitRequest,
};
use rustix::io::Errno;

use super::{Member, Pools, SessionName};
use crate::config::Tenant;
use crate::members::Members;
use crate::session::Caller;

/// One client's view of the pools.
#[derive(Debug)]
pub struct Client<'a> {
    /// The tables.
    pub pools: &'a mut Pools,
    /// The sessions.
    pub members: &'a mut Members,
    /// All tenants.
    pub tenants: &'a [Tenant],
    /// The caller.
    pub caller: &'a Caller<'a>,
}

impl Client<'_> {
    /// The caller's name here; its first request makes it known.
    fn own(&mut self) -> Result<SessionName, Errno> {
        let caller = self.caller;
        let session = self.members.get(caller.session).ok_or(Errno::NOTCONN)?;
        let name = session.life.to_bits();
        self.pools.enter(name, || Member {
            connection: caller.session,
            tenant: session.tenant,
            tenant_name: caller.tenant.name.clone(),
            limits: caller.tenant.limits,
            pid: session.pid,
            uid: session.uid,
            comm: session.comm.clone(),
            pools: BTreeSet::new(),
            owned: HashSet::new(),
            bytes: 0,
            held: HashSet::new(),
            awaited: HashSet::new(),
        });
        Ok(name)
    }
}

fn done(outcome: Result<(), Errno>) -> Result<Answer<()>, Errno> {
    outcome.map(Answer::from)
}

fn with_fd<T>(body: T, fd: OwnedFd) -> Answer<T> {
    Answer {
        body,
        fds: vec![fd],
    }
}

impl PoolService for Client<'_> {
    fn create_pool(
        &mut self,
        request: CreatePoolRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<PoolReply>, Errno> {
        let own = self.own()?;
        self.pools.create_pool(own, &request).map(Answer::from)
    }

    fn open_pool(
        &mut self,
        request: PoolNameRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<PoolReply>, Errno> {
        let own = self.own()?;
        self.pools.open_pool(own, &request.name).map(Answer::from)
    }

    fn close_pool(&mut self, request: PoolRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        done(self.pools.close_pool(own, request.pool))
    }

    fn destroy_pool(
        &mut self,
        request: PoolNameRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        done(self.pools.destroy_pool(own, &request.name))
    }

    fn allocate(
        &mut self,
        request: AllocateRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<AllocateReply>, Errno> {
        let own = self.own()?;
        // A window shows ordinary pages only.
        let huge = request.huge && self.caller.peer.vm.is_none();
        let request = AllocateRequest { huge, ..request };
        let (reply, fd) = self.pools.allocate(own, &request)?;
        Ok(with_fd(reply, fd))
    }

    fn free(&mut self, request: BlockRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        done(self.pools.free(own, request.handle))
    }

    fn set_name(&mut self, request: NameRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        done(self.pools.set_name(own, &request))
    }

    fn find(&mut self, request: FindRequest, _: Vec<OwnedFd>) -> Result<Answer<BlockInfo>, Errno> {
        let own = self.own()?;
        let found = self.pools.find(own, request.pool, &request.name);
        found.map(Answer::from)
    }

    fn info(&mut self, request: BlockRequest, _: Vec<OwnedFd>) -> Result<Answer<BlockInfo>, Errno> {
        let own = self.own()?;
        self.pools.info(own, request.handle).map(Answer::from)
    }

    fn open(&mut self, request: OpenRequest, _: Vec<OwnedFd>) -> Result<Answer<OpenReply>, Errno> {
        let own = self.own()?;
        let (reply, fd) = self.pools.open(own, request.handle, request.access)?;
        Ok(with_fd(reply, fd))
    }

    fn refresh(
        &mut self,
        request: RefreshRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<OpenReply>, Errno> {
        let own = self.own()?;
        let RefreshRequest { handle, bound } = request;
        let (body, fd, moved) = self.pools.refresh(own, handle, bound)?;
        // Sleepers on words of the old memory look at the new one.
        if let Some(liveness) = self
            .members
            .liveness_of(self.caller.peer.tenant)
            .filter(|_| moved)
        {
            liveness.stir();
        }
        Ok(Answer {
            body,
            fds: fd.into_iter().collect(),
        })
    }

    fn release(&mut self, request: BlockRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        done(self.pools.release(own, request.handle))
    }

    fn grant(&mut self, request: GrantRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        done(self.pools.grant(own, &request))
    }

    fn begin_move(&mut self, request: BlockRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        let fresh = self.pools.begin_move(own, request.handle)?;
        Ok(with_fd((), fresh))
    }

    fn end_move(&mut self, request: BlockRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        done(self.pools.end_move(own, request.handle))
    }

    fn adopt(
        &mut self,
        request: BlockRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<AdoptReply>, Errno> {
        let own = self.own()?;
        let block = self.pools.adopt(own, request.handle)?;
        let reply = AdoptReply {
            name: block.name.clone(),
            persistent: block.persistent,
            exposed: block.exposed,
            grants: block.grants.clone(),
        };
        Ok(reply.into())
    }

    fn members(
        &mut self,
        request: ListRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<MemberPage>, Errno> {
        let own = self.own()?;
        let members = self.pools.list_members(own, &request)?;
        Ok(MemberPage { members }.into())
    }

    fn blocks(
        &mut self,
        request: ListRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<BlockPage>, Errno> {
        let own = self.own()?;
        let blocks = self.pools.list_blocks(own, &request)?;
        Ok(BlockPage { blocks }.into())
    }

    fn note(&mut self, request: NoteRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        let NoteRequest {
            handle,
            offset,
            kind,
        } = request;
        done(self.pools.note(own, handle, offset, kind))
    }

    fn restore_pool(
        &mut self,
        request: RestorePoolRequest,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<PoolReply>, Errno> {
        let own = self.own()?;
        self.pools.restore_pool(own, &request).map(Answer::from)
    }

    fn restore_block(
        &mut self,
        request: RestoreBlockRequest,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        let [fd]: [OwnedFd; 1] = fds.try_into().map_err(|_| Errno::BADMSG)?;
        done(self.pools.restore_block(own, &request, fd, Instant::now()))
    }

    fn resume(&mut self, request: ResumeRequest, _: Vec<OwnedFd>) -> Result<Answer<bool>, Errno> {
        let own = self.own()?;
        let outcome = self.pools.resume(own, &request, Instant::now());
        outcome.map(Answer::from)
    }

    fn bring(&mut self, request: BringRequest, fds: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        let [fd]: [OwnedFd; 1] = fds.try_into().map_err(|_| Errno::BADMSG)?;
        done(self.pools.bring(own, &request, &fd, Instant::now()))
    }

    fn wait(&mut self, request: WaitRequest, _: Vec<OwnedFd>) -> Result<Answer<bool>, Errno> {
        let own = self.own()?;
        self.pools.wait(own, &request).map(Answer::from)
    }

    fn give_up(&mut self, request: TicketRequest, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        let own = self.own()?;
        self.pools.give_up(own, request.ticket);
        Ok(().into())
    }

    fn status(&mut self, cursor: PoolCursor, _: Vec<OwnedFd>) -> Result<Answer<PoolPage>, Errno> {
        let seen = self.caller.peer.seen();
        Ok(self.pools.status_page(&cursor, seen, self.tenants).into())
    }
}
