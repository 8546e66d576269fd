//! An endpoint's counters, in the second page of its inbox, for `causeway status`.
//!
//! Every peer has the inbox mapped, so the counters inform and nothing is ever decided by them.

use crate::layout as l;
use crate::mem::{Region, Table};
use crate::segment::{Segment, SegmentError};
use crate::sync::{Arc, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $index:literal, $name:ident;)*) => {
        /// What is counted; the value is the index of its word in the page.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $variant = $index,)* }

        /// A copy of all counters, each the sum of all sets. Each is exact; together they are of no
        /// single moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot { $($(#[$doc])* pub $name: u64,)* }

        impl Snapshot {
            fn read(mem: &Region) -> Snapshot {
                let sum = |counter| {
                    let sets = (0..l::STATS_SETS).map(|set| at(mem, set, counter));
                    sets.fold(0u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)))
                };
                Snapshot { $($name: sum(Counter::$variant),)* }
            }

            /// Adds another's counters.
            pub fn add(&mut self, other: &Snapshot) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }

            /// Names and values, in the order of the page.
            #[must_use]
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }

        const COUNTERS: usize = [$($index,)*].len();
    };
}

counters! {
    /// Messages sent: work requests completed with success.
    TxMessages = 0, tx_messages;
    /// Messages received: receives completed with success.
    RxMessages = 1, rx_messages;
    /// Payload bytes sent.
    TxBytes = 2, tx_bytes;
    /// Payload bytes received.
    RxBytes = 3, rx_bytes;
    /// Records put into rings.
    RingTxRecords = 4, ring_tx_records;
    /// Records taken from rings.
    RingRxRecords = 5, ring_rx_records;
    /// Doorbells of peers rung.
    DoorbellsRung = 6, doorbells_rung;
    /// Times the endpoint was woken by its doorbell.
    Wakeups = 7, wakeups;
    /// Datagrams sent.
    UdpTxDatagrams = 8, udp_tx_datagrams;
    /// Datagrams received.
    UdpRxDatagrams = 9, udp_rx_datagrams;
    /// Bytes of datagrams sent.
    UdpTxBytes = 10, udp_tx_bytes;
    /// Bytes of datagrams received.
    UdpRxBytes = 11, udp_rx_bytes;
    /// Segments sent again.
    Retransmits = 12, retransmits;
    /// Retransmission time-outs.
    Timeouts = 13, timeouts;
    /// Requests this side refused for want of a receive.
    RnrSent = 14, rnr_sent;
    /// Refusals for want of a receive that came from peers.
    RnrReceived = 15, rnr_received;
    /// Datagrams dropped: malformed, unknown queue pair, wrong cookie.
    Drops = 16, drops;
    /// Completions with an error other than a flush.
    Errors = 17, errors;
    /// Queue pairs that exist now.
    QueuePairs = 18, queue_pairs;
    /// Queue pairs connected by a ring now.
    RingsOpen = 19, rings_open;
    /// Queue pairs connected by datagrams now.
    UdpConnections = 20, udp_connections;
    /// Memory regions that exist now.
    MemoryRegions = 21, memory_regions;
    /// WRITEs, READs and atomics carried out in a peer's memory by this endpoint itself.
    Direct = 22, direct;
    /// Of the messages sent, those to peers that are reached by UDP.
    UdpTxMessages = 23, udp_tx_messages;
    /// Payload bytes of these.
    UdpTxPayload = 24, udp_tx_payload;
    /// Peers that lost their access to this endpoint's memory, since they exceeded their lease.
    Evictions = 25, evictions;
    /// Datagrams received that bore the network's mark of congestion.
    MarksReceived = 26, marks_received;
    /// Times that a peer has told of such ones among those sent to it.
    MarksReported = 27, marks_reported;
}

impl Snapshot {
    /// What was counted, without what exists now: nothing of an endpoint that has ended does.
    #[must_use]
    pub fn without_present(mut self) -> Snapshot {
        self.queue_pairs = 0;
        self.rings_open = 0;
        self.udp_connections = 0;
        self.memory_regions = 0;
        self
    }

    /// Messages that were sent over shared memory.
    #[must_use]
    pub fn local_messages(&self) -> u64 {
        self.tx_messages.wrapping_sub(self.udp_tx_messages)
    }

    /// Bytes that were carried over shared memory, in either direction.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        self.tx_bytes.wrapping_sub(self.udp_tx_payload)
    }
}

const _: () = assert!(COUNTERS * 8 <= l::STATS_SET);
const _: () = assert!(cfg!(any(loom, shuttle)) || l::STATS_SETS * l::STATS_SET <= l::PAGE);

fn at(mem: &Region, set: usize, counter: Counter) -> &crate::sync::AtomicU64 {
    mem.word(l::STATS_AT + set * l::STATS_SET + 8 * counter as usize)
}

/// A set of the counters of an inbox segment. One thread at a time may write a set (the lock that
/// it belongs to sees to that); anybody may read the sums of all sets.
#[derive(Clone, Debug)]
pub struct Stats {
    mem: Region,
    words: Table<COUNTERS>,
}

impl Stats {
    /// A set of the counters in an inbox segment, less than [`l::STATS_SETS`].
    ///
    /// # Errors
    /// [`SegmentError::Format`] if it is not an inbox's.
    pub fn open(segment: Arc<Segment>, set: usize) -> Result<Stats, SegmentError> {
        crate::Inbox::open(Arc::clone(&segment))?;
        let mem = Region::new(segment);
        let words = Table::new(&mem, l::STATS_AT + set % l::STATS_SETS * l::STATS_SET);
        Ok(Stats { mem, words })
    }

    /// Adds to a counter, wrapping. Not atomic between writers: no locked instruction.
    #[inline(always)]
    pub fn add(&self, counter: Counter, n: u64) {
        let word = self.words.word(counter as usize);
        word.store(
            word.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    /// As [`Stats::add`], of several. They are located before any is written: a compiler cannot
    /// know that a counter is not the place of another.
    #[inline(always)]
    pub fn add_all<const N: usize>(&self, counts: [(Counter, u64); N]) {
        let words = counts.map(|(counter, n)| (self.words.word(counter as usize), n));
        for (word, n) in words {
            let sum = word.load(Ordering::Relaxed).wrapping_add(n);
            word.store(sum, Ordering::Relaxed);
        }
    }

    /// Sets a counter of things that exist now.
    pub fn set(&self, counter: Counter, n: u64) {
        self.words
            .word(counter as usize)
            .store(n, Ordering::Relaxed);
    }

    /// The sums of all sets.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::read(&self.mem)
    }
}
