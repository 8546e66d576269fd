//! `causeway-kube`: see `causeway-kube --help` and docs/CONTAINERS.md.

use std::process::ExitCode;

use causeway_kube::options::{Options, Verb};
use causeway_kube::{again, cdi, completions, hook, plugin};
use clap::Parser;

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = match &options.verb {
        Verb::Cdi(of) => cdi::command(of),
        Verb::CdiAgain(of) => again::command(of),
        Verb::Hook(of) => hook::command(of),
        Verb::Plugin(of) => plugin::command(of),
        Verb::Completions(of) => completions::command(of),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("causeway-kube: {why}");
            ExitCode::FAILURE
        }
    }
}
