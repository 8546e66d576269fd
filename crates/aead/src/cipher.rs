//! The ciphers, and the keys of one phase.

use ring::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};

use crate::{SECRET_LEN, Secret, TAG_LEN, nonce};

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;
/// What each derivation is for.
const KEY: &[u8] = b"causeway wire 1 key";
const IV: &[u8] = b"causeway wire 1 iv";
const NEXT: &[u8] = b"causeway wire 1 next phase";

/// How datagrams are encrypted and authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cipher {
    /// AES-128-GCM: fast where the processor has instructions for it.
    Aes128Gcm = 1,
    /// ChaCha20-Poly1305: fast everywhere.
    ChaCha20Poly1305 = 2,
}

impl Cipher {
    /// All of them.
    pub const ALL: [Cipher; 2] = [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305];

    /// The cipher with a number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Cipher> {
        Cipher::ALL.into_iter().find(|c| *c as u8 == number)
    }

    /// Its bit in a set of ciphers.
    #[must_use]
    pub fn bit(self) -> u8 {
        1 << (self as u8 - 1)
    }

    /// The set of all.
    #[must_use]
    pub fn all_bits() -> u8 {
        Cipher::ALL.into_iter().fold(0, |set, c| set | c.bit())
    }

    /// What this processor is fastest at.
    #[must_use]
    pub fn preferred() -> Cipher {
        if has_aes() {
            Cipher::Aes128Gcm
        } else {
            Cipher::ChaCha20Poly1305
        }
    }

    /// The one to use of a set that the peer offers: what `preferred` says, else any.
    #[must_use]
    pub fn choose(offered: u8, preferred: Cipher) -> Option<Cipher> {
        [preferred]
            .into_iter()
            .chain(Cipher::ALL)
            .find(|c| offered & c.bit() != 0)
    }

    fn algorithm(self) -> &'static ring::aead::Algorithm {
        match self {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_aes() -> bool {
    false
}

/// Length of what is derived.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Secret {
    pub(crate) fn expand<const N: usize>(&self, label: &[u8], len: usize) -> [u8; N] {
        let mut out = [0; N];
        let prk = Prk::new_less_safe(HKDF_SHA256, &self.0);
        let label = [label];
        // Fails for lengths above 255 hashes only.
        let made = prk.expand(&label, Length(len));
        let made = made.and_then(|okm| okm.fill(&mut out[..len]));
        assert!(made.is_ok(), "HKDF for {len} bytes");
        out
    }

    /// The secret of the phase after this one's.
    pub(crate) fn next(&self) -> Secret {
        Secret(self.expand(NEXT, SECRET_LEN))
    }
}

/// Key and initialization vector of a phase.
pub(crate) struct PhaseKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
}

impl core::fmt::Debug for PhaseKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PhaseKey")
    }
}

impl PhaseKey {
    pub fn new(cipher: Cipher, secret: &Secret) -> Self {
        let algorithm = cipher.algorithm();
        let key: [u8; SECRET_LEN] = secret.expand(KEY, algorithm.key_len());
        let key = UnboundKey::new(algorithm, &key[..algorithm.key_len()]);
        let Ok(key) = key else {
            unreachable!("a key of the algorithm's length")
        };
        PhaseKey {
            key: LessSafeKey::new(key),
            iv: secret.expand(IV, NONCE_LEN),
        }
    }

    fn nonce(&self, number: u64) -> Nonce {
        Nonce::assume_unique_for_key(nonce(self.iv, number))
    }

    pub fn seal(&self, number: u64, head: &[u8], text: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        let nonce = self.nonce(number);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(head), text);
        tag.ok()?.as_ref().try_into().ok()
    }

    pub fn open<'a>(&self, number: u64, head: &[u8], text: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let nonce = self.nonce(number);
        self.key.open_in_place(nonce, Aad::from(head), text).ok()
    }
}
