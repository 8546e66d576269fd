//! Points at which a test may kill or stop the process: every step of a protocol in shared memory
//! has one. Without the feature `inject`, [`point`] is nothing at all.
//!
//! With it, `CAUSEWAY_FAULT=NAME:COUNT:SIGNAL` makes a process send itself SIGNAL (`KILL`, `STOP`
//! or `NONE`) when it reaches the point NAME for the COUNT-th time. `CAUSEWAY_FAULT=list` makes it
//! write the name of each point to standard error, and how often it has reached it, the first, the
//! second, the fourth time and so on.

/// A step that tests may end or halt the process at.
#[inline(always)]
pub fn point(name: &'static str) {
    #[cfg(feature = "inject")]
    inject::reached(name);
    #[cfg(not(feature = "inject"))]
    let _ = name;
}

/// Whether a step that may fail for want of something is to be taken for failed: the first COUNT
/// times, by `CAUSEWAY_FAULT=NAME:COUNT:FAIL`.
#[inline(always)]
#[must_use]
pub fn fails(name: &'static str) -> bool {
    #[cfg(feature = "inject")]
    return inject::fails(name);
    #[cfg(not(feature = "inject"))]
    {
        let _ = name;
        false
    }
}

#[cfg(feature = "inject")]
mod inject {
    use std::collections::HashMap;
    use std::io::Write;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, OnceLock, PoisonError};

    enum Plan {
        Nothing,
        List(Mutex<HashMap<&'static str, u64>>),
        Signal {
            name: String,
            left: AtomicU64,
            signal: Option<libc::c_int>,
        },
        Fail {
            name: String,
            left: AtomicU64,
        },
    }

    fn plan() -> &'static Plan {
        static PLAN: OnceLock<Plan> = OnceLock::new();
        PLAN.get_or_init(|| std::env::var("CAUSEWAY_FAULT").map_or(Plan::Nothing, |s| parse(&s)))
    }

    fn parse(text: &str) -> Plan {
        if text == "list" {
            return Plan::List(Mutex::default());
        }
        let mut words = text.split(':');
        let (Some(name), Some(count), Some(signal)) = (words.next(), words.next(), words.next())
        else {
            panic!("CAUSEWAY_FAULT is {text:?}, not NAME:COUNT:SIGNAL");
        };
        let left = AtomicU64::new(count.parse().expect("CAUSEWAY_FAULT's count"));
        let name = name.to_owned();
        let signal = match signal {
            "FAIL" => return Plan::Fail { name, left },
            "KILL" => Some(libc::SIGKILL),
            "STOP" => Some(libc::SIGSTOP),
            "NONE" => None,
            other => panic!("CAUSEWAY_FAULT names signal {other:?}"),
        };
        Plan::Signal { name, left, signal }
    }

    /// In one piece, whatever else the process writes.
    fn write(line: &str) {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    pub(super) fn reached(name: &'static str) {
        match plan() {
            Plan::Nothing | Plan::Fail { .. } => {}
            Plan::List(seen) => {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                let times = seen.entry(name).or_default();
                *times += 1;
                if times.is_power_of_two() {
                    write(&format!("fault point {name} {times}\n"));
                }
            }
            Plan::Signal {
                name: wanted,
                left,
                signal,
            } => {
                if wanted == name && left.fetch_sub(1, Ordering::Relaxed) == 1 {
                    write(&format!("fault at {name}\n"));
                    if let Some(signal) = signal {
                        // SAFETY: a signal to this process, which is what the test asked for.
                        unsafe { libc::raise(*signal) };
                    }
                }
            }
        }
    }

    pub(super) fn fails(name: &'static str) -> bool {
        let Plan::Fail { name: wanted, left } = plan() else {
            return false;
        };
        let spend = |left: u64| left.checked_sub(1);
        let failed = wanted == name
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend)
                .is_ok();
        if failed {
            write(&format!("fault at {name}\n"));
        }
        failed
    }
}
