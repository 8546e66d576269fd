//! Sealing what a queue pair sends to groups.

use std::collections::HashMap;
use std::net::IpAddr;

use causeway_aead::{Sealer, Stamp};
use causeway_wire::group::{GROUP_HEADER_LEN, GroupHeader, KEY_ID_LEN};

use super::{Cipher, GroupAsk, GroupKey, Keyring, PHASE_PACKETS, SALT_LEN, epoch_of, name};

/// Groups that a queue pair has keys for at a time. That used least lately goes for another; it
/// gets others when it is used again.
pub const SEALERS_MAX: usize = 512;
/// Datagrams that one key seals at least, whatever is asked for: receivers remember some thousand
/// keys.
pub const LEAST_PACKETS: u64 = 1024;

/// What seals for one group.
#[derive(Debug)]
struct ToGroup {
    sealer: Sealer,
    cipher: Cipher,
    epoch: u32,
    key: [u8; KEY_ID_LEN],
    salt: [u8; SALT_LEN],
    used: u64,
}

/// What seals the datagrams of a queue pair to groups.
#[derive(Debug)]
pub struct Senders {
    qpn: u32,
    packets: u64,
    keyring: Keyring,
    /// By own address and group.
    sealers: HashMap<(IpAddr, IpAddr), ToGroup>,
    uses: u64,
}

impl Senders {
    /// Of a queue pair that takes another key after so many datagrams.
    #[must_use]
    pub fn new(qpn: u32, packets: u64) -> Self {
        Senders {
            qpn,
            packets: packets.clamp(LEAST_PACKETS, PHASE_PACKETS),
            keyring: Keyring::default(),
            sealers: HashMap::new(),
            uses: 0,
        }
    }

    /// The secrets that it has, and has the broker asked for.
    pub fn keyring(&mut self) -> &mut Keyring {
        &mut self.keyring
    }

    /// Whether there is a secret to seal by for a group now.
    #[must_use]
    pub fn is_ready(&self, group: IpAddr, time: u32) -> bool {
        let epoch = epoch_of(time);
        self.keyring.is_ready(&GroupAsk { group, epoch })
    }

    /// Seals a datagram in place: [`GROUP_HEADER_LEN`] bytes of room, what is to be encrypted, and
    /// room for a tag. `fresh` makes random numbers that were never used before. Returns false,
    /// with the datagram of no use, where there is no secret for now, or no random number.
    #[must_use]
    pub fn seal(
        &mut self,
        (own, group): (IpAddr, IpAddr),
        datagram: &mut [u8],
        time: u32,
        fresh: impl FnOnce() -> Option<[u8; SALT_LEN]>,
    ) -> bool {
        let (epoch, packets) = (epoch_of(time), self.packets);
        let way = (own, group);
        // A key of an epoch that has passed seals nothing, however long nobody has used it.
        let serves = |to: &ToGroup| to.epoch == epoch && to.sealer.count() < packets;
        if !self.sealers.get(&way).is_some_and(serves) && !self.take_key(way, epoch, fresh) {
            return false;
        }
        self.uses += 1;
        let Some(to) = self.sealers.get_mut(&way) else {
            return false;
        };
        to.used = self.uses;
        let header = GroupHeader {
            cipher: to.cipher as u8,
            src_qpn: self.qpn,
            time,
            number: 0,
            key: to.key,
            salt: to.salt,
        };
        let write = |head: &mut [u8], stamp: Stamp| emit(&header, head, stamp);
        to.sealer.seal(datagram, GROUP_HEADER_LEN, write)
    }

    /// Takes a key that nothing was sealed by. Returns false where there is none.
    fn take_key(
        &mut self,
        way: (IpAddr, IpAddr),
        epoch: u32,
        fresh: impl FnOnce() -> Option<[u8; SALT_LEN]>,
    ) -> bool {
        let (own, group) = way;
        self.sealers.remove(&way);
        let Some(GroupKey { id, secret }) = self.keyring.first(&GroupAsk { group, epoch }) else {
            return false;
        };
        let Some(salt) = fresh() else {
            return false;
        };
        let cipher = Cipher::preferred();
        let secret = secret.of_sender(&name(cipher, (own, self.qpn), salt));
        let to = ToGroup {
            sealer: Sealer::new(cipher, secret),
            cipher,
            epoch,
            key: *id,
            salt,
            used: self.uses,
        };
        if self.sealers.len() >= SEALERS_MAX {
            let used = |(way, to): (&(IpAddr, IpAddr), &ToGroup)| (to.used, *way);
            if let Some((_, least)) = self.sealers.iter().map(used).min() {
                self.sealers.remove(&least);
            }
        }
        self.sealers.insert(way, to);
        true
    }

    /// How many groups it has keys for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.sealers.len()
    }
}

/// Writes a header, with the number that the sealer gives.
fn emit(header: &GroupHeader, head: &mut [u8], stamp: Stamp) {
    let header = GroupHeader {
        number: stamp.number,
        ..*header
    };
    if let Some(head) = head.first_chunk_mut() {
        header.emit(head);
    }
}
