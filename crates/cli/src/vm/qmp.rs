//! QEMU's machine protocol: a JSON value on each line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// How long QEMU may say nothing. Plugging in waits for the broker, plugging out for the guest.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest line.
const LINE_MAX: u64 = 1 << 20;

/// A connection to a QEMU.
pub struct Qmp {
    reader: BufReader<UnixStream>,
    /// What QEMU has told while an answer was waited for.
    events: Vec<Value>,
}

impl Qmp {
    /// Connects to QEMU's socket.
    ///
    /// # Errors Nobody is there, or nobody that speaks QMP.
    pub fn connect(path: &Path) -> io::Result<Qmp> {
        Qmp::begin(UnixStream::connect(path)?)
    }

    fn begin(socket: UnixStream) -> io::Result<Qmp> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut qmp = Qmp {
            reader: BufReader::new(socket),
            events: Vec::new(),
        };
        if qmp.receive()?.get("QMP").is_none() {
            return Err(io::Error::other("that is no QMP socket"));
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    fn receive(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        (&mut self.reader).take(LINE_MAX).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::Error::other("QEMU has ended the connection"));
        }
        serde_json::from_str(&line).map_err(io::Error::other)
    }

    /// Runs a command; returns what it returns.
    ///
    /// # Errors
    /// What QEMU says against it, or QEMU does not answer.
    pub fn execute(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.reader.get_mut(), "{request}")?;
        loop {
            let mut answer = self.receive()?;
            if let Some(error) = answer.get("error") {
                let why = error["desc"].as_str().unwrap_or("refused");
                return Err(io::Error::other(format!("{command}: {why}")));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            self.events.push(answer);
        }
    }

    /// Waits until a device is out of the machine.
    ///
    /// # Errors
    /// The guest holds on to it.
    pub fn wait_deleted(&mut self, device: &str) -> io::Result<()> {
        loop {
            let deleted = |event: &Value| {
                event["event"] == "DEVICE_DELETED" && event["data"]["device"] == device
            };
            if self.events.iter().any(deleted) {
                return Ok(());
            }
            let event = self.receive()?;
            self.events.push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// A QEMU that says `lines`, whatever it is told.
    fn told(lines: &'static str) -> io::Result<Qmp> {
        let (ours, theirs) = UnixStream::pair()?;
        thread::spawn(move || {
            let mut theirs = theirs;
            let _ = theirs.write_all(lines.as_bytes());
            // Until the other end is closed.
            let _ = theirs.read_to_end(&mut Vec::new());
        });
        Qmp::begin(ours)
    }

    const GREETING: &str = "{\"QMP\": {}}\n{\"return\": {}}\n";

    #[test]
    fn events_do_not_hide_answers() {
        let lines = concat!(
            "{\"QMP\": {}}\n{\"return\": {}}\n",
            "{\"event\": \"DEVICE_DELETED\", \"data\": {\"path\": \"/x\"}}\n",
            "{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"cw\"}}\n",
            "{\"return\": 7}\n{\"error\": {\"desc\": \"no\"}}\n"
        );
        assert!(lines.starts_with(GREETING));
        let mut qmp = told(lines).unwrap();
        assert_eq!(qmp.execute("a", json!({})).unwrap(), 7);
        qmp.wait_deleted("cw").unwrap();
        let refused = qmp.execute("b", json!({})).unwrap_err();
        assert_eq!(refused.to_string(), "b: no");
    }

    #[test]
    fn who_speaks_no_qmp_is_refused() {
        assert!(told("{\"hello\": 1}\n").is_err());
        assert!(told("hello\n").is_err());
    }
}
