//! A request that is to be sent as it is posted ([`crate::express`]).

use crate::types::{SendFlags, Sge};

/// Where the bytes of a request are.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// In registered memory.
    Range(Sge),
    /// The program gives them away (`IBV_SEND_INLINE`).
    Inline(&'a [u8]),
}

impl Content<'_> {
    /// Bytes of the message.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            Content::Range(sge) => sge.length,
            // More than 4 GiB is more than any queue pair takes inline.
            Content::Inline(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        }
    }

    /// Whether it is a message of no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The target of a WRITE.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Address at the peer.
    pub addr: u64,
    /// Key of the region there.
    pub rkey: u32,
}

/// A SEND, or a WRITE where there is a target, of one range.
#[derive(Clone, Copy, Debug)]
pub struct Express<'a> {
    /// The program's name for it.
    pub wr_id: u64,
    /// How it is posted.
    pub flags: SendFlags,
    /// Its bytes.
    pub content: Content<'a>,
    /// Where a WRITE goes.
    pub to: Option<Target>,
}
