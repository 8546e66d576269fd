//! Where the libraries are: relative to this executable, so that a build tree, a prefix of any name
//! and a bind-mounted copy in a container all work unconfigured.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The verbs library, by the name programs ask for.
pub const VERBS: &str = "libibverbs.so.1";
/// The connection manager's library.
pub const RDMACM: &str = "librdmacm.so.1";
/// The library that shows programs the device's files, and opens the other two for programs that
/// ask for them by another name.
pub const PATHS: &str = "libcauseway-paths.so";

/// Where the libraries may be, relative to the directory of the executable. The second is what
/// Debian's packages have.
#[cfg(target_arch = "x86_64")]
const PLACES: [&str; 3] = [
    "../lib/causeway",
    "../lib/x86_64-linux-gnu/causeway",
    "../lib",
];
#[cfg(not(target_arch = "x86_64"))]
const PLACES: [&str; 2] = ["../lib/causeway", "../lib"];

/// The directory that holds Causeway's libraries.
pub struct Libraries {
    dir: PathBuf,
}

/// Why the libraries cannot be used.
#[derive(Debug)]
pub enum LocateError {
    /// The executable's own path is unknown (no /proc).
    NoExecutable(io::Error),
    /// None of the places next to the executable holds them.
    NotFound(PathBuf),
    /// The directory is there, and its own name cannot be had.
    Unresolved(PathBuf, io::Error),
    /// The directory's name holds a character at which LD_PRELOAD is split (ld.so(8)).
    Unloadable(PathBuf),
}

impl fmt::Display for LocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoExecutable(error) => write!(f, "cannot find this executable: {error}"),
            Self::NotFound(dir) => write!(
                f,
                "no {VERBS} in {} relative to {}; the executable must stay beside its libraries",
                PLACES.join(" or "),
                dir.display()
            ),
            Self::Unresolved(dir, error) => write!(
                f,
                "cannot resolve the libraries' directory {}: {error}",
                dir.display()
            ),
            Self::Unloadable(dir) => write!(
                f,
                "the libraries' directory {} has a space, colon or $ in its name, which LD_PRELOAD \
                 cannot express; move or copy it",
                dir.display()
            ),
        }
    }
}

impl Libraries {
    /// Finds the libraries that belong to the running executable.
    pub fn find() -> Result<Self, LocateError> {
        let exe = std::env::current_exe().map_err(LocateError::NoExecutable)?;
        Self::beside(exe.parent().unwrap_or(Path::new("/")))
    }

    /// Finds the libraries that belong to an executable in `bin`.
    fn beside(bin: &Path) -> Result<Self, LocateError> {
        let dir = PLACES
            .iter()
            .map(|place| bin.join(place))
            .find(|dir| dir.join(VERBS).is_file())
            .ok_or_else(|| LocateError::NotFound(bin.to_owned()))?;
        let dir = resolve(&dir).map_err(|error| LocateError::Unresolved(dir, error))?;
        let splits = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b':' | b'$');
        if dir.as_os_str().as_encoded_bytes().iter().any(splits) {
            return Err(LocateError::Unloadable(dir));
        }
        Ok(Self { dir })
    }

    /// The full path of one library.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// The directory's own name. As the kernel has it: realpath(3) asks it by faccessat2(2), which some
/// sandboxes refuse in a way that the C library takes for an answer.
fn resolve(dir: &Path) -> io::Result<PathBuf> {
    let held = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(dir)?;
    fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefers_the_private_directory() {
        let made = tempfile::tempdir().unwrap();
        let root = made.path();
        for dir in ["bin"].into_iter().chain(PLACES.map(|place| &place[3..])) {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let bin = root.join("bin");
        assert!(matches!(
            Libraries::beside(&bin),
            Err(LocateError::NotFound(_))
        ));
        for place in PLACES.iter().rev().map(|place| &place[3..]) {
            fs::write(root.join(place).join(VERBS), "").unwrap();
            let found = Libraries::beside(&bin).unwrap();
            assert!(found.path(VERBS).ends_with(Path::new(place).join(VERBS)));
        }
    }

    #[test]
    fn refuses_a_name_that_ld_preload_would_split() {
        let made = tempfile::tempdir().unwrap();
        let root = made.path().join("with space");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::write(root.join("lib").join(VERBS), "").unwrap();
        let found = Libraries::beside(&root.join("bin"));
        assert!(matches!(found, Err(LocateError::Unloadable(_))));
    }
}
