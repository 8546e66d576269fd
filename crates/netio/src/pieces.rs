//! A batch of datagrams to be sent, parts of which lie outside of its buffer.

use std::io;

/// Most pieces of one system call; the kernel takes 1024 (`IOV_MAX`). Enough for as many datagrams
/// as are cut from one batch (64), each with a header, a payload and what follows it.
const PIECES_MAX: usize = 200;

/// Parts of a run of bytes that are not in their places, but in other memory, one behind the other:
/// sent from there. They are of one length, and their places at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The offset of the first in the run.
    pub at: usize,
    /// The length of each.
    pub len: usize,
    /// The address of the first one's bytes.
    pub addr: usize,
    /// How many there are.
    pub count: usize,
    /// From the place of one to that of the next; no less than `len`.
    pub apart: usize,
}

impl Outside {
    /// A single one.
    #[must_use]
    pub fn one(at: usize, len: usize, addr: usize) -> Self {
        Outside {
            at,
            len,
            addr,
            count: 1,
            apart: len,
        }
    }

    /// The offset and the address of each.
    pub fn each(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.count).map(move |i| (self.at + i * self.apart, self.addr + i * self.len))
    }

    /// Cuts off those whose places begin at offset `end` or behind it, and returns them.
    pub fn cut(&mut self, end: usize) -> Option<Outside> {
        let kept = end.saturating_sub(self.at).div_ceil(self.apart.max(1));
        let kept = kept.min(self.count);
        let later = Outside {
            at: self.at + kept * self.apart,
            addr: self.addr + kept * self.len,
            count: self.count - kept,
            ..*self
        };
        self.count = kept;
        (later.count > 0).then_some(later)
    }

    /// The first offset behind all of them, if their places do not overlap.
    fn end(&self) -> Option<usize> {
        let more = self.count.checked_sub(1)?.checked_mul(self.apart)?;
        let end = self.at.checked_add(more)?.checked_add(self.len)?;
        (self.apart >= self.len).then_some(end)
    }
}

/// A run of bytes in pieces, as sendmsg(2) takes them.
pub(crate) struct Pieces(Vec<libc::iovec>);

impl Pieces {
    /// Pieces of `contents`, of which the parts `outside`, in order, are elsewhere. `None` where
    /// they are too many, overlap, or do not lie within.
    pub fn new(contents: &[u8], outside: &[Outside]) -> Option<Pieces> {
        let parts = outside.iter().map(|parts| parts.count);
        let parts = parts.fold(0, usize::saturating_add);
        // A piece before each, and one behind the last.
        let most = parts.saturating_mul(2).saturating_add(1);
        if most > PIECES_MAX {
            return None;
        }
        let mut pieces = Pieces(Vec::with_capacity(most));
        let mut reached = 0;
        for parts in outside {
            let end = parts.end()?;
            pieces.push(bytes(contents.get(reached..parts.at)?));
            pieces.push(elsewhere(parts.addr, parts.len));
            // Of each of the others the bytes before it, and its place.
            let others = contents.get(parts.at + parts.len..end)?;
            let between = parts.apart - parts.len;
            let addresses = parts.each().skip(1).map(|(_, addr)| addr);
            for (before, addr) in others.chunks_exact(parts.apart.max(1)).zip(addresses) {
                let two = [bytes(before.get(..between)?), elsewhere(addr, parts.len)];
                if between > 0 && parts.len > 0 {
                    pieces.0.extend_from_slice(&two);
                } else {
                    two.into_iter().for_each(|piece| pieces.push(piece));
                }
            }
            reached = end;
        }
        pieces.push(bytes(contents.get(reached..)?));
        Some(pieces)
    }

    pub fn as_slice(&self) -> &[libc::iovec] {
        &self.0
    }

    /// Adds one that is not empty.
    #[inline]
    fn push(&mut self, piece: libc::iovec) {
        if piece.iov_len > 0 {
            self.0.push(piece);
        }
    }
}

/// The piece of bytes that are in their place.
#[inline]
fn bytes(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// The piece of bytes at an address.
#[inline]
fn elsewhere(addr: usize, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(addr),
        iov_len: len,
    }
}

