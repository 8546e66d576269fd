//! The views of sysfs and `/dev` that programs of the host read beside the verbs API.
//!
//! Under the runtime directory, one view per network namespace, `sys-<cookie>`
//! ([`causeway_fabric::sysfs::view`]).

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use causeway_fabric::runtime::VIEW_PREFIX;
use causeway_fabric::services::SysfsRequest;
use causeway_fabric::sysfs::view::{check, local_cpus, plan, write};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::umask;

/// The views that this broker made.
#[derive(Debug)]
pub struct SysfsViews {
    dir: PathBuf,
    /// The umask under which they are made, if not the process's own.
    umask: Option<Mode>,
    shown: HashMap<u64, SysfsRequest>,
}

impl SysfsViews {
    /// Views in the directory `dir`, made under a umask if not the process's own.
    pub fn new(dir: PathBuf, umask: Option<Mode>) -> SysfsViews {
        SysfsViews {
            dir,
            umask,
            shown: HashMap::new(),
        }
    }

    /// Shows a device in the view of a network namespace; returns the view's root. The view is
    /// replaced as a whole if the description changed.
    ///
    /// # Errors
    /// `EINVAL` for names or counts outside their limits; what the file system says.
    pub fn show(&mut self, netns: u64, device: &SysfsRequest) -> Result<String, Errno> {
        check(device)?;
        let root = self.dir.join(format!("{VIEW_PREFIX}{netns}"));
        let text = root.to_str().ok_or(Errno::INVAL)?.to_owned();
        if self.shown.get(&netns) != Some(device) {
            self.shown.remove(&netns);
            let before = self.umask.map(umask);
            let outcome = write(&root, &plan(device, &local_cpus()));
            before.map(umask);
            outcome.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            self.shown.insert(netns, device.clone());
        }
        Ok(text)
    }

    /// Removes every view of the directory, and the directory if it was for them only.
    pub fn remove_all(&mut self) {
        self.shown.clear();
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return;
        };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(VIEW_PREFIX) {
                // Does not follow links. What can't be removed is not ours.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        if self.umask.is_some() {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

#[cfg(test)]
mod tests;
