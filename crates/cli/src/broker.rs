//! What the command line asks of the broker.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;

use causeway_device::describe_device;
use causeway_fabric::sys::peer_credentials;
use causeway_fabric::sysfs::{SysfsView, in_guest};
use causeway_fabric::{Address, Error, launch, status};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

/// Descriptors below this stay free for the command, which may expect the next one to be 3.
const INHERITED_FD_MIN: i32 = 100;

/// Asks for the directory that stands for `/` where the device's files are concerned, starting the
/// broker if there is none. The command inherits one descriptor, a connection to the broker:
/// as long as it or a child of it lives, the broker and the view stay. In a virtual machine this
/// process makes the view itself, and the broker is not asked.
pub fn sysfs_view() -> Result<PathBuf, Error> {
    let address = Address::from_env();
    if address == Address::Device {
        return in_guest(&describe_device());
    }
    let connection = launch::connect_or_start(&address)?;
    let view = SysfsView::open(&address, &describe_device())?;
    inherit(connection.into());
    Ok(view.root().to_owned())
}

/// Leaves a descriptor open for the command, out of its way. Where that fails (a low limit on
/// descriptors) the broker may end for idleness before the command first uses the device.
fn inherit(connection: OwnedFd) {
    let kept = fcntl_dupfd_cloexec(&connection, INHERITED_FD_MIN).unwrap_or(connection);
    if fcntl_setfd(&kept, FdFlags::empty()).is_ok() {
        // Closed by the kernel when the last process that inherits it ends.
        let _ = kept.into_raw_fd();
    }
}

/// Starts the broker if there is none, and says where it is, if it answers.
pub fn probe() -> Result<String, Error> {
    let address = Address::from_env();
    let connection = launch::connect_or_start(&address)?;
    // The kernel accepts connections for a process that is stopped, too, and for one that admits
    // others than this user.
    status::status(&address)?;
    Ok(match peer_credentials(&connection) {
        // 0: a process of a namespace that cannot be named here.
        Ok((pid, _)) if pid != 0 => format!("process {pid} answers in {address}"),
        _ => format!("answers in {address}"),
    })
}