/// One run of all bytes, those from outside copied into their places.
///
/// # Errors
/// EFAULT where a part is not mapped.
///
/// # Safety
/// What is mapped of each part must be memory that may be read; others may write it meanwhile.
pub(crate) unsafe fn gathered(contents: &[u8], outside: &[Outside]) -> io::Result<Vec<u8>> {
    let mut whole = contents.to_vec();
    for parts in outside {
        for (at, addr) in parts.each() {
            let Some(place) = whole.get_mut(at..).and_then(|w| w.get_mut(..parts.len)) else {
                continue;
            };
            let from = std::ptr::with_exposed_provenance::<u8>(addr);
            // SAFETY: readable by the caller's promise; `place` is a fresh allocation's.
            unsafe { causeway_recover::copy(place.as_mut_ptr(), from, parts.len) }
                .map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(at: usize, bytes: &[u8]) -> Outside {
        Outside::one(at, bytes.len(), bytes.as_ptr().expose_provenance())
    }

    fn lengths(contents: &[u8], outside: &[Outside]) -> Option<Vec<usize>> {
        let pieces = Pieces::new(contents, outside)?;
        Some(pieces.as_slice().iter().map(|p| p.iov_len).collect())
    }

    #[test]
    fn parts_take_their_places_between_the_bytes() {
        let contents = [0; 20];
        let two = [part(2, &[1; 5]), part(10, &[2; 4])];
        assert_eq!(lengths(&contents, &[]), Some(vec![20]));
        assert_eq!(lengths(&contents, &two), Some(vec![2, 5, 3, 4, 6]));
        let touching = [part(0, &[1; 5]), part(5, &[2; 15])];
        assert_eq!(lengths(&contents, &touching), Some(vec![5, 15]));
    }

    #[test]
    fn parts_at_equal_distances_take_their_places() {
        let (contents, bytes) = ([0; 20], [1, 2, 3, 4, 5, 6]);
        let several = |at, apart, count| Outside {
            apart,
            count,
            ..part(at, &bytes[..2])
        };
        let three = [several(1, 5, 3), part(16, &[7])];
        let expected = [1, 2, 3, 2, 3, 2, 3, 1, 3];
        assert_eq!(lengths(&contents, &three), Some(expected.to_vec()));
        let pieces = Pieces::new(&contents, &three).unwrap();
        let bases: Vec<_> = pieces
            .as_slice()
            .iter()
            .map(|p| p.iov_base.addr())
            .collect();
        let (here, there) = (contents.as_ptr().addr(), bytes.as_ptr().addr());
        let expected = [
            here,
            there,
            here + 3,
            there + 2,
            here + 8,
            there + 4,
            here + 13,
        ];
        assert_eq!(bases[..7], expected);
        // SAFETY: both arrays live on.
        let whole = unsafe { gathered(&contents, &three[..1]) }.unwrap();
        assert_eq!(whole[..14], [0, 1, 2, 0, 0, 0, 3, 4, 0, 0, 0, 5, 6, 0]);
        // Beyond the end, overlapping, touching, and beyond all addresses.
        assert_eq!(
            lengths(&contents, &[several(8, 5, 3)]),
            Some(vec![8, 2, 3, 2, 3, 2])
        );
        assert_eq!(lengths(&contents, &[several(9, 5, 3)]), None);
        assert_eq!(lengths(&contents, &[several(1, 1, 3)]), None);
        assert_eq!(
            lengths(&contents, &[several(14, 2, 3)]),
            Some(vec![14, 2, 2, 2])
        );
        assert_eq!(lengths(&contents, &[several(1, usize::MAX, 3)]), None);
    }

    #[test]
    fn what_lies_behind_an_offset_is_cut_off() {
        let all = Outside {
            at: 10,
            len: 5,
            addr: 1000,
            count: 3,
            apart: 8,
        };
        for (end, kept) in [(0, 0), (10, 0), (11, 1), (18, 1), (19, 2), (27, 3), (99, 3)] {
            let mut first = all;
            let later = first.cut(end);
            let places: Vec<_> = first
                .each()
                .chain(later.into_iter().flat_map(Outside::each))
                .collect();
            assert_eq!(places, all.each().collect::<Vec<_>>());
            assert_eq!(
                (first.count, later.map_or(0, |l| l.count)),
                (kept, 3 - kept),
                "{end}"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let contents = [0; 20];
        let overlapping = [part(2, &[1; 5]), part(6, &[2; 4])];
        assert_eq!(lengths(&contents, &overlapping), None);
        assert_eq!(lengths(&contents, &[part(18, &[1; 5])]), None);
        assert_eq!(lengths(&contents, &[part(40, &[1; 5])]), None);
        let many: Vec<_> = (0..PIECES_MAX).map(|i| part(2 * i + 1, &[1])).collect();
        assert_eq!(lengths(&[0; 2 * PIECES_MAX + 1], &many), None);
    }

    #[test]
    fn gathering_copies_every_part() {
        let (a, b) = ([1; 5], [2; 4]);
        // SAFETY: both arrays live on.
        let whole = unsafe { gathered(&[0; 12], &[part(1, &a), part(8, &b)]) }.unwrap();
        assert_eq!(whole, [0, 1, 1, 1, 1, 1, 0, 0, 2, 2, 2, 2]);
    }
}
