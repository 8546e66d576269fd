//! Which multicast groups a queue pair is in (`ibv_attach_mcast(3)`).

use crate::destination::group_of;
use crate::errno::Errno;
use crate::qp::Qp;

impl Qp {
    /// Attaches it to a group (`ibv_attach_mcast(3)`).
    ///
    /// # Errors
    /// EINVAL for a GID that is no group's or a queue pair of another type, ENOMEM beyond the
    /// device's limits, what the host refuses to join a group with, EOPNOTSUPP where the wire is to
    /// be secured, and the broker has no secrets for groups.
    pub fn attach(&self, gid: [u8; 16]) -> Result<(), Errno> {
        let group = group_of(gid).filter(|_| self.is_datagram());
        let group = group.ok_or(Errno(libc::EINVAL))?;
        self.shared().is_group_secured(group)?;
        self.shared().join(group, self.qpn())
    }

    /// Detaches it from a group (`ibv_detach_mcast(3)`).
    ///
    /// # Errors
    /// EINVAL where it is not attached.
    pub fn detach(&self, gid: [u8; 16]) -> Result<(), Errno> {
        let group = group_of(gid).ok_or(Errno(libc::EINVAL))?;
        self.shared().groups.leave(group, self.qpn())
    }
}
