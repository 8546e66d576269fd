//! What two rsockets tell each other: immediates, and the private data of a connection.
//!
//! The formats are those of rdma-core's rsockets, version 1, with one difference: a grant of buffer
//! space says in its immediate that it is one, so that the reader never looks at a slot that is
//! being written.

/// Version of the protocol.
const VERSION: u8 = 1;
/// The table of mappings follows the slots of the grants.
const FLAG_IOMAP: u8 = 1 << 1;
/// Bits of an immediate below the operation.
const OP_SHIFT: u32 = 29;
const DATA_MASK: u32 = (1 << OP_SHIFT) - 1;
const OP_DATA: u32 = 0;
const OP_SGL: u32 = 4;
const OP_IOMAP: u32 = 6;
const OP_CONTROL: u32 = 7;
/// In the immediate of credits: a slot was written.
const GRANTS: u32 = 1 << 16;
const DISCONNECT: u32 = 0;
const KEEPALIVE: u32 = 1;
const SHUTDOWN: u32 = 2;
/// Bits of a scaled number.
const SCALE_BITS: u32 = 8;
/// Above this a scaled number counts in steps of 256.
const SCALE_LINEAR: u16 = 1 << (SCALE_BITS - 1);

/// Length of the private data of a connection.
pub(super) const CONN_DATA_LEN: usize = 40;
/// Length of a description of memory.
pub(super) const REGION_LEN: usize = 16;
/// Length of an entry of the table of mappings: an offset and a region.
pub(super) const MAPPING_LEN: usize = 8 + REGION_LEN;

/// What an immediate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// So many bytes were written into the buffer.
    Data(u32),
    /// Data messages may be sent up to this number; `grants`: a slot describes more buffer space.
    Credits {
        /// Number of the first message that must not be sent.
        limit: u16,
        /// Whether a slot was written.
        grants: bool,
    },
    /// An entry of the table of mappings was written.
    Mapping,
    /// The peer reads and writes no more.
    Disconnect,
    /// The peer writes no more.
    Shutdown,
    /// The peer is there.
    Keepalive,
}

impl Message {
    /// The immediate.
    pub fn encode(self) -> u32 {
        let (op, data) = match self {
            Message::Data(len) => (OP_DATA, len & DATA_MASK),
            Message::Credits { limit, grants } => {
                (OP_SGL, u32::from(limit) | if grants { GRANTS } else { 0 })
            }
            Message::Mapping => (OP_IOMAP, 0),
            Message::Disconnect => (OP_CONTROL, DISCONNECT),
            Message::Shutdown => (OP_CONTROL, SHUTDOWN),
            Message::Keepalive => (OP_CONTROL, KEEPALIVE),
        };
        op << OP_SHIFT | data
    }

    /// The message; `None` if it is none of the protocol.
    pub fn decode(immediate: u32) -> Option<Message> {
        let data = immediate & DATA_MASK;
        match (immediate >> OP_SHIFT, data) {
            (OP_DATA, len) => Some(Message::Data(len)),
            (OP_SGL, _) => Some(Message::Credits {
                limit: data as u16,
                grants: data & GRANTS != 0,
            }),
            (OP_IOMAP, _) => Some(Message::Mapping),
            (OP_CONTROL, DISCONNECT) => Some(Message::Disconnect),
            (OP_CONTROL, SHUTDOWN) => Some(Message::Shutdown),
            (OP_CONTROL, KEEPALIVE) => Some(Message::Keepalive),
            _ => None,
        }
    }
}

/// Memory that the peer may write to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Region {
    /// Address in the owner's process.
    pub addr: u64,
    /// Remote key.
    pub key: u32,
    /// Bytes; entries, for the slots of a connection.
    pub len: u32,
}

impl Region {
    /// As it is written into a peer's slot: in the order of the machine.
    pub fn to_slot(self) -> [u8; REGION_LEN] {
        let mut bytes = [0; REGION_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.len.to_ne_bytes());
        bytes
    }

    /// What a slot holds.
    pub fn from_slot(bytes: &[u8; REGION_LEN]) -> Region {
        Region {
            addr: u64::from_ne_bytes(field(bytes, 0)),
            key: u32::from_ne_bytes(field(bytes, 8)),
            len: u32::from_ne_bytes(field(bytes, 12)),
        }
    }
}

/// `N` bytes at an offset inside.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// What each end tells the other when they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnData {
    /// Data messages that may be sent at first.
    pub credits: u16,
    /// Entries of the table of mappings.
    pub mappings: u16,
    /// The slots of the grants; the table of mappings follows them.
    pub slots: Region,
    /// The first grant.
    pub buffer: Region,
}

