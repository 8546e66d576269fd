//! Memory that the peer writes to directly: `riomap`, `riounmap`, `riowrite` (`rsocket(7)`).
//!
//! The mapping side writes an entry into a table of the peer's: offset, address, key and length. It
//! does so before the next data that it sends, so that a peer that has received that data knows the
//! mapping.

use core::ffi::{c_int, c_void};

use causeway_cancel::Allowed;
use causeway_identity::Access;

use super::flow::{Place, SLOTS};
use super::link::{Payload, Work};
use super::memory::Registration;
use super::message::{ConnData, MAPPING_LEN, Message, REGION_LEN, Region};
use super::socket::{self, Guard, Socket};
use super::stream::Stream;
use crate::errno::{Errno, INVALID, Result, code};

/// `riomap`'s offset for "choose one": the address itself.
const ANY_OFFSET: i64 = -1;

/// Memory of ours that is mapped.
struct Mapping {
    addr: usize,
    len: usize,
    offset: u64,
    registration: Registration,
    /// Its entry in the peer's table; `None` if the peer has no part in it.
    entry: Option<u32>,
    /// The peer must be told.
    pending: bool,
}

/// The mappings of a connection: ours, and where the peer's are.
pub(super) struct Mappings {
    ours: Vec<Mapping>,
    /// The peer's table.
    table: Region,
    /// Entries of our table.
    entries: u16,
}

impl Mappings {
    /// None yet; the peer may have so many.
    pub fn new(entries: u16) -> Mappings {
        Mappings {
            ours: Vec::new(),
            table: Region::default(),
            entries,
        }
    }

    /// Where the peer's table is.
    pub fn introduce(&mut self, peer: &ConnData) {
        let slots = u64::from(peer.slots.len) * REGION_LEN as u64;
        self.table = Region {
            addr: peer.slots.addr.wrapping_add(slots),
            key: peer.slots.key,
            len: peer.mappings.into(),
        };
    }

    /// An entry of the peer's table that nothing of ours is in.
    fn free_entry(&self) -> Result<u32> {
        let taken = |entry: &u32| self.ours.iter().any(|m| m.entry == Some(*entry));
        let free = (0..self.table.len).find(|entry| !taken(entry));
        free.ok_or(Errno(libc::ENOMEM))
    }

    /// Whether the peer must be told of something.
    pub fn pending(&self) -> bool {
        self.ours.iter().any(|mapping| mapping.pending)
    }
}

/// An entry of the table: what is at `offset` is at `region`.
fn entry_bytes(offset: u64, region: Region) -> [u8; MAPPING_LEN] {
    let mut bytes = [0; MAPPING_LEN];
    bytes[..8].copy_from_slice(&offset.to_ne_bytes());
    bytes[8..].copy_from_slice(&region.to_slot());
    bytes
}

/// Where `offset` is, and how many bytes there are from it on, by an entry of the table.
fn look_up(bytes: &[u8; MAPPING_LEN], offset: u64) -> Option<(Place, u64)> {
    let (start, region) = bytes.split_at(8);
    let start = u64::from_ne_bytes(start.try_into().ok()?);
    let region = Region::from_slot(region.try_into().ok()?);
    let inside = offset.checked_sub(start)?;
    let left = u64::from(region.len).checked_sub(inside)?;
    let place = Place {
        addr: region.addr.wrapping_add(inside),
        key: region.key,
    };
    (left > 0).then_some((place, left))
}

impl Stream {
    /// Tells the peer of a mapping, for which there is room.
    pub fn tell_mapping(&mut self) -> Result<()> {
        let Mappings { ours, table, .. } = &mut self.mappings;
        let Some(mapping) = ours.iter_mut().find(|mapping| mapping.pending) else {
            return Ok(());
        };
        let entry = mapping.entry.unwrap_or(0);
        let region = Region {
            addr: mapping.addr as u64,
            key: mapping.registration.rkey(),
            len: u32::try_from(mapping.len).map_err(|_| INVALID)?,
        };
        let bytes = entry_bytes(mapping.offset, region);
        let at = u64::from(entry) * MAPPING_LEN as u64;
        let place = Place {
            addr: table.addr.wrapping_add(at),
            key: table.key,
        };
        mapping.pending = false;
        self.outgoing.occupy(0);
        let payload = Payload::Inline(bytes.as_ptr(), MAPPING_LEN as u32);
        let message = Some(Message::Mapping);
        // SAFETY: the entry's bytes live until the call returns.
        unsafe { self.link.post(Work::Send(0), payload, place, message) }
    }

    /// Where the peer has mapped `offset`, and for how many bytes.
    pub(super) fn find(&self, offset: u64) -> Result<(Place, u64)> {
        for entry in 0..u32::from(self.mappings.entries) {
            let at = (SLOTS * REGION_LEN) as u32 + entry * MAPPING_LEN as u32;
            if let Some(found) = look_up(&self.link.table.read(at)?, offset) {
                return Ok(found);
            }
        }
        Err(Errno(libc::EFAULT))
    }
}

