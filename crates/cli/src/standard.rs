//! Standard streams that whoever started this process has closed.

use std::fs::File;
use std::os::fd::IntoRawFd;

/// Opens `/dev/null` where standard input, output or error is missing. Otherwise the next file or
/// socket of this process would get its number, and what is printed would go there: into the file
/// of `causeway trace`, or to the broker. The standard library's start-up code does so, too, for a
/// program that has it (`main.rs`).
///
/// Must be called before anything is opened that lasts. `run` does not call it: the command gets
/// its streams as they are.
pub fn open_missing() {
    for number in 0..=2 {
        if is_open(number) {
            continue;
        }
        // The kernel gives out the lowest number that is free, and those below are taken.
        match File::options().read(true).write(true).open("/dev/null") {
            Ok(null) => {
                let taken = null.into_raw_fd();
                debug_assert_eq!(taken, number);
            }
            Err(_) => return,
        }
    }
}

fn is_open(number: i32) -> bool {
    // SAFETY: F_GETFD takes no pointer and changes nothing, whatever the number stands for.
    unsafe { libc::fcntl(number, libc::F_GETFD) != -1 }
}
