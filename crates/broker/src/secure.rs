//! Handshakes of secured connections between hosts.
//!
//! The pattern is Noise's NNpsk0: the first message is authenticated by the cluster's key before
//! any Diffie-Hellman is computed, and the second makes keys that a later theft of the cluster's
//! key does not reveal. What both brokers know of the connection (tenants, users, GIDs, queue
//! pairs, cookies, version, features and ciphers) stands in the messages, and is compared.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use causeway_aead::Cipher;
use causeway_fabric::limits::SECURED_PER_PAGE;
use causeway_fabric::remoting::{Field, decode_body, encode_body};
use causeway_fabric::services::secure::{
    AGREED, Acceptance, AnswerRequest, BeginRequest, FinishRequest, HandshakeReply, MESSAGE_MAX,
    Offer, Party, SecretBytes, VERSION,
};
use causeway_wire::secure::Why;
use causeway_wire::trp;
use rustix::io::Errno;
use snow::{Builder, HandshakeState};

use crate::ids::EndpointId;
use crate::keys::{Psk, WireKeys};
use pending::{Pending, PendingTable};

/// The protocol's name, which all that is derived depends on.
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// What both sides must mean by a message.
const PROLOGUE: &[u8] = b"causeway wire 1";
/// Where the key enters.
const PSK_AT: u8 = 0;
/// Most handshakes of an endpoint that wait for an answer. Others begin when one has ended, since
/// the endpoint asks again; nobody else waits for them.
const PENDING_PER_ENDPOINT_MAX: usize = 1024;

/// How long one between UD QPs waits for an answer at least. Where its endpoint has no room, the
/// oldest gives way to another then; the program begins it anew if its peer answers after all. A QP
/// with silent peers begins 256 in some 300 ms, and gives them up without a word.
const ASSOCIATION_PENDING_LEAST: Duration = Duration::from_secs(1);

/// How often the log says that a message of the connection manager's can't be opened: anybody can
/// send such.
const FOREIGN_TOLD_EVERY: Duration = Duration::from_secs(10);

/// A QP of an endpoint.
type At = (EndpointId, u32);
/// A handshake of a QP: its number is 0 for a connected QP's, which has one at a time, and else the
/// cookie of an association.
type Name = (EndpointId, u32, u64);

/// What the broker knows of the two ends of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    /// The caller's.
    pub own: Party,
    /// The peer's QP.
    pub peer_qpn: u32,
    /// The GID of its port; `None` is this host, whichever of its addresses.
    pub peer_gid: Option<[u8; 16]>,
}

/// The handshakes of all endpoints.
#[derive(Default)]
pub(crate) struct Handshakes {
    pending: PendingTable,
    /// QPs that have keys.
    secured: BTreeSet<At>,
    /// QPs of which the log says already that a handshake failed.
    told: BTreeSet<At>,
    /// When the log said last that a message of the connection manager's can't be opened.
    foreign_told: Option<Instant>,
}

impl fmt::Debug for Handshakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshakes")
            .field("pending", &self.pending.len())
            .field("secured", &self.secured)
            .finish_non_exhaustive()
    }
}

impl Handshakes {
    /// Begins one. An earlier one of the same QP is given up.
    ///
    /// # Errors
    /// `ENOKEY` without a key; `ENOBUFS` if too many of the endpoint wait for answers.
    pub fn begin(&mut self, at: At, ends: Ends, keys: &WireKeys) -> Result<Vec<u8>, Errno> {
        self.begin_as((at.0, at.1, 0), ends, keys)
    }

    fn begin_as(&mut self, name: Name, ends: Ends, keys: &WireKeys) -> Result<Vec<u8>, Errno> {
        let psk = keys.first().ok_or(Errno::NOKEY)?;
        let since = Instant::now();
        if !self.pending.make_room(name, since) {
            return Err(Errno::NOBUFS);
        }
        let builder = builder(psk).ok_or(Errno::IO)?;
        let mut noise = builder.build_initiator().map_err(|_| Errno::IO)?;
        let offer = Offer {
            version: VERSION,
            trp: trp::VERSION,
            features: 0,
            ciphers: Cipher::all_bits(),
            from: ends.own.clone(),
            to: Party {
                gid: ends.peer_gid.unwrap_or_default(),
                qpn: ends.peer_qpn,
                ..ends.own.clone()
            },
        };
        let message = write(&mut noise, &offer).ok_or(Errno::IO)?;
        self.pending.insert(name, Pending { noise, ends, since });
        Ok(message)
    }

