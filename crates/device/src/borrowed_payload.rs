//! Payload that is sent from where it is.
//!
//! While datagrams are written into a buffer, what would be copied there from registered memory is
//! noted instead, and the kernel takes it from the program's memory itself: one copy less. The
//! bytes are those of the moment of sending, as a NIC's would be. Not where datagrams bear a
//! checksum, which covers the payload.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use causeway_netio::Outside;
use causeway_proto::host::MemError;
use causeway_proto::{BytesMut, PayloadsMut};

/// Least length for which a piece of its own costs the kernel less than the copy.
pub(crate) const OUTSIDE_MIN: usize = 1024;

/// The notes of the buffer being filled.
#[derive(Debug, Default)]
pub(crate) struct Outsides {
    on: Cell<bool>,
    notes: RefCell<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    /// Addresses of the buffer.
    buffer: Range<usize>,
    /// In order of their places.
    found: Vec<Outside>,
    /// The first note of the segment being built, and the offset that its payload has reached.
    first: usize,
    reached: usize,
}

impl Outsides {
    /// Notes what would be copied into `buffer` from now on, until [`Outsides::end`].
    pub fn begin(&self, buffer: &mut [u8]) {
        let mut notes = self.notes.borrow_mut();
        let range = buffer.as_mut_ptr_range();
        notes.buffer = range.start.addr()..range.end.addr();
        notes.clear();
        self.on.set(true);
    }

    /// Everything is copied again.
    pub fn end(&self) {
        self.on.set(false);
        self.notes.borrow_mut().clear();
    }

