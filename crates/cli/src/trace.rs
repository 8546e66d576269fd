//! `causeway trace`: what this user's programs send and receive, as a file for Wireshark.

mod packets;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use causeway_fabric::sys::termination_fd;
use causeway_fabric::trace::{Trace, TraceOptions as Wanted};
use causeway_fabric::{Address, Error};
use causeway_shm::trace::{TRACE_BYTES, TRACE_HEADERS, TRACE_SLOT_MIN, TraceReader};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::args::TraceOptions;
use crate::complain;
use packets::Packets;

/// How long to sleep where there was nothing to take.
const PAUSE: Duration = Duration::from_millis(5);
/// How long to wait for a record that a program has begun to write: one that was killed meanwhile
/// never ends.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of the file that are kept until they are written.
const CHUNK: usize = 1 << 20;
/// The mode of a new file: it may have the payload of programs, of all users' for root.
const MODE: u32 = 0o600;

/// Records taken before looking whether to end: programs may put them in as quickly as they are
/// written.
const TURN: usize = 4096;
/// Turns in which all that a ring holds is taken.
const TURNS_OF_A_RING: usize = TRACE_BYTES / TRACE_SLOT_MIN / TURN + 1;

/// Why a trace is over.
enum End {
    /// As it was asked for: the time is up, there are packets enough, or by a signal.
    Asked,
    /// The broker has gone.
    BrokerGone,
}

/// A trace that goes on.
struct Recording {
    reader: TraceReader,
    packets: Packets,
    out: File,
    /// Packets that are still to be written.
    left: u64,
    /// Since when a record that has been begun is waited for.
    held_up: Option<Instant>,
    /// Records that were never ended.
    skipped: u64,
}

/// Records until there is a reason to end.
pub fn trace(options: &TraceOptions) -> u8 {
    match record(options) {
        Ok(End::Asked) => 0,
        Ok(End::BrokerGone) => {
            complain("trace: the broker has gone, and the trace has ended with it");
            1
        }
        Err(problem) => {
            complain(&format!("trace: {problem}"));
            1
        }
    }
}

fn record(options: &TraceOptions) -> Result<End, String> {
    let payload = options.payload.unwrap_or(0);
    let reader = TraceReader::create(TRACE_HEADERS + payload as usize);
    let reader = reader.map_err(|error| error.to_string())?;
    let signals = termination_fd().map_err(|error| format!("signalfd: {error}"))?;
    let out = open(&options.file);
    let out = out.map_err(|error| format!("{}: {error}", options.file.display()))?;
    let mut recording = Recording {
        reader,
        packets: Packets::new().map_err(|error| error.to_string())?,
        out,
        left: options.count.unwrap_or(u64::MAX),
        held_up: None,
        skipped: 0,
    };
    let wanted = Wanted {
        qpn: options.qpn,
        keys: options.keys,
        payload,
    };
    let address = Address::from_env();
    // Before it begins: what is recorded waits for nobody.
    if let Some(qpn) = options.qpn.filter(|qpn| !is_connected(&address, *qpn)) {
        eprintln!(
            "causeway: no queue pair {qpn:#x} is connected now; causeway status lists those that \
             are"
        );
    }
    let begun = Trace::begin(&address, recording.reader.fd(), &wanted);
    let mut trace = begun.map_err(|error| explain(&address, &error))?;
    let path = &options.file;
    empty(&recording.out, path).map_err(|error| format!("{}: {error}", path.display()))?;
    eprintln!(
        "causeway: tracing, {} processes so far; Ctrl-C ends it",
        trace.endpoints
    );
    let until = options.seconds.map(|seconds| Instant::now() + seconds);
    let end = recording.run(&mut trace, &signals, until);
    // From here on nothing is recorded; what is there already is taken.
    drop(trace);
    let end = end?;
    for _ in 0..TURNS_OF_A_RING {
        if !recording.take()? {
            break;
        }
    }
    recording.finish()?;
    Ok(end)
}

/// Whether a queue pair is connected, as far as the broker says.
fn is_connected(address: &Address, qpn: u32) -> bool {
    let known = causeway_fabric::status::status(address).ok().flatten();
    let mut qps = known.iter().flatten().flat_map(|endpoint| &endpoint.qps);
    known.is_none() || qps.any(|qp| qp.local_qpn == qpn)
}

