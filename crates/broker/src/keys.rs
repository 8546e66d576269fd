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
use causeway_fabric::services::secure::KEY_NAME_BYTES;
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
/// The same for what is derived for secured wires.
const WIRE_DOMAIN: &[u8] = b"causeway wire key 1\0";
/// The same for the secret of a message.
const MESSAGE_DOMAIN: &[u8] = b"causeway wire message 1\0";
/// The same for the secrets of a multicast group, and for the name of a key.
const GROUP_DOMAIN: &[u8] = b"causeway wire group 1\0";
const NAME_DOMAIN: &[u8] = b"causeway wire key name 1\0";
/// Most keys of a file: the one in use, and those that come and go.
const WIRE_KEYS_MAX: usize = 8;
/// Most bytes of such a file.
const WIRE_FILE_MAX: usize = 8192;
/// Permissions of group and others.
const OTHERS: u32 = 0o077;

/// A key of 256 bits.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; PROOF_BYTES]);

/// What is wrong with a key file.
fn named(path: &Path, why: &str) -> String {
    format!("key file {}: {why}", path.display())
}

/// Reads a file that nobody but the broker's user and root can read.
fn read_secret(path: &Path, most: usize) -> Result<Vec<u8>, String> {
    let named = |why: &str| named(path, why);
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
        return Err(named("it is not a regular file"));
    }
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own && meta.uid() != 0 {
        return Err(named("it must belong to root or to the broker's user"));
    }
    if meta.mode() & OTHERS != 0 {
        let mode = meta.mode() & 0o777;
        return Err(named(&format!("its mode is {mode:03o}; chmod 600 it")));
    }
    let mut text = Vec::with_capacity(most + 1);
    let read = file.take(most as u64 + 1).read_to_end(&mut text);
    read.map_err(|error| named(&error.to_string()))?;
    Ok(text)
}

/// A key as a handshake takes it. It is derived, so that a cluster may use one key for its node
/// daemons and for this.
#[derive(Clone, PartialEq, Eq)]
pub struct Psk([u8; PROOF_BYTES]);

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk")
    }
}

impl Psk {
    fn of(key: &Key) -> Psk {
        let mut mac = hmac_by(&key.0);
        mac.update(WIRE_DOMAIN);
        Psk(mac.finalize().into_bytes().into())
    }

    /// The secret of one message of a tenant's, told from all others by a random number.
    pub fn message_secret(&self, tenant: &str, salt: &[u8]) -> [u8; PROOF_BYTES] {
        let mut mac = hmac_by(&self.0);
        mac.update(MESSAGE_DOMAIN);
        mac.update(salt);
        mac.update(tenant.as_bytes());
        mac.finalize().into_bytes().into()
    }

    /// The secret of a tenant's multicast group in an epoch.
    pub fn group_secret(&self, tenant: &str, group: &[u8; 16], epoch: u32) -> [u8; PROOF_BYTES] {
        let mut mac = hmac_by(&self.0);
        mac.update(GROUP_DOMAIN);
        mac.update(group);
        mac.update(&epoch.to_be_bytes());
        mac.update(tenant.as_bytes());
        mac.finalize().into_bytes().into()
    }

    /// What names the key in datagrams to groups. It says nothing about the key.
    pub fn name(&self) -> [u8; KEY_NAME_BYTES] {
        let mut mac = hmac_by(&self.0);
        mac.update(NAME_DOMAIN);
        let code = mac.finalize().into_bytes();
        let mut name = [0; KEY_NAME_BYTES];
        name.copy_from_slice(&code[..KEY_NAME_BYTES]);
        name
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; PROOF_BYTES] {
        &self.0
    }
}

/// The keys of a secured wire: the first makes what is sent, and what any of them made is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireKeys(Vec<Psk>);

