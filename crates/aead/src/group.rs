//! Secrets of multicast groups.
//!
//! A broker derives one for a group and some minutes; from that each sender derives a secret of its
//! own by a random number, so that no two ever seal by the same key.

use crate::{Cipher, SECRET_LEN, Secret};

/// What the derivation is for.
const SENDER: &[u8; 28] = b"causeway wire 1 group sender";
/// Bytes of an address, and of a random number.
const NAME_LEN: usize = 16;
/// Bytes of what a sender's secret is derived by.
const INFO_LEN: usize = SENDER.len() + 1 + NAME_LEN + 4 + NAME_LEN;

/// The secret of a group, which all of its members can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSecret(Secret);

/// What a sender's secret is derived by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderName {
    /// The cipher that it seals by: no key serves two.
    pub cipher: Cipher,
    /// Its address, as a GID.
    pub address: [u8; NAME_LEN],
    /// Its queue pair.
    pub qpn: u32,
    /// Its random number.
    pub salt: [u8; NAME_LEN],
}

impl GroupSecret {
    /// The secret that a broker has derived.
    #[must_use]
    pub fn new(bytes: [u8; SECRET_LEN]) -> Self {
        GroupSecret(Secret(bytes))
    }

    /// A sender's secret.
    #[must_use]
    pub fn of_sender(&self, name: &SenderName) -> Secret {
        let mut info = [0; INFO_LEN];
        let parts: [&[u8]; 5] = [
            SENDER,
            &[name.cipher as u8],
            &name.address,
            &name.qpn.to_be_bytes(),
            &name.salt,
        ];
        let bytes = parts.into_iter().flatten();
        for (place, byte) in info.iter_mut().zip(bytes) {
            *place = *byte;
        }
        Secret(self.0.expand(&info, SECRET_LEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_senders_secret_depends_on_all_that_names_it() {
        let group = GroupSecret::new([7; SECRET_LEN]);
        let name = SenderName {
            cipher: Cipher::Aes128Gcm,
            address: [1; NAME_LEN],
            qpn: 0x1001,
            salt: [2; NAME_LEN],
        };
        let secret = group.of_sender(&name);
        assert_eq!(secret, group.of_sender(&name));
        let changes: [fn(&mut SenderName); 5] = [
            |it| it.cipher = Cipher::ChaCha20Poly1305,
            |it| it.address[15] ^= 1,
            |it| it.qpn ^= 1,
            |it| it.salt[0] ^= 1,
            |it| it.salt[15] ^= 1,
        ];
        for change in changes {
            let mut other = name;
            change(&mut other);
            assert_ne!(secret, group.of_sender(&other), "{other:?}");
        }
        let other = GroupSecret::new([8; SECRET_LEN]);
        assert_ne!(secret, other.of_sender(&name));
    }
}
