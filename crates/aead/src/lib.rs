//! Sealing and opening datagrams of one connection, by keys that a handshake has made.
//!
//! Both directions have a secret of their own. AEAD key and initialization vector are derived from
//! it (HKDF-SHA256, RFC 5869); the nonce is the vector, exclusive-or the packet number (RFC 9001
//! section 5.3). A packet number is the sealer's to give, so none is ever used twice under a key. A
//! sealer cannot be cloned, and a child of fork(2) cannot seal by its parent's. Keys
//! change long before the cipher's limits: each *phase* has a secret derived from the one before,
//! which is forgotten, and a datagram says which phase it belongs to.

mod cipher;
mod group;
mod mac;
mod process;
mod replay;

pub use cipher::Cipher;
pub use group::{GroupSecret, SenderName};
pub use mac::{MAC_LEN, MacKey};

use cipher::{NONCE_LEN, PhaseKey};
use replay::Replays;

/// Bytes of a secret.
pub const SECRET_LEN: usize = 32;
/// Bytes that a seal adds behind what it protects.
pub const TAG_LEN: usize = 16;
/// Datagrams sealed in one phase: half of what RFC 9001 section 6.6 allows AES-128-GCM (2^23).
pub const PHASE_PACKETS: u64 = 1 << 22;
/// Datagrams that may fail to open before none is opened any more: ChaCha20-Poly1305's limit
/// (RFC 9001 section 6.6), below that of AES-128-GCM.
pub const FORGERIES_MAX: u64 = 1 << 36;
/// How many phases on a datagram may be that is opened: as many keys are derived for it. Whoever
/// loses less than a phase in a row needs one.
const PHASES_AHEAD_MAX: u8 = 64;
/// Datagrams that a connection seals at most: past that it fails rather than repeat a number.
const PACKETS_MAX: u64 = 1 << 62;

/// The secret of one direction.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; SECRET_LEN]);

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret")
    }
}

/// What a sealed datagram says of itself in the clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the datagram in its direction; no two have the same.
    pub number: u64,
    /// Phase of the key, modulo 256.
    pub phase: u8,
}

/// Why a datagram was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another was opened that had its number, or it is too old to tell.
    Replayed,
    /// It was not sealed by the peer, or was changed on the way.
    Forged,
}

/// Seals the datagrams of one direction.
#[derive(Debug)]
pub struct Sealer {
    cipher: Cipher,
    secret: Secret,
    key: PhaseKey,
    phase: u8,
    /// The next packet's number.
    next: u64,
    /// The first number that belongs to the next phase.
    phase_end: u64,
    phase_packets: u64,
    /// Of the process that made it.
    process: Option<u64>,
}

impl Sealer {
    /// Seals by a secret that nothing was sealed by before.
    #[must_use]
    pub fn new(cipher: Cipher, secret: Secret) -> Self {
        Sealer {
            key: PhaseKey::new(cipher, &secret),
            cipher,
            secret,
            phase: 0,
            next: 0,
            phase_end: PHASE_PACKETS,
            phase_packets: PHASE_PACKETS,
            process: process::number(),
        }
    }

    /// Changes keys after so many datagrams instead of [`PHASE_PACKETS`]: for tests, which cannot
    /// wait for that.
    #[must_use]
    pub fn with_phase_packets(mut self, packets: u64) -> Self {
        self.phase_packets = packets.clamp(1, PHASE_PACKETS);
        self.phase_end = self.phase_packets;
        self
    }

    /// Seals a datagram in place: a header of `header` bytes, which `write` fills and which is
    /// authenticated, then what is encrypted, then [`TAG_LEN`] bytes of room. Returns false, with
    /// the datagram of no use, where it is too short, or no number is left, and in a child of the
    /// process that made the sealer.
    #[must_use]
    pub fn seal(
        &mut self,
        datagram: &mut [u8],
        header: usize,
        write: impl FnOnce(&mut [u8], Stamp),
    ) -> bool {
        let Some(end) = datagram.len().checked_sub(TAG_LEN).filter(|e| *e >= header) else {
            return false;
        };
        if self.next >= PACKETS_MAX || !process::is_own(self.process) {
            return false;
        }
        if self.next >= self.phase_end {
            self.change_key();
        }
        let stamp = Stamp {
            number: self.next,
            phase: self.phase,
        };
        // The number is used up, whatever becomes of this datagram.
        self.next += 1;
        let (head, rest) = datagram.split_at_mut(header);
        write(head, stamp);
        let (text, tag) = rest.split_at_mut(end - header);
        match self.key.seal(stamp.number, head, text) {
            Some(made) => tag.copy_from_slice(&made),
            None => {
                // Nothing in the clear leaves by mistake.
                text.fill(0);
                return false;
            }
        }
        true
    }

