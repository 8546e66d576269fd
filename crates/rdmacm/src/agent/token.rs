//! Tokens that show that somebody receives at the address it sends from (RFC 9000 section 8.1.2).

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use causeway_proto::{Duration, Instant};

/// How long a token is good at least; at most twice as long.
const LIFETIME: Duration = Duration::from_secs(10);
/// How long it is good at most.
pub(super) const TOKEN_GOOD_MAX: Duration = Duration::from_secs(20);

/// Makes tokens and knows them again, without keeping any.
pub(super) struct Tokens {
    /// A keyed hash function whose key is random (SipHash).
    secret: RandomState,
}

impl Tokens {
    pub fn new() -> Tokens {
        Tokens {
            secret: RandomState::new(),
        }
    }

    /// The token for the request that is called `name`, from this address, at this listener; not 0.
    pub fn make(&self, from: SocketAddr, name: u64, listener: u64, now: Instant) -> u64 {
        self.of(from, name, listener, period(now))
    }

    /// Whether a token is such a one, and not too old.
    pub fn knows(
        &self,
        token: u64,
        (from, name, listener): (SocketAddr, u64, u64),
        now: Instant,
    ) -> bool {
        let newest = period(now);
        [newest, newest.wrapping_sub(1)]
            .into_iter()
            .any(|period| token == self.of(from, name, listener, period))
    }

    fn of(&self, from: SocketAddr, name: u64, listener: u64, period: u64) -> u64 {
        self.secret.hash_one((from, name, listener, period)).max(1)
    }
}

fn period(now: Instant) -> u64 {
    now.0 / u64::try_from(LIFETIME.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_what_it_was_made_for() {
        let tokens = Tokens::new();
        let from = SocketAddr::from(([10, 0, 0, 1], 7));
        let other = SocketAddr::from(([10, 0, 0, 2], 7));
        let now = Instant(0) + LIFETIME * 5;
        let token = tokens.make(from, 1, 2, now);
        assert!(tokens.knows(token, (from, 1, 2), now));
        assert!(tokens.knows(token, (from, 1, 2), now + LIFETIME));
        assert!(!tokens.knows(token, (from, 1, 2), now + LIFETIME * 2));
        assert!(!tokens.knows(token, (other, 1, 2), now));
        assert!(!tokens.knows(token, (from, 2, 2), now));
        assert!(!tokens.knows(token, (from, 1, 3), now));
        assert!(!tokens.knows(token ^ 1, (from, 1, 2), now));
        assert!(!Tokens::new().knows(token, (from, 1, 2), now));
        assert!(!tokens.knows(0, (from, 1, 2), now));
    }
}
