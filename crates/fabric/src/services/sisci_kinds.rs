//! What segments, connections and interrupts of SISCI are, and what happens to them, as the service
//! ([`crate::services::sisci`]) says it.

use crate::remoting::byte_enum;

/// What is behind a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Backing {
    /// Memory of its own, zeroed.
    #[default]
    Own = 0,
    /// Nothing until memory of the program is registered.
    Empty = 1,
    /// A replica of the reflective-memory group whose id is the segment's: memory of its own, which
    /// stores to the group reach, too.
    Group = 2,
    /// The one memory of a group without replicas: all members have the same.
    SharedGroup = 3,
}

/// How far a local segment has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SegmentState {
    /// Created.
    #[default]
    Created = 0,
    /// Prepared, and never available.
    Prepared = 1,
    /// Was available, and takes no new connections.
    Unavailable = 2,
    /// Takes connections.
    Available = 3,
}

/// What happened to a local segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum LocalChange {
    /// Somebody connected.
    #[default]
    Connected = 0,
    /// Somebody disconnected, or died.
    Disconnected = 1,
}

/// What happened to a connection to a remote segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RemoteChange {
    /// A connect that waited is done: fetch it.
    #[default]
    Connected = 0,
    /// The segment's owner asks to disconnect.
    Disconnect = 1,
    /// The owner is stopped; or it has not come back after a restart of the broker, and may yet.
    NotOperational = 2,
    /// The owner goes on, or has come back.
    Operational = 3,
    /// The segment is gone, or its owner has cut the connection. Nothing follows.
    Lost = 4,
}

/// What happened to the cells of an interrupt, or of a connection to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CellChange {
    /// There are cells to be taken.
    #[default]
    Added = 0,
    /// The other end of a cell is gone.
    Removed = 1,
}

/// What a session found absent that asks to be told when it is not any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AbsentKind {
    /// A segment, to connect to.
    #[default]
    Segment = 0,
    /// A group, to connect to.
    Group = 1,
    /// A shared segment of the session's own node, to attach to.
    Shared = 2,
    /// An interrupt.
    Interrupt = 3,
    /// A data interrupt.
    DataInterrupt = 4,
}

/// Kinds of status items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ItemKind {
    /// A local segment.
    #[default]
    Segment = 0,
    /// A connection to a segment.
    Connection = 1,
    /// A local interrupt.
    Interrupt = 2,
    /// A local data interrupt.
    DataInterrupt = 3,
    /// A connection to an interrupt.
    InterruptConnection = 4,
    /// A connection to a data interrupt.
    DataInterruptConnection = 5,
}

byte_enum!(Backing, "backing", Own, Empty, Group, SharedGroup);
byte_enum!(
    SegmentState,
    "segment state",
    Created,
    Prepared,
    Unavailable,
    Available
);
byte_enum!(LocalChange, "change", Connected, Disconnected);
byte_enum!(
    RemoteChange,
    "change",
    Connected,
    Disconnect,
    NotOperational,
    Operational,
    Lost
);
byte_enum!(CellChange, "change", Added, Removed);
byte_enum!(
    AbsentKind,
    "absent",
    Segment,
    Group,
    Shared,
    Interrupt,
    DataInterrupt
);
byte_enum!(
    ItemKind,
    "item",
    Segment,
    Connection,
    Interrupt,
    DataInterrupt,
    InterruptConnection,
    DataInterruptConnection
);
