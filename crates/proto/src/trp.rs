//! TRP: the reliability protocol of USIW section 2.3, extended (docs/WIRE.md), without I/O.
//!
//! One [`Connection`] serves one connected queue pair. It is driven by four calls:
//! [`on_datagram`](Connection::on_datagram) for what arrives, [`poll_transmit`] until it yields
//! nothing, [`poll_timeout`](Connection::poll_timeout) for when to call
//! [`on_timeout`](Connection::on_timeout), and after each of those (and after work was posted)
//! [`poll_transmit`] again. Segments come from and go to the queue pair through [`Ulp`].
//!
//! A connection is one state machine without locks: calls need `&mut`.
//!
//! [`poll_transmit`]: Connection::poll_transmit
//! [`Ulp`]: crate::ulp::Ulp

mod acks;
mod asking;
mod config;
mod congestion;
mod ecn;
mod express;
mod handshake;
mod input;
mod liveness;
mod output;
mod receive;
mod recv;
mod repeat;
mod reports;
mod reset;
mod rtt;
mod run;
mod search;
mod secure;
mod send;
mod senders;
mod stats;
#[cfg(test)]
mod tests;
mod timers;
mod versions;

pub use causeway_wire::trp::Reason;
pub use config::{
    BASE_DATAGRAM, Budget, Config, DEFAULT_WINDOW, MAX_ACK_DELAY, MAX_DATAGRAM, MIN_DATAGRAM,
    RETRY_FLOOR, SendConfig,
};
pub(crate) use config::{COOKIES_PER_TRY, REFUSAL_PATIENCE};
pub use handshake::Peer;
pub use liveness::Expecting;
pub use reports::{Proof, Undelivered};
pub use reset::reset_for;
pub use rtt::{INITIAL_RTO, MAX_RTO, MIN_RTO};
pub use secure::{Cipher, Keys, PHASE_PACKETS, Turn};
pub use senders::Senders;
pub use stats::{DropReason, Stats};

use acks::Acks;
use causeway_wire::secure::Why;
use causeway_wire::versions::Notice;
use congestion::{Cubic, Pacer};
use ecn::{Ecn, Marks};
use handshake::Handshake;
use liveness::Liveness;
use receive::Refused;
use recv::ReceiveSpace;
use repeat::Question;
use rtt::Rtt;
use run::{Arriving, Run};
use search::Search;
use secure::{Owed, Secure};
use send::SendSpace;
use senders::Share;

use crate::time::Instant;
use crate::ulp::{Nak, Space, Ulp};
use causeway_checksum::crc32c as crc;

const SPACES: [Space; 2] = [Space::Request, Space::Response];

/// A datagram that [`Connection::poll_transmit`] has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes written to the buffer.
    pub len: usize,
    /// The path no longer carries a datagram of this size, but its segment is already numbered: it
    /// must go without the don't-fragment bit.
    pub may_fragment: bool,
    /// It is to find out whether the path carries so much: it must go by itself, not as a part of
    /// what segmentation offload cuts up.
    pub alone: bool,
    /// It leaves as ECT(0): a router may mark it instead of dropping it (RFC 3168).
    pub ecn: bool,
}

/// The sending half of a connection.
#[derive(Debug)]
struct Sender {
    spaces: [SendSpace; 2],
    /// Spaces in which nothing more is sent, because the queue pair has failed or been refused.
    stopped: [bool; 2],
    /// The earliest request that the peer has refused for good.
    refused_at: Option<u64>,
    /// Attempt number of the request space: one more after each refusal for want of a receive.
    epoch: u8,
    /// No request is sent before this time.
    hold_until: Option<Instant>,
    /// New requests wait for more.
    gathering: bool,
    /// Segments the peer takes past what it has acknowledged.
    window: u64,
    rtt: Rtt,
    ecn: Ecn,
    cc: Cubic,
    pacer: Pacer,
    /// Largest datagram for new segments.
    datagram: usize,
    /// The datagram written last can be continued.
    run: Option<Run>,
    /// The search for a larger one.
    search: Search,
    /// When data of a space was last sent, or acknowledged: its time-outs count from here. They
    /// don't from what the other space does, which may go on for hours.
    active_at: [Instant; 2],
    /// Time-outs of a space since it advanced.
    waits: [u32; 2],
    /// Time-outs since any space advanced.
    timeouts: u32,
    /// Since when nothing was acknowledged although something was outstanding.
    progress_at: Instant,
    /// Spaces whose newest segment is to be sent again whatever the window says.
    probe: [bool; 2],
    /// When a late segment becomes a lost one.
    loss_at: Option<Instant>,
    /// When the pacer lets the next datagram go.
    pace_at: Option<Instant>,
    /// The space whose turn it is.
    turn: Space,
    /// Bytes sent since an acknowledgment was asked for.
    unasked: u64,
    /// Retransmissions since the last reduction, and how many of them the peer had already.
    resent: u32,
    needless: u32,
    /// About answers whose memory has gone.
    question: Question,
}

