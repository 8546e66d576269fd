//! The pool service's methods, for one client.

use std::os::fd::OwnedFd;
use std::time::Instant;

use causeway_fabric::limits::COMM_MAX;
use causeway_fabric::remoting::Answer;
use causeway_fabric::services::pool::{
    AdoptReply, AllocateReply, AllocateRequest, BlockInfo, BlockPage, BlockRequest,
    CreatePoolRequest, EnterReply, EnterRequest, FindRequest, GrantRequest, LifeReply, LifeRequest,
    ListRequest, MemberPage, NameRequest, NoteRequest, OpenReply, OpenRequest, PoolCursor,
    PoolNameRequest, PoolPage, PoolReply, PoolRequest, PoolService, RestoreBlockRequest,
    RestorePoolRequest, ResumeRequest,
};
use rustix::io::Errno;

use super::{Member, Pools, SessionName};
use crate::config::Tenant;
use crate::session::Peer;
