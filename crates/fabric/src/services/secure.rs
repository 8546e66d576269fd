//! What brokers do for secured connections between hosts: the keys of a cluster are theirs alone,
//! so they make and understand the messages of a handshake, and hand its outcome to the two
//! processes (docs/WIRE.md, *A secured wire*).

use std::fmt;

use crate::remoting::{Field, Malformed, Reader, message};

/// Version of the handshake.
pub const VERSION: u16 = 1;
/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;
/// Bytes of a key's name.
pub const KEY_NAME_BYTES: usize = 8;
/// Most bytes of a message that a program may ask its broker about.
pub const MESSAGE_MAX: usize = 400;
/// Verdict of a handshake that has gone well; any other is a reason of `causeway_wire::secure`.
pub const AGREED: u8 = 0;

/// A secret, which no log shows.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretBytes(pub [u8; SECRET_BYTES]);

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes")
    }
}

impl Field for SecretBytes {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Field::take(input).map(SecretBytes)
    }
}

message! {
    /// Asks whether the caller's wire to other hosts is to be secured.
    pub struct WireQuery {
        /// GID of the peer's port; `None` means this host.
        remote_gid: Option<[u8; 16]>,
        /// Whether it is asked of any peer that there may be; `remote_gid` counts for nothing then.
        any_peer: bool,
        /// Whether the program's user wants it, whatever the configuration says.
        wanted: bool,
    }

    /// Whether it is.
    pub struct WireReply {
        /// Nothing but sealed datagrams may leave, or be taken.
        secured: bool,
    }

    /// Begins a handshake for a connected QP.
    pub struct BeginRequest {
        /// QP of the caller.
        local_qpn: u32,
        /// GID of its port.
        own_gid: [u8; 16],
        /// The cookie that names its connection.
        cookie: u64,
    }

    /// The message for the peer.
    pub struct BeginReply {
        /// Which says nothing to the caller.
        message: Vec<u8>,
    }

    /// Answers a handshake that the peer of a QP has begun.
    pub struct AnswerRequest {
        /// QP of the caller.
        local_qpn: u32,
        /// GID of its port.
        own_gid: [u8; 16],
        /// The cookie that names its connection.
        cookie: u64,
        /// The peer's cookie, as the datagram had it.
        peer_cookie: u64,
        /// The peer's message.
        message: Vec<u8>,
    }

    /// Completes a handshake that a QP has begun.
    pub struct FinishRequest {
        /// QP of the caller.
        local_qpn: u32,
        /// The peer's cookie, as the datagram had it.
        peer_cookie: u64,
        /// The peer's answer.
        message: Vec<u8>,
    }

    /// What a message of the peer's has led to.
    pub struct HandshakeReply {
        /// [`AGREED`], or why not.
        verdict: u8,
        /// The answer for the peer, if one was asked for.
        message: Vec<u8>,
        /// Number of the cipher.
        cipher: u8,
        /// Secret of what the caller sends.
        send: SecretBytes,
        /// Secret of what it receives.
        receive: SecretBytes,
    }

    /// Asks for a step of a handshake between two UD QPs.
    pub struct AssociationRequest {
        /// QP of the caller.
        local_qpn: u32,
        /// The address that it sends from.
        own_gid: [u8; 16],
        /// The caller's cookie, which names the association.
        cookie: u64,
        /// The other QP.
        remote_qpn: u32,
        /// Its address.
        remote_gid: [u8; 16],
        /// Its cookie, as the datagram had it; 0 begins a handshake.
        peer_cookie: u64,
        /// Whether `message` answers what the caller has begun.
        finishes: bool,
        /// The peer's message; empty to begin.
        message: Vec<u8>,
    }

    /// A message of the connection manager's, or the datagram that it is sealed in.
    pub struct Sealed {
        /// All of it.
        bytes: Vec<u8>,
    }

    /// Asks for the secrets of a multicast group.
    pub struct GroupRequest {
        /// The group, as a GID: an IPv4 one is mapped.
        group: [u8; 16],
        /// Of which epoch, in `causeway_wire::group::EPOCH_SECONDS` since 1970.
        epoch: u32,
    }

    /// One for each of the cluster's keys: the first is sealed by, all are taken.
    pub struct GroupReply {
        /// The secrets.
        secrets: Vec<DerivedSecret>,
    }

    /// What comes from one of the cluster's keys.
    pub struct DerivedSecret {
        /// Name of the key.
        key: [u8; KEY_NAME_BYTES],
        /// The secret.
        secret: SecretBytes,
    }

    /// Asks which QPs of an endpoint are secured.
    pub struct SecuredRequest {
        /// The endpoint.
        endpoint: u64,
        /// From which number on.
        from: u32,
    }

    /// Those of them, by number: all, if there are fewer than [`crate::limits::SECURED_PER_PAGE`].
    pub struct SecuredReply {
        /// Their numbers.
        qpns: Vec<u32>,
    }

    /// What the side that begins a handshake says to the other's broker. It is encrypted by the
    /// cluster's key.
    pub struct Offer {
        /// [`VERSION`].
        version: u16,
        /// Version of TRP.
        trp: u8,
        /// Features wanted: none yet.
        features: u32,
        /// Ciphers that it supports, a bit for each.
        ciphers: u8,
        /// Who it is.
        from: Party,
        /// Whom it means: user and tenant as its own.
        to: Party,
    }

    /// What the other says to that. It is encrypted by keys that nobody else can have.
    pub struct Acceptance {
        /// [`VERSION`].
        version: u16,
        /// Features in force: none yet.
        features: u32,
        /// Number of the cipher chosen.
        cipher: u8,
        /// Who it is.
        from: Party,
        /// Whom it means.
        to: Party,
    }

    /// One end of a connection.
    pub struct Party {
        /// Its tenant's name.
        tenant: String,
        /// Its user, by the number on its host; nothing depends on it.
        uid: u32,
        /// GID of its port.
        gid: [u8; 16],
        /// Its QP.
        qpn: u32,
        /// Its cookie; 0 where it is not known.
        cookie: u64,
    }
}
