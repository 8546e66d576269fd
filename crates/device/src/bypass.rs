//! Whether short datagrams are to travel by AF_XDP ([`UdpPort::add_bypass`]).

use causeway_netio::UdpPort;

/// The setting.
const VARIABLE: &str = "CAUSEWAY_PORT";

/// What the setting says; `None` if that is unintelligible.
pub(crate) fn setting() -> Option<bool> {
    let value = causeway_fabric::setting(VARIABLE);
    match value.as_ref().map(|value| value.to_str()) {
        None | Some(Some("udp")) => Some(false),
        Some(Some("xdp")) => Some(true),
        _ => None,
    }
}

/// Has a port's short datagrams travel so, if that is wanted. Where it can't be all go by UDP, and
/// the log says why.
pub(crate) fn add_if_wanted(mut port: UdpPort) -> UdpPort {
    // The device is not opened where the setting is unintelligible.
    if setting() == Some(true)
        && let Err(reason) = port.add_bypass()
    {
        let port = port.port();
        tracing::warn!(
            port,
            reason,
            "no AF_XDP: all travels by UDP (causeway doctor)"
        );
    }
    port
}
