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
        // A log that can't be written must not end the process.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
    if let Some(broker) = options.of_broker
        && let Err(errno) = parent::settle(broker)
    {
        eprintln!("causeway-noded: cannot give up privileges: {errno}");
        return ExitCode::FAILURE;
    }
    // It rings doorbells of processes that it does not trust. Before there are threads.
    if let Err(error) = causeway_shm::bound_signals() {
        eprintln!("causeway-noded: cannot take SIGURG: {error}");
        return ExitCode::FAILURE;
    }
    match server::run(&options) {
        Ok(never) => match never {},
        Err(Failure::Listen(at, why)) if why.kind() == ErrorKind::AddrInUse => {
            // A broker tries again and again, and says so itself.
            if options.of_broker.is_none() {
                eprintln!(
                    "causeway-noded: another process listens at {at}, maybe a node daemon that the \
                     broker has started: with node_daemon = false in its configuration it starts \
                     none"
                );
            }
            ExitCode::from(EXIT_PORT_TAKEN)
        }
        Err(failure) => {
            eprintln!("causeway-noded: {failure}");
            ExitCode::FAILURE
        }
    }
}
