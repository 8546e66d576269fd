//! Handshakes of secured sessions between node daemons of two hosts.
//!
//! The pattern is that of connections (`crate::secure`), with a prologue of its own. The messages
//! have what both brokers know of the session: the tenant, the two nodes, both ends of the TCP
//! connection, versions, features and ciphers. Who answers keeps nothing: a crowd that only begins
//! takes no place here, and costs no Diffie-Hellman without the key.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;

use causeway_aead::Cipher;
use causeway_fabric::remoting::{Answer, VERSION as REMOTING};
use causeway_fabric::sealing::Unsecured;
use causeway_fabric::services::channel::{
    ChannelAcceptance, ChannelAnswer, ChannelBegin, ChannelBegun, ChannelEnd, ChannelFinish,
    ChannelOffer, ChannelReply, ChannelService, VERSION,
};
use causeway_fabric::services::handshake::Role;
use causeway_fabric::services::secure::{AGREED, SecretBytes};
use rustix::io::Errno;
use snow::HandshakeState;

use crate::ids::SessionId;
use crate::secure::{builder_of, read, write};
use crate::session::Caller;
use crate::sisci::Tables;

/// What both sides must mean by a message.
const PROLOGUE: &[u8] = b"causeway channel 1";
/// Most handshakes of a session that wait for answers. A further one is begun in the place of the
/// oldest, which its caller has given up: it waits 2 s for a daemon, and for few at a time.
const PENDING_PER_SESSION_MAX: usize = 64;

/// A handshake that was begun.
struct Pending {
    number: u64,
    noise: HandshakeState,
    tenant: String,
    begun: ChannelBegin,
}

/// The handshakes of all sessions that wait for answers.
#[derive(Default)]
pub struct Channels {
    pending: BTreeMap<SessionId, VecDeque<Pending>>,
    last: u64,
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: usize = self.pending.values().map(VecDeque::len).sum();
        f.debug_struct("Channels").field("pending", &count).finish()
    }
}

impl Channels {
    /// A session of the broker's has ended.
    pub fn end(&mut self, session: SessionId) {
        self.pending.remove(&session);
    }

    fn begin(&mut self, caller: &Caller<'_>, begun: ChannelBegin) -> Result<ChannelBegun, Errno> {
        let psk = caller.tenant.wire.keys.first().ok_or(Errno::NOKEY)?;
        let builder = builder_of(psk, PROLOGUE).ok_or(Errno::IO)?;
        let mut noise = builder.build_initiator().map_err(|_| Errno::IO)?;
        let tenant = caller.tenant.name.clone();
        let offer = ChannelOffer {
            version: VERSION,
            remoting: REMOTING,
            features: 0,
            ciphers: Cipher::all_bits(),
            tenant: tenant.clone(),
            from: begun.own.clone(),
            to: begun.peer.clone(),
        };
        let message = write(&mut noise, &offer).ok_or(Errno::IO)?;
        self.last += 1;
        let number = self.last;
        let of_session = self.pending.entry(caller.session).or_default();
        if of_session.len() >= PENDING_PER_SESSION_MAX {
            of_session.pop_front();
        }
        of_session.push_back(Pending {
            number,
            noise,
            tenant,
            begun,
        });
        Ok(ChannelBegun { number, message })
    }

    /// A message that is not believed ends the handshake: no other answer comes by the same
    /// connection.
    fn finish(
        &mut self,
        session: SessionId,
        request: &ChannelFinish,
    ) -> Result<ChannelReply, Errno> {
        let of_session = self.pending.get_mut(&session).ok_or(Errno::NOENT)?;
        let at = of_session
            .iter()
            .position(|one| one.number == request.number);
        let found = at.and_then(|at| of_session.remove(at));
        let mut found = found.ok_or(Errno::NOENT)?;
        let Some(said) = read::<ChannelAcceptance>(&mut found.noise, &request.message) else {
            return Ok(refusal(Unsecured::Key));
        };
        if let Err(why) = check_acceptance(&found, &said) {
            return Ok(refusal(why));
        }
        let (send, receive) = found.noise.dangerously_get_raw_split();
        let node = said.from.node;
        Ok(agreed((said.cipher, node), Vec::new(), send, receive))
    }
}

/// The service, for one caller.
#[derive(Debug)]
pub struct Client<'a> {
    /// All handshakes.
    pub channels: &'a mut Channels,
    /// Which nodes sessions are part of.
    pub tables: &'a Tables,
    /// The caller.
    pub caller: &'a Caller<'a>,
}

