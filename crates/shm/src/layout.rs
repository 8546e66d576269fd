//! Offsets and sizes of everything in shared memory (`docs/LAYOUT.md`).
//!
//! All words are 64 bits wide, little-endian (the only byte order Causeway runs on), and naturally
//! aligned. Under loom and shuttle the same code runs on a smaller model.

/// Whether a model checker stands in for shared memory.
const MODEL: bool = cfg!(any(loom, shuttle));

/// Distance between words written by different sides. Two cache lines: the adjacent-line prefetcher
/// of many processors fetches lines in pairs.
pub const LINE: usize = if MODEL { 8 } else { 128 };
/// Granularity of records: one cache line, so that no two records share one.
pub const CELL: usize = if MODEL { 32 } else { 64 };
/// Bytes of a page.
pub const PAGE: usize = if MODEL { 256 } else { causeway_identity::PAGE };

/// First word of a ring segment: "CWRING" and two zero bytes.
pub const RING_MAGIC: u64 = u64::from_le_bytes(*b"CWRING\0\0");
/// First word of an inbox segment: "CWINBX" and two zero bytes.
pub const INBOX_MAGIC: u64 = u64::from_le_bytes(*b"CWINBX\0\0");
/// Version of the layouts. Both sides must agree exactly.
pub const VERSION: u64 = 4;
/// Version of the inbox's layout.
pub const INBOX_VERSION: u64 = 4;

/// Offset of the magic word in ring and inbox segments.
pub const MAGIC_AT: usize = 0;
/// Offset of the version word.
pub const VERSION_AT: usize = 8;
/// Offset of a ring's capacity word.
pub const CAPACITY_AT: usize = 16;

/// Offset of what side 0 of a ring writes.
pub const SIDES_AT: usize = if MODEL { 32 } else { 512 };
/// Distance from what side 0 writes to what side 1 writes.
pub const SIDE_STRIDE: usize = if MODEL { 7 * LINE } else { 4 * LINE };
/// In a side's words: bytes it has consumed of the other side's records.
pub const HEAD: usize = 0;
/// In a side's words: number of the other side's requests it has placed.
pub const ACK: usize = LINE;
/// In a side's words: what it wants to be told of.
pub const ATTENTION: usize = 2 * LINE;
/// In a side's words, on the line of `ATTENTION`: flags, each only ever set.
pub const FLAGS: usize = if MODEL { 3 * LINE } else { 2 * LINE + 8 };
/// In a side's words, on the line of `ATTENTION`: what the other side may access directly.
pub const GRANT: usize = if MODEL { 4 * LINE } else { 2 * LINE + 16 };
/// In a side's words: the memory region of the other side that this side is accessing now.
pub const IN_FLIGHT: usize = if MODEL { 5 * LINE } else { 3 * LINE };
/// In a side's words, on the line of `IN_FLIGHT`: as `ACK`, always the newest. Read when the side's
/// process has ended.
pub const PLACED: usize = IN_FLIGHT + 8;
/// In a side's words, on the line of `ATTENTION`: where in its process's memory this side has the
/// ring, if the other side may look there; else 0. Not in models.
pub const MAPPED_AT: usize = 2 * LINE + 24;
/// In a side's words, on the line of `IN_FLIGHT`: what this side looks for in the other side's
/// process. Not in models.
pub const CHALLENGE: usize = IN_FLIGHT + 16;

/// Bytes of records in one direction of a ring, unless said otherwise. Pages are allocated by the
/// kernel when first written: a queue pair that sends nothing costs the control page.
pub const RING_CAPACITY: usize = if MODEL { 4 * CELL } else { 512 << 10 };
/// Least capacity of a direction.
pub const MIN_CAPACITY: usize = if MODEL { 4 * CELL } else { 4096 };
/// Largest capacity of a direction.
pub const MAX_CAPACITY: usize = 64 << 20;

/// Header of a record: ready word, sequence number, piggybacked acknowledgment.
pub const RECORD_HEADER: usize = 24;
/// In a record: the ready word.
pub const RECORD_READY: usize = 0;
/// In a record: the sequence number.
pub const RECORD_SEQ: usize = 8;
/// In a record: the acknowledgment it carries.
pub const RECORD_ACK: usize = 16;

