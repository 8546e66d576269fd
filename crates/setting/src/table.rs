//! The settings that take some values alone.

use std::ffi::OsStr;

/// What comes of a value that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is ignored, and [`setting`](crate::setting) warns of it.
    Warning,
    /// Who reads it refuses to begin, and says why.
    Refusal,
}

/// A setting, and what it may say. Beside these there are settings that name files, which may say
/// anything.
#[derive(Debug)]
pub struct Known {
    /// The environment variable.
    pub name: &'static str,
    /// What it may say, for people.
    pub allowed: &'static str,
    /// Some values that it may have: all, if they are words.
    pub examples: &'static [&'static str],
    /// What comes of other values.
    pub answer: Answer,
    values: Values,
}

#[derive(Debug)]
enum Values {
    /// The examples.
    Words,
    /// Whole numbers in these bounds.
    Number(u64, u64),
    /// Seconds, from 0 to this.
    Seconds(f64),
}

impl Known {
    /// Whether the setting may say so.
    #[must_use]
    pub fn allows(&self, value: &OsStr) -> bool {
        let Some(value) = value.to_str() else {
            return false;
        };
        match self.values {
            Values::Words => self.examples.contains(&value),
            Values::Number(least, most) => value
                .parse()
                .is_ok_and(|number: u64| (least..=most).contains(&number)),
            Values::Seconds(most) => value
                .parse()
                .is_ok_and(|seconds: f64| (0.0..=most).contains(&seconds)),
        }
    }
}

const fn words(
    name: &'static str,
    examples: &'static [&'static str],
    allowed: &'static str,
    answer: Answer,
) -> Known {
    Known {
        name,
        allowed,
        examples,
        answer,
        values: Values::Words,
    }
}

const fn number(
    name: &'static str,
    (least, most): (u64, u64),
    examples: &'static [&'static str],
    allowed: &'static str,
    answer: Answer,
) -> Known {
    Known {
        name,
        allowed,
        examples,
        answer,
        values: Values::Number(least, most),
    }
}

/// All of them.
pub static KNOWN: [Known; 15] = [
    words(
        "CAUSEWAY_MOVE",
        &["on", "off", "eager"],
        "on, off or eager",
        Answer::Warning,
    ),
    words("CAUSEWAY_LID", &["0", "1"], "0 or 1", Answer::Warning),
    words(
        "CAUSEWAY_LOOK",
        &["on", "off"],
        "on or off",
        Answer::Warning,
    ),
    words(
        "CAUSEWAY_SISCI_COPIES",
        &["on", "off"],
        "on or off",
        Answer::Warning,
    ),
    words(
        "CAUSEWAY_SISCI_LOOPS",
        &["on", "off"],
        "on or off",
        Answer::Warning,
    ),
    number(
        "CAUSEWAY_SISCI_RECONNECT",
        (0, 10_000),
        &["0", "500", "10000"],
        "a number of milliseconds, 0 to 10000",
        Answer::Warning,
    ),
    number(
        "CAUSEWAY_SECURE_PHASE",
        (1, 4_194_304),
        &["1", "4194304"],
        "a number of datagrams, 1 to 4194304",
        Answer::Warning,
    ),
    words(
        "CAUSEWAY_WIRE",
        &["auto", "shm", "udp"],
        "auto, shm or udp",
        Answer::Refusal,
    ),
    words(
        "CAUSEWAY_CRC",
        &["auto", "on", "off"],
        "auto, on or off",
        Answer::Refusal,
    ),
    words("CAUSEWAY_ECN", &["0", "1"], "0 or 1", Answer::Refusal),
    words(
        "CAUSEWAY_PORT",
        &["udp", "xdp"],
        "udp or xdp",
        Answer::Refusal,
    ),
    words(
        "CAUSEWAY_SECURE",
        &["auto", "required"],
        "auto or required",
        Answer::Refusal,
    ),
    number(
        "CAUSEWAY_ENGINES",
        (1, 8),
        &["1", "8"],
        "a number from 1 to 8",
        Answer::Refusal,
    ),
    Known {
        name: "CAUSEWAY_PATIENCE",
        allowed: "a number of seconds, 0 to 86400",
        examples: &["0", "0.5", "86400"],
        answer: Answer::Refusal,
        values: Values::Seconds(86_400.0),
    },
    words(
        "CAUSEWAY_LOG",
        &["error", "warn", "info", "debug", "trace"],
        "error, warn, info, debug or trace",
        Answer::Refusal,
    ),
];
