//! Names of enumerators: `ibv_wc_status_str(3)`, `ibv_event_type_str(3)`, `ibv_node_type_str(3)`,
//! `ibv_port_state_str(3)`. The texts are those that users know from logs, and search for.
//! And C strings in arrays of fixed size.

use core::ffi::{CStr, c_char, c_int};

const UNKNOWN: &CStr = c"unknown";

/// A C string in an array of fixed size, zero-filled.
pub(crate) const fn fixed<const N: usize>(text: &CStr) -> [c_char; N] {
    let bytes = text.to_bytes_with_nul();
    let mut out = [0; N];
    let mut i = 0;
    while i < bytes.len() {
        out[i] = c_char::from_ne_bytes([bytes[i]]);
        i += 1;
    }
    out
}

const NODE_TYPES: [&CStr; 8] = [
    UNKNOWN,
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: [&CStr; 6] = [
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];

const EVENTS: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

const STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const OPCODES: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    UNKNOWN,
    UNKNOWN,
    c"flush",
    c"atomic-write",
];

fn name(table: &[&'static CStr], value: c_int) -> *const c_char {
    let found = usize::try_from(value)
        .ok()
        .and_then(|i| table.get(i).copied());
    found.unwrap_or(UNKNOWN).as_ptr()
}

/// `ibv_node_type_str(3)`
pub(crate) extern "C" fn node_type_str(value: c_int) -> *const c_char {
    name(&NODE_TYPES, value)
}

/// `ibv_port_state_str(3)`
pub(crate) extern "C" fn port_state_str(value: c_int) -> *const c_char {
    name(&PORT_STATES, value)
}

/// `ibv_event_type_str(3)`
pub(crate) extern "C" fn event_type_str(value: c_int) -> *const c_char {
    name(&EVENTS, value)
}

/// `ibv_wc_status_str(3)`
pub(crate) extern "C" fn wc_status_str(value: c_int) -> *const c_char {
    name(&STATUSES, value)
}

/// `ibv_wr_opcode_str`
pub(crate) extern "C" fn wr_opcode_str(value: c_int) -> *const c_char {
    name(&OPCODES, value)
}