/// Words of the longest body that leaves a record in one cell.
pub const SHORT_WORDS: usize = (CELL - RECORD_HEADER) / 8;
/// Bytes of that body.
pub const SHORT_BODY: usize = 8 * SHORT_WORDS;

/// Queue pairs of one endpoint, and bits of its inbox: by the low bits of a queue pair's number,
/// which are the index within its slot and the low 4 of the slot. No two slots of an endpoint agree
/// in those.
pub const QP_INDEXES: u32 = if MODEL { 128 } else { 1 << 16 };
/// Slots of an endpoint, whose queue pairs' bits lie together.
pub const INBOX_SLOTS: usize = if MODEL { 1 } else { 16 };
/// Words of the inbox bitmap.
pub const BITMAP_WORDS: usize = QP_INDEXES as usize / 64;
/// Words that share a bit of the summary: those of a slot have 4 bits.
pub const SUMMARY_WORDS: usize = if MODEL { 2 } else { 16 };
/// In an inbox: whether the owner sleeps and wants its doorbell rung.
pub const ARMED_AT: usize = if MODEL { 24 } else { LINE };
/// In an inbox: one bit for each [`SUMMARY_WORDS`] of the bitmap that may have bits set.
pub const SUMMARY_AT: usize = if MODEL { 32 } else { 2 * LINE };
/// In an inbox: one bit for each queue pair whose ring wants attention.
pub const BITMAP_AT: usize = PAGE;
/// In an inbox: the page of statistics, with a set of counters for each of the endpoint's engines.
pub const STATS_AT: usize = BITMAP_AT + (8 * BITMAP_WORDS).next_multiple_of(PAGE);
/// Sets of counters: an endpoint has no more engines.
pub const STATS_SETS: usize = if MODEL { 1 } else { 8 };
/// Bytes of a set. Two threads that count in different sets share no line.
pub const STATS_SET: usize = 256;
/// Bytes of an inbox segment.
pub const INBOX_LEN: usize = STATS_AT + PAGE;

/// First word of a table of memory regions: "CWMRTB" and two zero bytes.
pub const MR_TABLE_MAGIC: u64 = u64::from_le_bytes(*b"CWMRTB\0\0");
/// Version of the table of memory regions.
pub const MR_TABLE_VERSION: u64 = 3;
/// Memory regions that peers can find in the table, by the index part of their keys. Those beyond
/// are accessed through the ring.
pub const MR_TABLE_ENTRIES: usize = if MODEL { 2 } else { 1 << 16 };
/// Bytes of an entry of the table: one cache line.
pub const MR_ENTRY: usize = 64;
/// Bytes of a table of memory regions.
pub const MR_TABLE_BYTES: usize = PAGE + MR_TABLE_ENTRIES * MR_ENTRY;
/// Low bits of a key that are its generation; those above are the index of its entry.
pub const KEY_GENERATION_BITS: u32 = 8;

/// First word of an interrupt cell: "CWCELL" and two zero bytes.
pub const INTERRUPT_MAGIC: u64 = u64::from_le_bytes(*b"CWCELL\0\0");
/// In an interrupt cell: how often it was triggered.
pub const INTERRUPT_TRIGGERS_AT: usize = if MODEL { 16 } else { LINE };
/// In an interrupt cell: whether the owner sleeps and wants its doorbell rung.
pub const INTERRUPT_ARMED_AT: usize = if MODEL { 24 } else { 2 * LINE };
/// In an interrupt cell: how many data interrupts the owner has taken.
pub const INTERRUPT_HEAD_AT: usize = if MODEL { 32 } else { 3 * LINE };
/// In an interrupt cell: the slots of data interrupts.
pub const INTERRUPT_SLOTS_AT: usize = PAGE;
/// Data interrupts that wait for their owner at most: a power of two.
pub const INTERRUPT_DEPTH: usize = if MODEL { 2 } else { 64 };
/// Bytes of a slot: a word for the length, then the payload.
pub const INTERRUPT_SLOT: usize = if MODEL { 16 } else { PAGE };
/// Longest payload of a data interrupt.
pub const INTERRUPT_PAYLOAD_MAX: usize = INTERRUPT_SLOT - 8;
/// Bytes of an interrupt cell. Pages of slots that were never used cost nothing.
pub const INTERRUPT_BYTES: usize = INTERRUPT_SLOTS_AT + INTERRUPT_DEPTH * INTERRUPT_SLOT;

