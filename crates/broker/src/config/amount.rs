//! Amounts of memory.

pub(super) use causeway_fabric::amount::amount;
use serde::Deserialize;

/// A number of bytes, or text such as "64 GiB".
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "neither a number of bytes nor an amount such as \"64 GiB\""
)]
pub(super) enum Amount {
    Bytes(u64),
    Text(String),
}
