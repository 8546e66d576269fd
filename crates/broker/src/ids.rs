//! Names of what the broker keeps in its tables: all of them refer to each other by these alone.

use causeway_identity::Slot;

/// Names a tenant: its place in the configuration.
pub type TenantId = usize;

/// The tenant of the runtime directory's socket is the first.
pub const OWN_TENANT_ID: TenantId = 0;

/// Names an endpoint: unique and never used again by any broker (random start).
pub type EndpointId = u64;

/// Names a control connection: never used again by this broker.
pub type SessionId = u64;

/// Names a VM: stands for the network namespace of its processes, too. Never 0, never used again.
pub type VmId = u64;

/// A slot of one network namespace.
pub type Place = (u64, Slot);
