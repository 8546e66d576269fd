//! Views of bytes that others may be changing at the same time.
//!
//! Payload sits in application buffers, datagram buffers and rings that a peer has mapped too. A
//! Rust reference to such memory would promise that nobody else writes it, so these views carry a
//! pointer and a length, can be cut up safely, and are read or written only by copying.

use core::marker::PhantomData;
use core::ptr;
use core::slice::{Chunks, ChunksExactMut};

/// A readable run of bytes, valid for `'a`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    ptr: *const u8,
    len: usize,
    life: PhantomData<&'a ()>,
}

/// A writable run of bytes, valid for `'a`.
#[derive(Debug)]
pub struct BytesMut<'a> {
    ptr: *mut u8,
    len: usize,
    life: PhantomData<&'a mut ()>,
}

impl<'a> Bytes<'a> {
    /// A view of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The range must stay mapped and readable for `'a`. Others may write it meanwhile.
    #[must_use]
    pub unsafe fn from_raw(ptr: *const u8, len: usize) -> Self {
        Bytes {
            ptr,
            len,
            life: PhantomData,
        }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte's address, for a copy routine that upholds this view's rules.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Cuts the view in two at `at`; an `at` past the end leaves the second part empty.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Bytes<'a>, Bytes<'a>) {
        let at = at.min(self.len);
        let tail = Bytes {
            ptr: self.ptr.wrapping_add(at),
            len: self.len - at,
            life: PhantomData,
        };
        (
            Bytes {
                ptr: self.ptr,
                len: at,
                life: PhantomData,
            },
            tail,
        )
    }

    /// A copy of the first `N` bytes, if there are so many.
    #[inline]
    #[must_use]
    pub fn first_chunk<const N: usize>(&self) -> Option<[u8; N]> {
        if self.len < N {
            return None;
        }
        let mut chunk = [0; N];
        // SAFETY: the view is valid for `N` bytes, and nothing else covers the copy.
        unsafe { ptr::copy_nonoverlapping(self.ptr, chunk.as_mut_ptr(), N) };
        Some(chunk)
    }

    /// Copies as many bytes as both sides have, and returns how many.
    pub fn copy_to(&self, dst: &mut [u8]) -> usize {
        let n = self.len.min(dst.len());
        // SAFETY: both ranges are valid for n bytes, and an exclusive slice overlaps no view.
        unsafe { ptr::copy_nonoverlapping(self.ptr, dst.as_mut_ptr(), n) };
        n
    }

    /// A copy on the heap, for what must outlive the view.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut v = vec![0; self.len];
        self.copy_to(&mut v);
        v
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(s: &'a [u8]) -> Self {
        Bytes {
            ptr: s.as_ptr(),
            len: s.len(),
            life: PhantomData,
        }
    }
}

impl<'a> BytesMut<'a> {
    /// A view of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The range must stay mapped and writable for `'a`, and no Rust reference may cover it.
    #[must_use]
    pub unsafe fn from_raw(ptr: *mut u8, len: usize) -> Self {
        BytesMut {
            ptr,
            len,
            life: PhantomData,
        }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte's address, for a copy routine that upholds this view's rules.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }

    /// The part of the view from `at` on, at most `len` bytes of it, borrowed from the whole.
    #[must_use]
    pub fn slice(&mut self, at: usize, len: usize) -> BytesMut<'_> {
        let at = at.min(self.len);
        let len = len.min(self.len - at);
        BytesMut {
            ptr: self.ptr.wrapping_add(at),
            len,
            life: PhantomData,
        }
    }

    /// Copies `src` to offset `at`. Returns false, and copies nothing, where it does not fit.
    #[must_use]
    pub fn put(&mut self, at: usize, src: &[u8]) -> bool {
        if at > self.len || src.len() > self.len - at {
            return false;
        }
        // SAFETY: the destination range was just checked, and no reference covers it.
        unsafe { ptr::copy_nonoverlapping(src.as_ptr(), self.ptr.wrapping_add(at), src.len()) };
        true
    }
}

impl<'a> From<&'a mut [u8]> for BytesMut<'a> {
    fn from(s: &'a mut [u8]) -> Self {
        BytesMut {
            ptr: s.as_mut_ptr(),
            len: s.len(),
            life: PhantomData,
        }
    }
}

