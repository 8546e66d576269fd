//! The service for limits on what processes send: who has which, and what endpoints are told.
//!
//! The libraries keep them; the broker hands them out, and a page in which the processes that share
//! a limit count together ([`causeway_shm::RatePage`]).

use crate::remoting::{byte_enum, message, service};

/// Whose limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum LimitOf {
    /// A tenant's: all its processes together. Those in each of its VMs count by themselves.
    #[default]
    Tenant = 0,
    /// A process's.
    Process = 1,
    /// A virtual machine's: all processes in it together.
    Vm = 2,
}

byte_enum!(LimitOf, "kind of limit", Tenant, Process, Vm);

message! {
    /// How much may be sent.
    pub struct Rates {
        /// Bytes of payload each second; 0: no limit.
        bytes: u64,
        /// Messages each second; 0: no limit.
        messages: u64,
        /// Bytes at once; 0: what is usual.
        burst: u64,
    }

    /// Whose limits, and which.
    pub struct LimitEntry {
        /// What kind.
        of: LimitOf,
        /// The tenant or the virtual machine; of a process its name, which a request leaves empty.
        name: String,
        /// The process, as the broker's PID namespace knows it; else 0.
        pid: i32,
        /// Its limits.
        rates: Rates,
    }

    /// Asks for the limits after so many.
    pub struct LimitCursor {
        /// How many the caller has seen.
        seen: u32,
    }

    /// The next, if there is one.
    pub struct LimitPage {
        /// It.
        entry: Option<LimitEntry>,
    }

    /// The limits that hold for an endpoint from now on, whatever was told before. Descriptor,
    /// unless no limit is shared, or the broker has no memory for it: the page in which those
    /// count that share them, read-write, with nothing counted yet.
    pub struct LimitNews {
        /// Its tenant's.
        tenant: Rates,
        /// Its virtual machine's, if it is in one.
        vm: Rates,
        /// Its own.
        own: Rates,
    }
}

impl Rates {
    /// Whether anything is limited.
    pub fn is_set(&self) -> bool {
        self.bytes != 0 || self.messages != 0
    }
}

service! {
    /// Number of the service in message headers.
    service 17, handler LimitService, stub LimitStub {
        /// Sets limits, in place of those there were. For the broker's own user and root.
        1 => set_limit(LimitEntry; fds 0..=0) -> ();
        /// Lists the limits that the caller may know of: those of tenants, and of processes and
        /// virtual machines that have some.
        2 => limits(LimitCursor; fds 0..=0) -> LimitPage;
    }
}

/// Number of the event about an endpoint's limits: a [`LimitNews`].
pub const EVENT_LIMITS: u16 = 1;
