//! Asking the broker for virtual machines to be attached.

use crate::control::Control;
use crate::error::Result;
use crate::launch::{connect_existing, connect_or_start};
use crate::runtime::Address;
use crate::services::vm::{AttachVmRequest, VmRequest, VmStub};

pub use crate::services::vm::VmInfo;

/// Lets a VM attach; starts the broker if there is none. It stays as long as a VM may come.
///
/// # Errors
/// [`crate::Error::Refused`]: `EPERM` for others than the broker's own user and root, `ENOENT`
/// for a tenant that is not there, `EEXIST` if the VM belongs to another one, `EINVAL` for a name
/// that is none, `EMFILE` beyond the broker's limit.
pub fn attach(address: &Address, name: &str, tenant: &str) -> Result<VmInfo> {
    let request = AttachVmRequest {
        name: name.to_owned(),
        tenant: tenant.to_owned(),
    };
    let mut control = Control::new(connect_or_start(address)?);
    Ok(VmStub(&mut control).attach_vm(&request, &[])?.0)
}

/// Ends a VM's attachment: its processes lose their broker and their peers.
///
/// # Errors
/// [`crate::Error::Refused`]: `ENOENT` if it is not there, `EPERM`.
pub fn detach(address: &Address, name: &str) -> Result<()> {
    let request = VmRequest {
        name: name.to_owned(),
    };
    let mut control = Control::new(connect_or_start(address)?);
    VmStub(&mut control).detach_vm(&request, &[]).map(drop)
}

/// Lists the VMs that may attach; none if no broker is running.
///
/// # Errors
/// [`crate::Error::Refused`]: `EPERM`.
pub fn list(address: &Address) -> Result<Vec<VmInfo>> {
    match connect_existing(address)? {
        Some(channel) => Ok(VmStub(&mut Control::new(channel)).list_vms(&(), &[])?.0),
        None => Ok(Vec::new()),
    }
}
