//! The log of a daemon, which takes no more room than it may: a client can make lines without end,
//! and the runtime directory is often in memory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Name of the log.
const LOG_NAME: &str = "broker.log";
/// Name of what was the log before.
const OLD_NAME: &str = "broker.log.old";
/// Most bytes of either.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// A log that becomes the old one where it would become too long.
#[derive(Debug)]
pub struct LogFile {
    dir: PathBuf,
    file: File,
    length: u64,
    most: u64,
}

impl LogFile {
    /// Goes on with the log of a runtime directory, or begins one.
    ///
    /// # Errors
    /// What open(2) says.
    pub fn open(dir: &Path) -> io::Result<LogFile> {
        LogFile::open_with(dir, LOG_BYTES_MAX)
    }

    fn open_with(dir: &Path, most: u64) -> io::Result<LogFile> {
        let file = open(dir)?;
        Ok(LogFile {
            dir: dir.to_owned(),
            length: file.metadata()?.len(),
            file,
            most,
        })
    }

    /// Begins a new log.
    fn begin(&mut self) -> io::Result<()> {
        self.length = 0;
        let (log, old) = (self.dir.join(LOG_NAME), self.dir.join(OLD_NAME));
        if fs::rename(&log, &old).is_err() {
            // Somebody has removed it, or the directory; the file is there still.
            return self.file.set_len(0);
        }
        match open(&self.dir) {
            Ok(file) => self.file = file,
            // Out of descriptors, say: it goes on, and is looked at again after as much.
            Err(_) => fs::rename(&old, &log)?,
        }
        Ok(())
    }
}

fn open(dir: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(dir.join(LOG_NAME))
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let added = line.len() as u64;
        if self.length.saturating_add(added) > self.most {
            self.begin()?;
        }
        self.length += added;
        self.file.write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_becomes_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name| fs::read_to_string(dir.path().join(name)).ok();
        let mut log = LogFile::open_with(dir.path(), 10).unwrap();
        for line in ["one\n", "two\n"] {
            log.write_all(line.as_bytes()).unwrap();
        }
        drop(log);
        let mut log = LogFile::open_with(dir.path(), 10).unwrap();
        assert_eq!(read(OLD_NAME), None);
        log.write_all(b"three\n").unwrap();
        assert_eq!(read(OLD_NAME).unwrap(), "one\ntwo\n");
        assert_eq!(read(LOG_NAME).unwrap(), "three\n");
        log.write_all(b"four\n").unwrap();
        assert_eq!(read(OLD_NAME).unwrap(), "three\n");
        // Where it was removed, it goes on without a name.
        fs::remove_file(dir.path().join(LOG_NAME)).unwrap();
        log.write_all(b"eleven\n").unwrap();
        assert_eq!(log.file.metadata().unwrap().len(), 7);
    }
}