/// The receiving half of a connection.
#[derive(Debug)]
struct Receiver {
    spaces: [ReceiveSpace; 2],
    /// Attempt number of the requester.
    epoch: u8,
    refused: Option<Refused>,
    /// The refusal is to be sent (again).
    answer_due: bool,
    acks: Acks,
    marks: Marks,
    /// The request number up to which the peer has been told that all is placed.
    told: u64,
    /// Segments received in duplicate, modulo 256.
    duplicates: u8,
    /// The peer's count of the same.
    peer_duplicates: u8,
    /// The peer's part of the socket's buffer.
    share: Share,
    /// The datagram taken last can be continued.
    run: Option<Arriving>,
}

/// Whether a connection still works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Handshake or data.
    Open,
    /// The peer has closed or lost its end: requests fail a while later.
    Deserted,
    /// Over.
    Closed,
}

/// The reliable connection of one queue pair over an unreliable path.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    send_config: Option<SendConfig>,
    budget: Budget,
    state: State,
    /// When requests under way to a peer that has ended fail.
    doomed_at: Option<Instant>,
    handshake: Handshake,
    /// Since when requests wait for the handshake.
    waiting_since: Option<Instant>,
    tx: Sender,
    rx: Receiver,
    live: Liveness,
    /// A shutdown is to be sent.
    shutdown_due: Option<Reason>,
    /// A request of another version is to be answered.
    notice_due: Option<Notice>,
    /// What a secured connection has beside.
    secure: Option<Box<Secure>>,
    /// When the peer first refused a handshake, and why.
    refused: Option<(Instant, Why)>,
    /// A refusal that is to be sent.
    refusal_due: Option<Owed>,
    stats: Stats,
}

impl Connection {
    /// A connection that answers (RTR). It sends requests only after [`Connection::start`].
    #[must_use]
    pub fn new(config: Config, now: Instant) -> Self {
        let config = config.bounded();
        Connection {
            send_config: None,
            budget: Budget::new(config::TIMEOUT_INFINITE, 0, config.patience),
            state: State::Open,
            doomed_at: None,
            handshake: Handshake::default(),
            waiting_since: None,
            tx: Sender::new(config.max_datagram, now),
            rx: Receiver::new(&config),
            live: Liveness::new(now),
            shutdown_due: None,
            notice_due: None,
            secure: config.secured.then(Box::default),
            refused: None,
            refusal_due: None,
            stats: Stats::default(),
            config,
        }
    }

    /// Begins to send (RTS): one connection request leaves at once, and is repeated while there are
    /// requests to send. Call it once.
    pub fn start(&mut self, config: SendConfig) {
        self.send_config = Some(config);
        self.budget = Budget::new(config.timeout, config.retry_cnt, self.config.patience);
        self.tx.spaces[Space::Request as usize] = SendSpace::new(u64::from(config.sq_psn));
        if self.handshake.peer().is_none() {
            self.handshake.request_due = true;
        }
    }

