//! Authentication codes, for what is handed out and is to be known again.

use ring::hmac::{HMAC_SHA256, Key, sign, verify};

use crate::SECRET_LEN;

/// Bytes of a code.
pub const MAC_LEN: usize = 32;

/// A key of HMAC-SHA256 (RFC 2104).
pub struct MacKey(Key);

impl core::fmt::Debug for MacKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("MacKey")
    }
}

impl MacKey {
    /// The key that consists of random bytes.
    #[must_use]
    pub fn new(bytes: &[u8; SECRET_LEN]) -> Self {
        MacKey(Key::new(HMAC_SHA256, bytes))
    }

    /// The code of a text.
    #[must_use]
    pub fn code(&self, text: &[u8]) -> [u8; MAC_LEN] {
        let mut code = [0; MAC_LEN];
        code.copy_from_slice(sign(&self.0, text).as_ref());
        code
    }

    /// Whether a code is that of a text, in a time that does not depend on it.
    #[must_use]
    pub fn is_code(&self, text: &[u8], code: &[u8; MAC_LEN]) -> bool {
        verify(&self.0, text, code).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_of_one_key_and_one_text() {
        let (key, other) = (MacKey::new(&[1; 32]), MacKey::new(&[2; 32]));
        let code = key.code(b"text");
        assert!(key.is_code(b"text", &code));
        assert!(!key.is_code(b"Text", &code) && !other.is_code(b"text", &code));
        for bit in 0..MAC_LEN * 8 {
            let mut changed = code;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.is_code(b"text", &changed));
        }
    }
}
