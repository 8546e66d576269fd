//! What a broker does for the sessions between node daemons of two hosts, and of processes with
//! them, where the wire is to be secured: the cluster's keys are the brokers' alone, so they make
//! and understand the handshake's messages, and hand out the keys of the one session that it was
//! for (docs/WIRE.md, *Secured sessions*).
//!
//! A caller is part of a node: the broker says so to the other, in its place. Who answers keeps
//! nothing in its broker, so that nobody who only begins takes a place there.
//!
//! | errno | of |
//! |---|---|
//! | `ENOKEY` | the tenant has no key for the wire |
//! | `EINVAL` | the caller is not part of the node that it names |
//! | `ENOBUFS` | too many of the caller's wait for answers |
//! | `ENOENT` | `finish`: none was begun under that number |

use super::secure::SecretBytes;
use crate::remoting::{message, service};

/// Version of the handshake.
pub const VERSION: u16 = 1;

message! {
    /// One end of a session: the node, and its end of the TCP connection.
    pub struct ChannelEnd {
        /// The node; 0 where it is not known.
        node: u32,
        /// The address; of IPv4, mapped.
        address: [u8; 16],
        /// The TCP port.
        port: u16,
    }

    /// Begins a session.
    pub struct ChannelBegin {
        /// The caller's end.
        own: ChannelEnd,
        /// The daemon's.
        peer: ChannelEnd,
    }

    /// What was begun.
    pub struct ChannelBegun {
        /// Its number, for `finish`.
        number: u64,
        /// The message for the daemon, which says nothing to the caller.
        message: Vec<u8>,
    }

    /// Answers a session that a peer has begun.
    pub struct ChannelAnswer {
        /// The caller's end.
        own: ChannelEnd,
        /// The peer's, as TCP has it.
        peer: ChannelEnd,
        /// The peer's message.
        message: Vec<u8>,
    }

    /// Completes a session.
    pub struct ChannelFinish {
        /// The number.
        number: u64,
        /// The daemon's message.
        message: Vec<u8>,
    }

    /// What a message of the peer's has led to.
    pub struct ChannelReply {
        /// [`super::secure::AGREED`], or the number of a [`crate::sealing::Unsecured`].
        verdict: u8,
        /// The answer for the peer, if one was asked for.
        message: Vec<u8>,
        /// The peer's node, by its broker's word.
        node: u32,
        /// Number of the cipher.
        cipher: u8,
        /// Secret of what the caller sends.
        send: SecretBytes,
        /// Secret of what it receives.
        receive: SecretBytes,
    }

    /// What the broker of who begins says to the other's. It is encrypted by the cluster's key.
    pub struct ChannelOffer {
        /// [`VERSION`].
        version: u16,
        /// Version of the remoting protocol.
        remoting: u16,
        /// Features wanted: none yet.
        features: u32,
        /// Ciphers that it supports, a bit for each.
        ciphers: u8,
        /// Name of the tenant.
        tenant: String,
        /// Who begins.
        from: ChannelEnd,
        /// Whom it means.
        to: ChannelEnd,
    }

    /// What the other says to that. It is encrypted by keys that nobody else can have.
    pub struct ChannelAcceptance {
        /// [`VERSION`].
        version: u16,
        /// Version of the remoting protocol.
        remoting: u16,
        /// Features in force: none yet.
        features: u32,
        /// Number of the cipher chosen.
        cipher: u8,
        /// Name of the tenant.
        tenant: String,
        /// Who answers.
        from: ChannelEnd,
        /// Who began, as it was offered.
        to: ChannelEnd,
    }
}

service! {
    /// Number of the service in message headers.
    service 6, handler ChannelService, stub ChannelStub {
        /// Begins a session with a node daemon.
        1 => begin(ChannelBegin; fds 0..=0) -> ChannelBegun;
        /// Answers one that was begun by somebody else.
        2 => answer(ChannelAnswer; fds 0..=0) -> ChannelReply;
        /// Completes the one that was begun.
        3 => finish(ChannelFinish; fds 0..=0) -> ChannelReply;
    }
}
