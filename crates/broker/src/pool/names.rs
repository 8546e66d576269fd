//! Names that prove themselves: a public number is the hash of a secret of 128 random bits.
//!
//! A broker that has just started knows nothing. Who shows it the secret of a session's name or of
//! a block's handle owns it: no other process can have found it from the number, which it may know.

use causeway_fabric::services::pool::Secret;
use sha2::{Digest, Sha256};

/// A new secret.
///
/// # Panics
/// If the kernel has no random numbers, which it always has once it has booted.
pub fn new_secret() -> Secret {
    let mut secret = Secret::default();
    getrandom::fill(&mut secret).expect("the kernel's random numbers");
    secret
}

/// The public number of a secret: the first 64 bits of its SHA-256.
pub fn public(secret: &Secret) -> u64 {
    let hash = Sha256::digest(secret);
    hash.iter().take(8).rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_its_secrets_and_no_others() {
        let (a, b) = (new_secret(), new_secret());
        assert_ne!(a, b);
        assert_eq!(public(&a), public(&a));
        assert_ne!(public(&a), public(&b));
        // SHA-256 of sixteen zero bytes begins with 37 47 08 ff f7 71 9d d5.
        assert_eq!(public(&[0; 16]), 0xd59d_71f7_ff08_4737);
    }
}
