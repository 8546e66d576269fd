//! Parameters and limits of a connection.

use causeway_wire::secure::OVERHEAD;
use causeway_wire::trp::HEADER_LEN;

use crate::time::Duration;

/// Longest that an acknowledgment is held back in the hope of company.
pub const MAX_ACK_DELAY: Duration = Duration::from_micros(500);
/// Times that the program may poll in vain while the acknowledgment of a whole message waits for
/// data to travel with, where experience says that data follows (a ping-pong): a few microseconds.
/// An acknowledgment that comes alone lets the requester stop polling, and look at its memory only,
/// just before the answer comes.
pub const REPLY_PASSES: u8 = 8;
/// How long it waits for a program that neither looks nor sends.
pub const REPLY_DELAY: Duration = Duration::from_millis(1);
/// How soon after an acknowledgment that left alone data shows that it had better waited. A program
/// that spins on its memory may first have to get its processor back from the sender.
pub const JUST_MISSED: Duration = Duration::from_micros(200);
/// Data segments that may go unacknowledged, unless the sender asks: it does so often enough for
/// its window ([`ASKS_PER_WINDOW`]). RFC 5681 section 4.2 has 2, for senders that cannot ask.
pub const ACK_EVERY: u32 = 64;
/// Whole messages that may go unacknowledged where a reply is expected to carry the
/// acknowledgment: more are a stream.
pub const ACK_WHOLE: u32 = 2;
/// How often the sender asks for an acknowledgment while it sends one congestion window.
pub const ASKS_PER_WINDOW: u64 = 4;
/// Least time without progress before a peer counts as lost, unless said otherwise.
/// InfiniBand's time-outs assume a NIC; a software peer may be descheduled, stopped in a debugger
/// for a moment, or paging.
pub const RETRY_FLOOR: Duration = Duration::from_secs(4);
/// How long a send to a queue pair that is gone, in good order, takes to fail.
pub const DESERTED_AFTER: Duration = Duration::from_secs(1);
/// `timeout` code 0: no limit (`ibv_modify_qp(3)`).
pub const TIMEOUT_INFINITE: u8 = 0;
/// Unit of the `timeout` code: 4.096 µs × 2^code.
const TIMEOUT_UNIT_NS: u64 = 4096;
/// First repetition of a connection request: the peer may be a few milliseconds behind.
pub const REQUEST_FIRST: Duration = Duration::from_millis(1);
/// Last repetition interval of a connection request.
pub const REQUEST_LAST: Duration = Duration::from_millis(200);
/// Claims to be the peer that are kept, and answered, until one is proved.
pub const MAX_CLAIMS: usize = 8;
/// Handshakes of a secured connection that were answered, and are kept until one is proved.
pub const MAX_CANDIDATES: usize = 8;
/// Cookies of the peer's that are heeded for each time that a handshake is begun or repeated: the
/// second is for a secret that has just changed. Each draws a datagram, so that forged ones draw no
/// more than two.
pub const COOKIES_PER_TRY: u8 = 2;
/// How long a side that has answered a handshake repeats that before it begins one of its own.
pub const ANSWER_WAIT: Duration = Duration::from_millis(100);
/// How long a peer's refusal may be overtaken by something better: anybody on the path can send
/// one.
pub const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);
/// Silence after which a peer that owes us data is asked for a sign of life.
pub const PING_FIRST: Duration = Duration::from_secs(1);
/// Longest interval between signs of life.
pub const PING_LAST: Duration = Duration::from_secs(60);
/// Datagram size that every path is expected to carry (RFC 8899 section 5.1.2: BASE_PLPMTU).
pub const BASE_DATAGRAM: usize = 1200;
/// Least and greatest datagram a configuration may name.
pub const MIN_DATAGRAM: usize = 576;
/// Largest UDP payload over IPv4.
pub const MAX_DATAGRAM: usize = 65_507;
/// Segments taken out of order unless the configuration says otherwise.
pub const DEFAULT_WINDOW: u16 = 1024;
/// Bytes of request segments held for their turn unless the configuration says otherwise.
pub const DEFAULT_HELD_BYTES: usize = 1 << 20;
/// Reports of an unreachable port, with nothing heard in between, that prove a peer gone.
pub const UNREACHABLE_PROOFS: u32 = 2;
/// Time after a first report of an unreachable port in which further ones prove nothing new: they
/// answer datagrams that were already on their way. Also the least time between two pings that
/// reports without proof cause.
pub const UNREACHABLE_SPACING: Duration = Duration::from_millis(1);

