//! What has changed in a page.

use std::ops::Range;

/// Bytes that are compared at once.
const WORD: usize = 8;
/// Bytes that are skipped at once, where nothing has changed.
const BLOCK: usize = 256;

/// Calls `found` with each run of bytes that differ, in order. A byte that is the same belongs to
/// no run: its owner may have changed it meanwhile. Both slices are equally long.
pub(crate) fn each(old: &[u8], new: &[u8], mut found: impl FnMut(Range<usize>)) {
    let mut start = None;
    let mut at = 0;
    while at < new.len() {
        let block = at..new.len().min(at + BLOCK);
        if start.is_none() && at % BLOCK == 0 && old[block.clone()] == new[block.clone()] {
            at = block.end;
            continue;
        }
        let end = new.len().min(at + WORD);
        match (start, compare(&old[at..end], &new[at..end])) {
            (None, Compared::Same) | (Some(_), Compared::Different) => {}
            (None, Compared::Different) => start = Some(at),
            (Some(run), Compared::Same) => {
                found(run..at);
                start = None;
            }
            (_, Compared::Mixed) => {
                for byte in at..end {
                    if old[byte] != new[byte] {
                        start.get_or_insert(byte);
                    } else if let Some(run) = start.take() {
                        found(run..byte);
                    }
                }
            }
        }
        at = end;
    }
    if let Some(start) = start {
        found(start..new.len());
    }
}

/// How the bytes of a word compare.
#[derive(Clone, Copy)]
enum Compared {
    Same,
    /// All bytes differ.
    Different,
    Mixed,
}

fn compare(old: &[u8], new: &[u8]) -> Compared {
    let (Ok(old), Ok(new)) = (old.try_into(), new.try_into()) else {
        return Compared::Mixed;
    };
    let difference = u64::from_le_bytes(old) ^ u64::from_le_bytes(new);
    // Has a byte of zeros: Anderson, "Bit Twiddling Hacks".
    let (ones, tops) = (u64::MAX / 0xff, u64::MAX / 0xff * 0x80);
    if difference == 0 {
        Compared::Same
    } else if difference.wrapping_sub(ones) & !difference & tops == 0 {
        Compared::Different
    } else {
        Compared::Mixed
    }
}

#[cfg(test)]
mod tests {
    use super::each;

    fn runs(old: &[u8], new: &[u8]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        each(old, new, |run| found.push((run.start, run.end)));
        found
    }

    /// Every pattern of changed bytes in three words, the last of them short, in the middle one.
    #[test]
    fn every_changed_byte_is_in_a_run_and_no_other() {
        let old = [7_u8; 21];
        for pattern in 0_u32..1 << 21 {
            // All of the patterns of 12 bits around both borders, some of the others.
            if pattern & 0x1f != pattern >> 16 & 0x1f {
                continue;
            }
            let mut new = old;
            let mut expected: Vec<(usize, usize)> = Vec::new();
            for (at, byte) in new.iter_mut().enumerate() {
                if pattern >> at & 1 == 0 {
                    continue;
                }
                *byte = 8;
                match expected.last_mut() {
                    Some(last) if last.1 == at => last.1 = at + 1,
                    _ => expected.push((at, at + 1)),
                }
            }
            assert_eq!(runs(&old, &new), expected, "{pattern:b}");
        }
    }

    #[test]
    fn nothing_has_no_runs() {
        assert!(runs(&[], &[]).is_empty());
        assert!(runs(&[1; 4096], &[1; 4096]).is_empty());
        assert_eq!(runs(&[1; 4096], &[2; 4096]), [(0, 4096)]);
    }
}
