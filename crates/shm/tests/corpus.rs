//! Replays the fuzzing corpora of the ring and of what else peers write (fuzz/README.md).
#![cfg(not(any(loom, shuttle)))]

#[path = "../../../fuzz/harness/cells.rs"]
mod cells;
#[path = "../../../fuzz/harness/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/harness/ring.rs"]
mod ring;
#[path = "../../../fuzz/harness/script.rs"]
mod script;

use causeway_shm::layout as l;

#[test]
fn replay_ring() {
    corpus::replay("ring", ring::run);
}

#[test]
fn replay_cells() {
    corpus::replay("cells", cells::run);
}

/// A script in which both sides send and receive honestly, several times round the ring.
fn honest(rounds: usize) -> Vec<u8> {
    (0..rounds)
        .flat_map(|i| {
            let [low, high] = ((i * 37 % 599) as u16).to_le_bytes();
            [
                5, low, high, 6, low, high, 3, 7, 8, 9, i as u8, 0, 0, 0, 0, 0, 0, 0,
            ]
        })
        .collect()
}

/// The step that writes a word at the start of a cell of the peer's records.
fn header(cell: u16, word: u64) -> Vec<u8> {
    [&[2][..], &cell.to_le_bytes(), &word.to_le_bytes(), &[3, 3]].concat()
}

#[test]
#[ignore = "writes the corpus"]
fn write_ring_seeds() {
    let write = |name: &str, parts: &[Vec<u8>]| corpus::write_seed("ring", name, &parts.concat());
    let cells = (l::MIN_CAPACITY / l::CELL) as u16;
    // Bits of a ready word: length, kind, number with the bit that is always set.
    let ready = |len: u64, kind: u64, number: u64| len | kind << 32 | (0x8000 | number) << 48;
    write("honest", &[honest(60)]);
    write("empty-record", &[header(0, ready(0, 1, 0))]);
    write(
        "one-record",
        &[header(0, ready(40, 1, 0)), header(1, ready(8, 2, 1))],
    );
    write(
        "too-long",
        &[header(0, ready(l::MIN_CAPACITY as u64, 1, 0))],
    );
    write(
        "length-overflows",
        &[header(0, ready(u64::from(u32::MAX), 1, 0))],
    );
    write("wrong-number", &[header(0, ready(8, 1, 5))]);
    write("number-not-valid", &[header(0, 8 | 1 << 32)]);
    write(
        "padding-at-start",
        &[header(0, ready(l::MIN_CAPACITY as u64 - 24, 0xff, 0))],
    );
    write("padding-too-short", &[header(0, ready(8, 0xff, 0))]);
    write("ones", &[header(0, u64::MAX)]);
    write(
        "late-damage",
        &[honest(20), header(cells / 2, u64::MAX), honest(40)],
    );
    // The peer's words: its head jumps ahead, back, beyond; its attention and flags are garbage.
    for (name, slot, word) in [
        ("head-ahead", 0u16, 64u64),
        ("head-beyond", 0, u64::MAX),
        ("head-misaligned", 0, 7),
        ("ack-beyond", (l::ACK / 8) as u16, u64::MAX),
        ("attention", (l::ATTENTION / 8) as u16, u64::MAX),
        ("flags", (l::FLAGS / 8) as u16, u64::MAX),
    ] {
        let damage = [&[1][..], &slot.to_le_bytes(), &word.to_le_bytes()].concat();
        write(name, &[honest(6), damage, honest(30)]);
    }
    // The words that describe the ring change under it.
    let describe = [&[0][..], &2u16.to_le_bytes(), &u64::MAX.to_le_bytes()].concat();
    write("capacity-changes", &[honest(3), describe, honest(30)]);
}
