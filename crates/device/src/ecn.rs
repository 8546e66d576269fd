//! Whether marks of congested paths are heeded ([`Config::ecn`](causeway_proto::trp::Config::ecn)).

/// The setting.
const VARIABLE: &str = "CAUSEWAY_ECN";

/// What the setting says; `None` if that is unintelligible.
pub(crate) fn setting() -> Option<bool> {
    let value = causeway_fabric::setting(VARIABLE);
    match value.as_ref().map(|value| value.to_str()) {
        None | Some(Some("1")) => Some(true),
        Some(Some("0")) => Some(false),
        _ => None,
    }
}

/// Whether they are heeded.
pub(crate) fn wanted() -> bool {
    // The device is not opened where the setting is unintelligible.
    setting().unwrap_or(true)
}
