//! A batch of datagrams to be sent, parts of which lie outside of its buffer.

use std::io;

/// Most pieces of one system call; the kernel takes 1024 (`IOV_MAX`). Enough for as many datagrams
/// as are cut from one batch (64), each with a header, a payload and what follows it.
const PIECES_MAX: usize = 200;

/// A part of a run of bytes that is not in its place, but in other memory: sent from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// Its offset in the run.
    pub at: usize,
    /// Its length.
    pub len: usize,
    /// The address of its bytes.
    pub addr: usize,
}

/// A run of bytes in pieces, as sendmsg(2) takes them.
pub(crate) struct Pieces(Vec<libc::iovec>);

impl Pieces {
    /// Pieces of `contents`, of which the parts `outside`, in order, are elsewhere. `None` where
    /// they are too many, overlap, or do not lie within.
    pub fn new(contents: &[u8], outside: &[Outside]) -> Option<Pieces> {
        // A piece before each, and one behind the last.
        let most = 2 * outside.len() + 1;
        if most > PIECES_MAX {
            return None;
        }
        let mut pieces = Pieces(Vec::with_capacity(most));
        let mut reached = 0;
        for part in outside {
            pieces.push_bytes(contents.get(reached..part.at)?);
            reached = part.at.checked_add(part.len)?;
            let base = std::ptr::with_exposed_provenance_mut(part.addr);
            pieces.push(base, part.len);
        }
        pieces.push_bytes(contents.get(reached..)?);
        Some(pieces)
    }

    pub fn as_slice(&self) -> &[libc::iovec] {
        &self.0
    }

    #[inline]
    fn push_bytes(&mut self, bytes: &[u8]) {
        self.push(bytes.as_ptr().cast_mut().cast(), bytes.len());
    }

    #[inline]
    fn push(&mut self, base: *mut libc::c_void, len: usize) {
        if len > 0 {
            self.0.push(libc::iovec {
                iov_base: base,
                iov_len: len,
            });
        }
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
    for part in outside {
        let Some(place) = whole.get_mut(part.at..).and_then(|w| w.get_mut(..part.len)) else {
            continue;
        };
        let from = std::ptr::with_exposed_provenance::<u8>(part.addr);
        // SAFETY: readable by the caller's promise; `place` is a fresh allocation's.
        unsafe { causeway_recover::copy(place.as_mut_ptr(), from, part.len) }
            .map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(at: usize, bytes: &[u8]) -> Outside {
        Outside {
            at,
            len: bytes.len(),
            addr: bytes.as_ptr().expose_provenance(),
        }
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
