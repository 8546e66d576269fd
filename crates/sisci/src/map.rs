//! Maps: segments' memory as programs see it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::descriptor::Descriptor;
use crate::error::Result;
use crate::handles::{Handle, Object};
use crate::library::Library;
use crate::memory::{Mapping, Place};
use crate::sequence::Owner;
use crate::stores::{self, Far};
use crate::uses::{Held, Use, Uses};
use crate::window::Window;

/// A part of a segment, mapped.
#[derive(Debug)]
pub struct Map {
    handle: Handle<Map>,
    mapping: Mapping,
    /// Where it begins in its segment.
    offset: usize,
    /// Of a remote segment: whose.
    owner: Option<Owner>,
    /// Of a segment of another host: the way to it.
    window: Option<Window>,
    /// And what its loads and stores do.
    _stores: Option<causeway_pio::Window>,
    uses: Uses,
    /// What it is a map of.
    of: Held<Hold>,
}

impl Object for Map {
    const TAG: u8 = b'M';
}

/// What a map is made of.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    /// The segment's memory.
    pub memory: Memory<'a>,
    /// Which part of it.
    pub place: Place,
    /// Of a remote segment: whose.
    pub owner: Option<Owner>,
    /// The segment, and its descriptor.
    pub of: Hold,
}

/// Where a segment's memory is.
#[derive(Clone, Debug)]
pub(crate) enum Memory<'a> {
    /// In a file on this host.
    Here(std::os::fd::BorrowedFd<'a>),
    /// On another host.
    There(Far),
}

/// What a map holds on to.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Of a remote segment: the broker is told of the last one's end, and before it can be
    /// disconnected.
    _mapped: Option<Mapped>,
    _segment: Use,
    _descriptor: Use,
}

impl Map {
    pub(crate) fn create(library: &Library, source: Source<'_>) -> Result<Handle<Map>> {
        // The program may have installed handlers since.
        causeway_recover::install();
        let (mapping, window, stores) = match source.memory {
            Memory::Here(fd) => (Mapping::new(fd, source.place)?, None, None),
            Memory::There(far) => {
                let window = far.window.clone();
                let (mapping, stores) = stores::map(far, source.place)?;
                (mapping, Some(window), Some(stores))
            }
        };
        causeway_fault::point("sisci.mapped");
        let handle = library.maps.insert(|handle| {
            Ok(Arc::new(Map {
                handle,
                mapping,
                offset: source.place.offset,
                owner: source.owner,
                window,
                _stores: stores,
                uses: Uses::default(),
                of: Held::new(source.of),
            }))
        })?;
        let map = library.maps.get(handle)?;
        library.addresses.write().insert(map.start(), map.clone());
        Ok(handle)
    }

    /// Unmaps it.
    ///
    /// # Errors
    /// `BUSY` while it is copied to or from; `ILLEGAL_PARAMETER` if it was unmapped.
    pub fn remove(self: &Arc<Self>, library: &Library) -> Result<()> {
        self.uses.close()?;
        if let Some(window) = &self.window {
            // What was stored has arrived before its segment can be disconnected. If it has not,
            // sequences say so.
            stores::drain();
            let _ = window.settle();
        }
        library.addresses.write().remove(&self.start());
        library.maps.remove(self.handle);
        causeway_fault::point("sisci.unmapped");
        self.of.release();
        Ok(())
    }

    fn start(&self) -> usize {
        self.mapping.as_ptr().addr()
    }

    /// One more user of the map.
    ///
    /// # Errors
    /// `ILLEGAL_PARAMETER` if it is being unmapped.
    pub fn enter(&self) -> Result<Use> {
        self.uses.enter()
    }

    /// The owner of the memory; `None` for the process's own.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// The way to the memory, if it is on another host.
    pub(crate) fn window(&self) -> Option<&Window> {
        self.window.as_ref()
    }

    /// Whether a copy from here to another map would cover what it has yet to copy, if it began at
    /// its beginning.
    pub(crate) fn moves_up(
        &self,
        offset: usize,
        (to, to_offset): (&Map, usize),
        len: usize,
    ) -> bool {
        let (from, up) = (self.offset + offset, to.offset + to_offset);
        let distance = match (self.window(), to.window()) {
            (Some(one), Some(other)) => one.is(other).then(|| up as i64 - from as i64),
            _ => self.mapping.distance(offset, (&to.mapping, to_offset)),
        };
        distance.is_some_and(|distance| distance > 0 && (distance as u64) < len as u64)
    }

