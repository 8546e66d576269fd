//! The errors of decoding, common to DDP, RDMAP and Terminate.

use core::fmt;

/// Why a segment was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Error {
    /// Shorter than the header it announces.
    Truncated,
    /// DDP version other than 1.
    DdpVersion,
    /// RDMAP version other than 1.
    RdmapVersion,
    /// An opcode that is unassigned, or not one for this buffer model.
    Opcode,
    /// Not the queue its opcode belongs to.
    Queue,
    /// A field that must be zero is not.
    Reserved,
    /// A message of one segment claims an offset, or not to be the last.
    Fragment,
    /// An atomic operation, or a mask, that is not supported.
    Atomic,
    /// No reason of RFC 5040 section 4.8 in use here has these numbers.
    Terminate,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Truncated => "segment shorter than its header",
            Error::DdpVersion => "unknown DDP version",
            Error::RdmapVersion => "unknown RDMAP version",
            Error::Opcode => "unknown or misplaced RDMAP opcode",
            Error::Queue => "wrong DDP queue number",
            Error::Reserved => "reserved field not zero",
            Error::Fragment => "single-segment message in parts",
            Error::Atomic => "unsupported atomic operation",
            Error::Terminate => "unknown reason for termination",
        })
    }
}

impl core::error::Error for Error {}
