//! Sessions that are no endpoints. All services beside the endpoints' build on them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use causeway_fabric::limits::{COMM_MAX, MEMBERS_MAX};
use causeway_fabric::remoting::Answer;
use causeway_fabric::services::session::{LifeBody, OpenReply, OpenRequest, SessionService};
use causeway_shm::Life;
use rustix::io::Errno;

use crate::admission::{Claim, Holder, Shares};
use crate::config::Tenant;
use crate::ids::{SessionId, TenantId, VmId};
use crate::liveness::Liveness;
use crate::session::{Caller, Peer};

/// First number of the users of virtual machines; hosts have no users from here on.
pub const GUEST_USER_FIRST: u32 = 1 << 31;
/// Most users of one virtual machine.
pub const GUEST_USERS_MAX: usize = 256;

/// One session.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its tenant: nothing of another is ever visible to it.
    pub tenant: TenantId,
    /// Process as the socket's credentials give it; 0 if it lives in a foreign PID namespace.
    pub pid: i32,
    /// Its user. Those of virtual machines have numbers of their own, whatever they are called
    /// there: nobody in a guest is a user of the host's, nor of another guest's.
    pub uid: u32,
    /// Its name, as it says.
    pub comm: String,
    /// Its life.
    pub life: Life,
    /// The life that it has proved to have had under the broker before: the same, unless that one
    /// is another's now.
    pub had: Option<Life>,
    /// The virtual machine that it is in.
    pub vm: Option<VmId>,
}

impl Member {
    /// The user whose place it has.
    fn holder(&self) -> Holder {
        Holder {
            tenant: self.tenant,
            vm: self.vm,
            uid: self.uid,
        }
    }
}

/// All sessions, and the lives of each tenant.
#[derive(Debug)]
pub struct Members {
    members: BTreeMap<SessionId, Member>,
    liveness: BTreeMap<TenantId, Liveness>,
    /// By machine and the user's number there.
    guest_users: BTreeMap<(VmId, u32), u32>,
    /// The broker's user, which owns all that it makes.
    pub own_uid: u32,
    /// What tenants leave to each other.
    pub shares: Shares,
}

impl Default for Members {
    fn default() -> Self {
        Members {
            members: BTreeMap::new(),
            liveness: BTreeMap::new(),
            guest_users: BTreeMap::new(),
            own_uid: rustix::process::geteuid().as_raw(),
            shares: Shares::default(),
        }
    }
}

impl Members {
    /// A session by its number.
    pub fn get(&self, session: SessionId) -> Option<&Member> {
        self.members.get(&session)
    }

    /// The lives of a tenant.
    pub fn liveness(&mut self, id: TenantId, tenant: &Tenant) -> &mut Liveness {
        let own_uid = self.own_uid;
        let liveness = self.liveness.entry(id);
        liveness.or_insert_with(|| Liveness::new(&tenant.name, own_uid))
    }

    /// The lives of a tenant that has had any.
    pub fn liveness_of(&mut self, tenant: TenantId) -> Option<&mut Liveness> {
        self.liveness.get_mut(&tenant)
    }