    /// Answers one that a peer has begun.
    ///
    /// # Errors
    /// `ENOKEY` without a key. What is wrong with the message is in the reply.
    pub fn answer(
        &mut self,
        at: At,
        ends: &Ends,
        request: &AnswerRequest,
        keys: &WireKeys,
    ) -> Result<HandshakeReply, Errno> {
        if keys.is_empty() {
            return Err(Errno::NOKEY);
        }
        Ok(match answer(ends, request, keys) {
            Ok(reply) => {
                self.note(at);
                reply
            }
            Err(why) => self.refuse(at, ends, why),
        })
    }

    /// Completes one that was begun. A message that is not believed leaves it as it was.
    ///
    /// # Errors
    /// `ENOENT` if none was.
    pub fn finish(&mut self, at: At, request: &FinishRequest) -> Result<HandshakeReply, Errno> {
        let reply = self.finish_as((at.0, at.1, 0), request)?;
        if reply.verdict == AGREED {
            self.note(at);
        }
        Ok(reply)
    }

    fn finish_as(&mut self, name: Name, request: &FinishRequest) -> Result<HandshakeReply, Errno> {
        let pending = self.pending.get_mut(name).ok_or(Errno::NOENT)?;
        let read = read::<Acceptance>(&mut pending.noise, &request.message);
        let Some(acceptance) = read else {
            return Ok(refusal(Why::Key));
        };
        // It was made by the peer's broker: what it says, it means.
        let Some(Pending {
            mut noise, ends, ..
        }) = self.pending.remove(name)
        else {
            return Err(Errno::NOENT);
        };
        if let Err(why) = check_acceptance(&ends, &acceptance, request.peer_cookie) {
            return Ok(self.refuse((name.0, name.1), &ends, why));
        }
        let (send, receive) = noise.dangerously_get_raw_split();
        Ok(agreed(acceptance.cipher, Vec::new(), send, receive))
    }

    /// A QP has keys.
    pub fn note(&mut self, at: At) {
        self.secured.insert(at);
        self.told.remove(&at);
    }

    fn refuse(&mut self, at: At, ends: &Ends, why: Why) -> HandshakeReply {
        if self.told.insert(at) {
            let reason = match why {
                Why::Key => "the message was made by a key that is not in our key file",
                Why::Binding => "it is for other addresses, queue pairs or tenants",
                _ => "it supports nothing that we do",
            };
            tracing::warn!(
                endpoint = at.0,
                qpn = at.1,
                peer = %gid_text(ends.peer_gid),
                "no secured connection: {reason}"
            );
        }
        refusal(why)
    }

    /// Says in the log, now and then, that a message of the connection manager's can't be opened,
    /// which a process has received.
    pub fn tell_of_foreign_message(&mut self, pid: i32, uid: u32) {
        let told = self.foreign_told;
        if told.is_none_or(|at| at.elapsed() >= FOREIGN_TOLD_EVERY) {
            self.foreign_told = Some(Instant::now());
            tracing::warn!(
                pid,
                uid,
                "no secured connection: a message of the connection manager was made by a key \
                 that is not in our key file"
            );
        }
    }

    /// Says in the log that a QP has named an address as its own which its endpoint does not have.
    pub fn tell_of_foreign_gid(&mut self, at: At, gid: [u8; 16]) {
        if self.told.insert(at) {
            tracing::warn!(
                endpoint = at.0,
                qpn = at.1,
                gid = %gid_text(Some(gid)),
                "no secured connection: its address is none of those that its endpoint has"
            );
        }
    }

    /// The connection of a QP has ended.
    pub fn forget(&mut self, at: At) {
        self.pending.remove((at.0, at.1, 0));
        self.secured.remove(&at);
        self.told.remove(&at);
    }

    /// An endpoint has ended.
    pub fn end(&mut self, id: EndpointId) {
        self.pending.end(id);
        self.secured.retain(|at| at.0 != id);
        self.told.retain(|at| at.0 != id);
    }

    /// The QPs of an endpoint that have keys, from a number on, as many as fit a page.
    pub fn secured_of(&self, endpoint: EndpointId, from: u32) -> Vec<u32> {
        let of_it = self.secured.range((endpoint, from)..=(endpoint, u32::MAX));
        of_it.map(|at| at.1).take(SECURED_PER_PAGE).collect()
    }
}

/// Whether a GID is that of a port of an endpoint with such addresses. Loopback addresses are not
/// among them, and lead to no other host.
pub(crate) fn is_gid_of(addresses: &[[u8; 16]], gid: [u8; 16]) -> bool {
    let is_loopback = Ipv6Addr::from(gid).to_canonical().is_loopback();
    is_loopback || addresses.contains(&gid)
}

