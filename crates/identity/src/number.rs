//! Slots, which endpoints take by binding a UDP port, and the numbers of queue pairs, which begin
//! with them.

/// Bits of a queue pair's number that are its index within the slot: `QPN = slot << 12 | index`.
pub const QPN_INDEX_BITS: u32 = 12;
/// Queue pairs of one slot.
pub const QPS_PER_SLOT: u32 = 1 << QPN_INDEX_BITS;
/// Numbers of queue pairs have 24 bits, and so have packet sequence numbers.
pub const QPN_MASK: u32 = 0xff_ffff;
/// The number that datagrams to a multicast group are sent to. No queue pair has it.
pub const QPN_MULTICAST: u32 = QPN_MASK;

/// Index within its slot of the queue pair with the number `qpn`.
#[must_use]
#[inline]
pub const fn qpn_index(qpn: u32) -> usize {
    (qpn % QPS_PER_SLOT) as usize
}

/// A number that a queue pair can have: of a slot that an endpoint can take, and not
/// [`QPN_MULTICAST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The queue pair with this number, if there can be one.
    #[must_use]
    #[inline]
    pub const fn new(number: u32) -> Option<Qpn> {
        let lowest = (Slot::MIN.number() as u32) << QPN_INDEX_BITS;
        if number >= lowest && number < QPN_MULTICAST {
            Some(Qpn(number))
        } else {
            None
        }
    }

    /// The number.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The slot that it belongs to.
    #[must_use]
    #[inline]
    pub const fn slot(self) -> Slot {
        Slot((self.0 >> QPN_INDEX_BITS) as u16)
    }
}

// The highest slot's numbers are the highest of 24 bits.
const _: () = assert!(Slot::MAX.number() as u32 == QPN_MASK >> QPN_INDEX_BITS);

/// A slot's UDP port is this plus the slot. Slot 0 is nobody's.
pub const UDP_PORT_BASE: u16 = 20480;
/// UDP port of datagrams to multicast groups: the one after the last slot's.
pub const MULTICAST_PORT: u16 = Slot::MAX.port() + 1;

/// A slot that an endpoint can take: 1 to 4095.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// The lowest.
    pub const MIN: Slot = Slot(1);
    /// The highest.
    pub const MAX: Slot = Slot(4095);
    /// How many there are.
    pub const COUNT: u16 = Slot::MAX.0 - Slot::MIN.0 + 1;

    /// The slot of this number, if an endpoint can take it.
    #[must_use]
    #[inline]
    pub const fn new(number: u16) -> Option<Slot> {
        if number >= Slot::MIN.0 && number <= Slot::MAX.0 {
            Some(Slot(number))
        } else {
            None
        }
    }

    /// The slot `step` after the lowest; after the highest comes the lowest again.
    #[must_use]
    #[inline]
    pub const fn wrapping(step: u16) -> Slot {
        Slot(Slot::MIN.0 + step % Slot::COUNT)
    }

    /// The slot whose UDP port this is.
    #[must_use]
    #[inline]
    pub const fn of_port(port: u16) -> Option<Slot> {
        match port.checked_sub(UDP_PORT_BASE) {
            Some(number) => Slot::new(number),
            None => None,
        }
    }

    /// The slot of the queue pair with the number `qpn`, if there can be one.
    #[must_use]
    #[inline]
    pub const fn of_qpn(qpn: u32) -> Option<Slot> {
        match Qpn::new(qpn) {
            Some(qpn) => Some(qpn.slot()),
            None => None,
        }
    }

    /// The number.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Its UDP port.
    #[must_use]
    #[inline]
    pub const fn port(self) -> u16 {
        UDP_PORT_BASE + self.0
    }

    /// Number of the queue pair with this index in the slot; `None` if no queue pair can have it.
    #[must_use]
    #[inline]
    pub const fn qpn(self, index: u32) -> Option<Qpn> {
        if index < QPS_PER_SLOT {
            Qpn::new((self.0 as u32) << QPN_INDEX_BITS | index)
        } else {
            None
        }
    }
}

const _: () = assert!(UDP_PORT_BASE.checked_add(Slot::MAX.0 + 1).is_some());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_slot_and_index() {
        for (slot, index) in [(1, 0), (1, 4095), (2, 7), (4095, 0), (4095, 4094)] {
            let qpn = Slot::new(slot).unwrap().qpn(index).unwrap();
            assert_eq!(qpn.number(), u32::from(slot) << 12 | index);
            assert_eq!(qpn.slot().number(), slot);
            assert_eq!(qpn_index(qpn.number()), index as usize);
            assert_eq!(Qpn::new(qpn.number()), Some(qpn));
        }
    }

    #[test]
    fn what_no_queue_pair_can_have_is_no_number() {
        for number in [0, 1, 0xfff, QPN_MULTICAST, 1 << 24, 1 << 28, u32::MAX] {
            assert_eq!(Qpn::new(number), None, "{number:#x}");
        }
        // Cut to 16 bits, the slot of this one would be 1.
        assert_eq!(Qpn::new(0x1000_1000), None);
        assert_eq!(Slot::MAX.qpn(QPS_PER_SLOT - 1), None, "multicast");
        assert_eq!(Slot::MIN.qpn(QPS_PER_SLOT), None, "the next slot's");
    }

    #[test]
    fn each_slot_has_a_port_of_its_own() {
        assert_eq!(
            (Slot::MIN.port(), Slot::MAX.port(), MULTICAST_PORT),
            (20481, 24575, 24576)
        );
        for number in Slot::MIN.number()..=Slot::MAX.number() {
            let slot = Slot::new(number).unwrap();
            assert_eq!(Slot::of_port(slot.port()), Some(slot));
        }
        for port in [0, 80, UDP_PORT_BASE, MULTICAST_PORT, u16::MAX] {
            assert_eq!(Slot::of_port(port), None, "{port}");
        }
        assert_eq!((Slot::new(0), Slot::new(4096)), (None, None));
    }

    #[test]
    fn steps_go_round_all_slots() {
        let last = Slot::COUNT - 1;
        assert_eq!(Slot::wrapping(0), Slot::MIN);
        assert_eq!(Slot::wrapping(last), Slot::MAX);
        assert_eq!(Slot::wrapping(last + 1), Slot::MIN);
        assert!(Slot::wrapping(u16::MAX) <= Slot::MAX);
    }
}