impl Client<'_> {
    /// The caller's end says that it is part of a node: it must be true.
    fn check(&self, own: &ChannelEnd) -> Result<(), Errno> {
        let (session, nodes) = (self.caller.session, [own.node]);
        let true_word = self.tables.is_node_of(session, &nodes, Role::Process);
        true_word.then_some(()).ok_or(Errno::INVAL)
    }
}

impl ChannelService for Client<'_> {
    fn begin(
        &mut self,
        request: ChannelBegin,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<ChannelBegun>, Errno> {
        self.check(&request.own)?;
        self.channels.begin(self.caller, request).map(Answer::from)
    }

    fn answer(
        &mut self,
        request: ChannelAnswer,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<ChannelReply>, Errno> {
        self.check(&request.own)?;
        if self.caller.tenant.wire.keys.is_empty() {
            return Err(Errno::NOKEY);
        }
        let answered = answer(self.caller, &request);
        Ok(answered.unwrap_or_else(refusal).into())
    }

    fn finish(
        &mut self,
        request: ChannelFinish,
        _: Vec<OwnedFd>,
    ) -> Result<Answer<ChannelReply>, Errno> {
        let finished = self.channels.finish(self.caller.session, &request);
        finished.map(Answer::from)
    }
}

fn answer(caller: &Caller<'_>, request: &ChannelAnswer) -> Result<ChannelReply, Unsecured> {
    let understood = caller.tenant.wire.keys.iter().find_map(|psk| {
        let mut noise = builder_of(psk, PROLOGUE)?.build_responder().ok()?;
        let offer = read::<ChannelOffer>(&mut noise, &request.message)?;
        Some((noise, offer))
    });
    let (mut noise, offer) = understood.ok_or(Unsecured::Key)?;
    let cipher = check_offer(&caller.tenant.name, request, &offer)?;
    let node = offer.from.node;
    let acceptance = ChannelAcceptance {
        version: VERSION,
        remoting: REMOTING,
        features: 0,
        cipher: cipher as u8,
        tenant: offer.tenant,
        from: request.own.clone(),
        to: offer.from,
    };
    let message = write(&mut noise, &acceptance).ok_or(Unsecured::Unsupported)?;
    let (receive, send) = noise.dangerously_get_raw_split();
    Ok(agreed((cipher as u8, node), message, send, receive))
}

/// Whether two ends are at the same place, whatever their nodes.
fn same_place(one: &ChannelEnd, other: &ChannelEnd) -> bool {
    (one.address, one.port) == (other.address, other.port)
}

/// What the peer says must be what TCP says. The nodes are its broker's word. The remoting protocol
/// itself tells of another version, by name.
fn check_offer(
    tenant: &str,
    request: &ChannelAnswer,
    offer: &ChannelOffer,
) -> Result<Cipher, Unsecured> {
    if offer.version != VERSION {
        return Err(Unsecured::Unsupported);
    }
    let here = same_place(&offer.to, &request.own) && same_place(&offer.from, &request.peer);
    if !here || offer.tenant != tenant {
        return Err(Unsecured::Binding);
    }
    Cipher::choose(offer.ciphers, Cipher::preferred()).ok_or(Unsecured::Unsupported)
}

fn check_acceptance(pending: &Pending, said: &ChannelAcceptance) -> Result<(), Unsecured> {
    let known = Cipher::from_number(said.cipher).is_some();
    if said.version != VERSION || said.features != 0 || !known {
        return Err(Unsecured::Unsupported);
    }
    let ChannelBegin { own, peer } = &pending.begun;
    let exact = said.to == *own && same_place(&said.from, peer) && said.tenant == pending.tenant;
    exact.then_some(()).ok_or(Unsecured::Binding)
}

fn refusal(why: Unsecured) -> ChannelReply {
    ChannelReply {
        verdict: why as u8,
        ..ChannelReply::default()
    }
}

fn agreed(
    (cipher, node): (u8, u32),
    message: Vec<u8>,
    send: [u8; 32],
    receive: [u8; 32],
) -> ChannelReply {
    ChannelReply {
        verdict: AGREED,
        message,
        node,
        cipher,
        send: SecretBytes(send),
        receive: SecretBytes(receive),
    }
}

#[cfg(test)]
mod tests;
