//! What an access to memory may do.

use bitflags::bitflags;

bitflags! {
    /// `enum ibv_access_flags` (`ibv_reg_mr(3)`, `ibv_modify_qp(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// `IBV_ACCESS_LOCAL_WRITE`
        const LOCAL_WRITE = 1;
        /// `IBV_ACCESS_REMOTE_WRITE`
        const REMOTE_WRITE = 1 << 1;
        /// `IBV_ACCESS_REMOTE_READ`
        const REMOTE_READ = 1 << 2;
        /// `IBV_ACCESS_REMOTE_ATOMIC`
        const REMOTE_ATOMIC = 1 << 3;
        /// `IBV_ACCESS_MW_BIND`
        const MW_BIND = 1 << 4;
        /// `IBV_ACCESS_ZERO_BASED`
        const ZERO_BASED = 1 << 5;
        /// `IBV_ACCESS_RELAXED_ORDERING`
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// All that lets a peer reach memory.
    pub const REMOTE: Access = Access::REMOTE_WRITE
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC);
    /// All that lets a peer change memory.
    pub const REMOTE_CHANGE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);
    /// `IBV_ACCESS_OPTIONAL_RANGE`: bits that a device may ignore.
    pub const OPTIONAL_RANGE: u32 = 0x3ff0_0000;
}
