//! Command line and settings.

use std::path::PathBuf;
use std::time::Duration;

use causeway_fabric::limits::IDLE_SECONDS_DEFAULT;
use causeway_fabric::setting;
use clap::Parser;

use crate::config::Config;

/// Setting for the idle time in seconds.
pub const IDLE_VARIABLE: &str = "CAUSEWAY_IDLE_SECONDS";
/// Setting for the log level.
pub const LOG_VARIABLE: &str = "CAUSEWAY_LOG";

/// Causeway's broker: attaches endpoints, introduces them to each other, cleans up after the
/// dead.
#[derive(Clone, Debug, Parser)]
#[command(name = "causewayd", version)]
pub struct Options {
    /// Stay in the foreground and log to standard error, instead of leaving a daemon behind
    #[arg(long)]
    pub foreground: bool,

    /// Runtime directory [default: $CAUSEWAY_RUNTIME_DIR, /run/causeway for root,
    /// $XDG_RUNTIME_DIR/causeway, /tmp/causeway-UID]
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,

    /// End after this long without clients; 0 means never [default: $CAUSEWAY_IDLE_SECONDS or 10]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub idle: Option<Duration>,

    /// Configuration: tenants and limits [default: /etc/causeway/causewayd.toml if it is there and
    /// the runtime directory is root's /run/causeway]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Say whether the configuration is right, and end; no broker is started
    #[arg(long)]
    pub check: bool,

    /// error, warn, info, debug, trace [default: $CAUSEWAY_LOG; else info in the foreground, and
    /// nothing as a daemon]. A daemon logs to broker.log in its runtime directory
    #[arg(long, value_name = "LEVEL", value_parser = parse_level)]
    pub log: Option<tracing::Level>,

    /// This process is the daemon that another one leaves behind
    #[arg(long, hide = true)]
    pub detached: bool,
}

impl Options {
    /// The runtime directory.
    pub fn dir(&self) -> PathBuf {
        self.runtime_dir
            .clone()
            .unwrap_or_else(causeway_fabric::runtime_dir)
    }

    /// Whether a broker that is there already is all that was asked for: no option says what it
    /// should be like.
    pub fn suit_any_broker(&self) -> bool {
        self.config.is_none() && self.idle.is_none() && self.log.is_none()
    }

    /// The idle time; `None` means that the broker never ends by itself. Unless told otherwise it
    /// does not if it has tenants that could not start another.
    ///
    /// # Errors
    /// Text for the user if the setting is not a number of seconds.
    pub fn idle_time(&self, config: &Config) -> Result<Option<Duration>, String> {
        let idle = match (self.idle, setting(IDLE_VARIABLE)) {
            (Some(idle), _) => idle,
            (None, None) if config.has_tenants() => Duration::ZERO,
            (None, None) => Duration::from_secs(IDLE_SECONDS_DEFAULT),
            (None, Some(text)) => parse_seconds(&text.to_string_lossy())
                .map_err(|why| format!("{IDLE_VARIABLE}: {why}"))?,
        };
        Ok((!idle.is_zero()).then_some(idle))
    }

    /// The log level; `None` means no log.
    ///
    /// # Errors
    /// Text for the user if the setting is not a level.
    pub fn log_level(&self) -> Result<Option<tracing::Level>, String> {
        match (self.log, setting(LOG_VARIABLE)) {
            (Some(level), _) => Ok(Some(level)),
            (None, Some(text)) => parse_level(&text.to_string_lossy())
                .map(Some)
                .map_err(|why| format!("{LOG_VARIABLE}: {why}")),
            (None, None) => Ok((!self.detached).then_some(tracing::Level::INFO)),
        }
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number"))?;
    Duration::try_from_secs_f64(seconds).map_err(|why| why.to_string())
}

fn parse_level(text: &str) -> Result<tracing::Level, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not error, warn, info, debug or trace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_understood() {
        let parse = |args: &[&str]| Options::try_parse_from([&["causewayd"], args].concat());
        let zero = parse(&["--foreground", "--idle", "0", "--log", "debug"]).unwrap();
        assert_eq!(zero.idle_time(&Config::without_file()), Ok(None));
        assert_eq!(zero.log_level(), Ok(Some(tracing::Level::DEBUG)));
        let half = parse(&["--idle", "0.5"]).unwrap();
        assert_eq!(
            half.idle_time(&Config::without_file()),
            Ok(Some(Duration::from_millis(500)))
        );
        for bad in [["--idle", "x"], ["--idle", "-1"], ["--log", "loud"]] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
    }
}
