//! The secrets of multicast groups: what is asked of the broker ([`causeway_proto::group`]).

use std::net::IpAddr;

use causeway_fabric::secure::say;
use causeway_fabric::services::secure::{GroupReply, GroupRequest};
use causeway_proto::group::{CLOCK_TOLERANCE, GroupAsk, GroupKey, GroupSecret, epoch_of};

use crate::clock::unix_seconds;
use crate::errno::Errno;
use crate::gid::gid_of;
use crate::shared::Shared;

fn keys_of(reply: GroupReply) -> Vec<GroupKey> {
    let key = |secret: causeway_fabric::services::secure::DerivedSecret| GroupKey {
        id: secret.key,
        secret: GroupSecret::new(secret.secret.0),
    };
    reply.secrets.into_iter().map(key).collect()
}

impl Shared {
    /// Whether what is sent to a group is to be sealed. Then its secrets are known from now on.
    ///
    /// # Errors
    /// EOPNOTSUPP if it is to be, and the broker has no secrets for groups; as
    /// [`Shared::may_wire_be_secured`].
    pub fn is_group_secured(&self, group: IpAddr) -> Result<bool, Errno> {
        if !self.may_wire_be_secured()? {
            return Ok(false);
        }
        match self.learn_secrets(group) {
            Ok(()) => Ok(true),
            Err(Errno(libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOKEY)) => {
                say(
                    "no multicast: a secured wire is required, and the broker has no secrets for \
                     groups (docs/OPERATIONS.md, \"A secured wire\")",
                );
                Err(Errno(libc::EOPNOTSUPP))
            }
            Err(error @ Errno(libc::EINVAL)) => {
                say(
                    "no multicast: the clocks of this program and its broker differ too much, as \
                     those of a virtual machine and its host may",
                );
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks the broker for a group's secrets of this epoch; and for the next one's, if that is
    /// near: what is sent soon is to leave at once.
    fn learn_secrets(&self, group: IpAddr) -> Result<(), Errno> {
        let time = unix_seconds();
        let (epoch, next) = (
            epoch_of(time),
            epoch_of(time.saturating_add(CLOCK_TOLERANCE)),
        );
        for epoch in epoch..=next {
            let ask = GroupAsk { group, epoch };
            let keys = self.ask_for_group(&ask)?;
            self.groups.learn(ask, keys);
        }
        Ok(())
    }

    /// Asks the broker for a group's secrets, which all queue pairs know then.
    ///
    /// # Errors
    /// What keeps the broker from being asked, or what it refuses them with.
    pub fn ask_for_group(&self, ask: &GroupAsk) -> Result<Vec<GroupKey>, Errno> {
        let request = GroupRequest {
            group: gid_of(ask.group),
            epoch: ask.epoch,
        };
        let reply = self.control.group_secrets(&request).map_err(Errno::from)?;
        let keys = keys_of(reply);
        self.known_secrets.learn(*ask, keys.clone(), unix_seconds());
        Ok(keys)
    }

    /// Asks the broker for the secrets that what has come for groups needs.
    pub fn carry_out_group_asks(&self) {
        while let Some(ask) = self.groups.take_ask() {
            let keys = self.ask_for_group(&ask).ok();
            self.groups.told(&ask, keys);
        }
        self.groups.wake();
    }
}
