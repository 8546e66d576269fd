//! Address vectors.

/// An address vector (`struct ibv_ah_attr`, `ibv_modify_qp(3)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of struct ibv_ah_attr")]
pub struct Av {
    pub is_global: bool,
    pub dgid: [u8; 16],
    pub sgid_index: u8,
    pub dlid: u16,
    pub port: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub flow_label: u32,
}
