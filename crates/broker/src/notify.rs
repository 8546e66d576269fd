//! Telling others that the broker is ready.

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use causeway_fabric::launch::READY_LINE;

/// Tells the service manager, if there is one (`sd_notify(3)`: a datagram to the socket named by
/// `$NOTIFY_SOCKET`, of which a leading `@` means the abstract namespace).
pub fn service_manager(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| {
        UnixDatagram::unbound()?
            .send_to_addr(state.as_bytes(), &address)
            .map(drop)
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// Tells the client that waits for this process's answer, then lets go of its pipe.
pub fn starter_ready() {
    answer(READY_LINE);
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        // Fails only if descriptor 1 is beyond our limit, and then we would not be here.
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// Whether standard output and standard error are one file, such as a terminal: who reads there
/// is a person, and what is written to both would be seen twice.
pub fn output_is_error_output() -> bool {
    use rustix::fs::fstat;
    match (fstat(std::io::stdout()), fstat(std::io::stderr())) {
        (Ok(out), Ok(err)) => (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino),
        _ => false,
    }
}

/// Writes one line to standard output. A starter that gave up and left is no reason to fail.
pub fn answer(line: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{}", line.replace('\n', " "));
    let _ = out.flush();
}
