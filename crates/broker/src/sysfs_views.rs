//! The views of sysfs and `/dev` that programs of the host read beside the verbs API.
//!
//! Under the runtime directory, one view per network namespace, `sys-<cookie>`
//! ([`causeway_fabric::sysfs::view`]).

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use causeway_fabric::runtime::VIEW_PREFIX;
use causeway_fabric::services::SysfsRequest;
use causeway_fabric::sysfs::view::{Node, PORT_DIR, check, local_cpus, plan, write};
use causeway_shm::Snapshot;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::umask;

mod port_counters;
pub use port_counters::LIFESPAN_MS;

/// The views that this broker made.
#[derive(Debug)]
pub struct SysfsViews {
    dir: PathBuf,
    /// The umask under which they are made, if not the process's own.
    umask: Option<Mode>,
    shown: HashMap<u64, SysfsRequest>,
    /// What the counters of each say.
    counted: HashMap<u64, Snapshot>,
}

impl SysfsViews {
    /// Views in the directory `dir`, made under a umask if not the process's own.
    pub fn new(dir: PathBuf, umask: Option<Mode>) -> SysfsViews {
        SysfsViews {
            dir,
            umask,
            shown: HashMap::new(),
            counted: HashMap::new(),
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
            let mut nodes = plan(device, &local_cpus());
            let counted = self.counted.entry(netns).or_default();
            for (name, value) in port_counters::lines(counted) {
                nodes.push((format!("{PORT_DIR}/{name}"), Node::File(value.to_string())));
            }
            let outcome = write(&root, &nodes);
            before.map(umask);
            outcome.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            self.shown.insert(netns, device.clone());
        }
        Ok(text)
    }

    /// The network namespaces that have views.
    pub fn namespaces(&self) -> Vec<u64> {
        self.shown.keys().copied().collect()
    }

    /// Has the counters of a view say what was counted in its network namespace; whether that is
    /// another thing than before. The files stay the same: programs keep them open.
    pub fn count(&mut self, netns: u64, now: &Snapshot) -> bool {
        let before = self.counted.insert(netns, *now);
        let Some(before) = before.filter(|before| before != now) else {
            return false;
        };
        let port = self.dir.join(format!("{VIEW_PREFIX}{netns}/{PORT_DIR}"));
        let before = port_counters::lines(&before);
        let changed = port_counters::lines(now).into_iter().zip(before);
        for ((name, value), _) in changed.filter(|(now, before)| now != before) {
            let path = port.join(name);
            if let Err(error) = put_line(&path, value) {
                tracing::warn!(%error, path = %path.display(), "a counter is not shown");
            }
        }
        true
    }

    /// Removes every view of the directory, and the directory if it was for them only.
    pub fn remove_all(&mut self) {
        self.shown.clear();
        self.counted.clear();
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

/// Puts a number in the place of the one before, by one write: who reads meanwhile finds a whole
/// one.
fn put_line(path: &Path, value: u64) -> std::io::Result<()> {
    let line = format!("{value}\n");
    let file = fs::File::options().write(true).open(path)?;
    let len = line.len() as u64;
    file.write_all_at(line.as_bytes(), 0)?;
    // A tenant's oldest sums are given up one day (`totals`).
    if file.metadata()?.len() > len {
        file.set_len(len)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
