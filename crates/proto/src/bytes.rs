//! Views of bytes that others may be changing at the same time.
//!
//! Payload sits in application buffers, datagram buffers and rings that a peer has mapped too. A
//! Rust reference to such memory would promise that nobody else writes it, so these views carry a
//! pointer and a length, can be cut up safely, and are read or written only by copying.

use core::marker::PhantomData;
use core::ptr;

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