/// What a refusal means here.
fn explain(address: &Address, error: &Error) -> String {
    match error {
        Error::Refused {
            errno: Errno::BUSY, ..
        } => "another trace of this user's programs runs".to_owned(),
        Error::Refused {
            errno: Errno::NOSYS,
            ..
        } => format!("{address}: the broker is of a release without traces"),
        Error::Refused {
            errno: Errno::PERM, ..
        } => "programs in a virtual machine can't be traced".to_owned(),
        error => format!("{address}: {error}"),
    }
}

/// The file to write to; `-` is standard output. What is in it stays until the trace has begun: it
/// may be the file of the trace because of which this one does not.
fn open(path: &Path) -> io::Result<File> {
    if path.as_os_str() != "-" {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(MODE);
        return options.open(path);
    }
    let out = io::stdout();
    if out.is_terminal() {
        let why = "this is a terminal: packets go into a file or to a program";
        return Err(io::Error::other(why));
    }
    Ok(File::from(out.as_fd().try_clone_to_owned()?))
}

/// Takes away what a file had, unless it is standard output, of which something may be before it.
fn empty(file: &File, path: &Path) -> io::Result<()> {
    if path.as_os_str() == "-" || !file.metadata()?.is_file() {
        return Ok(());
    }
    file.set_len(0)
}

impl Recording {
    /// Takes what comes until there is a reason to end.
    fn run(
        &mut self,
        trace: &mut Trace,
        signals: &OwnedFd,
        until: Option<Instant>,
    ) -> Result<End, String> {
        loop {
            let any = self.take()?;
            let over = until.is_some_and(|until| Instant::now() >= until);
            if self.left == 0 || over {
                return Ok(End::Asked);
            }
            self.look_at_held_up();
            let pause = if any { Duration::ZERO } else { PAUSE };
            let pause = causeway_fabric::launch::timespec(pause);
            let (asked, broker) = {
                let fds = [signals.as_fd(), trace.fd()];
                let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                match poll(&mut fds, Some(&pause)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(format!("poll: {errno}")),
                }
                (!fds[0].revents().is_empty(), !fds[1].revents().is_empty())
            };
            if asked {
                return Ok(End::Asked);
            }
            if broker && trace.has_ended() {
                return Ok(End::BrokerGone);
            }
        }
    }

    /// Takes some of what has been recorded, and writes it. Returns whether there was anything.
    fn take(&mut self) -> Result<bool, String> {
        let (mut bytes, mut any) = (Vec::new(), false);
        for _ in 0..TURN {
            if self.left == 0 {
                break;
            }
            let Some(record) = self.reader.pop(&mut bytes) else {
                break;
            };
            self.packets
                .add(&record, &bytes)
                .map_err(|error| error.to_string())?;
            self.left -= 1;
            self.held_up = None;
            any = true;
            if self.packets.pending() >= CHUNK {
                self.write()?;
            }
        }
        self.write()?;
        Ok(any)
    }

    /// Whole blocks, so that the file can be read whatever becomes of this process.
    fn write(&mut self) -> Result<(), String> {
        let bytes = self.packets.take_bytes();
        if bytes.is_empty() {
            return Ok(());
        }
        let written = self.out.write_all(&bytes).and_then(|()| self.out.flush());
        written.map_err(|error| format!("cannot write the file: {error}"))
    }

    /// Goes on behind a record that has been waited for too long.
    fn look_at_held_up(&mut self) {
        if !self.reader.is_held_up() {
            self.held_up = None;
            return;
        }
        let since = *self.held_up.get_or_insert_with(Instant::now);
        if since.elapsed() >= PATIENCE && self.reader.skip() {
            self.skipped += 1;
            self.held_up = None;
        }
    }

    /// Ends the file, and says how much was lost.
    fn finish(&mut self) -> Result<(), String> {
        let lost = self
            .packets
            .finish(|way| self.reader.lost(way))
            .map_err(|error| error.to_string())?;
        self.write()?;
        let (count, skipped) = (self.packets.count(), self.skipped);
        eprintln!("causeway: {count} packets");
        if lost + skipped > 0 {
            eprintln!(
                "causeway: {} packets were lost, since they came quicker than they were written",
                lost + skipped
            );
        }
        Ok(())
    }
}