/// The payloads of datagrams that lie one behind the other: all of one length, behind headers of
/// one length.
#[derive(Clone, Debug)]
pub struct Payloads<'a> {
    datagrams: Chunks<'a, u8>,
    header: usize,
    len: usize,
    left: usize,
}

impl<'a> Payloads<'a> {
    /// Those of the first `count` of `datagrams`: `len` bytes each, behind `header` bytes. They end
    /// before a datagram that is shorter.
    #[inline]
    #[must_use]
    pub fn new(datagrams: Chunks<'a, u8>, header: usize, len: usize, count: usize) -> Self {
        let left = count.min(datagrams.len());
        Payloads {
            datagrams,
            header,
            len,
            left,
        }
    }

    /// Bytes of each.
    #[inline]
    #[must_use]
    pub fn each(&self) -> usize {
        self.len
    }

    /// Bytes of all that are left.
    #[inline]
    #[must_use]
    pub fn total(&self) -> u64 {
        (self.len as u64).saturating_mul(self.left as u64)
    }
}

impl<'a> Iterator for Payloads<'a> {
    type Item = Bytes<'a>;

    #[inline]
    fn next(&mut self) -> Option<Bytes<'a>> {
        self.left = self.left.checked_sub(1)?;
        let datagram = self.datagrams.next()?;
        let end = self.header.saturating_add(self.len);
        datagram.get(self.header..end).map(Bytes::from)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }
}

/// Room for the payloads of datagrams that lie one behind the other: all of one length, behind
/// headers of one length.
#[derive(Debug)]
pub struct PayloadsMut<'a> {
    datagrams: ChunksExactMut<'a, u8>,
    header: usize,
    len: usize,
    left: usize,
}

impl<'a> PayloadsMut<'a> {
    /// That in `out` of up to `count` datagrams of `datagram` bytes each, not 0, `header` of which
    /// are not payload.
    #[inline]
    #[must_use]
    pub fn new(out: &'a mut [u8], datagram: usize, header: usize, count: usize) -> Self {
        let datagrams = out.chunks_exact_mut(datagram);
        PayloadsMut {
            header,
            len: datagram.saturating_sub(header),
            left: count.min(datagrams.len()),
            datagrams,
        }
    }

    /// Bytes of each.
    #[inline]
    #[must_use]
    pub fn each(&self) -> usize {
        self.len
    }

    /// Bytes from the start of one to that of the next.
    #[inline]
    #[must_use]
    pub fn apart(&self) -> usize {
        self.header + self.len
    }

    /// How many are left.
    #[inline]
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Bytes of all that are left.
    #[inline]
    #[must_use]
    pub fn total(&self) -> u64 {
        (self.len as u64).saturating_mul(self.left as u64)
    }

    /// No more than so many.
    #[inline]
    #[must_use]
    pub fn at_most(mut self, count: usize) -> Self {
        self.left = self.left.min(count);
        self
    }
}

impl<'a> Iterator for PayloadsMut<'a> {
    type Item = BytesMut<'a>;

    #[inline]
    fn next(&mut self) -> Option<BytesMut<'a>> {
        self.left = self.left.checked_sub(1)?;
        let datagram = self.datagrams.next()?;
        datagram.get_mut(self.header..).map(BytesMut::from)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_cut_out_of_datagrams_and_end_before_a_shorter_one() {
        let all: Vec<u8> = (0..19).collect();
        let cut = |count| {
            let payloads = Payloads::new(all.chunks(5), 2, 3, count);
            let total = payloads.total();
            (total, payloads.map(|p| p.to_vec()).collect::<Vec<_>>())
        };
        assert_eq!(cut(2), (6, vec![vec![2, 3, 4], vec![7, 8, 9]]));
        assert_eq!(cut(9).1.len(), 3, "the fourth is shorter");
        assert_eq!(cut(0), (0, Vec::new()));
    }

    #[test]
    fn there_is_room_in_whole_datagrams_alone() {
        let mut out = [0; 19];
        let room = PayloadsMut::new(&mut out, 5, 2, 9);
        assert_eq!((room.each(), room.left(), room.total()), (3, 3, 9));
        for mut body in room.at_most(2) {
            assert!(body.put(0, &[1; 3]) && !body.put(1, &[1; 3]));
        }
        assert_eq!(out[..10], [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]);
        assert_eq!(out[10..], [0; 9]);
    }
}
