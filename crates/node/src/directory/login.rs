//! Who this host is to an etcd that asks for user and password.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use causeway_directory::Login;
use rustix::fs::OFlags;

use crate::limits::PASSWORD_BYTES_MAX;

/// Permissions of group and others.
const OTHERS: u32 = 0o077;
/// Code of gRPC: etcd does not know the token.
const UNAUTHENTICATED: i64 = 16;
/// Code of gRPC: not in the state that things are in.
const FAILED_PRECONDITION: i64 = 9;
/// What etcd says, by that, to who logs in though nobody needs to.
const NOT_ENABLED: &str = "authentication is not enabled";
/// What etcd says, by another code, of a token that it gave before users or rights changed.
const OLD_REVISION: &str = "revision of auth store is old";

/// Reads a user's password: the file's text without the end of its line.
///
/// # Errors
/// Text for the user.
pub fn password(login: &Login) -> Result<String, String> {
    let path = &login.password_file;
    read(path).map_err(|why| format!("password file {}: {why}", path.display()))
}

fn read(path: &Path) -> Result<String, String> {
    // A FIFO would have it wait for ever; a symbolic link is somebody's who may write there.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let file = file.map_err(|why| why.to_string())?;
    let meta = file.metadata().map_err(|why| why.to_string())?;
    if !meta.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if ![0, rustix::process::geteuid().as_raw()].contains(&meta.uid()) {
        return Err("it must belong to root or to the daemon's user".to_owned());
    }
    if meta.mode() & OTHERS != 0 {
        let mode = meta.mode() & 0o777;
        return Err(format!("its mode is {mode:03o}; chmod 600 it"));
    }
    let mut text = String::new();
    let mut limited = file.take(PASSWORD_BYTES_MAX + 1);
    let read = limited.read_to_string(&mut text);
    read.map_err(|why| why.to_string())?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() || password.len() as u64 > PASSWORD_BYTES_MAX {
        return Err(format!(
            "a password must have 1 to {PASSWORD_BYTES_MAX} bytes"
        ));
    }
    Ok(password.to_owned())
}

/// Whether a refusal means that another token is to be asked for.
pub fn is_stale(code: i64, message: &str) -> bool {
    code == UNAUTHENTICATED || message.contains(OLD_REVISION)
}

/// Whether a login was refused since etcd does not ask who comes.
pub fn is_needless(code: i64, message: &str) -> bool {
    code == FAILED_PRECONDITION && message.contains(NOT_ENABLED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_password_is_read_if_nobody_else_can() {
        let made = tempfile::tempdir().unwrap();
        let dir = made.path();
        let file = |text: &str, mode: u32| {
            let path = dir.join("password");
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            Login {
                user: "u".to_owned(),
                password_file: path,
            }
        };
        assert_eq!(password(&file("se cret\n", 0o600)).unwrap(), "se cret");
        assert_eq!(password(&file("secret", 0o400)).unwrap(), "secret");
        for mode in [0o640, 0o604, 0o666] {
            let why = password(&file("secret\n", mode)).unwrap_err();
            assert!(why.contains(&format!("mode is {mode:o}")), "{why}");
        }
        let long = "x".repeat(PASSWORD_BYTES_MAX as usize + 1);
        for text in ["", "\n", &long] {
            let why = password(&file(text, 0o600)).unwrap_err();
            assert!(why.contains("1 to"), "{why}");
        }
        let link = dir.join("link");
        let target = file("secret", 0o600).password_file;
        symlink(target, &link).unwrap();
        assert!(read(&link).is_err(), "a symbolic link");
        assert!(read(dir).unwrap_err().contains("regular"));
    }
}
