//! `causeway-kube`: see `causeway-kube --help` and docs/CONTAINERS.md.

use std::process::ExitCode;

use causeway_kube::options::{Options, Verb};
use causeway_kube::{again, cdi, completions, hook, plugin};
use clap::Parser;
use rustix::fs::Mode;
use rustix::process::umask;

fn main() -> ExitCode {
    let options = Options::parse();
    // Whatever the starter's is: engines of all users read specifications, any user of a container
    // looks at what the hook writes, and neither is for others to write. An engine runs what a
    // specification says as root.
    umask(Mode::from_raw_mode(0o022));
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
