//! Tests of what is found of a peer's memory, and of entries that lie.

use causeway_owned::Owned;
use causeway_shm::layout::{MEMORY_SEGMENT_BYTES, MR_TABLE_BYTES, WINDOW};
use causeway_shm::{MrTable, Segment};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::*;

const KEY: u32 = 0x501;
const PD: u32 = 3;

/// A view of a peer's memory whose segment, for reading only or not, is open at `offset`.
fn view(offset: u64, writable: bool) -> (Direct, MrTable) {
    let fd = memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, MEMORY_SEGMENT_BYTES).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    let arena = Arc::new(Arena::new(Owned::new(fd, "a test's file"), writable).unwrap());
    let segment = Arc::new(Segment::create("t", MR_TABLE_BYTES).unwrap());
    let table = MrTable::format(Arc::clone(&segment)).unwrap();
    let mut direct = Direct::new(PeerMrs::open(segment).unwrap(), 7, InProcess::never());
    direct.arenas.insert(1, arena);
    assert!(direct.at(1, offset, false, Grant::NONE).is_some());
    (direct, table)
}

fn entry(offset: u64, len: u64) -> MrEntry {
    MrEntry {
        key: KEY,
        access: access(Remote::Read) | access(Remote::Write),
        pd: PD,
        qpn: 0,
        iova: 0x7000_0000,
        len,
        offset,
        segment: 1,
        start: offset,
        end: offset.saturating_add(len),
    }
}

/// The stamp of an entry, and a grant of all that it allows.
fn stamped(direct: &Direct, table: &MrTable) -> (Stamp, Grant) {
    let region = entry(4096, 8192);
    table.publish(&region);
    let (_, stamp) = direct.mrs.find(KEY).unwrap();
    (stamp, Grant::new(PD, region.access))
}

#[test]
fn what_was_found_holds_until_the_region_is_published_anew() {
    let (mut direct, table) = view(4096, true);
    let region = entry(4096, 8192);
    table.publish(&region);
    let (found, stamp) = direct.mrs.find(KEY).unwrap();
    let grant = Grant::new(PD, region.access);
    direct.remember(&found, (stamp, grant), 4096 + 100);
    let (base, _) = direct.opened.as_ref().unwrap().window.at(4096).unwrap();
    let cached = direct
        .cached(KEY, region.iova + 8, 16, Remote::Write)
        .unwrap();
    assert_eq!(cached.at, base.wrapping_add(8));
    assert!(cached.still_holds(grant));
    assert!(!cached.still_holds(Grant::NONE));
    assert!(!cached.still_holds(Grant::new(PD + 1, region.access)));
    table.retract(KEY);
    assert!(!cached.still_holds(grant));
    table.publish(&region);
    assert!(!cached.still_holds(grant));
}

#[test]
fn only_what_is_in_the_region_and_allowed_is_found() {
    let (mut direct, table) = view(4096, true);
    let region = entry(4096, 8192);
    direct.remember(&region, stamped(&direct, &table), 4096);
    let found = |key, addr, len, what| direct.cached(key, addr, len, what).is_some();
    assert!(found(KEY, region.iova, 8192, Remote::Read));
    assert!(!found(KEY + 1, region.iova, 8, Remote::Read));
    assert!(!found(KEY, region.iova - 1, 8, Remote::Read));
    assert!(!found(KEY, region.iova + 8185, 8, Remote::Read));
    assert!(!found(KEY, u64::MAX - 3, 8, Remote::Read));
    assert!(!found(KEY, region.iova, 8, Remote::Atomic));
    let (mut direct, table) = view(4096, false);
    direct.remember(&region, stamped(&direct, &table), 4096);
    assert!(direct.cached(KEY, region.iova, 8, Remote::Read).is_some());
    assert!(direct.cached(KEY, region.iova, 8, Remote::Write).is_none());
}

#[test]
fn a_word_is_found_where_eight_bytes_to_be_written_are() {
    let (first, end) = (entry(4096, 8192).iova, entry(4096, 8192).iova + 8192);
    for writable in [true, false] {
        let (mut direct, table) = view(4096, writable);
        direct.remember(&entry(4096, 8192), stamped(&direct, &table), 4096);
        for addr in [first - 1, first, end - 8, end - 7, end, u64::MAX - 3] {
            let word = direct.cached_word(KEY, addr).map(|cached| cached.at);
            let bytes = direct.cached(KEY, addr, 8, Remote::Write);
            assert_eq!(word, bytes.map(|cached| cached.at));
        }
        assert_eq!(direct.cached_word(KEY, end - 8).is_some(), writable);
        assert!(direct.cached_word(KEY + 1, first).is_none());
    }
}

/// Whatever an entry says, what is made of it is inside the window that is mapped.
#[test]
fn an_entry_that_lies_leads_nowhere_else() {
    const WORDS: [u64; 8] = [0, 1, 4096, WINDOW - 1, WINDOW, 1 << 47, 1 << 63, u64::MAX];
    let offset = WINDOW + 4096;
    let (mut direct, table) = view(offset, true);
    let stamped = stamped(&direct, &table);
    let window = direct.opened.as_ref().unwrap().window;
    let (first, room) = window.at(WINDOW).unwrap();
    let mapped = first.addr()..=first.addr() + room;
    let lies = (0..WORDS.len().pow(5)).map(|number| {
        let word = |digit| WORDS[number / WORDS.len().pow(digit) % WORDS.len()];
        MrEntry {
            iova: word(0),
            offset: word(1),
            len: word(2),
            start: word(3),
            end: word(4),
            ..entry(0, 0)
        }
    });
    for lie in lies {
        direct.translation = None;
        direct.remember(&lie, stamped, offset);
        for addr in WORDS.map(|word| lie.iova.wrapping_add(word)) {
            if let Some(cached) = direct.cached_word(KEY, addr) {
                assert!(mapped.contains(&cached.at.addr()));
                assert!(mapped.contains(&(cached.at.addr() + size_of::<u64>())));
            }
            for len in [1, u32::MAX] {
                if let Some(cached) = direct.cached(KEY, addr, len, Remote::Read) {
                    assert!(mapped.contains(&cached.at.addr()));
                    assert!(mapped.contains(&(cached.at.addr() + len as usize)));
                }
            }
        }
    }
}