    fn change_key(&mut self) {
        self.secret = self.secret.next();
        self.key = PhaseKey::new(self.cipher, &self.secret);
        self.phase = self.phase.wrapping_add(1);
        self.phase_end = self.next + self.phase_packets;
    }

    /// Datagrams sealed so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.next
    }
}

/// Opens the datagrams of one direction.
#[derive(Debug)]
pub struct Opener {
    cipher: Cipher,
    /// The secret of the phase after the current one.
    coming_secret: Secret,
    /// Keys of the phase before the current one, of that, and of the one after it.
    former: Option<PhaseKey>,
    current: PhaseKey,
    coming: PhaseKey,
    phase: u8,
    /// The lowest number opened in the current phase: what has a lower one may be of the former.
    replays: Replays,
    forgeries: u64,
}

impl Opener {
    /// Opens what the sealer of the same secret seals.
    #[must_use]
    pub fn new(cipher: Cipher, secret: &Secret) -> Self {
        let coming_secret = secret.next();
        Opener {
            cipher,
            former: None,
            current: PhaseKey::new(cipher, secret),
            coming: PhaseKey::new(cipher, &coming_secret),
            coming_secret,
            phase: 0,
            replays: Replays::default(),
            forgeries: 0,
        }
    }

    /// Opens a datagram in place: `header` bytes that are authenticated, then ciphertext and tag.
    /// Returns what was encrypted.
    ///
    /// # Errors
    /// [`Refusal`]. Nothing has changed then.
    pub fn open<'a>(
        &mut self,
        datagram: &'a mut [u8],
        header: usize,
        stamp: Stamp,
    ) -> Result<&'a mut [u8], Refusal> {
        if datagram.len() < header + TAG_LEN || self.forgeries >= FORGERIES_MAX {
            return Err(Refusal::Forged);
        }
        if !self.replays.is_new(stamp.number) {
            return Err(Refusal::Replayed);
        }
        let (head, text) = datagram.split_at_mut(header);
        let ahead = stamp.phase.wrapping_sub(self.phase);
        let far = (2..=PHASES_AHEAD_MAX)
            .contains(&ahead)
            .then(|| self.key_ahead(ahead));
        let key = match (ahead, &far) {
            (0, _) => Some(&self.current),
            (1, _) => Some(&self.coming),
            (u8::MAX, _) => self.former.as_ref(),
            (_, Some((_, key))) => Some(key),
            _ => None,
        };
        let opened = key.and_then(|key| key.open(stamp.number, head, text));
        let Some(opened) = opened else {
            self.forgeries += 1;
            return Err(Refusal::Forged);
        };
        self.replays.note(stamp.number);
        match far {
            Some((secret, key)) => {
                self.coming_secret = secret.next();
                self.coming = PhaseKey::new(self.cipher, &self.coming_secret);
                (self.current, self.former) = (key, None);
                self.phase = stamp.phase;
            }
            None if ahead == 1 => {
                self.coming_secret = self.coming_secret.next();
                let coming = PhaseKey::new(self.cipher, &self.coming_secret);
                let current = core::mem::replace(&mut self.coming, coming);
                self.former = Some(core::mem::replace(&mut self.current, current));
                self.phase = stamp.phase;
            }
            None => {}
        }
        Ok(opened)
    }

    /// Secret and key of a phase after the coming one, `ahead` after the current: all datagrams of
    /// those between have been lost.
    fn key_ahead(&self, ahead: u8) -> (Secret, PhaseKey) {
        let secret = (1..ahead).fold(self.coming_secret.clone(), |secret, _| secret.next());
        let key = PhaseKey::new(self.cipher, &secret);
        (secret, key)
    }

    /// Datagrams that did not open.
    #[must_use]
    pub fn forgeries(&self) -> u64 {
        self.forgeries
    }
}

/// The nonce of a packet.
fn nonce(iv: [u8; NONCE_LEN], number: u64) -> [u8; NONCE_LEN] {
    let mut nonce = iv;
    for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= number;
    }
    nonce
}

#[cfg(test)]
mod tests;
