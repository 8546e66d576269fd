//! The service for virtual machines: which may attach to this broker, and how.

use crate::remoting::{message, service};

/// Longest name of a VM.
pub const VM_NAME_MAX: usize = 48;

/// Whether a VM may have a name: it is part of a file's name.
pub fn is_vm_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let short = !name.is_empty() && name.len() <= VM_NAME_MAX;
    short && name.chars().all(plain) && !name.starts_with('.')
}

message! {
    /// Lets a VM attach.
    pub struct AttachVmRequest {
        /// Its name.
        name: String,
        /// The tenant that its processes belong to; empty means the broker's own.
        tenant: String,
    }

    /// Names a VM.
    pub struct VmRequest {
        /// Its name.
        name: String,
    }

    /// A VM.
    pub struct VmInfo {
        /// Its name.
        name: String,
        /// Its tenant.
        tenant: String,
        /// The socket that QEMU connects to.
        socket: String,
        /// Whether QEMU is connected.
        connected: bool,
    }
}

service! {
    /// Number of the service for virtual machines in message headers.
    service 16, handler VmService, stub VmStub {
        /// Lets a VM attach; a name that is there with the same tenant is no error.
        1 => attach_vm(AttachVmRequest; fds 0..=0) -> VmInfo;
        /// Ends a VM's attachment.
        2 => detach_vm(VmRequest; fds 0..=0) -> ();
        /// Lists VMs.
        3 => list_vms((); fds 0..=0) -> Vec<VmInfo>;
    }
}