/// Parameters of a connection, fixed when the queue pair becomes ready to receive (RTR).
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Own queue pair number.
    pub local_qpn: u32,
    /// Peer's queue pair number (`dest_qp_num`).
    pub remote_qpn: u32,
    /// Random, never used before, not 0: proves that the peer has received our handshake, and tells
    /// incarnations of a queue pair apart.
    pub cookie: u64,
    /// First request PSN expected (`rq_psn`).
    pub rq_psn: u32,
    /// Largest datagram (UDP payload bytes) that the path is believed to carry unfragmented.
    pub max_datagram: usize,
    /// Segments taken out of order, per space; also bounds what the peer has in flight to us. Set
    /// it so that a window of full datagrams fits the socket's receive buffer.
    pub window: u16,
    /// Bytes of request segments held for their turn.
    pub max_held_bytes: usize,
    /// Protect every datagram by a CRC32C. On if either side wants it.
    pub crc: bool,
    /// Heed marks of a congested path (ECN), if the peer does.
    pub ecn: bool,
    /// Identity of this host's broker, or zeros.
    pub host_id: [u8; 16],
    /// Nonce for the introduction to shared memory, or zeros.
    pub nonce: [u8; 16],
    /// Least time without progress before the peer counts as lost, unless `timeout` is 0.
    pub patience: Duration,
    /// Seal every datagram by keys of a handshake, and take no other. What is sealed has
    /// `max_datagram` bytes at most; the datagram is longer by [`OVERHEAD`].
    pub secured: bool,
    /// Datagrams after which its keys change.
    pub phase_packets: u64,
}

impl Config {
    /// A configuration with default limits.
    #[must_use]
    pub fn new(local_qpn: u32, remote_qpn: u32, cookie: u64, rq_psn: u32) -> Self {
        Config {
            local_qpn,
            remote_qpn,
            cookie,
            rq_psn,
            max_datagram: BASE_DATAGRAM,
            window: DEFAULT_WINDOW,
            max_held_bytes: DEFAULT_HELD_BYTES,
            crc: false,
            ecn: true,
            host_id: [0; 16],
            nonce: [0; 16],
            patience: RETRY_FLOOR,
            secured: false,
            phase_packets: causeway_aead::PHASE_PACKETS,
        }
    }

    /// Bytes that sealing adds to a datagram.
    pub(super) fn overhead(&self) -> usize {
        if self.secured { OVERHEAD } else { 0 }
    }

    /// The datagram that every path is expected to carry, as TRP fills it.
    pub(super) fn base_datagram(&self) -> usize {
        BASE_DATAGRAM - self.overhead()
    }

    pub(super) fn bounded(mut self) -> Self {
        let most = MAX_DATAGRAM - self.overhead();
        self.max_datagram = self.max_datagram.clamp(MIN_DATAGRAM, most);
        // The seal is the better checksum.
        self.crc &= !self.secured;
        self.window = self.window.clamp(1, 1 << 14);
        self.max_held_bytes = self.max_held_bytes.max(self.max_datagram - HEADER_LEN);
        self
    }
}

/// Parameters that come when the queue pair becomes ready to send (RTS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendConfig {
    /// First request PSN sent (`sq_psn`).
    pub sq_psn: u32,
    /// Code of the acknowledgment time-out, 0 (no limit) to 31.
    pub timeout: u8,
    /// Retransmissions before giving up, 0 to 7.
    pub retry_cnt: u8,
}

/// How long a peer may go without progress.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    limit: Option<Duration>,
    retries: u32,
}

impl Budget {
    /// The budget of `retry_cnt` retransmissions, each after `timeout`, not less than
    /// `floor`.
    #[must_use]
    pub fn new(timeout: u8, retry_cnt: u8, floor: Duration) -> Self {
        let retries = u32::from(retry_cnt.min(7)) + 1;
        let each = Duration::from_nanos(TIMEOUT_UNIT_NS << timeout.min(31));
        let limit = (timeout != TIMEOUT_INFINITE).then(|| (each * retries).max(floor));
        Budget { limit, retries }
    }

    /// Whether it is used up.
    #[must_use]
    pub fn exhausted(&self, without_progress: Duration, retries: u32) -> bool {
        retries >= self.retries && self.limit.is_some_and(|l| without_progress >= l)
    }

    /// The time it grants; `None` means no end.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_has_a_floor_and_an_infinite_code() {
        let new = |timeout, retry_cnt| Budget::new(timeout, retry_cnt, RETRY_FLOOR);
        assert_eq!(new(14, 7).limit(), Some(RETRY_FLOOR));
        let short = Budget::new(14, 0, Duration::ZERO).limit();
        assert_eq!(short, Some(Duration::from_nanos(4096 << 14)));
        assert_eq!(
            new(20, 7).limit(),
            Some(Duration::from_nanos(8 * (4096 << 20)))
        );
        assert_eq!(new(0, 7).limit(), None);
        let b = new(14, 7);
        assert!(!b.exhausted(RETRY_FLOOR, 7) && b.exhausted(RETRY_FLOOR, 8));
        assert!(!new(0, 0).exhausted(Duration::MAX, 1000));
    }
}
