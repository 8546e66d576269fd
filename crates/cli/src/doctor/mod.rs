//! `causeway doctor`: examines the machine, one line per finding, and says what to do.

mod bypass;
mod daemon;
mod kernel;
mod limits;
mod network;
mod packages;
mod sandbox;
mod software;

use std::fmt;

/// How a finding bears on Causeway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Works.
    Ok,
    /// Works, but slower or with something missing.
    Warn,
    /// Causeway, or the part named, cannot work here.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "OK",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        })
    }
}

/// The result of one check.
#[derive(Debug)]
pub struct Finding {
    /// How it bears on Causeway.
    pub verdict: Verdict,
    /// What was examined, in a word or two.
    pub topic: &'static str,
    /// What was found and, unless all is well, what to do.
    pub text: String,
}

impl Finding {
    fn ok(topic: &'static str, text: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Ok,
            topic,
            text: text.into(),
        }
    }

    fn warn(topic: &'static str, text: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Warn,
            topic,
            text: text.into(),
        }
    }

    fn fail(topic: &'static str, text: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Fail,
            topic,
            text: text.into(),
        }
    }
}

/// Looks at one thing, and says what it has found.
type Check = fn() -> Vec<Finding>;

/// Whom a check asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    Nobody,
    /// It waits for the broker's answer, and is left out where there would be none.
    Broker,
}

/// Every check, in the order of the report. A check returns at least one finding and changes
/// nothing that outlives it, except that the broker's check starts a broker.
const CHECKS: [(Asks, Check); 27] = [
    // Before ours, or the loader would take ours for the distribution's.
    (Asks::Nobody, software::distribution),
    (Asks::Nobody, software::libraries),
    (Asks::Nobody, software::runtime_dir),
    (Asks::Nobody, software::broker),
    (Asks::Broker, daemon::version),
    (Asks::Nobody, packages::packages),
    (Asks::Broker, software::sisci_node),
    (Asks::Broker, software::node_daemon),
    (Asks::Broker, software::sisci_wire),
    (Asks::Nobody, software::environment),
    (Asks::Nobody, kernel::pages),
    (Asks::Nobody, kernel::sealed_memory),
    (Asks::Broker, kernel::user_faults),
    (Asks::Broker, kernel::page_references),
    (Asks::Nobody, kernel::lifting),
    (Asks::Nobody, kernel::huge_pages),
    (Asks::Nobody, kernel::processors),
    (Asks::Nobody, network::ports),
    (Asks::Nobody, network::offload),
    (Asks::Nobody, network::buffers),
    (Asks::Nobody, network::addresses),
    (Asks::Nobody, network::namespace),
    (Asks::Nobody, bypass::bypass),
    (Asks::Nobody, sandbox::shared_memory),
    (Asks::Nobody, sandbox::user_namespaces),
    (Asks::Nobody, sandbox::guest_driver),
    (Asks::Nobody, limits::limits),
];

/// Runs every check; exit status 1 if one of them failed.
pub fn doctor() -> u8 {
    let sensible = |(asks, check): (Asks, Check)| {
        let wanted = asks != Asks::Broker || !software::is_silent();
        wanted.then(check).unwrap_or_default()
    };
    let findings: Vec<Finding> = CHECKS.into_iter().flat_map(sensible).collect();
    let line = |finding: &Finding| {
        let Finding {
            verdict,
            topic,
            text,
        } = finding;
        format!("{verdict:<4}  {topic:<20}  {text}\n")
    };
    let mut text: String = findings.iter().map(line).collect();
    let count = |verdict| findings.iter().filter(|f| f.verdict == verdict).count();
    let (warned, failed) = (count(Verdict::Warn), count(Verdict::Fail));
    let checks = findings.len();
    text += &format!("{checks} checks, {warned} warnings, {failed} failures\n");
    crate::say(&text).max(u8::from(failed > 0))
}

/// A line of what the kernel says of this process (proc_pid_status(5)).
fn own_status(name: &str) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start_matches(':').trim().to_owned())
}

/// Whether a capability is effective.
fn has_capability(number: u32) -> bool {
    let set = own_status("CapEff").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
    set.is_some_and(|set| set & (1 << number) != 0)
}

/// Whether system calls of this process are filtered (seccomp(2)), as engines of containers do.
fn is_filtered() -> bool {
    own_status("Seccomp").as_deref() == Some("2")
}

/// The content of a one-line file of /proc or /sys.
fn read_line(path: &str) -> Option<String> {
    std::fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}
