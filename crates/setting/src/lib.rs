//! Reads the settings that libraries take from the environment; all of them do so here.
//!
//! In a program with set-user-id or file capabilities nothing is set, since its environment comes
//! from somebody with fewer rights (`AT_SECURE`, `getauxval(3)`, as with `secure_getenv(3)`).
//!
//! All functions may be called by several threads at once, as long as none changes the environment
//! meanwhile (`setenv(3)`).

use std::env;
use std::ffi::OsString;

/// Whether the program runs with privileges that its caller lacks (`AT_SECURE`, `getauxval(3)`).
#[must_use]
pub fn is_secure() -> bool {
    // SAFETY: the call has no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// An environment variable; `None` where it is not there or empty, or the program
/// [is secure](is_secure).
#[must_use]
pub fn setting(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty() && !is_secure())
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
