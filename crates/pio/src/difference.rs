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
        let different = different(&old[at..end], &new[at..end]);
        let all = u8::MAX >> (WORD - (end - at));
        match (start, different) {
            (None, 0) => {}
            // In the middle of a run.
            (Some(_), mask) if mask == all => {}
            _ => {
                for (step, byte) in (at..end).enumerate() {
                    let differs = different >> step & 1 != 0;
                    if differs {
                        start.get_or_insert(byte);
                    } else if let Some(start) = start.take() {
                        found(start..byte);
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

/// A bit for each byte that differs, of at most 8.
fn different(old: &[u8], new: &[u8]) -> u8 {
    if old == new {
        return 0;
    }
    let bits = old.iter().zip(new).enumerate();
    bits.fold(0, |mask, (at, (old, new))| {
        mask | u8::from(old != new) << at
    })
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
