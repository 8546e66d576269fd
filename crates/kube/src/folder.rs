//! Causeway on the host, and what containers see of it.
//!
//! A container sees programs in `bin` and libraries in `lib` of one folder. On the host either a
//! folder looks like that, and has nothing else; or programs and libraries lie among those of
//! others below a prefix, as Debian's packages have it. Of a prefix a container gets single files.

use std::path::{Path, PathBuf};

/// Directories of a folder.
const PROGRAMS_DIR: &str = "bin";
const LIBRARIES_DIR: &str = "lib";
/// Directories below a prefix that have Causeway's libraries alone, as `causeway run` looks for
/// them. The first is what Debian's packages have.
#[cfg(target_arch = "x86_64")]
const PRIVATE_DIRS: [&str; 2] = ["lib/x86_64-linux-gnu/causeway", "lib/causeway"];
#[cfg(not(target_arch = "x86_64"))]
const PRIVATE_DIRS: [&str; 1] = ["lib/causeway"];
/// Programs that containers get of a prefix: the command, and what it and libraries start.
const PROGRAMS: [&str; 3] = ["causeway", "causewayd", "causeway-noded"];
/// The program that engines call as the hook. They call it on the host.
const HOOK: &str = "causeway-kube";
/// What shows there are libraries.
const VERBS: &str = "libibverbs.so.1";
const RDMACM: &str = "librdmacm.so.1";
/// Of a prefix this one lies above the private directory: programs are linked to it as to any.
const LIBCAUSEWAY: &str = "libcauseway.so.0";
/// Libraries that programs ask for by name.
const NAMED: [&str; 4] = [VERBS, RDMACM, "libsisci.so", LIBCAUSEWAY];
/// The library that `causeway run` preloads beside those.
const PATHS: &str = "libcauseway-paths.so";

/// A folder or prefix on the host.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    /// The directory of Causeway's libraries below a prefix.
    private: Option<PathBuf>,
}

impl Folder {
    /// What is at `path`.
    ///
    /// # Errors
    /// There are no libraries.
    pub fn new(path: PathBuf) -> Result<Folder, String> {
        let has = |dir: &PathBuf| dir.join(VERBS).is_file();
        let private = PRIVATE_DIRS.map(|dir| path.join(dir)).into_iter().find(has);
        if private.is_none() && !has(&path.join(LIBRARIES_DIR)) {
            return Err(format!(
                "no {VERBS} in {} or {LIBRARIES_DIR} of {}; --folder names another",
                PRIVATE_DIRS.join(", "),
                path.display()
            ));
        }
        Ok(Folder { path, private })
    }

    /// The program that engines call as the hook.
    ///
    /// # Errors
    /// It is not there.
    pub fn hook(&self) -> Result<PathBuf, String> {
        let hook = hook_in(&self.path);
        match hook.is_file() {
            true => Ok(hook),
            false => Err(format!(
                "no {}: engines call it as the hook",
                hook.display()
            )),
        }
    }

    /// What containers see: a directory or file of the host, and where in their folder it is.
    #[must_use]
    pub fn parts(&self) -> Vec<(PathBuf, PathBuf)> {
        if self.private.is_none() {
            let whole = [PROGRAMS_DIR, LIBRARIES_DIR];
            return whole.map(|dir| (self.path.join(dir), dir.into())).to_vec();
        }
        let programs = PROGRAMS.map(|name| Path::new(PROGRAMS_DIR).join(name));
        let programs = programs.into_iter().map(|at| (self.path.join(&at), at));
        let programs = programs.filter(|(host, _)| host.is_file());
        let libraries = NAMED.into_iter().chain([PATHS]);
        let libraries = libraries.filter_map(|name| Some((self.library(name)?, in_folder(name))));
        programs.chain(libraries).collect()
    }

    /// The libraries that programs ask for by name, in containers' folder.
    #[must_use]
    pub fn named(&self) -> Vec<PathBuf> {
        let there = NAMED
            .into_iter()
            .filter(|name| self.library(name).is_some());
        there.map(in_folder).collect()
    }

    /// The libraries to preload where programs would not find them by name, in containers' folder.
    #[must_use]
    pub fn preloaded() -> [PathBuf; 3] {
        [VERBS, RDMACM, PATHS].map(in_folder)
    }

    /// A library on the host, if it is there.
    fn library(&self, name: &str) -> Option<PathBuf> {
        let dir = match &self.private {
            Some(private) if name == LIBCAUSEWAY => private.parent()?.to_owned(),
            Some(private) => private.clone(),
            None => self.path.join(LIBRARIES_DIR),
        };
        Some(dir.join(name)).filter(|path| path.is_file())
    }
}

/// Where the hook of a folder or prefix is.
#[must_use]
pub fn hook_in(folder: &Path) -> PathBuf {
    folder.join(PROGRAMS_DIR).join(HOOK)
}

/// Where a library is in containers' folder.
fn in_folder(library: &str) -> PathBuf {
    Path::new(LIBRARIES_DIR).join(library)
}
