//! `causeway`: see `causeway --help`.
//!
//! The program has no Rust `main`: the standard library's start-up code ignores SIGPIPE and opens
//! missing standard streams, and `causeway run` must hand both to the command as it got them.
#![no_main]

/// The C entry point. The standard library finds the arguments by itself on Linux.
#[unsafe(no_mangle)]
pub extern "C" fn main() -> libc::c_int {
    libc::c_int::from(causeway_cli::command())
}