impl ConnData {
    /// The private data.
    pub fn encode(&self) -> [u8; CONN_DATA_LEN] {
        let mut bytes = [0; CONN_DATA_LEN];
        bytes[0] = VERSION;
        bytes[1] = FLAG_IOMAP;
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = scaled(self.mappings);
        for (at, region) in [(8, self.slots), (24, self.buffer)] {
            bytes[at..at + 8].copy_from_slice(&region.addr.to_be_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&region.key.to_be_bytes());
            bytes[at + 12..at + 16].copy_from_slice(&region.len.to_be_bytes());
        }
        bytes
    }

    /// What private data says; `None` if it is of no rsocket.
    pub fn decode(bytes: &[u8]) -> Option<ConnData> {
        if bytes.len() < CONN_DATA_LEN || bytes[0] != VERSION {
            return None;
        }
        let region = |at| Region {
            addr: u64::from_be_bytes(field(bytes, at)),
            key: u32::from_be_bytes(field(bytes, at + 8)),
            len: u32::from_be_bytes(field(bytes, at + 12)),
        };
        let mappings = match bytes[1] & FLAG_IOMAP {
            0 => 0,
            _ => unscaled(bytes[7]),
        };
        Some(ConnData {
            credits: u16::from_be_bytes(field(bytes, 2)),
            mappings,
            slots: region(8),
            buffer: region(24),
        })
    }
}

/// A number in a byte: exact up to 128, then in steps of 256.
fn scaled(number: u16) -> u8 {
    match number {
        n if n <= SCALE_LINEAR => n as u8,
        n => (SCALE_LINEAR | (n >> SCALE_BITS).min(SCALE_LINEAR - 1)) as u8,
    }
}

fn unscaled(byte: u8) -> u16 {
    match u16::from(byte) {
        n if n <= SCALE_LINEAR => n,
        n => (n & !SCALE_LINEAR) << SCALE_BITS,
    }
}

/// A number of mappings that the private data can tell, from what a program asks for.
pub(super) fn mappings_told(number: u16) -> u16 {
    unscaled(scaled(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let messages = [
            Message::Data(1),
            Message::Data(DATA_MASK),
            Message::Credits {
                limit: 0xFFFF,
                grants: false,
            },
            Message::Credits {
                limit: 7,
                grants: true,
            },
            Message::Mapping,
            Message::Disconnect,
            Message::Shutdown,
            Message::Keepalive,
        ];
        for message in messages {
            assert_eq!(Message::decode(message.encode()), Some(message));
        }
    }

    #[test]
    fn immediates_are_those_of_rdma_core() {
        assert_eq!(Message::Data(5).encode(), 5);
        assert_eq!(Message::Disconnect.encode(), 0xE000_0000);
        assert_eq!(Message::Shutdown.encode(), 0xE000_0002);
        let credits = Message::Credits {
            limit: 384,
            grants: false,
        };
        assert_eq!(credits.encode(), 0x8000_0180);
    }

    #[test]
    fn unknown_messages_are_none() {
        for op in [1, 2, 3, 5] {
            assert_eq!(Message::decode(op << OP_SHIFT), None);
        }
        assert_eq!(Message::decode(0xE000_0003), None);
    }

    #[test]
    fn connection_data_comes_back() {
        let data = ConnData {
            credits: 384,
            mappings: 128,
            slots: Region {
                addr: 0x7F00_0000_1000,
                key: 77,
                len: 2,
            },
            buffer: Region {
                addr: 0x7F00_0002_0000,
                key: 78,
                len: 65_536,
            },
        };
        assert_eq!(ConnData::decode(&data.encode()), Some(data));
        assert_eq!(ConnData::decode(&data.encode()[1..]), None);
        let mut other = data.encode();
        other[0] = 2;
        assert_eq!(ConnData::decode(&other), None);
    }

    #[test]
    fn numbers_of_mappings_never_grow_on_the_way() {
        for number in 0..=u16::MAX {
            let told = mappings_told(number);
            assert!(told <= number, "{number} became {told}");
            assert_eq!(mappings_told(told), told);
            assert!(number > 128 || told == number);
        }
    }

    #[test]
    fn slots_come_back() {
        let region = Region {
            addr: u64::MAX - 1,
            key: 3,
            len: 9,
        };
        assert_eq!(Region::from_slot(&region.to_slot()), region);
    }
}
