//! `causeway-noded`: the node daemon's program. See `causeway-noded --help` and docs/SISCI.md.

use std::io::ErrorKind;
use std::process::ExitCode;

use causeway_fabric::services::node::EXIT_PORT_TAKEN;
use causeway_node::options::Options;
use causeway_node::shared::Failure;
use causeway_node::{parent, server};
use clap::Parser;

fn main() -> ExitCode {
    let options = Options::parse();
    tracing_subscriber::fmt()
        .with_max_level(options.log)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    if let Some(broker) = options.of_broker
        && let Err(errno) = parent::settle(broker)
    {
        eprintln!("causeway-noded: cannot give up privileges: {errno}");
        return ExitCode::FAILURE;
    }
    match server::run(&options) {
        Ok(never) => match never {},
        Err(failure) => {
            eprintln!("causeway-noded: {failure}");
            match failure {
                Failure::Listen(_, why) if why.kind() == ErrorKind::AddrInUse => {
                    ExitCode::from(EXIT_PORT_TAKEN)
                }
                _ => ExitCode::FAILURE,
            }
        }
    }
}
