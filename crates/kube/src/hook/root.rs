//! The root directory of a container, whose image nobody has checked.
//!
//! Every name is resolved by openat2(2) inside the root, where a symbolic link of the image leads
//! for the container's programs, too. Everything else is done with the descriptor that this gave,
//! so nothing is resolved twice.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::fs::{fchmod, fstat, mkdirat, openat, openat2, renameat, statat, unlinkat};
use rustix::io::Errno;

/// Where files are written: links of the image are followed inside its root, never by way of
/// `/proc/PID/fd`, and never into a mount, which may be a volume that others have.
const IN_THE_IMAGE: ResolveFlags = ResolveFlags::IN_ROOT
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// Where something is mounted: engines mount there themselves, and an image has no link there.
const BY_NO_LINK: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_SYMLINKS);
/// A directory that is only named, not read.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A container's root directory.
#[derive(Debug)]
pub struct Root(OwnedFd);

/// A directory inside a container's root.
#[derive(Debug)]
pub struct Dir(OwnedFd);

impl Root {
    /// Opens the root, at the path that the container engine names.
    ///
    /// # Errors
    /// What openat(2) says.
    pub fn open(path: &Path) -> io::Result<Root> {
        Ok(Root(openat(CWD, path, DIRECTORY, Mode::empty())?))
    }

    /// A directory of the image itself, at an absolute path as the container sees it. None if it
    /// is not there.
    ///
    /// # Errors
    /// `EXDEV` if it lies in a mount; what else openat2(2) says, as that it is no directory.
    pub fn of_image(&self, path: &str) -> io::Result<Option<Dir>> {
        self.resolve(path, IN_THE_IMAGE)
    }

    /// A directory in which the engine has mounted, or the hook is going to. None if it is not
    /// there.
    ///
    /// # Errors
    /// `ELOOP` if a link is on the way; what else openat2(2) says.
    pub fn of_mounts(&self, path: &str) -> io::Result<Option<Dir>> {
        self.resolve(path, BY_NO_LINK)
    }

    fn resolve(&self, path: &str, how: ResolveFlags) -> io::Result<Option<Dir>> {
        match openat2(&self.0, path, DIRECTORY, Mode::empty(), how) {
            Ok(dir) => Ok(Some(Dir(dir))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Dir {
    /// Something that was opened otherwise.
    pub fn of(dir: OwnedFd) -> Dir {
        Dir(dir)
    }

    /// The directory of that name in this one, if it is one and no link; made if there is none.
    ///
    /// # Errors
    /// What mkdirat(2) and openat(2) say.
    pub fn make(&self, name: &str) -> io::Result<Dir> {
        match mkdirat(&self.0, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        Ok(Dir(openat(&self.0, name, flags, Mode::empty())?))
    }

    /// Whether it has a directory of that name.
    pub fn has(&self, name: &str) -> bool {
        let found = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|of| FileType::from_raw_mode(of.st_mode) == FileType::Directory)
    }

    /// What fstat(2) says of it.
    ///
    /// # Errors
    /// What fstat(2) says.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(fstat(&self.0)?)
    }

    /// A path by which this process reaches the directory, whatever its name is.
    pub fn by_descriptor(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// The content of a regular file of that name, which is no link; None if it is not there.
    ///
    /// # Errors
    /// `EFBIG` above the limit, `EINVAL` if it is no regular file; what openat(2) and read(2) say.
    pub fn read(&self, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        // Without waiting: a FIFO without a writer would hold the hook up for ever.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        let mut content = Vec::new();
        File::from(file).take(limit + 1).read_to_end(&mut content)?;
        if content.len() as u64 > limit {
            return Err(Errno::FBIG.into());
        }
        Ok(Some(content))
    }

    /// Puts a file of that name, readable by all, in the place of what has the name now: a link is
    /// replaced, not followed.
    ///
    /// # Errors
    /// What openat(2), write(2) and renameat(2) say. Nothing is left half written.
    pub fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let new = format!("{name}.causeway");
        // Of a hook that was killed, or planted.
        let _ = unlinkat(&self.0, new.as_str(), AtFlags::empty());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.0, new.as_str(), flags, Mode::from_raw_mode(0o644))?;
        let written = fchmod(&file, Mode::from_raw_mode(0o644))
            .map_err(io::Error::from)
            .and_then(|()| File::from(file).write_all(content))
            .and_then(|()| Ok(renameat(&self.0, new.as_str(), &self.0, name)?));
        if written.is_err() {
            let _ = unlinkat(&self.0, new.as_str(), AtFlags::empty());
        }
        written
    }
}

#[cfg(test)]
#[path = "root_tests.rs"]
mod tests;
