//! The settings that take some values alone.

use std::ffi::OsStr;

/// A setting that is ignored where it says anything else. Beside these there are settings for which
/// a device or program refuses to begin, and says why, and others that may say anything.
#[derive(Debug)]
pub struct Known {
    /// The environment variable.
    pub name: &'static str,
    /// What it may say, for people.
    pub allowed: &'static str,
    /// Some values that it may have: all, if they are words.
    pub examples: &'static [&'static str],
    values: Values,
}

#[derive(Debug)]
enum Values {
    /// The examples.
    Words,
    /// Whole numbers in these bounds.
    Number(u64, u64),
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
        }
    }
}

const fn words(
    name: &'static str,
    examples: &'static [&'static str],
    allowed: &'static str,
) -> Known {
    Known {
        name,
        allowed,
        examples,
        values: Values::Words,
    }
}

const fn number(
    name: &'static str,
    (least, most): (u64, u64),
    examples: &'static [&'static str],
    allowed: &'static str,
) -> Known {
    Known {
        name,
        allowed,
        examples,
        values: Values::Number(least, most),
    }
}

/// All of them.
pub static KNOWN: [Known; 8] = [
    words("CAUSEWAY_MOVE", &["on", "off", "eager"], "on, off or eager"),
    words("CAUSEWAY_CMA", &["on", "off"], "on or off"),
    words("CAUSEWAY_LID", &["0", "1"], "0 or 1"),
    words("CAUSEWAY_LOOK", &["on", "off"], "on or off"),
    words("CAUSEWAY_SISCI_COPIES", &["on", "off"], "on or off"),
    words("CAUSEWAY_SISCI_LOOPS", &["on", "off"], "on or off"),
    number(
        "CAUSEWAY_SISCI_RECONNECT",
        (0, 10_000),
        &["0", "500", "10000"],
        "a number of milliseconds, 0 to 10000",
    ),
    number(
        "CAUSEWAY_SECURE_PHASE",
        (1, 4_194_304),
        &["1", "4194304"],
        "a number of datagrams, 1 to 4194304",
    ),
];
