//! Secured connections to other hosts: what they ask of the broker.

use causeway_fabric::secure::say;
use causeway_fabric::services::secure::{
    AGREED, AnswerRequest, BeginRequest, FinishRequest, HandshakeReply, WireQuery,
};
use causeway_proto::trp::{Cipher, Connection, Keys, Turn};
use causeway_wire::secure::Why;

use crate::clock::{self, Now};
use crate::errno::Errno;
use crate::gid::own_addresses;
use crate::qp_entry::Link;
use crate::shared::Shared;

/// What a reply of the broker's says.
pub(crate) fn keys_of(reply: &HandshakeReply) -> Result<Keys, Why> {
    if reply.verdict != AGREED {
        return Err(Why::from_number(reply.verdict).unwrap_or(Why::Unsupported));
    }
    let cipher = Cipher::from_number(reply.cipher).ok_or(Why::Unsupported)?;
    Ok(Keys {
        cipher,
        send: causeway_aead::Secret(reply.send.0),
        receive: causeway_aead::Secret(reply.receive.0),
    })
}

/// Keys for what a queue pair sends to itself.
///
/// # Errors
/// EIO without random numbers.
pub(crate) fn own_keys() -> Result<Keys, Errno> {
    let mut secret = [0; causeway_aead::SECRET_LEN];
    getrandom::fill(&mut secret).map_err(|_| Errno(libc::EIO))?;
    let secret = causeway_aead::Secret(secret);
    Ok(Keys {
        cipher: Cipher::preferred(),
        send: secret.clone(),
        receive: secret,
    })
}

impl Shared {
    /// Whether the wire to a peer, or to this host, is to be secured.
    ///
    /// # Errors
    /// ENOKEY if it is to be, and the broker has no key; EOPNOTSUPP if the broker is too old.
    pub fn is_wire_secured(&self, remote_gid: Option<[u8; 16]>) -> Result<bool, Errno> {
        self.ask_for_wire(WireQuery {
            remote_gid,
            any_peer: false,
            wanted: self.wants_secured,
        })
    }

    /// Whether the wire to any peer that there may be is to be secured.
    ///
    /// # Errors
    /// As [`Shared::is_wire_secured`].
    pub fn may_wire_be_secured(&self) -> Result<bool, Errno> {
        self.ask_for_wire(WireQuery {
            remote_gid: None,
            any_peer: true,
            wanted: self.wants_secured,
        })
    }

    fn ask_for_wire(&self, query: WireQuery) -> Result<bool, Errno> {
        let answer = self.control.is_wire_secured(&query).map_err(Errno::from);
        match answer {
            Err(Errno(libc::ENOKEY)) => say(
                "no connection: a secured wire is required, and the broker has no key for it \
                 (docs/OPERATIONS.md, \"A secured wire\")",
            ),
            Err(Errno(libc::EOPNOTSUPP)) => {
                say("no connection: a secured wire is required, and the broker is too old for it");
            }
            _ => {}
        }
        answer
    }

    /// Has the broker make or understand a handshake's message for a queue pair.
    pub fn carry_out_handshake(&self, qpn: u32) {
        let Some((ask, cookie, own_gid)) = self.take_ask(qpn) else {
            return;
        };
        causeway_fault::point("handshake.asked");
        let outcome = self.ask_broker(qpn, &ask, (cookie, own_gid));
        let (_, mut state) = self.engines.lock(qpn);
        let Some(mut entry) = state.qp(qpn) else {
            return;
        };
        let Link::Udp(udp) = &mut entry.link else {
            return;
        };
        // Another connection of the same queue pair began meanwhile.
        if udp.conn.cookie() != cookie {
            return;
        }
        apply(&mut udp.conn, ask, outcome);
        drop(entry);
        state.touch(qpn);
        state.flush_pending(&Now::default());
        let (deadline, requests) = (state.timers.next(), !state.broker_requests.is_empty());
        drop(state);
        self.note_deadline(deadline, requests);
    }

    fn take_ask(&self, qpn: u32) -> Option<(Turn, u64, [u8; 16])> {
        let (_, mut state) = self.engines.lock(qpn);
        let mut entry = state.qp(qpn)?;
        let Link::Udp(udp) = &mut entry.link else {
            return None;
        };
        udp.asked = false;
        let ask = udp.conn.take_ask()?;
        Some((ask, udp.conn.cookie(), udp.own_gid()))
    }

    fn ask_broker(&self, local_qpn: u32, ask: &Turn, own: (u64, [u8; 16])) -> Option<Outcome> {
        let outcome = self.try_to_ask(local_qpn, ask, own);
        match outcome {
            // The network has given it the address a moment ago, and the broker has not been told.
            Err(error) if error.errno() == libc::EADDRNOTAVAIL => {
                self.control.report_addresses(&own_addresses()).ok()?;
                self.try_to_ask(local_qpn, ask, own).ok()
            }
            outcome => outcome.ok(),
        }
    }

    fn try_to_ask(
        &self,
        local_qpn: u32,
        ask: &Turn,
        (cookie, own_gid): (u64, [u8; 16]),
    ) -> causeway_fabric::Result<Outcome> {
        let control = &self.control;
        Ok(match ask {
            Turn::Begin => {
                let request = BeginRequest {
                    local_qpn,
                    own_gid,
                    cookie,
                };
                Outcome::Begun(control.begin_handshake(&request)?)
            }
            Turn::Answer {
                peer_cookie,
                message,
            } => {
                let request = AnswerRequest {
                    local_qpn,
                    own_gid,
                    cookie,
                    peer_cookie: *peer_cookie,
                    message: message.clone(),
                };
                Outcome::Reply(control.answer_handshake(&request)?)
            }
            Turn::Finish {
                peer_cookie,
                message,
            } => {
                let request = FinishRequest {
                    local_qpn,
                    peer_cookie: *peer_cookie,
                    message: message.clone(),
                };
                Outcome::Reply(control.finish_handshake(&request)?)
            }
        })
    }
}

/// What the broker has said.
enum Outcome {
    Begun(Vec<u8>),
    Reply(HandshakeReply),
}

fn apply(conn: &mut Connection, ask: Turn, outcome: Option<Outcome>) {
    let reply = match outcome {
        // It is tried again when the request would be repeated.
        None => return conn.ask_failed(&ask, None),
        Some(Outcome::Begun(message)) => return conn.begun(message),
        Some(Outcome::Reply(reply)) => reply,
    };
    match (keys_of(&reply), ask) {
        (
            Ok(keys),
            Turn::Answer {
                peer_cookie,
                message,
            },
        ) => conn.answered(clock::now(), peer_cookie, (message, reply.message), keys),
        (Ok(keys), Turn::Finish { peer_cookie, .. }) => conn.finished(peer_cookie, keys),
        (Ok(_), ask @ Turn::Begin) => conn.ask_failed(&ask, None),
        (Err(why), ask) => conn.ask_failed(&ask, Some(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_agreed_reply_has_keys() {
        let reply = HandshakeReply {
            verdict: AGREED,
            cipher: Cipher::Aes128Gcm as u8,
            ..HandshakeReply::default()
        };
        assert!(keys_of(&reply).is_ok());
        let unknown = HandshakeReply {
            cipher: 77,
            ..reply.clone()
        };
        assert!(keys_of(&unknown).is_err());
        for why in Why::ALL {
            let refused = HandshakeReply {
                verdict: why as u8,
                ..reply.clone()
            };
            assert_eq!(keys_of(&refused).unwrap_err(), why);
        }
    }
}