/// First word of a life table: "CWLIFE" and two zero bytes.
pub const LIFE_MAGIC: u64 = u64::from_le_bytes(*b"CWLIFE\0\0");
/// Entries of a life table: as many as 16 bits can name.
pub const LIFE_ENTRIES: usize = if MODEL { 4 } else { 1 << 16 };
/// In a life table: the word that changes with each death. Its low 32 bits are a futex.
pub const LIFE_DEATHS_AT: usize = if MODEL { 24 } else { LINE };
/// In a life table: the entries, a word each.
pub const LIFE_ENTRIES_AT: usize = PAGE;
/// Bytes of a life table.
pub const LIFE_BYTES: usize = LIFE_ENTRIES_AT + 8 * LIFE_ENTRIES;

/// In a rate page: the word for bytes of the tenant's limit.
pub const RATE_BYTES_AT: usize = 0;
/// In a rate page: the word for messages of the tenant's limit.
pub const RATE_MESSAGES_AT: usize = LINE;
/// In a rate page: the word for bytes of the virtual machine's limit.
pub const RATE_VM_BYTES_AT: usize = 2 * LINE;
/// In a rate page: the word for messages of the virtual machine's limit.
pub const RATE_VM_MESSAGES_AT: usize = 3 * LINE;
/// Bytes of a rate page.
pub const RATE_PAGE_BYTES: usize = PAGE;

/// Bytes of a memory segment: any address of a process is an offset in it. Sparse.
pub const MEMORY_SEGMENT_BYTES: u64 = causeway_identity::ADDRESSES_END;
/// Bytes of a memory segment that a peer maps at once.
pub const WINDOW: u64 = 1 << 36;

/// Bytes of a ring segment whose directions hold `capacity` bytes each.
#[must_use]
pub const fn ring_len(capacity: usize) -> usize {
    PAGE + 2 * capacity
}

/// Whether a direction may have this capacity: a power of two within the limits.
#[must_use]
pub const fn capacity_ok(capacity: usize) -> bool {
    capacity.is_power_of_two() && capacity >= MIN_CAPACITY && capacity <= MAX_CAPACITY
}

/// Bytes a record with this body takes up in the ring.
#[must_use]
pub const fn record_size(body: usize) -> usize {
    (RECORD_HEADER + body).next_multiple_of(CELL)
}

/// Largest body of a record. Half the capacity, so that a record always fits into an empty ring,
/// whatever has to be skipped at its end.
#[must_use]
pub const fn max_body(capacity: usize) -> usize {
    capacity / 2 - RECORD_HEADER
}

const _: () = {
    assert!(SIDES_AT > CAPACITY_AT && SIDES_AT + 2 * SIDE_STRIDE <= PAGE);
    assert!(FLAGS + 8 <= GRANT && GRANT + 8 <= SIDE_STRIDE && PLACED + 8 <= SIDE_STRIDE);
    assert!(INTERRUPT_DEPTH.is_power_of_two() && INTERRUPT_HEAD_AT + 8 <= INTERRUPT_SLOTS_AT);
    assert!(MODEL || (INTERRUPT_BYTES == 266_240 && INTERRUPT_PAYLOAD_MAX == 4088));
    assert!(LIFE_DEATHS_AT > VERSION_AT && LIFE_DEATHS_AT + 8 <= LIFE_ENTRIES_AT);
    assert!(MODEL || (LIFE_BYTES == 528_384 && LIFE_DEATHS_AT == 128));
    assert!(MEMORY_SEGMENT_BYTES.is_multiple_of(WINDOW));
    assert!(RECORD_HEADER < CELL && CELL.is_power_of_two() && PAGE.is_multiple_of(CELL));
    assert!(capacity_ok(RING_CAPACITY) && MIN_CAPACITY >= 4 * CELL);
    assert!(BITMAP_WORDS.is_multiple_of(SUMMARY_WORDS));
    assert!(
        BITMAP_WORDS / SUMMARY_WORDS <= 64,
        "the summary is one word"
    );
    assert!(SUMMARY_AT >= ARMED_AT + 8 && SUMMARY_AT + 8 <= BITMAP_AT);
    assert!(MODEL || (ring_len(RING_CAPACITY) == 1_052_672 && INBOX_LEN == 16_384));
    assert!(MODEL || (SIDES_AT == 512 && SIDE_STRIDE == 512 && max_body(RING_CAPACITY) == 262_120));
};