    /// Source and destination of a copy to another map, both of this host, by whose addresses it
    /// shows how they overlap. `None` if there are no such: the maps are parts of one memory, and
    /// neither has both ranges.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`
    pub(crate) fn ends(
        &self,
        offset: usize,
        (to, to_offset): (&Map, usize),
        len: usize,
    ) -> Result<Option<(*mut u8, *mut u8)>> {
        let (one, other) = (&self.mapping, &to.mapping);
        let (source, target) = (one.at(offset, len)?, other.at(to_offset, len)?);
        let distance = one.distance(offset, (other, to_offset));
        if distance.is_none_or(|distance| distance.unsigned_abs() >= len as u64) {
            return Ok(Some((source, target)));
        }
        let of_target = other.alias(one, offset, len).map(|source| (source, target));
        let of_source = || match one.is_writable() {
            true => one
                .alias(other, to_offset, len)
                .map(|target| (source, target)),
            false => None,
        };
        Ok(of_target.or_else(of_source))
    }

    /// Whether the owner of the memory is there.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.owner.is_none_or(|owner| owner.is_alive())
    }

    /// The memory.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Where it begins in its segment.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The map that holds all of a range of addresses.
    pub fn at(library: &Library, address: usize, len: usize) -> Option<Arc<Map>> {
        let addresses = library.addresses.read();
        let (_, map) = addresses.range(..=address).next_back()?;
        map.mapping.contains(address, len).then(|| map.clone())
    }
}

/// A segment's user and its descriptor's; of a remote segment, one of its maps.
pub(crate) fn users(
    segment: &Uses,
    descriptor: &Descriptor,
    maps: Option<&Arc<Maps>>,
) -> Result<Hold> {
    Ok(Hold {
        _segment: segment.enter()?,
        _descriptor: descriptor.enter()?,
        _mapped: maps.map(Maps::enter),
    })
}

/// Who is told whether a connection's segment is mapped: the owner's broker, or its node daemon.
pub(crate) trait Told: std::fmt::Debug + Send + Sync {
    /// Whether it is mapped now. One that can't be told hears of it later, or knows that the
    /// connection has ended.
    fn mapped(&self, connection: u32, mapped: bool);
}

/// Counts the maps of a connection's segment: its owner is to know whether there are any.
#[derive(Debug)]
pub(crate) struct Maps {
    told: Arc<dyn Told>,
    connection: u32,
    count: Mutex<Count>,
}

#[derive(Debug, Default)]
struct Count {
    maps: usize,
    /// What was said to one who is told of changes no earlier than [`Maps::settle`].
    said: Option<bool>,
}

/// One of them.
#[derive(Debug)]
struct Mapped(Arc<Maps>);

impl Maps {
    pub(crate) fn new(told: Arc<dyn Told>, connection: u32) -> Arc<Maps> {
        let count = Mutex::default();
        Arc::new(Maps {
            told,
            connection,
            count,
        })
    }

    fn enter(self: &Arc<Self>) -> Mapped {
        let mut count = self.count.lock();
        count.maps += 1;
        if count.maps == 1 {
            self.told.mapped(self.connection, true);
        }
        Mapped(self.clone())
    }

    /// Whether there are any, which `tell` is to say anew: who was told has forgotten it. What
    /// changes from here to [`Maps::settle`] is told to the one before.
    pub(crate) fn again<E>(
        &self,
        tell: impl FnOnce() -> core::result::Result<(), E>,
    ) -> core::result::Result<(), E> {
        let mut count = self.count.lock();
        count.said = Some(count.maps > 0);
        match count.maps {
            0 => Ok(()),
            _ => tell(),
        }
    }

    /// Has `tell` say whether there are any, if that has changed since [`Maps::again`].
    pub(crate) fn settle(&self, tell: impl FnOnce(bool)) {
        let mut count = self.count.lock();
        let mapped = count.maps > 0;
        if count.said.take().is_some_and(|said| said != mapped) {
            tell(mapped);
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        count.maps -= 1;
        if count.maps == 0 {
            self.0.told.mapped(self.0.connection, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the one before the new daemon is told.
    #[derive(Debug, Default)]
    struct Former(Mutex<Vec<bool>>);

    impl Told for Former {
        fn mapped(&self, connection: u32, mapped: bool) {
            assert_eq!(connection, 7);
            self.0.lock().push(mapped);
        }
    }

    #[test]
    fn what_changes_before_calls_go_to_the_new_daemon_is_said_again() {
        let former = Arc::new(Former::default());
        let maps = Maps::new(former.clone(), 7);
        let said = Mutex::new(Vec::new());
        let again = || {
            said.lock().push(true);
            Ok::<(), ()>(())
        };
        let settle = || maps.settle(|mapped| said.lock().push(mapped));
        let first = maps.enter();
        maps.again(again).unwrap();
        settle();
        maps.again(again).unwrap();
        let second = maps.enter();
        drop(first);
        settle();
        assert_eq!(*said.lock(), [true, true], "nothing has changed");
        maps.again(again).unwrap();
        drop(second);
        settle();
        assert_eq!(*said.lock(), [true, true, true, false]);
        maps.again(again).unwrap();
        let third = maps.enter();
        settle();
        assert_eq!(*said.lock(), [true, true, true, false, true]);
        // From then on it is told as ever.
        drop(third);
        settle();
        assert_eq!(said.lock().len(), 5);
        assert_eq!(*former.0.lock(), [true, false, true, false]);
    }
}
