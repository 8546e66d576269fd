//! Lock files that leave nothing behind.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// An exclusively locked file (`flock(2)`), unlinked when dropped. Since the file vanishes, a
/// process may get the lock of a vanished file, which no other process will find. So acquiring
/// checks that the path still leads to the locked file, and begins again if not.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    file: File,
}

impl LockFile {
    /// Waits for the lock.
    ///
    /// # Errors
    /// What `open(2)` or `flock(2)` say.
    pub fn wait(path: &Path) -> std::io::Result<LockFile> {
        loop {
            let lock = LockFile {
                path: path.to_owned(),
                file: open(path)?,
            };
            match flock(&lock.file, FlockOperation::LockExclusive) {
                Ok(()) if lock.is_current() => return Ok(lock),
                Ok(()) => lock.abandon(),
                Err(Errno::INTR) => lock.abandon(),
                Err(errno) => {
                    lock.abandon();
                    return Err(errno.into());
                }
            }
        }
    }

    /// Takes the lock if it is free; `None` if someone has it.
    ///
    /// # Errors
    /// What `open(2)` or `flock(2)` say.
    pub fn try_acquire(path: &Path) -> std::io::Result<Option<LockFile>> {
        loop {
            let lock = LockFile {
                path: path.to_owned(),
                file: open(path)?,
            };
            match flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if lock.is_current() => return Ok(Some(lock)),
                Ok(()) => lock.abandon(),
                Err(Errno::WOULDBLOCK) => {
                    lock.abandon();
                    return Ok(None);
                }
                Err(errno) => {
                    lock.abandon();
                    return Err(errno.into());
                }
            }
        }
    }

    /// Whether the path still leads to the locked file; false after someone removed it.
    pub fn is_current(&self) -> bool {
        let (Ok(held), Ok(found)) = (self.file.metadata(), std::fs::symlink_metadata(&self.path))
        else {
            return false;
        };
        (held.dev(), held.ino()) == (found.dev(), found.ino())
    }

    /// Closes the file without unlinking the path, which is another's.
    fn abandon(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() && self.is_current() {
            // If this fails the file stays, unlocked, and the next one locks it again.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_excludes_and_vanishes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = LockFile::try_acquire(&path).unwrap().unwrap();
        assert!(LockFile::try_acquire(&path).unwrap().is_none());
        assert!(first.is_current());
        let waiter = std::thread::spawn({
            let path = path.clone();
            move || LockFile::wait(&path).unwrap().is_current()
        });
        drop(first);
        assert!(waiter.join().unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn a_removed_lock_is_not_current() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let stale = LockFile::try_acquire(&path).unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        let fresh = LockFile::try_acquire(&path).unwrap().unwrap();
        assert!(!stale.is_current());
        drop(stale);
        assert!(
            fresh.is_current(),
            "the stale holder must not unlink another's file"
        );
    }
}