    /// Whether copies are to be shown to [`Outsides::take`] instead.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.get()
    }

    /// Brings the whole of `dst` from registered memory at an address: by a note if it is long,
    /// else by `load`. An error ends the segment that is being built: what was noted for it is
    /// forgotten.
    pub fn take(
        &self,
        mut dst: BytesMut<'_>,
        found: Result<usize, MemError>,
        load: impl FnOnce(usize, BytesMut<'_>) -> Result<(), MemError>,
    ) -> Result<(), MemError> {
        let notes = &mut *self.notes.borrow_mut();
        let place = dst.as_mut_ptr().addr();
        let at = place.wrapping_sub(notes.buffer.start);
        if at != notes.reached {
            // Behind another header.
            notes.first = notes.found.len();
        }
        let addr = found.inspect_err(|_| notes.found.truncate(notes.first))?;
        notes.reached = at.wrapping_add(dst.len());
        let len = dst.len();
        if len >= OUTSIDE_MIN && notes.buffer.contains(&place) {
            notes.found.push(Outside::one(at, len, addr));
        } else {
            load(addr, dst).inspect_err(|_| notes.found.truncate(notes.first))?;
        }
        Ok(())
    }

    /// As [`Outsides::take`] of parts that follow each other in registered memory from `addr` on,
    /// each a segment of its own. Returns how many there are, up to one that `load` fails for.
    pub fn take_parts(
        &self,
        mut parts: PayloadsMut<'_>,
        addr: usize,
        load: impl Fn(usize, BytesMut<'_>) -> Result<(), MemError>,
    ) -> usize {
        let notes = &mut *self.notes.borrow_mut();
        let (len, apart, count) = (parts.each(), parts.apart(), parts.left());
        let Some(mut first) = parts.next() else {
            return 0;
        };
        let place = first.as_mut_ptr().addr();
        let last = place.saturating_add((count - 1).saturating_mul(apart));
        let within = notes.buffer.contains(&place) && notes.buffer.contains(&last);
        let mut done = count;
        if len >= OUTSIDE_MIN && within {
            let at = place - notes.buffer.start;
            notes.found.push(Outside {
                at,
                len,
                addr,
                count,
                apart,
            });
        } else {
            let places = (0..count).map(|i| addr + i * len);
            let one = |(at, part)| load(at, part).is_ok();
            let all = places.zip(std::iter::once(first).chain(parts));
            done = all.map(one).take_while(|done| *done).count();
        }
        // What follows is behind another header.
        (notes.first, notes.reached) = (notes.found.len(), usize::MAX);
        done
    }

    /// Forgets what lies at offset `end` of the buffer or behind it.
    pub fn truncate(&self, end: usize) {
        let mut notes = self.notes.borrow_mut();
        let kept = notes.found.partition_point(|parts| parts.at < end);
        notes.found.truncate(kept);
        if let Some(last) = notes.found.last_mut() {
            last.cut(end);
        }
        notes.reached = usize::MAX;
    }

    /// Takes out the notes of what lies at offset `start` of the buffer or behind it, as if the
    /// buffer began there.
    pub fn split(&self, start: usize) -> Vec<Outside> {
        let mut notes = self.notes.borrow_mut();
        let kept = notes.found.partition_point(|part| part.at < start);
        notes.reached = usize::MAX;
        let mut later = notes.found.split_off(kept);
        if let Some(cut) = notes.found.last_mut().and_then(|last| last.cut(start)) {
            later.insert(0, cut);
        }
        for part in &mut later {
            part.at -= start;
        }
        later
    }

    /// These are the notes now.
    pub fn replace(&self, found: Vec<Outside>) {
        self.notes.borrow_mut().found = found;
    }

    /// One run of the buffer's `bytes` and what is noted for it, which `fetch` copies from an
    /// address.
    pub fn collect(
        &self,
        bytes: &[u8],
        fetch: impl Fn(usize, BytesMut<'_>) -> Result<(), MemError>,
    ) -> Result<Vec<u8>, MemError> {
        let mut whole = bytes.to_vec();
        for parts in &self.notes.borrow().found {
            for (at, addr) in parts.each() {
                let place = whole.get_mut(at..).and_then(|w| w.get_mut(..parts.len));
                fetch(addr, BytesMut::from(place.ok_or(MemError::Bounds)?))?;
            }
        }
        Ok(whole)
    }

    /// Shows `f` the notes.
    pub fn with<T>(&self, f: impl FnOnce(&[Outside]) -> T) -> T {
        f(&self.notes.borrow().found)
    }
}

impl Notes {
    fn clear(&mut self) {
        self.found.clear();
        (self.first, self.reached) = (0, usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = OUTSIDE_MIN;

    struct Fixture {
        outsides: Outsides,
        buffer: Vec<u8>,
        memory: Vec<u8>,
    }

    impl Fixture {
        fn new() -> Self {
            let mut buffer = vec![0; 8 * LONG];
            let outsides = Outsides::default();
            outsides.begin(&mut buffer);
            Fixture {
                outsides,
                buffer,
                memory: vec![7; 8 * LONG],
            }
        }

        fn take(&mut self, at: usize, len: usize, fails: bool) -> bool {
            let addr = self.memory.as_ptr().expose_provenance();
            let found = if fails { Err(MemError::Key) } else { Ok(addr) };
            let dst = BytesMut::from(&mut self.buffer[at..at + len]);
            let load = |_, mut dst: BytesMut<'_>| {
                let seven = vec![7; dst.len()];
                dst.put(0, &seven).then_some(()).ok_or(MemError::Bounds)
            };
            self.outsides.take(dst, found, load).is_ok()
        }

        fn noted(&self) -> Vec<(usize, usize)> {
            self.outsides
                .with(|parts| parts.iter().map(|part| (part.at, part.len)).collect())
        }
    }

    #[test]
    fn long_pieces_are_noted_and_short_ones_copied() {
        let mut f = Fixture::new();
        assert!(f.take(40, LONG, false) && f.take(40 + LONG, 3, false));
        assert!(f.take(100 + LONG, LONG + 1, false));
        assert_eq!(f.noted(), [(40, LONG), (100 + LONG, LONG + 1)]);
        assert_eq!(f.buffer[40..44], [0; 4]);
        assert_eq!(f.buffer[39 + LONG..44 + LONG], [0, 7, 7, 7, 0]);
        let mut elsewhere = [0; 2 * LONG];
        let load = |_, mut dst: BytesMut<'_>| {
            assert!(dst.put(0, &[7]));
            Ok(())
        };
        f.outsides
            .take(BytesMut::from(&mut elsewhere[..]), Ok(1), load)
            .unwrap();
        assert_eq!((elsewhere[0], f.noted().len()), (7, 2));
    }

    #[test]
    fn what_is_noted_is_collected_or_nothing_is() {
        let mut f = Fixture::new();
        assert!(f.take(40, LONG, false) && f.take(40 + LONG, 3, false));
        let at = f.memory.as_ptr().addr();
        let whole = f.outsides.collect(&f.buffer[..50 + LONG], |addr, mut dst| {
            assert_eq!((addr, dst.len()), (at, LONG));
            let nine = vec![9; LONG];
            dst.put(0, &nine).then_some(()).ok_or(MemError::Bounds)
        });
        let whole = whole.unwrap();
        assert_eq!(whole[38..42], [0, 0, 9, 9]);
        assert_eq!(whole[38 + LONG..44 + LONG], [9, 9, 7, 7, 7, 0]);
        let gone = |_, _: BytesMut<'_>| Err(MemError::Gone);
        let bytes = &f.buffer[..50 + LONG];
        assert_eq!(f.outsides.collect(bytes, gone), Err(MemError::Gone));
    }

    #[test]
    fn parts_that_follow_each_other_are_one_note() {
        let mut f = Fixture::new();
        let addr = f.memory.as_ptr().expose_provenance();
        assert!(f.take(40, LONG, false));
        let apart = LONG + 50;
        let parts = PayloadsMut::new(&mut f.buffer[LONG + 40..], apart, 50, 3);
        let never = |_, _: BytesMut<'_>| Err(MemError::Gone);
        assert_eq!(f.outsides.take_parts(parts, addr, never), 3);
        assert_eq!(f.noted(), [(40, LONG), (LONG + 90, LONG)]);
        let whole = f.outsides.collect(&f.buffer, |from, mut dst| {
            let nth = vec![1 + ((from - addr) / LONG) as u8; dst.len()];
            dst.put(0, &nth).then_some(()).ok_or(MemError::Bounds)
        });
        let whole = whole.unwrap();
        for nth in 0..3 {
            let at = LONG + 40 + nth * apart;
            assert_eq!(whole[at..at + 50], [0; 50]);
            assert_eq!(whole[at + 50..at + apart], [1 + nth as u8; LONG]);
        }
        // One of them goes with what follows, and the last is forgotten.
        f.outsides.truncate(LONG + 40 + 2 * apart);
        let later = f.outsides.split(LONG + 40 + apart);
        assert_eq!((later.len(), later[0].at, later[0].count), (1, 50, 1));
        assert_eq!(later[0].addr, addr + LONG);
        assert_eq!(f.outsides.with(|parts| parts[1].count), 1);
        // Short ones are copied, up to one that is gone.
        let parts = PayloadsMut::new(&mut f.buffer, 20, 10, 5);
        let load = |at: usize, mut dst: BytesMut<'_>| {
            let gone = at == addr + 30 || !dst.put(0, &[9; 10]);
            if gone { Err(MemError::Gone) } else { Ok(()) }
        };
        assert_eq!(f.outsides.take_parts(parts, addr, load), 3);
        assert_eq!(f.buffer[50..80], [[9; 10], [0; 10], [0; 10]].concat());
    }

    #[test]
    fn a_segment_that_fails_leaves_no_note() {
        let mut f = Fixture::new();
        assert!(f.take(40, LONG, false));
        // One behind another header: a long piece, a short one, and one whose key is gone.
        let at = 80 + LONG;
        assert!(f.take(at, LONG, false) && f.take(at + LONG, 5, false));
        assert!(!f.take(at + LONG + 5, LONG, true));
        assert_eq!(f.noted(), [(40, LONG)]);
        assert!(!f.take(at, LONG, true));
        assert_eq!(f.noted(), [(40, LONG)]);
    }

    #[test]
    fn notes_follow_what_becomes_of_the_buffer() {
        let mut f = Fixture::new();
        for at in [40, 40 + 2 * LONG, 40 + 4 * LONG] {
            assert!(f.take(at, LONG, false));
        }
        f.outsides.truncate(4 * LONG);
        let later = f.outsides.split(2 * LONG);
        assert_eq!(f.noted(), [(40, LONG)]);
        assert_eq!((later.len(), later[0].at), (1, 40));
        f.outsides.replace(later);
        f.outsides.truncate(40);
        assert!(f.noted().is_empty());
        assert!(f.take(40, LONG, false));
        f.outsides.end();
        assert!(!f.outsides.is_on() && f.noted().is_empty());
    }
}
