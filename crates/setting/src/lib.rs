//! Reads the settings that libraries take from the environment; all of them do so here.
//!
//! In a program with set-user-id or file capabilities nothing is set, since its environment comes
//! from somebody with fewer rights (`AT_SECURE`, `getauxval(3)`, as with `secure_getenv(3)`).
//!
//! All functions may be called by several threads at once, as long as none changes the environment
//! meanwhile (`setenv(3)`).

mod table;

use std::env;
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU32, Ordering};

pub use table::{KNOWN, Known};

// A bit for each row.
const _: () = assert!(KNOWN.len() <= u32::BITS as usize);
/// The rows whose setting this library has warned of.
static WARNED: AtomicU32 = AtomicU32::new(0);

/// Whether the program runs with privileges that its caller lacks (`AT_SECURE`, `getauxval(3)`).
#[must_use]
pub fn is_secure() -> bool {
    // SAFETY: the call has no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// An environment variable; `None` where it is not there or empty, or the program
/// [is secure](is_secure). Of a value that is not allowed, and that nobody else reports
/// ([`KNOWN`]), it warns on standard error, once for each setting.
#[must_use]
pub fn setting(name: &str) -> Option<OsString> {
    let value = env::var_os(name).filter(|value| !value.is_empty() && !is_secure())?;
    if let Some(warning) = warning(name, &value) {
        say(&warning);
    }
    Some(value)
}

/// What to say of a value, unless it has been said.
fn warning(name: &str, value: &OsStr) -> Option<String> {
    let row = KNOWN.iter().position(|known| known.name == name)?;
    let known = &KNOWN[row];
    if known.allows(value) {
        return None;
    }
    let bit = 1 << row;
    let first = WARNED.fetch_or(bit, Ordering::Relaxed) & bit == 0;
    let (value, allowed) = (value.to_string_lossy(), known.allowed);
    first.then(|| format!("causeway: {name}: {value:?} is not {allowed}\n"))
}

/// A line on standard error. Nobody is told if there is none.
fn say(line: &str) {
    // SAFETY: the bytes are there for the length of the call.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Whether an environment variable is there, empty or not, and the program is not
/// [secure](is_secure).
#[must_use]
pub fn is_set(name: &str) -> bool {
    env::var_os(name).is_some() && !is_secure()
}

/// The environment that a program started by this one may have: all of it, or nothing where this
/// one [is secure](is_secure).
pub fn all() -> impl Iterator<Item = (OsString, OsString)> {
    env::vars_os().filter(|_| !is_secure())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_takes_what_it_names_and_warns_once_of_anything_else() {
        for known in &KNOWN {
            for good in known.examples {
                assert!(known.allows(OsStr::new(good)), "{}={good}", known.name);
                assert_eq!(warning(known.name, OsStr::new(good)), None);
            }
            for bad in ["x", "-1", "on off", "1e99"] {
                assert!(!known.allows(OsStr::new(bad)), "{}={bad}", known.name);
            }
            let said = warning(known.name, OsStr::new("x"));
            let said = said.expect("a warning");
            assert!(said.contains(known.name) && said.contains(known.allowed));
            assert!(said.contains("\"x\"") && said.ends_with('\n'));
            assert_eq!(warning(known.name, OsStr::new("x")), None, "once");
        }
        assert_eq!(warning("CAUSEWAY_SOCKET", OsStr::new("x")), None);
    }
}
