//! Sealed datagrams of multicast groups (docs/WIRE.md, *Secured multicast*).
//!
//! Brokers derive secrets from the cluster's keys, for a group and an *epoch* of some minutes
//! ([`Keyring`]). From such a one a sender derives a secret of its own by a random number, and
//! seals by that ([`Senders`]). Its datagrams bear the number, so that each member derives the same
//! ([`Receivers`]): no member is asked for anything, and nothing is remembered of a datagram that
//! was not sealed by a member.
//!
//! Time is in seconds since 1970, as the host's clock has it. A datagram bears it, and is taken
//! within [`CLOCK_TOLERANCE`] of it: who has just joined is told nothing old.

mod keyring;
mod receivers;
mod senders;

use std::net::IpAddr;

use causeway_aead::SenderName;
use causeway_wire::group::KEY_ID_LEN;

pub use causeway_aead::{Cipher, GroupSecret, PHASE_PACKETS, SECRET_LEN};
pub use causeway_wire::group::{CLOCK_TOLERANCE, EPOCH_SECONDS, epoch_of};
pub use keyring::{Keyring, RINGS_MAX};
pub use receivers::{Receivers, SENDERS_MAX, Unopened};
pub use senders::{LEAST_PACKETS, SEALERS_MAX, Senders};

/// Bytes of a sender's random number.
pub const SALT_LEN: usize = causeway_wire::group::GROUP_SALT_LEN;

/// A group in an epoch, whose secrets the broker is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupAsk {
    /// The group.
    pub group: IpAddr,
    /// The epoch ([`epoch_of`]).
    pub epoch: u32,
}

/// What the broker has derived from one of the cluster's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupKey {
    /// The name of the cluster's key.
    pub id: [u8; KEY_ID_LEN],
    /// The secret.
    pub secret: GroupSecret,
}

/// An address as a GID: an IPv4 one is mapped.
fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn name(cipher: Cipher, (address, qpn): (IpAddr, u32), salt: [u8; SALT_LEN]) -> SenderName {
    SenderName {
        cipher,
        address: gid_of(address),
        qpn,
        salt,
    }
}

#[cfg(test)]
mod tests;
