//! Specifications that this program has written before, written again with the options of then:
//! files that they name may have been installed or removed meanwhile.
//!
//! The options stand in the file itself. A file that says anything else than what this program
//! writes is somebody's own, and left alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cdi::{FILE, Injection, MOUNT_OPTIONS, SOCKET, own_folder, unwritable};
use crate::options::{CdiAgainOptions, InjectionOptions};

/// Most bytes of a file that is looked at.
const FILE_MAX: u64 = 1 << 20;
/// Where a specification has what it does to containers.
const EDITS: &str = "/devices/0/containerEdits";
/// What the hook's arguments begin with that name libraries.
const LIBRARY: &str = "--library=";

/// What became of a specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// There is none.
    Absent,
    /// It says already what would be written.
    Same,
    /// It was written again.
    Written,
    /// It is left alone: another program has written it.
    Foreign,
    /// It is left alone: somebody has changed it.
    Changed,
}

/// Writes again what there is in the directories, and says which files those are.
///
/// # Errors
/// What of a file of this program's cannot be written, or is missing now.
pub fn command(options: &CdiAgainOptions) -> Result<(), String> {
    let folder = own_folder().map_err(|error| format!("this program's folder: {error}"))?;
    let mut problems = Vec::new();
    for dir in &options.cdi_dirs {
        let say = |what| println!("{}: {what}", dir.join(FILE).display());
        match again(&folder, dir) {
            Ok(Outcome::Written) => say("written again"),
            Ok(Outcome::Foreign) => say("left alone: it is another program's"),
            Ok(Outcome::Changed) => say("left alone: it was changed by hand"),
            Ok(Outcome::Absent | Outcome::Same) => {}
            Err(error) => problems.push(error),
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems.join("; ")),
    }
}

/// Writes the specification in a directory again, if the program in the `bin` of `folder` has
/// written it.
fn again(folder: &Path, dir: &Path) -> Result<Outcome, String> {
    let path = dir.join(FILE);
    let read = fs::symlink_metadata(&path).and_then(|found| {
        let usual = found.is_file() && found.len() <= FILE_MAX;
        usual.then(|| fs::read(&path)).transpose()
    });
    let text = match read {
        Ok(Some(text)) => text,
        // A link, or what is too long for a specification of ours.
        Ok(None) => return Ok(Outcome::Changed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Outcome::Absent),
        Err(error) => return Err(unwritable(&path, &error)),
    };
    let Ok(found) = serde_json::from_slice::<Value>(&text) else {
        return Ok(Outcome::Changed);
    };
    let hook = found.pointer(&format!("{EDITS}/hooks/0/path"));
    if hook.and_then(Value::as_str).map(Path::new) != Some(&crate::folder::hook_in(folder)) {
        return Ok(Outcome::Foreign);
    }
    for options in candidates(folder, &found) {
        let injection = Injection::new(&options)?;
        let new = injection.specification()?;
        if new.as_bytes() == text {
            return Ok(Outcome::Same);
        }
        let value = serde_json::from_str(&new).map_err(|error| error.to_string())?;
        if without_files(found.clone(), &options) == without_files(value, &options) {
            injection.write(dir)?;
            return Ok(Outcome::Written);
        }
    }
    Ok(Outcome::Changed)
}

/// The options that a specification may have been written with. The first file or directory that
/// containers see is in their folder, or in a directory of it.
fn candidates(folder: &Path, found: &Value) -> Vec<InjectionOptions> {
    let text = |at: &str| {
        found
            .pointer(&format!("{EDITS}/{at}"))
            .and_then(Value::as_str)
    };
    let socket = text("env/0").and_then(|set| set.strip_prefix(SOCKET)?.strip_prefix('='));
    let part = Path::new(text("mounts/0/containerPath").unwrap_or_default());
    let above = part.ancestors().skip(1).take(2);
    above
        .map(|container_folder| InjectionOptions {
            folder: Some(folder.to_owned()),
            container_folder: container_folder.to_owned(),
            socket: socket.map(PathBuf::from),
        })
        .collect()
}

/// A specification without what depends on which files are there: programs and libraries that
/// containers see, and the libraries that the hook is told of.
fn without_files(mut specification: Value, options: &InjectionOptions) -> Value {
    let folder = options.folder.as_deref().unwrap_or(Path::new("/"));
    let inside = |value: &Value, folder: &Path| {
        let path = value.as_str().map(Path::new);
        path.is_some_and(|path| path.starts_with(folder) && path != folder)
    };
    let ours = |mount: &Value| {
        inside(&mount["hostPath"], folder)
            && inside(&mount["containerPath"], &options.container_folder)
            && mount["options"] == Value::from(MOUNT_OPTIONS.to_vec())
    };
    let library = |word: &Value| {
        let path = word.as_str().and_then(|word| word.strip_prefix(LIBRARY));
        path.is_some_and(|path| Path::new(path).starts_with(&options.container_folder))
    };
    let mut drop = |at: &str, unwanted: &dyn Fn(&Value) -> bool| {
        let list = specification.pointer_mut(&format!("{EDITS}/{at}"));
        if let Some(list) = list.and_then(Value::as_array_mut) {
            list.retain(|one| !unwanted(one));
        }
    };
    drop("mounts", &ours);
    drop("hooks/0/args", &library);
    specification
}

#[cfg(test)]
#[path = "again_tests.rs"]
mod tests;