/// What [`Handshakes::begin`] needs of a request.
pub(crate) fn party(tenant: &str, uid: u32, request: &BeginRequest) -> Party {
    Party {
        tenant: tenant.to_owned(),
        uid,
        gid: request.own_gid,
        qpn: request.local_qpn,
        cookie: request.cookie,
    }
}

fn gid_text(gid: Option<[u8; 16]>) -> String {
    match gid {
        Some(gid) => Ipv6Addr::from(gid).to_canonical().to_string(),
        None => "this host".to_owned(),
    }
}

fn builder(psk: &Psk) -> Option<Builder<'_>> {
    builder_of(psk, PROLOGUE)
}

/// What begins a handshake that both sides mean by this prologue.
pub(crate) fn builder_of<'a>(psk: &'a Psk, prologue: &'a [u8]) -> Option<Builder<'a>> {
    let builder = Builder::new(NOISE.parse().ok()?);
    builder
        .prologue(prologue)
        .and_then(|builder| builder.psk(PSK_AT, psk.bytes()))
        .ok()
}

pub(crate) fn write<T: Field>(noise: &mut HandshakeState, payload: &T) -> Option<Vec<u8>> {
    let mut out = [0; MESSAGE_MAX];
    let len = noise.write_message(&encode_body(payload), &mut out).ok()?;
    Some(out[..len].to_vec())
}

pub(crate) fn read<T: Field>(noise: &mut HandshakeState, message: &[u8]) -> Option<T> {
    if message.len() > MESSAGE_MAX {
        return None;
    }
    let mut out = [0; MESSAGE_MAX];
    let len = noise.read_message(message, &mut out).ok()?;
    decode_body(&out[..len]).ok()
}

fn answer(ends: &Ends, request: &AnswerRequest, keys: &WireKeys) -> Result<HandshakeReply, Why> {
    let understood = keys.iter().find_map(|psk| {
        let mut noise = builder(psk)?.build_responder().ok()?;
        let offer = read::<Offer>(&mut noise, &request.message)?;
        Some((noise, offer))
    });
    let (mut noise, offer) = understood.ok_or(Why::Key)?;
    let cipher = check_offer(ends, &offer, request.peer_cookie)?;
    let acceptance = Acceptance {
        version: VERSION,
        features: 0,
        cipher: cipher as u8,
        from: ends.own.clone(),
        to: offer.from,
    };
    let message = write(&mut noise, &acceptance).ok_or(Why::Unsupported)?;
    let (receive, send) = noise.dangerously_get_raw_split();
    Ok(agreed(cipher as u8, message, send, receive))
}

/// Whether what the peer says of itself is what this side knows of it.
fn is_peer(ends: &Ends, from: &Party, cookie: u64) -> bool {
    from.qpn == ends.peer_qpn
        && from.cookie == cookie
        && from.tenant == ends.own.tenant
        && ends.peer_gid.is_none_or(|gid| gid == from.gid)
}

fn check_offer(ends: &Ends, offer: &Offer, peer_cookie: u64) -> Result<Cipher, Why> {
    if offer.version != VERSION || offer.trp != trp::VERSION {
        return Err(Why::Unsupported);
    }
    let own = &ends.own;
    // A side that reaches its peer on its own host may not know under which address.
    let means_us = offer.to.qpn == own.qpn
        && (offer.to.gid == own.gid || offer.to.gid == [0; 16] && ends.peer_gid.is_none());
    if !means_us || !is_peer(ends, &offer.from, peer_cookie) {
        return Err(Why::Binding);
    }
    Cipher::choose(offer.ciphers, Cipher::preferred()).ok_or(Why::Unsupported)
}

fn check_acceptance(ends: &Ends, acceptance: &Acceptance, peer_cookie: u64) -> Result<(), Why> {
    let known = Cipher::from_number(acceptance.cipher).is_some();
    if acceptance.version != VERSION || acceptance.features != 0 || !known {
        return Err(Why::Unsupported);
    }
    let exact = acceptance.to == ends.own && is_peer(ends, &acceptance.from, peer_cookie);
    exact.then_some(()).ok_or(Why::Binding)
}

fn refusal(why: Why) -> HandshakeReply {
    HandshakeReply {
        verdict: why as u8,
        ..HandshakeReply::default()
    }
}

fn agreed(cipher: u8, message: Vec<u8>, send: [u8; 32], receive: [u8; 32]) -> HandshakeReply {
    HandshakeReply {
        verdict: AGREED,
        message,
        cipher,
        send: SecretBytes(send),
        receive: SecretBytes(receive),
    }
}

mod associations;
pub(crate) mod messages;
mod pending;
#[cfg(test)]
mod tests;