/// `riomap`
pub(crate) unsafe extern "C" fn riomap(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: i64,
) -> i64 {
    let mapped = socket::with(fd, |socket| {
        let mut state = socket.lock();
        // SAFETY: the program passes memory of its own.
        unsafe { map(&mut state, buf, len, prot, offset) }
    });
    mapped.unwrap_or_else(|errno| code(Err(errno)).into())
}

/// # Safety
/// As [`riomap`].
unsafe fn map(
    state: &mut Guard<'_>,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    offset: i64,
) -> Result<i64> {
    if prot & !libc::PROT_WRITE != 0 || u32::try_from(len).is_err() {
        return Err(INVALID);
    }
    let pd = state.domain().ok_or(INVALID)?;
    let stream = state.stream.as_mut().ok_or(INVALID)?;
    let remote = prot & libc::PROT_WRITE != 0;
    let (entry, access) = match remote {
        true => (
            Some(stream.mappings.free_entry()?),
            Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        ),
        false => (None, Access::LOCAL_WRITE),
    };
    // SAFETY: as the caller promises; the registration ends when the program unmaps or closes.
    let registration = unsafe { Registration::new(pd, buf, len, access) }?;
    let offset = match offset {
        ANY_OFFSET => buf as i64,
        offset => offset,
    };
    stream.mappings.ours.push(Mapping {
        addr: buf as usize,
        len,
        offset: offset as u64,
        registration,
        entry,
        pending: remote,
    });
    Ok(offset)
}

/// `riounmap`: the peer's entry stays, and leads to nothing.
pub(crate) extern "C" fn riounmap(fd: c_int, buf: *mut c_void, len: usize) -> c_int {
    code(socket::with(fd, |socket| {
        let mut state = socket.lock();
        let ours = match state.stream.as_mut() {
            Some(stream) => &mut stream.mappings.ours,
            None => return Err(INVALID),
        };
        let found = ours
            .iter()
            .position(|mapping| mapping.addr == buf as usize && mapping.len == len);
        ours.swap_remove(found.ok_or(INVALID)?);
        Ok(())
    }))
}

/// `riowrite`: how many bytes were written, or -1 as a `size_t`.
pub(crate) unsafe extern "C" fn riowrite(
    fd: c_int,
    buf: *const c_void,
    count: usize,
    offset: i64,
    flags: c_int,
) -> usize {
    // SAFETY: the program passes as many bytes as it says.
    let written = socket::with(fd, |socket| unsafe {
        write(socket, buf.cast(), count, offset as u64, flags)
    });
    written.unwrap_or_else(|errno| code(Err(errno)) as isize as usize)
}

/// # Safety
/// As [`riowrite`].
unsafe fn write(
    socket: &Socket,
    buf: *const u8,
    count: usize,
    offset: u64,
    flags: c_int,
) -> Result<usize> {
    let mut state = socket.lock();
    let deadline = state.options.send_deadline();
    let room = |stream: &Stream| stream.outgoing.has_room() || !stream.writable;
    let mut done = 0;
    let outcome = loop {
        if done == count {
            break Ok(());
        }
        if let Err(errno) = socket.await_room(&mut state, flags, deadline, Allowed::NO, room) {
            break Err(errno);
        }
        let stream = state.stream.as_mut().ok_or(Errno(libc::ENOTCONN))?;
        let at = offset.wrapping_add(done as u64);
        let (place, left) = match stream.find(at) {
            Ok(found) => found,
            Err(errno) => break Err(errno),
        };
        let want = stream.message_len(count - done);
        let want = want.min(u32::try_from(left).unwrap_or(u32::MAX));
        let len = stream.outgoing.buffered(want);
        // SAFETY: as the caller promises.
        if let Err(errno) = unsafe { stream.write(buf.add(done), len, place, None) } {
            stream.lost(Some(errno));
            break Err(errno);
        }
        done += len as usize;
    };
    match outcome {
        Err(errno) if done == 0 => Err(errno),
        _ => Ok(done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_looked_up_within_their_mapping() {
        let region = Region {
            addr: 0x1000,
            key: 5,
            len: 100,
        };
        let entry = entry_bytes(40, region);
        assert_eq!(look_up(&entry, 39), None);
        let place = Place {
            addr: 0x1000,
            key: 5,
        };
        assert_eq!(look_up(&entry, 40), Some((place, 100)));
        let last = Place {
            addr: 0x1063,
            key: 5,
        };
        assert_eq!(look_up(&entry, 139), Some((last, 1)));
        assert_eq!(look_up(&entry, 140), None);
    }

    #[test]
    fn an_entry_that_was_never_written_leads_nowhere() {
        assert_eq!(look_up(&[0; MAPPING_LEN], 0), None);
    }
}
