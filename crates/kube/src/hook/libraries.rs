//! Lets the dynamic linker of a container's programs find Causeway's libraries by their names.
//!
//! The cache of the image gets entries in front of those that it has (ld.so(8)), and a file in
//! `/etc/ld.so.conf.d` keeps them there when ldconfig(8) runs in the container. No ldconfig runs
//! here: that of the image is not to be trusted, nodes need not have one, and it would read every
//! library of the image as root to add a few lines.

use std::io;
use std::path::{Path, PathBuf};

use super::cache::{Cache, Entry};
use super::root::Root;

/// Where the cache is.
const ETC: &str = "/etc";
const CACHE: &str = "ld.so.cache";
/// The longest cache that is read. That of a desktop with 10,000 libraries has 1 MiB.
const CACHE_MAX: u64 = 16 << 20;
/// Where directories of libraries are named.
const CONF_DIR: &str = "/etc/ld.so.conf.d";
/// Sorted before the files of distributions: the first directory that has a library wins.
const CONF: &str = "00-causeway.conf";

/// Lets programs find `libraries`, paths in the container, by the last parts of their names. An
/// image without a cache has no glibc, or no dynamically linked programs; it stays as it is.
///
/// # Errors
/// What went wrong, and where.
pub fn show(root: &Root, libraries: &[PathBuf]) -> Result<(), String> {
    let failed = |path: &str| {
        let path = path.to_owned();
        move |error: io::Error| format!("the image's {path}: {error}")
    };
    let Some(etc) = root.of_image(ETC).map_err(failed(ETC))? else {
        return Ok(());
    };
    let Some(bytes) = etc.read(CACHE, CACHE_MAX).map_err(failed(CACHE))? else {
        return Ok(());
    };
    let mut cache = Cache::parse(&bytes).map_err(|why| format!("the image's {CACHE}: {why}"))?;
    for library in libraries {
        for entry in entries(library)? {
            cache.put(entry);
        }
    }
    if let Some(dir) = root.of_image(CONF_DIR).map_err(failed(CONF_DIR))? {
        let written = dir.replace(CONF, conf(libraries).as_bytes());
        written.map_err(failed(CONF))?;
    }
    etc.replace(CACHE, &cache.to_bytes()).map_err(failed(CACHE))
}

/// The entries by which a library is found: by its name, and by that without a version, for which
/// programs ask that load it themselves.
fn entries(library: &Path) -> Result<Vec<Entry>, String> {
    let text = |part: Option<&str>| {
        let wrong = || format!("not a library's path: {}", library.display());
        part.map(str::to_owned).ok_or_else(wrong)
    };
    let path = text(library.to_str())?;
    let name = text(library.file_name().and_then(|name| name.to_str()))?;
    let plain = name
        .split_once(".so.")
        .map(|(stem, _)| format!("{stem}.so"));
    let names = [Some(name), plain].into_iter().flatten();
    Ok(names.map(|name| Entry::of(name, path.clone())).collect())
}

/// What names the libraries' directories to ldconfig(8).
fn conf(libraries: &[PathBuf]) -> String {
    let mut dirs: Vec<_> = libraries.iter().filter_map(|path| path.parent()).collect();
    dirs.dedup();
    dirs.iter()
        .map(|dir| format!("{}\n", dir.display()))
        .collect()
}
