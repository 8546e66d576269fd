//! The CDI specification: what a container engine does to a container that is to have the device.
//!
//! Version 0.5.0 of the Container Device Interface, which engines of 2022 read.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::folder::Folder;
use crate::options::{CdiOptions, InjectionOptions};

/// Version of the interface.
const VERSION: &str = "0.5.0";
/// What is before the "=" in the device's name.
const KIND: &str = "causeway.dev/rdma";
/// The device's name, as engines are given it.
pub const NAME: &str = "causeway.dev/rdma=all";
/// Name of the specification's file.
pub(crate) const FILE: &str = "causeway.dev-rdma.json";
/// How containers see what is mounted.
pub(crate) const MOUNT_OPTIONS: [&str; 4] = ["ro", "nosuid", "nodev", "rbind"];
/// Setting that names a tenant's socket.
pub(crate) const SOCKET: &str = causeway_fabric::runtime::SOCKET_VARIABLE;

/// What a container gets, with every default filled in and checked.
#[derive(Clone, Debug)]
pub struct Injection {
    folder: Folder,
    container_folder: PathBuf,
    socket: Option<PathBuf>,
}

/// A directory or file of the host that a container sees, read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// On the host.
    pub host: String,
    /// In the container.
    pub container: String,
}

/// Writes the specification.
///
/// # Errors
/// What is missing, or cannot be written.
pub fn command(options: &CdiOptions) -> Result<(), String> {
    let injection = Injection::new(&options.injection)?;
    if let Some(warning) = injection.warning() {
        eprintln!("causeway-kube: warning: {warning}");
    }
    if options.cdi_dir == Path::new("-") {
        let written = io::stdout().write_all(injection.specification()?.as_bytes());
        return written.map_err(|error| format!("standard output: {error}"));
    }
    injection.write(&options.cdi_dir)
}

impl Injection {
    /// Fills the defaults in, and checks that there is something to give.
    ///
    /// # Errors
    /// What is missing.
    pub fn new(options: &InjectionOptions) -> Result<Injection, String> {
        let folder = match &options.folder {
            Some(folder) => folder.clone(),
            None => own_folder().map_err(|error| format!("this program's folder: {error}"))?,
        };
        let paths = [&folder, &options.container_folder];
        for path in paths.into_iter().chain(&options.socket) {
            check_path(path)?;
        }
        Ok(Injection {
            folder: Folder::new(folder)?,
            container_folder: options.container_folder.clone(),
            socket: options.socket.clone(),
        })
    }

    /// What the container sees of the host: the programs, the libraries, the directory of the
    /// tenant's socket. Reading suffices to connect to a socket.
    #[must_use]
    pub fn mounts(&self) -> Vec<Mount> {
        let text = |path: &Path| path.display().to_string();
        let ours = self.folder.parts().into_iter().map(|(host, part)| Mount {
            host: text(&host),
            container: self.in_container(&part),
        });
        let socket = self.socket.as_deref().and_then(Path::parent);
        let socket = socket.map(|dir| Mount {
            host: text(dir),
            container: text(dir),
        });
        ours.chain(socket).collect()
    }

    /// The tenant's socket, for the container's environment.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let socket = self.socket.iter();
        socket
            .map(|path| (SOCKET.to_owned(), path.display().to_string()))
            .collect()
    }

    /// What keeps containers from starting for now.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let dir = self.socket.as_deref().and_then(Path::parent)?;
        (!dir.is_dir()).then(|| {
            format!(
                "no directory {}: containers with the device start when it is there; a broker \
                 whose configuration has a tenant with that socket makes it",
                dir.display()
            )
        })
    }

    /// The environment for a container that no hook prepares.
    #[must_use]
    pub fn preloading(&self) -> Vec<(String, String)> {
        let libraries = Folder::preloaded().map(|part| self.in_container(&part));
        let libraries = libraries.join(":");
        let mut all = self.environment();
        all.push(("LD_PRELOAD".to_owned(), libraries));
        all
    }

    /// Where the container sees a part of the folder.
    fn in_container(&self, part: &Path) -> String {
        self.container_folder.join(part).display().to_string()
    }

    /// The file's content.
    ///
    /// # Errors
    /// The hook's program has no path.
    pub fn specification(&self) -> Result<String, String> {
        let hook = self.folder.hook()?;
        let libraries = self.folder.named().into_iter();
        let libraries = libraries.map(|part| format!("--library={}", self.in_container(&part)));
        let args = ["causeway-kube".to_owned(), "hook".to_owned()];
        let edits = Edits {
            env: self
                .environment()
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
            mounts: self.mounts().into_iter().map(SpecMount::from).collect(),
            hooks: vec![Hook {
                hook_name: "createContainer",
                path: hook.display().to_string(),
                args: args.into_iter().chain(libraries).collect(),
            }],
        };
        let specification = Specification {
            cdi_version: VERSION,
            kind: KIND,
            devices: vec![Device {
                name: "all",
                container_edits: edits,
            }],
        };
        let text = serde_json::to_string_pretty(&specification).map_err(|error| error.to_string());
        Ok(text? + "\n")
    }

    /// Puts the file in its place at once: an engine may read it at any time.
    ///
    /// # Errors
    /// What cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), String> {
        let text = self.specification()?;
        let path = dir.join(FILE);
        // Engines read what ends in .json or .yaml.
        let new = dir.join(format!("{FILE}.{}.new", std::process::id()));
        let written = fs::create_dir_all(dir)
            .and_then(|()| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &path));
        written.map_err(|error| {
            let _ = fs::remove_file(&new);
            unwritable(&path, &error)
        })
    }
}

/// Why a file could not be written, and what mends that.
pub(crate) fn unwritable(path: &Path, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; run this as root, or let --cdi-dir name a directory that this user may write"
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotADirectory => {
            "; let --cdi-dir name a directory that can be written"
        }
        _ => "",
    };
    format!("{}: {error}{hint}", path.display())
}

/// The folder that has this program in its `bin`.
pub(crate) fn own_folder() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().and_then(Path::parent);
    Ok(folder.unwrap_or(Path::new("/")).to_owned())
}

/// Whether a path can stand in a specification, an environment and LD_PRELOAD.
fn check_path(path: &Path) -> Result<(), String> {
    let plain =
        |text: &str| !text.contains(|c: char| c.is_ascii_whitespace() || ":$,=".contains(c));
    match path.to_str() {
        Some(text) if path.is_absolute() && plain(text) => Ok(()),
        _ => Err(format!(
            "{} is not an absolute path without spaces, colons and \"$,=\"",
            path.display()
        )),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Specification {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<Device>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: &'static str,
    container_edits: Edits,
}

#[derive(Serialize)]
struct Edits {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    mounts: Vec<SpecMount>,
    hooks: Vec<Hook>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpecMount {
    host_path: String,
    container_path: String,
    options: [&'static str; 4],
}

impl From<Mount> for SpecMount {
    fn from(mount: Mount) -> SpecMount {
        SpecMount {
            host_path: mount.host,
            container_path: mount.container,
            options: MOUNT_OPTIONS,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Hook {
    hook_name: &'static str,
    path: String,
    args: Vec<String>,
}

#[cfg(test)]
#[path = "cdi_tests.rs"]
mod tests;