impl WireKeys {
    /// Reads keys from their file, as [`Key::load`]: one a line, beside empty lines and those that
    /// begin with `#`.
    ///
    /// # Errors
    /// Text for the user.
    pub fn load(path: &Path) -> Result<WireKeys, String> {
        let text = read_secret(path, WIRE_FILE_MAX)?;
        if text.len() > WIRE_FILE_MAX {
            return Err(named(
                path,
                &format!("it has more than {WIRE_FILE_MAX} bytes"),
            ));
        }
        let mut keys = Vec::new();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let key = Key::parse(line).ok_or_else(|| {
                let what = "is not 64 hexadecimal digits, as `openssl rand -hex 32` makes them";
                named(path, &format!("line {} {what}", number + 1))
            })?;
            keys.push(Psk::of(&key));
        }
        match keys.len() {
            0 => Err(named(path, "it has no key")),
            n if n > WIRE_KEYS_MAX => Err(named(
                path,
                &format!("it has more than {WIRE_KEYS_MAX} keys"),
            )),
            _ => Ok(WireKeys(keys)),
        }
    }

    /// The one that is sent.
    pub fn first(&self) -> Option<&Psk> {
        self.0.first()
    }

    /// All that are taken.
    pub fn iter(&self) -> impl Iterator<Item = &Psk> {
        self.0.iter()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys made of one byte each.
    #[cfg(test)]
    pub(crate) fn of(bytes: &[u8]) -> WireKeys {
        WireKeys(
            bytes
                .iter()
                .map(|byte| Psk::of(&Key([*byte; 32])))
                .collect(),
        )
    }
}

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
        let text = read_secret(path, FILE_MAX)?;
        Key::parse(&text).ok_or_else(|| {
            named(
                path,
                "it is not 64 hexadecimal digits, as `openssl rand -hex 32` makes them",
            )
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
    use tempfile::TempDir;

    /// A file of keys in a directory.
    fn key_file(dir: &TempDir, text: &str, mode: u32) -> PathBuf {
        let path = dir.path().join("key");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn key_files_are_read_if_nobody_else_can() {
        let dir = tempfile::tempdir().unwrap();
        let digits = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";
        let key = Key::load(&key_file(&dir, &format!("{digits}\n"), 0o600)).unwrap();
        assert_eq!((key.0[1], key.0[31]), (0x11, 0xff));
        assert_eq!(format!("{key:?}"), "Key", "no log has it");
        assert_eq!(Key::load(&key_file(&dir, digits, 0o400)).unwrap(), key);
        for mode in [0o640, 0o604, 0o620, 0o666] {
            let why = Key::load(&key_file(&dir, digits, mode)).unwrap_err();
            assert!(why.contains(&format!("mode is {mode:o}")), "{why}");
        }
        for text in [
            "",
            "12",
            &digits[1..],
            &format!("{digits}0"),
            &"g".repeat(64),
        ] {
            let why = Key::load(&key_file(&dir, text, 0o600)).unwrap_err();
            assert!(why.contains("64 hexadecimal digits"), "{text}: {why}");
        }
        let link = dir.path().join("link");
        symlink(key_file(&dir, digits, 0o600), &link).unwrap();
        assert!(Key::load(&link).unwrap_err().contains("symbolic link"));
        assert!(Key::load(dir.path()).unwrap_err().contains("regular"));
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
    fn a_file_of_wire_keys_has_one_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = ("11".repeat(32), "22".repeat(32));
        let load = |text: &str| WireKeys::load(&key_file(&dir, text, 0o600));
        let keys = load(&format!("# new\n{one}\n\n  {two}\n")).unwrap();
        assert_eq!(keys, WireKeys::of(&[0x11, 0x22]));
        assert_eq!(keys.first(), Some(&Psk::of(&Key([0x11; 32]))));
        assert_ne!(keys.first().unwrap().bytes(), &[0x11; 32], "derived");
        assert!(
            format!("{keys:?}").ends_with("[Psk, Psk])"),
            "no log has it"
        );
        for (text, named) in [
            ("# nothing\n".to_owned(), "no key"),
            (format!("{one}\n{}", &two[1..]), "line 2"),
            (format!("{one}\n").repeat(9), "more than 8 keys"),
            ("#".repeat(WIRE_FILE_MAX + 1), "bytes"),
        ] {
            let why = load(&text).unwrap_err();
            assert!(why.contains(named), "{why}");
        }
        let why = WireKeys::load(&key_file(&dir, &one, 0o644)).unwrap_err();
        assert!(why.contains("chmod 600"), "{why}");
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
