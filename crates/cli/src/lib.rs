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
mod standard;
mod status;
mod top;
mod trace;
mod vm;

use std::io::Write;

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
            let printed = error.print().and_then(|()| std::io::stdout().flush());
            match printed {
                // A closed stderr leaves nobody to tell.
                _ if error.use_stderr() => EXIT_OWN_FAILURE,
                Ok(()) => 0,
                // What --help and --version say.
                Err(why) => {
                    complain(&unwritten(&why));
                    EXIT_OWN_FAILURE
                }
            }
        }
    }
}

/// Runs one verb; the result is the exit status.
fn dispatch(cli: Cli) -> u8 {
    if !matches!(cli.verb, Verb::Run(_)) {
        standard::open_missing();
    }
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
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| unwritten(&error))
}

/// Text for the user: standard output can't be written.
fn unwritten(why: &std::io::Error) -> String {
    format!("standard output: {why}")
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
