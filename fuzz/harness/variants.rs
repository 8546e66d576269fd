//! What somebody without keys may send who has listened.

/// `data` as it is, and as changes to something that was heard.
pub fn variants(data: &[u8], heard: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut sent = vec![data.to_vec()];
    if let [which, changes @ ..] = data {
        let mut changed = heard[usize::from(*which) % heard.len()].clone();
        for change in changes.chunks_exact(3) {
            let at = usize::from(u16::from_be_bytes([change[0], change[1]])) % changed.len();
            changed[at] ^= change[2];
        }
        sent.push(changed.clone());
        changed.truncate(changes.len());
        sent.push(changed);
    }
    sent
}