    /// The peer, once the handshake has made it known.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.handshake.peer()
    }

    /// This side's cookie, which names the connection.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.config.cookie
    }

    /// Whether the peer has proved that it received our cookie: it is where datagrams to it go.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.handshake.peer().is_some()
    }

    /// Whether the connection is over: lost, or shut down by [`Connection::shutdown`].
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether anything sent awaits acknowledgment.
    #[must_use]
    pub fn is_outstanding(&self) -> bool {
        self.tx.spaces.iter().any(SendSpace::outstanding)
    }

    /// Whether payload has to be in the datagram: a checksum covers it, or it is encrypted.
    #[must_use]
    pub fn covers_payload(&self) -> bool {
        self.config.secured || self.handshake.crc(&self.config)
    }

    /// Whether the connection is a secured one.
    #[must_use]
    pub fn is_secured(&self) -> bool {
        self.config.secured
    }

    /// Bytes that a buffer given to [`Connection::poll_transmit`] must have.
    #[must_use]
    pub fn max_datagram(&self) -> usize {
        self.config.max_datagram + self.config.overhead()
    }

    /// Counters and estimates.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            congestion_window: self.tx.cc.window(),
            smoothed_rtt: self.tx.rtt.smoothed().unwrap_or_default(),
            datagram: self.tx.datagram,
            in_flight: self.tx.in_flight(),
            ..self.stats
        }
    }

    /// Ends the connection from this side; poll [`Connection::poll_transmit`] once more to its end
    /// for the farewell. `Closed` when the queue pair is destroyed or reset, `Failed` when it is in
    /// error. A queue pair in error that may still owe its peer a refusal does better to stay.
    pub fn shutdown(&mut self, reason: Reason) {
        if self.state == State::Open && self.handshake.peer().is_some() {
            self.shutdown_due = Some(reason);
        }
        self.close();
    }

    /// What a farewell would acknowledge now: the next numbers expected of both spaces and the
    /// attempt number, all truncated as on the wire. `None` where none could be sent, or only this
    /// process could seal it.
    #[must_use]
    #[inline]
    pub fn last_acks(&self) -> Option<([u32; 2], u8)> {
        let next = |space: Space| self.rx.spaces[space as usize].next() as u32;
        (self.state == State::Open && self.handshake.peer().is_some() && !self.config.secured)
            .then(|| ([next(Space::Request), next(Space::Response)], self.rx.epoch))
    }

    /// Numbers of both queue pairs, this side's first, and the cookie that the peer has given.
    #[must_use]
    pub fn names(&self) -> Option<(u32, u32, u64)> {
        let peer = self.handshake.peer()?;
        Some((self.config.local_qpn, self.config.remote_qpn, peer.cookie))
    }

    /// Refuses a request for good that had been placed and acknowledged already: its memory went
    /// before its answer was complete.
    pub fn refuse(&mut self, seq: u64, nak: Nak) {
        // What the peer hears of is the first request that failed.
        if !matches!(self.rx.refused, Some(Refused::Never { seq: first, .. }) if first <= seq) {
            self.rx.refused = Some(Refused::Never { seq, nak });
        }
        self.rx.answer_due = true;
    }

    /// Whether new requests wait, until this is called again: for more that are to share datagrams
    /// with them. Only while requests are unacknowledged, else nothing calls again.
    pub fn hold_new_requests(&mut self, hold: bool) {
        self.tx.gathering = hold;
    }

    /// Sends pending acknowledgments with the next [`Connection::poll_transmit`] instead of
    /// waiting for data to carry them: for a caller that knows nobody is about to post any.
    pub fn flush_acks(&mut self) {
        self.rx.acks.flush();
    }

    /// Whether an acknowledgment waits for data to travel with, until enough calls of
    /// [`Connection::on_vain_pass`].
    #[must_use]
    pub fn awaits_reply(&self) -> bool {
        self.state == State::Open && self.rx.acks.awaits_reply()
    }

    /// The program has looked for something to do, and had nothing to send: a reply that was to
    /// carry acknowledgments is not coming. Returns whether something waited for that; it may be
    /// due now, so poll [`Connection::poll_transmit`].
    pub fn on_vain_pass(&mut self) -> bool {
        self.state == State::Open && self.rx.acks.on_vain_pass()
    }

    /// As so many calls of [`Connection::on_vain_pass`] as matter: the program has gone to sleep.
    pub fn give_up_reply(&mut self) {
        self.rx.acks.give_up_reply();
    }

    fn close(&mut self) {
        self.state = State::Closed;
        for space in &mut self.tx.spaces {
            space.abandon();
        }
    }

    fn lose(&mut self, ulp: &mut impl Ulp) {
        if self.state != State::Closed {
            self.close();
            ulp.lost();
        }
    }

    /// Whether requests are outstanding or waiting.
    fn is_requesting(&self, ulp: &impl Ulp) -> bool {
        self.send_config.is_some()
            && !self.tx.stopped[Space::Request as usize]
            && (self.tx.spaces[Space::Request as usize].outstanding()
                || ulp.has_next(Space::Request))
    }
}

impl Sender {
    fn new(datagram: usize, now: Instant) -> Self {
        Sender {
            spaces: [SendSpace::new(0), SendSpace::new(0)],
            stopped: [false; 2],
            refused_at: None,
            epoch: 0,
            hold_until: None,
            gathering: false,
            window: 1,
            rtt: Rtt::default(),
            ecn: Ecn::default(),
            cc: Cubic::new(datagram),
            pacer: Pacer::new(now),
            datagram,
            run: None,
            search: Search::default(),
            active_at: [now; 2],
            waits: [0; 2],
            timeouts: 0,
            progress_at: now,
            probe: [false; 2],
            loss_at: None,
            pace_at: None,
            turn: Space::Response,
            unasked: 0,
            resent: 0,
            needless: 0,
            question: Question::default(),
        }
    }

    fn in_flight(&self) -> u64 {
        self.spaces.iter().map(SendSpace::in_flight).sum()
    }

    fn is_held(&self, space: Space) -> bool {
        space == Space::Request && self.hold_until.is_some()
    }

    /// Stops a space for good.
    fn stop(&mut self, space: Space) {
        self.stopped[space as usize] = true;
        self.spaces[space as usize].abandon();
        self.probe[space as usize] = false;
        self.search.forget_from(space, 0);
    }
}

impl Receiver {
    fn new(config: &Config) -> Self {
        let request = ReceiveSpace::new(
            u64::from(config.rq_psn),
            config.window,
            config.max_held_bytes,
        );
        Receiver {
            spaces: [request, ReceiveSpace::new(0, config.window, 0)],
            epoch: 0,
            refused: None,
            answer_due: false,
            acks: Acks::default(),
            marks: Marks::default(),
            told: u64::from(config.rq_psn),
            duplicates: 0,
            peer_duplicates: 0,
            share: Share::default(),
            run: None,
        }
    }
}
