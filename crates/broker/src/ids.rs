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

/// Longest name of a VM.
pub const VM_NAME_MAX: usize = 48;

/// Whether a VM may have a name: it is part of a file's name.
pub fn is_vm_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let short = !name.is_empty() && name.len() <= VM_NAME_MAX;
    short && name.chars().all(plain) && !name.starts_with('.')
}
