//! The view of sysfs and `/dev` that programs expect of an RDMA device.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::control::Control;
use crate::error::{Error, Result};
use crate::limits::ATTACH_ATTEMPTS;
use crate::runtime;
use crate::runtime::Address;
use crate::services::BrokerStub;

pub use crate::services::{SysfsGid, SysfsRequest};

pub mod view;

/// A view, kept alive by an open connection to its broker: a broker with a connection does not
/// end for idleness, though it may be stopped or killed, and then the view is gone or stale.
#[derive(Debug)]
pub struct SysfsView {
    root: PathBuf,
    control: Control,
}

impl SysfsView {
    /// Asks the broker at `address` (started if there is none) for the view of this process's
    /// network namespace. `device` describes the device; a later caller of the same namespace
    /// replaces the contents if its description differs.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EINVAL` for names or counts outside their limits; as
    /// [`crate::Attachment::attach`].
    pub fn open(address: &Address, device: &SysfsRequest) -> Result<SysfsView> {
        let probe = namespace_socket()?;
        for _ in 0..ATTACH_ATTEMPTS {
            let mut control = Control::new(crate::launch::connect_or_start(address)?);
            match BrokerStub(&mut control).sysfs_view(device, &[probe.as_fd()]) {
                Err(Error::BrokerGone) => continue,
                outcome => {
                    let root = address.path_of_view(&outcome?.0.root);
                    return Ok(SysfsView { root, control });
                }
            }
        }
        Err(Error::BrokerGone)
    }

    /// The directory that stands for `/`: `root()/sys/class/infiniband/cway0` and so on.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the broker that serves the view still lives. Does not block.
    pub fn is_alive(&mut self) -> bool {
        self.control.drain();
        !self.control.is_gone()
    }
}

/// Writes the view of a virtual machine, whose broker is on its host, and so can't: into the
/// directory that would be the broker's. Nobody takes it away; addresses that have changed make
/// another.
///
/// # Errors
/// [`Error::RuntimeDir`]; what the file system says.
pub fn in_guest(device: &SysfsRequest) -> Result<PathBuf> {
    let dir = runtime::runtime_dir();
    runtime::prepare(&dir)?;
    view::write_own(&dir, device).map_err(|error| Error::RuntimeDir {
        path: dir,
        reason: error.to_string(),
    })
}

/// A socket of this process's network namespace, which proves to the broker what that is.
pub(crate) fn namespace_socket() -> Result<OwnedFd> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(Error::system("socket"))
}
