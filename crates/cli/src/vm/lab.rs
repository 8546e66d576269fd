//! `causeway vm lab`: the script of the source tree that this program was built in.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Where it is, from the directory of the program: `build/bin`.
const SCRIPT: &str = "../../scripts/vm-lab";

/// Becomes the script; returns only with the reason why it can't.
pub fn lab(arguments: &[OsString]) -> String {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return format!("cannot find this executable: {error}"),
    };
    let script = program.with_file_name(SCRIPT);
    let error = Command::new(&script).args(arguments).exec();
    format!(
        "{}: {error}; guests are booted from a source tree only, by its build/bin/causeway",
        script.display()
    )
}
