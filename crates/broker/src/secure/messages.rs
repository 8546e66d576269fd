//! Sealed messages of the connection manager.
//!
//! They come before there is a connection, and are few: each is sealed by a secret of its own,
//! which is derived from the cluster's key and a random number of 256 bits that the datagram
//! bears. So no state is kept, and no nonce is used twice. They have no forward secrecy.

use causeway_aead::{Cipher, Opener, Sealer, Secret, Stamp, TAG_LEN};
use causeway_wire::cm::MESSAGE_MAX;
use causeway_wire::secure::{
    MESSAGE_HEADER_LEN, SALT_LEN, message_header, message_salt, names_agree,
};
use rustix::io::Errno;

use crate::config::Tenant;
use crate::keys::Psk;

/// What a secret seals.
const ONLY: Stamp = Stamp {
    number: 0,
    phase: 0,
};

fn secret(psk: &Psk, tenant: &Tenant, salt: &[u8; SALT_LEN]) -> Secret {
    Secret(psk.message_secret(&tenant.name, salt))
}

/// Seals a message. Returns the datagram.
///
/// # Errors
/// `ENOKEY` without a key, `EINVAL` if it is no message.
pub fn seal(tenant: &Tenant, message: &[u8]) -> Result<Vec<u8>, Errno> {
    let psk = tenant.wire.keys.first().ok_or(Errno::NOKEY)?;
    if message.len() > MESSAGE_MAX {
        return Err(Errno::INVAL);
    }
    let mut salt = [0; SALT_LEN];
    getrandom::fill(&mut salt).map_err(|_| Errno::IO)?;
    let header = message_header(message, &salt).ok_or(Errno::INVAL)?;
    let mut datagram = [&header[..], message, &[0; TAG_LEN]].concat();
    let mut sealer = Sealer::new(Cipher::ChaCha20Poly1305, secret(psk, tenant, &salt));
    let sealed = sealer.seal(&mut datagram, MESSAGE_HEADER_LEN, |_, _| {});
    sealed.then_some(datagram).ok_or(Errno::IO)
}

/// Opens a datagram. Returns the message.
///
/// # Errors
/// `EBADMSG` if no key of ours has made it.
pub fn open(tenant: &Tenant, datagram: &[u8]) -> Result<Vec<u8>, Errno> {
    let salt = message_salt(datagram).map_err(|_| Errno::BADMSG)?;
    let opened = tenant.wire.keys.iter().find_map(|psk| {
        let secret = secret(psk, tenant, &salt);
        let mut copy = datagram.to_vec();
        let mut opener = Opener::new(Cipher::ChaCha20Poly1305, &secret);
        let text = opener.open(&mut copy, MESSAGE_HEADER_LEN, ONLY).ok()?;
        Some(text.to_vec())
    });
    let opened = opened.filter(|message| names_agree(datagram, message));
    opened.ok_or(Errno::BADMSG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::keys::WireKeys;

    fn tenant(keys: &[u8]) -> Tenant {
        let mut tenant = Config::without_file().tenants.remove(0);
        tenant.wire.keys = WireKeys::of(keys);
        tenant
    }

    #[test]
    fn a_message_is_opened_by_any_key_of_the_file_and_the_same_tenant() {
        let message: Vec<u8> = (0..200).collect();
        let datagram = seal(&tenant(&[1, 2]), &message).unwrap();
        assert!(!datagram.windows(8).any(|w| w == &message[24..32]));
        assert_eq!(open(&tenant(&[3, 1]), &datagram).unwrap(), message);
        assert_eq!(open(&tenant(&[2, 3]), &datagram), Err(Errno::BADMSG));
        let other = Tenant {
            name: "web".into(),
            ..tenant(&[1])
        };
        assert_eq!(open(&other, &datagram), Err(Errno::BADMSG));
        assert_ne!(seal(&tenant(&[1, 2]), &message).unwrap(), datagram);
        assert_eq!(seal(&tenant(&[]), &message), Err(Errno::NOKEY));
        assert_eq!(seal(&tenant(&[1]), &[0; 23]), Err(Errno::INVAL));
        assert_eq!(seal(&tenant(&[1]), &[0; 261]), Err(Errno::INVAL));
    }

    #[test]
    fn changed_messages_are_none() {
        let tenant = tenant(&[1]);
        let datagram = seal(&tenant, &[9; 64]).unwrap();
        for bit in 0..datagram.len() * 8 {
            let mut changed = datagram.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&tenant, &changed), Err(Errno::BADMSG), "{bit}");
        }
        for len in 0..datagram.len() {
            assert_eq!(open(&tenant, &datagram[..len]), Err(Errno::BADMSG));
        }
    }
}
