//! What the broker is asked for associations, and what comes of that.

use std::net::SocketAddr;

use causeway_wire::secure::{Step, Why};

use super::{ASKS_MAX, Associations, Peer};
use crate::trp::{Keys, Turn};

/// What the caller is to ask of its broker, one at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// With whom the association is to be.
    pub peer: Peer,
    /// Our cookie.
    pub cookie: u64,
    /// What is asked.
    pub turn: Turn,
    /// Where the peer is reached.
    pub(super) to: SocketAddr,
}

/// What the broker has said.
#[derive(Debug)]
pub enum Outcome {
    /// It has begun a handshake with this message.
    Begun(Vec<u8>),
    /// Both sides agree. The message is for the peer, where that has begun.
    Agreed(Vec<u8>, Keys),
    /// It does not believe the peer's message.
    Refused(Why),
    /// It did not do what it was asked for.
    Failed,
}

impl Ask {
    fn message(&self) -> Option<&[u8]> {
        match &self.turn {
            Turn::Begin => None,
            Turn::Answer { message, .. } | Turn::Finish { message, .. } => Some(message),
        }
    }

    /// Whether it is about the handshake that was begun with a peer.
    pub(super) fn is_of_begun(&self, peer: &Peer) -> bool {
        self.peer == *peer && !matches!(self.turn, Turn::Answer { .. })
    }
}

impl Associations {
    /// What is to be asked of the broker. Tell what it says by [`Associations::told`] before the
    /// next.
    pub fn take_ask(&mut self) -> Option<Ask> {
        if self.asking.is_some() {
            return None;
        }
        self.asking = self.asks.pop_front();
        self.asking.clone()
    }

    /// Whether something is to be asked, and nothing is being asked.
    #[must_use]
    pub fn has_ask(&self) -> bool {
        self.asking.is_none() && !self.asks.is_empty()
    }

    /// Whether the broker may be asked about one more of peers' messages.
    #[must_use]
    pub fn may_ask(&self) -> bool {
        self.asks.len() < ASKS_MAX
    }

    pub(super) fn ask(&mut self, peer: Peer, cookie: u64, to: SocketAddr, turn: Turn) {
        self.asks.push_back(Ask {
            peer,
            cookie,
            turn,
            to,
        });
    }

    fn all_asks(&self) -> impl Iterator<Item = &Ask> {
        self.asking.iter().chain(&self.asks)
    }

    /// Whether the broker is about to be asked about a message.
    pub(super) fn is_asked(&self, message: &[u8]) -> bool {
        self.all_asks().any(|ask| ask.message() == Some(message))
    }

    /// Whether the broker is about to be asked to begin a handshake.
    pub(super) fn is_begin_asked(&self, peer: &Peer) -> bool {
        self.all_asks().any(|ask| ask.is_of_begun(peer))
    }

    /// The broker has said this to what it was asked last. What somebody else has asked counts for
    /// nothing.
    pub fn told(&mut self, ask: &Ask, outcome: Outcome) {
        let Some(ask) = self.asking.take_if(|asking| asking == ask) else {
            return;
        };
        let Ask {
            peer, cookie, to, ..
        } = ask;
        match (ask.turn, outcome) {
            (Turn::Begin, Outcome::Begun(message)) => {
                let begun = self.begun_mut(&peer);
                if let Some(begun) = begun.filter(|begun| begun.cookie == cookie) {
                    begun.message = Some(message);
                    self.write_begun(peer);
                }
            }
            (
                Turn::Answer {
                    peer_cookie,
                    message,
                },
                Outcome::Agreed(answer, keys),
            ) => {
                self.write(peer, to, (peer_cookie, cookie), Step::Answer(&answer));
                let answered = Some((message, answer));
                self.table
                    .insert((peer, cookie, peer_cookie), keys, answered);
            }
            (Turn::Answer { peer_cookie, .. }, Outcome::Refused(why)) => {
                self.write(peer, to, (peer_cookie, 0), Step::Refuse(why));
            }
            (Turn::Finish { peer_cookie, .. }, Outcome::Agreed(_, keys)) => {
                let begun = self.begun_mut(&peer);
                if begun.is_some_and(|begun| begun.cookie == cookie) {
                    self.begun.remove(&peer);
                    self.aside.remove(&peer);
                    self.table.insert((peer, cookie, peer_cookie), keys, None);
                    self.news = true;
                }
            }
            (Turn::Finish { .. }, Outcome::Failed) => {
                // Another broker, which has begun nothing: it is asked to when the time comes.
                let begun = self.begun_mut(&peer);
                if let Some(begun) = begun.filter(|begun| begun.cookie == cookie) {
                    begun.message = None;
                }
            }
            // It is tried again when the message would be repeated.
            _ => {}
        }
    }
}
