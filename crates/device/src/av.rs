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

/// Bits of a traffic class that are the transport's, for congestion notification (RFC 3168).
const ECN: u8 = 0b11;

impl Av {
    /// The traffic class of the datagrams that carry what goes there: the DSCP of its own, else
    /// that of its service level (`class_of`).
    pub(crate) fn class(&self, class_of: impl FnOnce(u8) -> u8) -> u8 {
        let class = match self.traffic_class {
            0 => class_of(self.sl),
            class => class,
        };
        class & !ECN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_of_its_own_comes_first_and_has_no_bits_of_the_transport() {
        let class = |traffic_class, sl| {
            let av = Av {
                traffic_class,
                sl,
                ..Av::default()
            };
            av.class(|sl| 4 * sl + 1)
        };
        assert_eq!([class(0, 0), class(0, 5)], [0, 20]);
        assert_eq!(
            [class(0xff, 5), class(0x41, 5), class(1, 5)],
            [0xfc, 0x40, 0]
        );
    }
}
