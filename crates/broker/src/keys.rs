//! Keys of tenants, and proofs of them.
//!
//! A key stays here: no program gets it, and no message has it. What is asked of it is a proof, an
//! HMAC-SHA256 (RFC 2104, FIPS 180-4) of what both ends of one connection have said.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use causeway_fabric::remoting::encode_body;
use causeway_fabric::services::handshake::{PROOF_BYTES, Transcript};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Digits of a key in its file.
const DIGITS: usize = 2 * PROOF_BYTES;
/// Most bytes of a key file: the digits and the end of the line.
const FILE_MAX: usize = DIGITS + 2;
/// Bytes of a block of SHA-256.
const BLOCK_BYTES: usize = 64;
/// What a proof begins with, so that nothing else by the same key can be taken for one.
const DOMAIN: &[u8] = b"causeway node proof 1\0";
/// Permissions of group and others.
const OTHERS: u32 = 0o077;

/// A key of 256 bits.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; PROOF_BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Reads a key from its file: 64 hexadecimal digits. The file must be a regular one of the
    /// broker's user or root, which group and others can neither read nor write.
    ///
    /// # Errors
    /// Text for the user.
    pub fn load(path: &Path) -> Result<Key, String> {
        let named = |why: &str| format!("key file {}: {why}", path.display());
        if !path.is_absolute() {
            return Err(named("the path is not absolute"));
        }
        // A FIFO would have it wait for ever; a symbolic link is somebody's who may write there.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = File::options().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => named("it is a symbolic link"),
            _ => named(&error.to_string()),
        })?;
        let meta = file.metadata().map_err(|error| named(&error.to_string()))?;
        if !meta.is_file() {
            return Err(named("it is no regular file"));
        }
        let own = rustix::process::geteuid().as_raw();
        if meta.uid() != own && meta.uid() != 0 {
            return Err(named(
                "it belongs to another user than the broker's and root",
            ));
        }
        if meta.mode() & OTHERS != 0 {
            let mode = meta.mode() & 0o777;
            return Err(named(&format!("its mode is {mode:03o}; chmod 600 it")));
        }
        let mut text = Vec::with_capacity(FILE_MAX + 1);
        let read = file.take(FILE_MAX as u64 + 1).read_to_end(&mut text);
        read.map_err(|error| named(&error.to_string()))?;
        Key::parse(&text).ok_or_else(|| {
            named("it is not 64 hexadecimal digits, as `openssl rand -hex 32` makes them")
        })
    }

    fn parse(text: &[u8]) -> Option<Key> {
        let text = text.trim_ascii_end();
        if text.len() != DIGITS {
            return None;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let mut key = [0; PROOF_BYTES];
        for (byte, pair) in key.iter_mut().zip(text.chunks_exact(2)) {
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Some(Key(key))
    }

    fn mac(&self, transcript: &Transcript) -> Hmac<Sha256> {
        let mut mac = hmac_by(&self.0);
        mac.update(DOMAIN);
        mac.update(&encode_body(transcript));
        mac
    }

    /// The proof of what a transcript says.
    pub fn prove(&self, transcript: &Transcript) -> [u8; PROOF_BYTES] {
        self.mac(transcript).finalize().into_bytes().into()
    }

    /// Whether a proof is right, in a time that does not depend on it.
    pub fn is_proof(&self, transcript: &Transcript, proof: &[u8; PROOF_BYTES]) -> bool {
        self.mac(transcript).verify_slice(proof).is_ok()
    }
}

fn hmac_by(key: &[u8; PROOF_BYTES]) -> Hmac<Sha256> {
    // What is shorter than a block of the hash is filled up with zeros (RFC 2104, section 2).
    let mut block = [0; BLOCK_BYTES];
    block[..PROOF_BYTES].copy_from_slice(key);
    Hmac::<Sha256>::new(&block.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway_fabric::services::handshake::Role;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("cw-key-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir(&dir).unwrap();
            Dir(dir)
        }

        fn file(&self, text: &str, mode: u32) -> PathBuf {
            let path = self.0.join("key");
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn key_files_are_read_if_nobody_else_can() {
        let dir = Dir::new("read");
        let digits = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";
        let key = Key::load(&dir.file(&format!("{digits}\n"), 0o600)).unwrap();
        assert_eq!((key.0[1], key.0[31]), (0x11, 0xff));
        assert_eq!(format!("{key:?}"), "Key", "no log has it");
        assert_eq!(Key::load(&dir.file(digits, 0o400)).unwrap(), key);
        for mode in [0o640, 0o604, 0o620, 0o666] {
            let why = Key::load(&dir.file(digits, mode)).unwrap_err();
            assert!(why.contains(&format!("mode is {mode:o}")), "{why}");
        }
        for text in [
            "",
            "12",
            &digits[1..],
            &format!("{digits}0"),
            &"g".repeat(64),
        ] {
            let why = Key::load(&dir.file(text, 0o600)).unwrap_err();
            assert!(why.contains("64 hexadecimal digits"), "{text}: {why}");
        }
        let link = dir.0.join("link");
        symlink(dir.file(digits, 0o600), &link).unwrap();
        assert!(Key::load(&link).unwrap_err().contains("symbolic link"));
        assert!(Key::load(&dir.0).unwrap_err().contains("regular"));
        assert!(
            Key::load(Path::new("/no/such"))
                .unwrap_err()
                .contains("/no/such")
        );
        assert!(
            Key::load(Path::new("key"))
                .unwrap_err()
                .contains("absolute")
        );
    }

    /// RFC 4231, test case 2 has a key of 4 bytes, which is the same as one padded by zeros.
    #[test]
    fn proofs_are_hmac_sha256() {
        let mut key = [0; PROOF_BYTES];
        key[..4].copy_from_slice(b"Jefe");
        let mut mac = hmac_by(&key);
        mac.update(b"what do ya want for nothing?");
        let made: [u8; 32] = mac.finalize().into_bytes().into();
        assert_eq!(made[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        assert_eq!(made[28..], [0x64, 0xec, 0x38, 0x43]);
    }

    #[test]
    fn a_proof_is_of_one_key_one_direction_and_one_connection() {
        let (key, other) = (Key([1; 32]), Key([2; 32]));
        let mut transcript = Transcript::default();
        let proof = key.prove(&transcript);
        assert!(key.is_proof(&transcript, &proof));
        assert!(!other.is_proof(&transcript, &proof));
        let changes: [fn(&mut Transcript); 6] = [
            |it| it.prover = Role::Daemon,
            |it| it.process.nonce[31] = 1,
            |it| it.daemon.nonce[0] = 1,
            |it| it.process_at.port = 1,
            |it| it.daemon_at.address[15] = 1,
            |it| it.process.nodes = vec![4],
        ];
        for change in changes {
            let mut changed = transcript.clone();
            change(&mut changed);
            assert!(!key.is_proof(&changed, &proof), "{changed:?}");
        }
        transcript.process.tenant = "web".into();
        assert!(!key.is_proof(&transcript, &proof));
    }
}
