//! The device's files, which `causeway run` shows the program in sysfs and `/dev`.
//!
//! They are the broker's, and go when it ends or the next one begins. A program that looks for them
//! later, or one that this one starts, is to find them all the same.

use std::path::PathBuf;
use std::sync::OnceLock;

use causeway_fabric::{Attachment, setting};

use crate::gid::describe_device;

/// Setting by which `causeway run` says where the files are.
const SHOWN_VARIABLE: &str = "CAUSEWAY_SYSFS";

/// Where the program sees the files. Read when the first endpoint is attached: later another thread
/// may be changing the environment.
fn shown() -> Option<&'static PathBuf> {
    static SHOWN: OnceLock<Option<PathBuf>> = OnceLock::new();
    let shown = SHOWN.get_or_init(|| setting(SHOWN_VARIABLE).map(PathBuf::from));
    shown.as_ref()
}

/// Has the broker make the files again if they have gone. Where it can't, the device works without
/// them.
pub(crate) fn show_again(attachment: &Attachment) {
    if shown().is_none_or(|root| root.exists()) {
        return;
    }
    match attachment.sysfs_view(&describe_device()) {
        Ok(root) => tracing::info!(root = %root.display(), "the device's files are there again"),
        Err(error) => tracing::warn!(%error, "the device's files have gone"),
    }
}
