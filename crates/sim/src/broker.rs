//! The two brokers of a secured connection, made up: their messages are no secrets, but different
//! each time, and damage shows.

use causeway_aead::{SECRET_LEN, Secret};
use causeway_proto::Instant;
use causeway_proto::trp::{Cipher, Connection, Keys, Turn};
use causeway_wire::secure::Why;

/// Length of a message: kind, cookie, number, sum.
const LEN: usize = 1 + 8 + 8 + 8;

/// A broker of one connection.
#[derive(Debug, Default)]
pub struct Broker {
    begun: Option<Vec<u8>>,
    made: u64,
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn message(kind: u8, cookie: u64, number: u64) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend(cookie.to_be_bytes());
    out.extend(number.to_be_bytes());
    out.extend(sum(&out).to_be_bytes());
    out
}

fn is_sound(message: &[u8], kind: u8, cookie: u64) -> bool {
    message.len() == LEN
        && message[0] == kind
        && message[1..9] == cookie.to_be_bytes()
        && message[17..] == sum(&message[..17]).to_be_bytes()
}

/// What both sides make of the two messages; `first` is the side that began.
fn keys(begun: &[u8], answer: &[u8], first: bool) -> Keys {
    let secret = |which: u8| {
        let mut secret = [0; SECRET_LEN];
        for (at, chunk) in secret.chunks_mut(8).enumerate() {
            let bytes = [begun, answer, &[which, at as u8]].concat();
            chunk.copy_from_slice(&sum(&bytes).to_be_bytes());
        }
        Secret(secret)
    };
    let (mut send, mut receive) = (secret(1), secret(2));
    if !first {
        core::mem::swap(&mut send, &mut receive);
    }
    Keys {
        cipher: Cipher::preferred(),
        send,
        receive,
    }
}

/// Keys that consist of one byte each.
#[must_use]
pub fn fixed_keys(send: u8, receive: u8) -> Keys {
    Keys {
        cipher: Cipher::preferred(),
        send: Secret([send; SECRET_LEN]),
        receive: Secret([receive; SECRET_LEN]),
    }
}

impl Broker {
    /// Does what a connection asks for.
    pub fn serve(&mut self, link: &mut Connection, now: Instant) {
        let own = link.cookie();
        while let Some(ask) = link.take_ask() {
            self.made += 1;
            match &ask {
                Turn::Begin => {
                    let begun = message(1, own, self.made);
                    self.begun = Some(begun.clone());
                    link.begun(begun);
                }
                Turn::Answer {
                    peer_cookie,
                    message: begun,
                } => {
                    if !is_sound(begun, 1, *peer_cookie) {
                        link.ask_failed(&ask, Some(Why::Key));
                        continue;
                    }
                    let answer = message(2, own, self.made);
                    let keys = keys(begun, &answer, false);
                    link.answered(now, *peer_cookie, (begun.clone(), answer), keys);
                }
                Turn::Finish {
                    peer_cookie,
                    message: answer,
                } => {
                    let begun = self.begun.as_ref();
                    match begun.filter(|_| is_sound(answer, 2, *peer_cookie)) {
                        Some(begun) => link.finished(*peer_cookie, keys(begun, answer, true)),
                        None => link.ask_failed(&ask, Some(Why::Key)),
                    }
                }
            }
        }
    }
}
