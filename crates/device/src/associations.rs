//! Associations of UD queue pairs: what they ask of the broker ([`causeway_proto::association`]).

use std::sync::{Arc, Once};

use causeway_fabric::secure::say;
use causeway_fabric::services::secure::{AssociationRequest, HandshakeReply};
use causeway_proto::association::{Ask, Outcome};
use causeway_proto::trp::Turn;

use crate::clock::Now;
use crate::errno::Errno;
use crate::gid::{gid_of, own_addresses};
use crate::qp_entry::Link;
use crate::secured::keys_of;
use crate::shared::Shared;
use crate::ud::{UdAnswer, UdAsk, UdLink};

/// People are told once of a broker that secures no datagrams: it is asked again and again.
static TOO_OLD: Once = Once::new();
const TOO_OLD_TEXT: &str =
    "no datagrams: a secured wire is required, and the broker is too old to secure them";

impl Shared {
    /// The end of the wire of a UD queue pair.
    ///
    /// # Errors
    /// ENOKEY if it is to be secured, and the broker has no key; EOPNOTSUPP if the broker is too
    /// old.
    pub fn datagram_link(&self, qpn: u32) -> Result<UdLink, Errno> {
        let secured = self.may_wire_be_secured()?;
        let secrets = secured.then(|| Arc::clone(&self.known_secrets));
        Ok(UdLink::new(qpn, secrets))
    }

    /// Has the broker make or understand the messages of a UD queue pair's handshakes, and derive
    /// the secrets of the groups that it sends to.
    pub fn carry_out_associations(&self, qpn: u32) {
        while let Some(ask) = self.take_association_ask(qpn) {
            causeway_fault::point("handshake.asked");
            let answer = self.answer_of(qpn, &ask);
            let (_, mut state) = self.engines.lock(qpn);
            let Some(mut entry) = state.qp(qpn) else {
                return;
            };
            let Link::Datagrams(ud) = &mut entry.link else {
                return;
            };
            ud.told(&ask, answer);
            drop(entry);
            state.touch(qpn);
            state.flush_pending(&Now::default());
            let (deadline, requests) = (state.timers.next(), !state.broker_requests.is_empty());
            drop(state);
            self.note_deadline(deadline, requests);
        }
    }

    fn take_association_ask(&self, qpn: u32) -> Option<UdAsk> {
        let (_, mut state) = self.engines.lock(qpn);
        let mut entry = state.qp(qpn)?;
        let Link::Datagrams(ud) = &mut entry.link else {
            return None;
        };
        ud.take_ask()
    }

    fn answer_of(&self, qpn: u32, ask: &UdAsk) -> UdAnswer {
        match ask {
            UdAsk::Peer(ask) => UdAnswer::Peer(self.ask_for_association(qpn, ask)),
            UdAsk::Group(ask) => UdAnswer::Group(self.ask_for_group(ask).ok()),
        }
    }

    fn ask_for_association(&self, local_qpn: u32, ask: &Ask) -> Outcome {
        let (peer_cookie, finishes, message) = match &ask.turn {
            Turn::Begin => (0, false, Vec::new()),
            Turn::Answer {
                peer_cookie,
                message,
            } => (*peer_cookie, false, message.clone()),
            Turn::Finish {
                peer_cookie,
                message,
            } => (*peer_cookie, true, message.clone()),
        };
        let request = AssociationRequest {
            local_qpn,
            own_gid: gid_of(ask.peer.own),
            cookie: ask.cookie,
            remote_qpn: ask.peer.qpn,
            remote_gid: gid_of(ask.peer.address),
            peer_cookie,
            finishes,
            message,
        };
        let mut reply = self.control.associate(&request);
        if let Err(error) = &reply
            && error.errno() == libc::EADDRNOTAVAIL
        {
            // The network has given it the address a moment ago, and the broker has not been told.
            let told = self.control.report_addresses(&own_addresses());
            reply = told.and_then(|()| self.control.associate(&request));
        }
        match reply {
            Ok(reply) => outcome_of(ask, reply),
            Err(error) => {
                if error.errno() == libc::ENOSYS {
                    TOO_OLD.call_once(|| say(TOO_OLD_TEXT));
                }
                Outcome::Failed
            }
        }
    }
}

/// What a reply of the broker's says to what was asked.
fn outcome_of(ask: &Ask, reply: HandshakeReply) -> Outcome {
    if ask.turn == Turn::Begin {
        return Outcome::Begun(reply.message);
    }
    match keys_of(&reply) {
        Ok(keys) => Outcome::Agreed(reply.message, keys),
        Err(why) => Outcome::Refused(why),
    }
}
