//! `causewayd`: the broker's program. See `causewayd --help` and docs/OPERATIONS.md.

use std::process::ExitCode;

use causeway_broker::{daemon, notify, options::Options};
use clap::Parser;

fn main() -> ExitCode {
    let options = Options::parse();
    match daemon::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !options.foreground {
                // The process that started a daemon reads its answer here.
                notify::answer(&failure.to_string());
            }
            eprintln!("causewayd: {failure}");
            ExitCode::FAILURE
        }
    }
}
