//! `causeway-noded`: the node daemon's program. See `causeway-noded --help` and docs/SISCI.md.

use std::process::ExitCode;

use causeway_node::options::Options;
use causeway_node::server;
use clap::Parser;

fn main() -> ExitCode {
    let options = Options::parse();
    tracing_subscriber::fmt()
        .with_max_level(options.log)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    match server::run(&options) {
        Ok(never) => match never {},
        Err(failure) => {
            eprintln!("causeway-noded: {failure}");
            ExitCode::FAILURE
        }
    }
}
