//! `causewayd`: the broker's program. See `causewayd --help` and docs/OPERATIONS.md.

use std::process::ExitCode;

use causeway_broker::daemon::Failure;
use causeway_broker::{config::Config, daemon, notify, options::Options};
use causeway_fabric::launch::READY_LINE;
use clap::Parser;

fn main() -> ExitCode {
    let options = Options::parse();
    if options.check {
        return check(&options);
    }
    match daemon::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !options.foreground && !notify::output_is_error_output() {
                // A program that wants a broker reads its answer here: any broker will do for it.
                match failure {
                    Failure::Kept { .. } => notify::answer(READY_LINE),
                    _ => notify::answer(&failure.to_string()),
                }
            }
            eprintln!("causewayd: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Says whether the configuration is one that a broker would start with.
fn check(options: &Options) -> ExitCode {
    match Config::load(options.config.as_deref(), &options.dir()) {
        Ok(config) => {
            match &config.file {
                Some(file) => println!("{}: no mistake was found", file.display()),
                None => println!("no configuration file: every setting has its default"),
            }
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("causewayd: {why}");
            ExitCode::FAILURE
        }
    }
}