    /// Adds a session. Returns the reply and its descriptors.
    ///
    /// # Errors
    /// `EISCONN` if it is one, `EMFILE` beyond [`MEMBERS_MAX`], `EDQUOT` beyond its tenant's limit
    /// of endpoints, `ENOSPC` if no life is left, `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn open(
        &mut self,
        caller: &Caller<'_>,
        request: &OpenRequest,
        fds: &[OwnedFd],
        now: Instant,
    ) -> Result<Answer<OpenReply>, Errno> {
        let id = caller.peer.tenant;
        if self.members.contains_key(&caller.session) {
            return Err(Errno::ISCONN);
        }
        let uid = self.user_of(&caller.peer)?;
        let liveness = self.liveness(id, caller.tenant);
        let same_table = fds.first().is_some_and(|table| liveness.adopt(table, now));
        let ticket = fds.get(1);
        let proved = ticket.and_then(|ticket| liveness.life_of_ticket(ticket));
        let claim = Claim {
            most: MEMBERS_MAX,
            limit: caller.tenant.limits.endpoints,
            holder: Holder {
                tenant: id,
                vm: caller.peer.vm,
                uid,
            },
            returns: proved.is_some_and(|life| liveness.is_absent(life)),
        };
        let held = self.members.values().map(Member::holder);
        self.shares.admit(&claim, held, now)?;
        let liveness = self.liveness(id, caller.tenant);
        let mut given = Vec::new();
        let of_vm = caller.peer.vm.filter(|_| !same_table);
        match of_vm {
            Some(vm) => given.push(liveness.vm_table(vm)?),
            None if same_table => {}
            None => given.push(liveness.table()?),
        }
        let kept = proved.filter(|life| liveness.reclaim(*life));
        let life = match kept {
            Some(life) => life,
            None => {
                let begun = liveness.begin().and_then(|life| {
                    let ticket = liveness.ticket(life);
                    Ok((life, ticket.inspect_err(|_| liveness.end(life))?))
                });
                if let (Err(_), Some(vm)) = (&begun, of_vm) {
                    liveness.leave_vm(vm);
                }
                let (life, ticket) = begun?;
                given.push(ticket);
                life
            }
        };
        let said = request.comm.chars().filter(|c| !c.is_control());
        let member = Member {
            tenant: id,
            pid: caller.peer.pid,
            uid,
            comm: said.take(COMM_MAX).collect(),
            life,
            had: proved,
            vm: of_vm,
        };
        self.members.insert(caller.session, member);
        let body = OpenReply {
            life: body_of(life),
            same_table,
            same_life: kept.is_some(),
        };
        Ok(Answer { body, fds: given })
    }

    fn user_of(&mut self, peer: &Peer) -> Result<u32, Errno> {
        let Some(vm) = peer.vm else {
            return Ok(peer.uid);
        };
        if let Some(&known) = self.guest_users.get(&(vm, peer.uid)) {
            return Ok(known);
        }
        let of_machine = self.guest_users.range((vm, 0)..=(vm, u32::MAX));
        if of_machine.count() >= GUEST_USERS_MAX {
            return Err(Errno::MFILE);
        }
        // Never used again: what a user leaves behind is not another's.
        let user = GUEST_USER_FIRST + self.guest_users.len() as u32;
        self.guest_users.insert((vm, peer.uid), user);
        Ok(user)
    }

    /// A session has ended.
    pub fn end(&mut self, session: SessionId) {
        if let Some(member) = self.members.remove(&session)
            && let Some(liveness) = self.liveness.get_mut(&member.tenant)
        {
            liveness.end(member.life);
            member.vm.inspect(|vm| liveness.leave_vm(*vm));
        }
    }

    /// When [`Members::expire`] has something to do.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.liveness
            .values()
            .filter_map(Liveness::next_expiry)
            .min()
    }

    /// Gives up on those that did not come back after a restart of the broker.
    pub fn expire(&mut self, now: Instant) {
        self.liveness
            .values_mut()
            .for_each(|liveness| liveness.expire(now));
    }

    /// Wakes sleepers that wait for deaths.
    pub fn announce(&mut self) {
        self.liveness.values_mut().for_each(Liveness::announce);
    }
}

/// A life as messages have it.
pub fn body_of(life: Life) -> LifeBody {
    let Life { index, generation } = life;
    LifeBody { index, generation }
}

/// The sessions' service, for one caller.
#[derive(Debug)]
pub struct Client<'a> {
    /// All sessions.
    pub members: &'a mut Members,
    /// The caller.
    pub caller: &'a Caller<'a>,
}

impl SessionService for Client<'_> {
    fn open(
        &mut self,
        request: OpenRequest,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer<OpenReply>, Errno> {
        let opened = self
            .members
            .open(self.caller, &request, &fds, Instant::now())?;
        tracing::info!(
            session = self.caller.session,
            pid = self.caller.peer.pid,
            "opened"
        );
        Ok(opened)
    }

    fn confirm(&mut self, request: LifeBody, _: Vec<OwnedFd>) -> Result<Answer<bool>, Errno> {
        let member = self
            .members
            .get(self.caller.session)
            .ok_or(Errno::NOTCONN)?;
        let LifeBody { index, generation } = request;
        let tenant = member.tenant;
        let liveness = self.members.liveness_of(tenant).ok_or(Errno::NOTCONN)?;
        Ok(liveness.knows(Life { index, generation }).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_machines_are_users_of_their_own() {
        let mut members = Members::default();
        let mut user = |vm, uid| {
            members.user_of(&Peer {
                tenant: 0,
                userfaultfd: false,
                pid: 0,
                uid,
                vm,
            })
        };
        assert_eq!(user(None, 0), Ok(0));
        let root = user(Some(1), 0).unwrap();
        assert!(root >= GUEST_USER_FIRST);
        assert_eq!(user(Some(1), 0), Ok(root));
        assert_ne!(user(Some(2), 0), Ok(root), "of another machine");
        for uid in 1..GUEST_USERS_MAX as u32 {
            assert_ne!(user(Some(1), uid), Ok(root));
        }
        assert_eq!(user(Some(1), u32::MAX), Err(Errno::MFILE));
        assert!(user(Some(2), u32::MAX).is_ok());
    }
}
