//! The `causeway` command: runs programs over Causeway, shows its state, examines the machine.
//!
//! A library, so that the program itself (`main.rs`) is nothing but its entry point.

mod args;
mod bench;
mod broker;
mod doctor;
mod isolate;
mod limit;
mod locate;
mod manual;
mod nodes;
mod run;
mod status;
mod top;
mod trace;
mod vm;

use args::{Cli, Verb};
use clap::Parser;

/// The exit status for a failure of `causeway` itself before the command ran, as in env(1).
const EXIT_OWN_FAILURE: u8 = 125;

/// Does what the command line of this process says; the result is the exit status.
///
/// Must be called before the process has a second thread: `run` changes the environment.
#[must_use]
pub fn command() -> u8 {
    match Cli::try_parse() {
        Ok(cli) => dispatch(cli),
        Err(error) => {
            // A closed stdout or stderr leaves nobody to tell.
            let _ = error.print();
            if error.use_stderr() {
                EXIT_OWN_FAILURE
            } else {
                0
            }
        }
    }
}

/// Runs one verb; the result is the exit status.
fn dispatch(cli: Cli) -> u8 {
    match cli.verb {
        Verb::Run(options) => run::run(&options),
        Verb::Status(options) => status::status(&options),
        Verb::Top(options) => top::top(&options),
        Verb::Trace(options) => trace::trace(&options),
        Verb::Nodes(options) => nodes::nodes(&options),
        Verb::Doctor => doctor::doctor(),
        Verb::Limit(options) => limit::limit(&options),
        Verb::Vm(options) => vm::vm(&options.verb),
        Verb::Bench(options) => bench::bench(&options),
        Verb::Manual(options) => manual::manual(&options),
    }
}

/// Prints to standard output.
///
/// # Errors
/// Text for the user: a disk that is full, say.
fn print(text: &str) -> Result<(), String> {
    use std::io::Write;
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| format!("standard output: {error}"))
}

/// Prints to standard output; the result is the exit status, which is not 0 where that fails.
fn say(text: &str) -> u8 {
    match print(text) {
        Ok(()) => 0,
        Err(why) => {
            complain(&why);
            1
        }
    }
}

/// Says what went wrong on stderr, in the form every Unix tool uses.
fn complain(what: &str) {
    eprintln!("causeway: {what}");
}
