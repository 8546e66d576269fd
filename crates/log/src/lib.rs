//! What the libraries log, if `CAUSEWAY_LOG` asks for it: lines on standard error, or in the file
//! that `CAUSEWAY_LOG_FILE` names.
//!
//! The libraries live in programs that do not know of them. So a line is one write(2). No
//! descriptor is kept, since the program may close those that it does not know. Nothing is kept in
//! thread-local storage, since threads log while they end. Nothing is logged where data travels.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{SystemTime, UNIX_EPOCH};

use causeway_setting::setting;
use rustix::fs::OFlags;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Setting for the level.
pub const LOG_VARIABLE: &str = "CAUSEWAY_LOG";
/// Setting for the file.
pub const FILE_VARIABLE: &str = "CAUSEWAY_LOG_FILE";
/// A log is its owner's.
const FILE_MODE: u32 = 0o600;

static BEGUN: Once = Once::new();

/// Begins to log if the environment asks for it, once in a process. Where the program has a log of
/// its own by crate `tracing`, as the broker has, events go there instead.
pub fn begin() {
    BEGUN.call_once(|| {
        let Some(text) = setting(LOG_VARIABLE) else {
            return;
        };
        match level(&text) {
            Some(level) => {
                let file = setting(FILE_VARIABLE).map(PathBuf::from);
                if let Some(path) = &file
                    && let Err(error) = open(path)
                {
                    let path = path.display();
                    say(&format!("causeway: {FILE_VARIABLE}: {path}: {error}\n"));
                }
                // It fails where there is a log already.
                let _ = tracing::subscriber::set_global_default(Lines { level, file });
            }
            None => say(&format!(
                "causeway: {LOG_VARIABLE}: {} is not error, warn, info, debug or trace\n",
                text.to_string_lossy()
            )),
        }
    });
}

fn level(text: &OsStr) -> Option<Level> {
    text.to_str()?.parse().ok()
}

/// A line on standard error. Nobody is told if there is none.
fn say(line: &str) {
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}

/// The log, at its end.
fn open(path: &Path) -> std::io::Result<File> {
    File::options()
        .create(true)
        .append(true)
        .mode(FILE_MODE)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)
}

/// Writes a line for each event.
struct Lines {
    level: Level,
    file: Option<PathBuf>,
}

impl Lines {
    fn put(&self, line: &str) {
        let Some(path) = &self.file else {
            return say(line);
        };
        // A program does not fail for its log.
        let _ = open(path).and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.level))
    }

    fn event(&self, event: &Event<'_>) {
        self.put(&line(event));
    }

    // There are no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// `TIME causeway[PID]: LEVEL MODULE: MESSAGE NAME=VALUE...`
fn line(event: &Event<'_>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    let metadata = event.metadata();
    let mut said = Said::default();
    event.record(&mut said);
    format!(
        "{}.{:06} causeway[{}]: {} {}: {}{}\n",
        now.as_secs(),
        now.subsec_micros(),
        std::process::id(),
        metadata.level(),
        metadata.target(),
        said.message,
        said.fields
    )
}

/// What an event says.
#[derive(Default)]
struct Said {
    message: String,
    fields: String,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to text does not fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_words() {
        assert_eq!(level(OsStr::new("debug")), Some(Level::DEBUG));
        assert_eq!(level(OsStr::new("loud")), None);
    }

    #[test]
    fn lines_go_to_the_file_as_far_as_the_level_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let lines = Lines {
            level: Level::INFO,
            file: Some(path.clone()),
        };
        tracing::subscriber::with_default(lines, || {
            tracing::info!(qpn = 7, wire = %"udp", "connected");
            tracing::debug!("unheard");
        });
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let expected = "INFO causeway_log::tests: connected qpn=7 wire=udp\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
