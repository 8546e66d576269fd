//! The hook that the CDI specification names: `createContainer` of the OCI runtime specification.
//!
//! An engine calls it as root of the container's user namespace, in the container's mount and
//! network namespaces, before the container's root becomes its root. It shows the device's files
//! ([`view`]) and lets the dynamic linker find the libraries ([`libraries`]). The root is that of
//! an image that anybody may have made: [`root`] says how its names are resolved. Nothing of the
//! image is executed.

pub mod cache;
pub mod libraries;
pub mod root;
pub mod view;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::options::HookOptions;
use root::Root;

/// The longest state or configuration of a container that is read.
const JSON_MAX: u64 = 16 << 20;
/// The container's configuration in its bundle.
const CONFIG: &str = "config.json";

/// What an engine tells a hook: the state of a container (OCI runtime specification, "State").
#[derive(Debug, Deserialize)]
struct State {
    bundle: PathBuf,
}

/// Of a container's configuration, what is needed here.
#[derive(Debug, Deserialize)]
struct Config {
    root: ConfigRoot,
}

#[derive(Debug, Deserialize)]
struct ConfigRoot {
    path: PathBuf,
}

/// Gives the container that standard input describes the device.
///
/// # Errors
/// What went wrong; the engine then does not start the container.
pub fn command(options: &HookOptions) -> Result<(), String> {
    let failed = |error: io::Error| {
        format!("the container's state, which engines give their hooks on standard input: {error}")
    };
    let state = read_json(io::stdin().lock()).map_err(failed)?;
    let path = root_path(state)?;
    let failed = |error: io::Error| format!("the container's root {}: {error}", path.display());
    let root = Root::open(&path).map_err(failed)?;
    view::show(&root)?;
    libraries::show(&root, &options.libraries)
}

/// Where the container's root is, before it is entered.
fn root_path(state: State) -> Result<PathBuf, String> {
    let path = state.bundle.join(CONFIG);
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let config: Config = File::open(&path).and_then(read_json).map_err(failed)?;
    // A relative path is one from the bundle.
    Ok(state.bundle.join(Path::new(&config.root.path)))
}

/// A value in JSON; one that is too long is cut, and so no JSON.
fn read_json<T: for<'a> Deserialize<'a>>(from: impl Read) -> io::Result<T> {
    Ok(serde_json::from_reader(from.take(JSON_MAX))?)
}
