//! `causeway run`: sets the environment and becomes the command.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use causeway_fabric::runtime::{RUNTIME_DIR_VARIABLE, SOCKET_VARIABLE, lasting};
use causeway_fabric::{Address, Error, setting};
use rustix::io::Errno;

use crate::args::{RunOptions, Wire};
use crate::locate::{self, Libraries};
use crate::{EXIT_OWN_FAILURE, broker, complain, isolate};

/// The command exists and cannot be executed, as in env(1).
const EXIT_NOT_EXECUTABLE: u8 = 126;
/// The command was not found, as in env(1).
const EXIT_NOT_FOUND: u8 = 127;

/// Environment variables that carry the launcher's choices to the libraries.
const PRELOAD: &str = "LD_PRELOAD";
const WIRE: &str = "CAUSEWAY_WIRE";
const PORT: &str = "CAUSEWAY_PORT";
const SECURE: &str = causeway_fabric::secure::VARIABLE;
const SYSFS: &str = "CAUSEWAY_SYSFS";

/// Variables of the command's environment; those without a value it is not to have.
type Environment = Vec<(&'static str, Option<OsString>)>;

/// Runs the command; returns only if that fails.
pub fn run(options: &RunOptions) -> u8 {
    match prepare(options) {
        Ok(environment) => become_command(&options.command, environment),
        Err(error) => {
            complain(&error);
            EXIT_OWN_FAILURE
        }
    }
}

/// The variables to set for the command, or to remove.
fn prepare(options: &RunOptions) -> Result<Environment, String> {
    let libraries = Libraries::find().map_err(|error| error.to_string())?;
    let view = if options.no_paths {
        None
    } else {
        Some(sysfs_view()?)
    };
    // The shim is always there, since it also answers when the libraries are opened by name. It
    // shows no files without their directory's name.
    let shown = match view {
        Some(view) if options.isolate => {
            isolate::enter(&view)?;
            None
        }
        view => view.map(PathBuf::into_os_string),
    };
    let mut environment = vec![
        (
            PRELOAD,
            Some(preload(&libraries, std::env::var_os(PRELOAD))),
        ),
        (SYSFS, shown),
    ];
    if let Some(wire) = options.wire.or_else(default_wire) {
        environment.push((WIRE, Some(wire.name().into())));
    }
    if let Some(port) = options.port {
        environment.push((PORT, Some(port.name().into())));
    }
    if options.secure {
        environment.push((SECURE, Some("required".into())));
    }
    // The command and its children may work in other directories, and are to find the same broker.
    for name in [RUNTIME_DIR_VARIABLE, SOCKET_VARIABLE] {
        let path = setting(name).map(|path| lasting(PathBuf::from(path)));
        environment.extend(path.map(|path| (name, Some(path.into_os_string()))));
    }
    Ok(environment)
}

/// `auto`, unless the environment already says something.
fn default_wire() -> Option<Wire> {
    std::env::var_os(WIRE).is_none().then_some(Wire::Auto)
}

/// The directory whose content stands for the device's files.
fn sysfs_view() -> Result<PathBuf, String> {
    broker::sysfs_view().map_err(|error| {
        let error = match &error {
            Error::Refused {
                errno: Errno::NOSPC | Errno::DQUOT,
                ..
            } => no_space(&Address::from_env()).unwrap_or_else(|| error.to_string()),
            error => error.to_string(),
        };
        format!(
            "no files of the device: {error}\n\
             causeway: `causeway doctor` examines the machine; --no-paths runs without the \
             device's files"
        )
    })
}

/// Where no space is left for the device's files, if it is a directory of this machine's.
fn no_space(address: &Address) -> Option<String> {
    match address {
        Address::Dir(dir) => Some(format!(
            "no space is left for them in {}: CAUSEWAY_RUNTIME_DIR names another directory",
            dir.display()
        )),
        // The broker makes them there, wherever this process would have its own.
        Address::Socket(socket) => Some(format!(
            "no space is left for them in {}, where the broker has its socket",
            socket.parent().unwrap_or(socket).display()
        )),
        Address::Device => None,
    }
}

/// The value of LD_PRELOAD: ours first, then what the caller preloads already, without repeating
/// ourselves when one `causeway run` starts another.
fn preload(libraries: &Libraries, before: Option<OsString>) -> OsString {
    let mut entries: Vec<OsString> = [locate::VERBS, locate::RDMACM, locate::PATHS]
        .into_iter()
        .map(|name| libraries.path(name).into_os_string())
        .collect();
    let before = before.unwrap_or_default();
    let separator = |byte: &u8| matches!(byte, b':' | b' ');
    for entry in before
        .as_bytes()
        .split(separator)
        .filter(|entry| !entry.is_empty())
    {
        let entry = OsStr::from_bytes(entry);
        if !entries.iter().any(|ours| same_name(ours, entry)) {
            entries.push(entry.to_owned());
        }
    }
    entries.join(OsStr::new(":"))
}

/// Two builds of one library must not both be preloaded: the last part of the name decides.
fn same_name(a: &OsStr, b: &OsStr) -> bool {
    Path::new(a).file_name() == Path::new(b).file_name()
}

/// Replaces this process by the command. Nothing is changed but the environment: neither signal
/// dispositions nor the signal mask nor limits, which `std::process::Command` would touch.
fn become_command(command: &[OsString], environment: Environment) -> u8 {
    let Some(argv) = command.iter().map(c_string).collect::<Option<Vec<_>>>() else {
        complain("an argument holds a null byte");
        return EXIT_OWN_FAILURE;
    };
    for (name, value) in environment {
        // SAFETY: this process has one thread, so nobody reads the environment meanwhile.
        unsafe {
            match value {
                Some(value) => std::env::set_var(name, value),
                None => std::env::remove_var(name),
            }
        }
    }
    let mut pointers: Vec<_> = argv.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: `pointers` is a null-terminated array of null-terminated strings that `argv` owns,
    // and `argv` is not empty (clap requires a command).
    unsafe { libc::execvp(pointers[0], pointers.as_ptr()) };
    let error = io::Error::last_os_error();
    complain(&format!("{}: {error}", command[0].display()));
    match error.raw_os_error() {
        Some(libc::ENOENT) => EXIT_NOT_FOUND,
        _ => EXIT_NOT_EXECUTABLE,
    }
}

fn c_string(argument: &OsString) -> Option<CString> {
    CString::new(argument.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_directory_is_the_one_that_the_broker_writes_to() {
        let own = no_space(&Address::Dir("/run/own".into())).unwrap();
        assert!(
            own.contains(" /run/own: CAUSEWAY_RUNTIME_DIR names"),
            "{own}"
        );
        let tenant = no_space(&Address::Socket("/run/tenant/broker.sock".into())).unwrap();
        assert!(tenant.contains(" /run/tenant, "), "{tenant}");
        assert!(!tenant.contains("CAUSEWAY_RUNTIME_DIR"), "{tenant}");
        assert_eq!(no_space(&Address::Device), None);
    }
}
