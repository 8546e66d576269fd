//! A completion queue as queue pairs and polls have it in common.
//!
//! It has a lock at each end ([`causeway_two_ended`]), which are taken after an engine's:
//! completions are put in under the one, and polls take them out under the other alone. So a thread
//! that polls and one that posts do not keep each other waiting. As long as each is the only one of
//! its kind, they write no line in common but those of the completions and the tail mark.

use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use causeway_proto::types::{Wc, WcStatus};
use causeway_two_ended::{Alone, Producer, PutEnd, TwoEnded, Whole};

use crate::at::At;
use crate::channel::EventQueue;
use crate::completions::{AtHand, Cqe, Frees};
use crate::errno::Errno;
use crate::events::{AsyncEvent, AsyncQueue, EventSource, EventType};
use crate::outliving::Outliving;
use crate::released::Released;

/// Completions at once for a program that waits for events.
const ENOUGH: usize = 16;
/// Completions taken after which a poll looks for more though there are some. What a program posts
/// may complete at once (datagrams, WRITEs straight into a peer's memory): its queue may never be
/// empty, and what others send to it has to be found all the same.
const LOOK_AFTER: usize = 64;

/// Which completions a completion queue announces (`ibv_req_notify_cq(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// What came of a completion that was to be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It waits to be polled.
    Queued,
    /// It does, and a program that waits for events has enough to do.
    Enough,
    /// There was no room for it: the queue pairs that complete here fail. Said once.
    Overrun,
    /// There was none again.
    Lost,
}

/// What a poll finds without a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing: to be looked for ([`Cq::look`]).
    ///
    /// [`Cq::look`]: crate::Cq::look
    None,
    /// Completions: to be taken ([`Cq::take_plain`]).
    ///
    /// [`Cq::take_plain`]: crate::Cq::take_plain
    Some,
    /// Completions, and so many have been taken that more are to be looked for, by [`Cq::poll`].
    ///
    /// [`Cq::poll`]: crate::Cq::poll
    Unclear,
}

/// A completion queue. Nothing of another thread's lies in the same line.
#[repr(align(128))]
pub(crate) struct CompletionQueue {
    /// Its number in the endpoint.
    pub number: u32,
    /// Where the queue pairs are that complete here.
    pub at: At,
    /// Completions that polls have taken since one last looked for more.
    unlooked: Alone<AtomicUsize>,
    queue: TwoEnded<Cqe, Telling>,
    /// Queue pairs that complete here. Changed by who creates or destroys one.
    users: AtomicU32,
    pub channel: Option<Arc<EventQueue<usize>>>,
    events: Arc<AsyncQueue>,
    /// Names it in events.
    cookie: usize,
    released: Arc<Released>,
    outliving: Arc<Outliving>,
}

/// What the lock of the end where completions are put in guards besides.
struct Telling {
    armed: Armed,
    /// Completions carry the time.
    timestamps: bool,
    /// Completion events handed to the channel, ever.
    announced: u64,
}

/// The end where completions are put in.
type Putting<'a, G> = Producer<'a, Cqe, Telling, G>;

/// What a completion queue is made of.
pub(crate) struct CqInit {
    pub number: u32,
    /// How many completions it may hold.
    pub most: usize,
    pub channel: Option<Arc<EventQueue<usize>>>,
    pub events: Arc<AsyncQueue>,
    pub cookie: usize,
    pub released: Arc<Released>,
    pub outliving: Arc<Outliving>,
}

impl CompletionQueue {
    /// With the first engine.
    pub fn new(init: CqInit) -> Self {
        CompletionQueue {
            number: init.number,
            at: At::default(),
            unlooked: Alone::default(),
            queue: TwoEnded::limited(
                init.most,
                Telling {
                    armed: Armed::No,
                    timestamps: false,
                    announced: 0,
                },
            ),
            users: AtomicU32::new(0),
            channel: init.channel,
            events: init.events,
            cookie: init.cookie,
            released: init.released,
            outliving: init.outliving,
        }
    }

    /// Whether a thread is in the middle of anything here.
    pub fn is_locked(&self) -> bool {
        self.queue.is_locked()
    }

    /// How many completions it may hold.
    pub fn most(&self) -> usize {
        self.queue.producer().most()
    }

    /// Records the time of each completion from now on.
    pub fn record_timestamps(&self) {
        self.queue.producer().with().timestamps = true;
    }

    /// Changes how many it may hold.
    ///
    /// # Errors
    /// EINVAL for fewer than it holds.
    pub fn resize(&self, most: usize) -> Result<(), Errno> {
        match self.queue.producer().set_most(most) {
            true => Ok(()),
            false => Err(Errno(libc::EINVAL)),
        }
    }

    /// Announces the next completion, or the next solicited one. To ask for all is not narrowed by
    /// asking for solicited ones.
    pub fn arm(&self, solicited_only: bool) {
        let mut putting = self.queue.producer();
        let telling = putting.with();
        telling.armed = match (solicited_only, telling.armed) {
            (true, Armed::Any) => Armed::Any,
            (true, _) => Armed::Solicited,
            (false, _) => Armed::Any,
        };
    }

    /// Announces nothing any more. How many completion events it has handed to the channel, ever.
    pub fn disarm(&self) -> u64 {
        let mut putting = self.queue.producer();
        let telling = putting.with();
        telling.armed = Armed::No;
        telling.announced
    }

    /// One more queue pair completes here.
    pub fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// One less does.
    pub fn drop_user(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether queue pairs complete here.
    pub fn is_used(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 0
    }

    /// How many completions it holds.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether a poll finds anything, be it that the queue has overrun.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        !self.queue.is_idle()
    }

    /// What a poll finds.
    #[inline(always)]
    pub fn waiting(&self) -> Waiting {
        match self.is_ready() {
            false => Waiting::None,
            true if self.unlooked() < LOOK_AFTER => Waiting::Some,
            true => Waiting::Unclear,
        }
    }

    /// Completions that polls have taken since one last looked for more.
    #[inline(always)]
    pub fn unlooked(&self) -> usize {
        self.unlooked.0.load(Ordering::Relaxed)
    }

    /// A poll has looked for more.
    #[inline(always)]
    pub fn note_looked(&self) {
        self.unlooked.0.store(0, Ordering::Relaxed);
    }

    /// Completes a work request: the poll that looks gets it, if nothing goes before it, and
    /// otherwise it is queued. Called under the lock of the queue pair, so that what that one has
    /// completed before is in the queue, or was polled.
    #[inline(always)]
    pub fn complete(&self, at_hand: &mut AtHand, wc: Wc, frees: Frees, solicited: bool) -> Put {
        if at_hand.is_open(self.number) && !self.is_ready() {
            self.release(wc.qp_num, frees);
            at_hand.give(wc);
            return Put::Queued;
        }
        self.put(wc, frees, solicited)
    }

    /// Queues a completion. In line where it is made, and given to nobody else: so it is built in
    /// the queue, and nothing has to load what was just stored.
    #[inline(always)]
    pub fn put(&self, wc: Wc, frees: Frees, solicited: bool) -> Put {
        match self.queue.hurry_producer() {
            Some(putting) => self.put_in(putting, wc, frees, solicited),
            // Of a copy that may be changed: what is lent to a call is built in memory.
            None => self.put_slowly(&mut { wc }, frees, solicited),
        }
    }

    /// As [`CompletionQueue::put`], where the lock is not biased towards this thread.
    #[cold]
    #[inline(never)]
    fn put_slowly(&self, wc: &mut Wc, frees: Frees, solicited: bool) -> Put {
        self.put_in(self.queue.producer(), *wc, frees, solicited)
    }

    /// The end of the queue is given away to what is not frequent, and lent to nothing.
    #[inline(always)]
    fn put_in<G>(&self, mut putting: Putting<'_, G>, wc: Wc, frees: Frees, solicited: bool) -> Put
    where
        G: DerefMut<Target = PutEnd<Cqe, Telling>>,
    {
        let timestamp = if putting.with().timestamps {
            crate::clock::now().0
        } else {
            0
        };
        let failed = wc.status != WcStatus::Success;
        let cqe = Cqe {
            wc,
            timestamp,
            frees,
        };
        if !putting.put_at_once(cqe) {
            return self.put_in_full(putting, &mut { cqe }, solicited || failed);
        }
        match &self.channel {
            Some(channel) => self.tell(putting, channel, solicited || failed),
            None => Put::Queued,
        }
    }

    /// As [`CompletionQueue::put_in`], where the queue seems full.
    #[cold]
    #[inline(never)]
    fn put_in_full<G>(&self, mut putting: Putting<'_, G>, cqe: &mut Cqe, solicited: bool) -> Put
    where
        G: DerefMut<Target = PutEnd<Cqe, Telling>>,
    {
        if !putting.put(*cqe, |whole| self.make_room(whole)) {
            return self.overflow(&mut putting);
        }
        match &self.channel {
            Some(channel) => self.tell(putting, channel, solicited),
            None => Put::Queued,
        }
    }

    /// Makes room for another completion, if that can be. In a queue that holds as many as it may,
    /// those of queue pairs that are gone do: programs size a queue for those that they have.
    fn make_room(&self, whole: &mut Whole<'_, Cqe, Telling>) {
        if whole.grow() {
            return;
        }
        if let Some(gone) = whole.take_first(|cqe| cqe.frees == Frees::Nothing) {
            self.outliving.remove(gone.wc.qp_num);
        }
    }

    /// There is no room for a completion.
    #[cold]
    #[inline(never)]
    fn overflow<G>(&self, putting: &mut Putting<'_, G>) -> Put
    where
        G: DerefMut<Target = PutEnd<Cqe, Telling>>,
    {
        if putting.note_overrun() {
            return Put::Lost;
        }
        self.events.push(AsyncEvent {
            event_type: EventType::CqErr,
            source: EventSource::Cq(self.cookie),
        });
        Put::Overrun
    }

    /// Tells the channel of the newest completion, if that is asked for.
    #[inline(never)]
    fn tell<G>(
        &self,
        mut putting: Putting<'_, G>,
        channel: &Arc<EventQueue<usize>>,
        solicited: bool,
    ) -> Put
    where
        G: DerefMut<Target = PutEnd<Cqe, Telling>>,
    {
        let telling = putting.with();
        let mut enough = match telling.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited,
        };
        if enough {
            telling.armed = Armed::No;
            telling.announced += 1;
            // What this thread handles itself is no reason to let the program have its turn.
            enough = !channel.announce(self.cookie);
        }
        match enough || putting.len() >= ENOUGH {
            true => Put::Enough,
            false => Put::Queued,
        }
    }

    /// Takes completions that wait, up to `max`, one after the other until `out` returns false,
    /// which has taken nothing then, or one is out of the ordinary. Returns how many: none where
    /// the lock is not biased towards this thread. [`CompletionQueue::take`] may take others.
    #[inline(always)]
    pub fn take_plain(&self, max: usize, mut out: impl FnMut(&Wc) -> bool) -> usize {
        let Some(mut taking) = self.queue.hurry_consumer() else {
            return 0;
        };
        let mut taken = 0;
        while taken < max
            && let Some(cqe) = taking.front()
            && cqe.frees != Frees::Nothing
            && out(&cqe.wc)
        {
            self.release(cqe.wc.qp_num, cqe.frees);
            taking.drop_front();
            taken += 1;
        }
        self.note_taken(taken);
        taken
    }

    /// Takes up to `max` completions, oldest first, with their times in nanoseconds.
    ///
    /// # Errors
    /// EOVERFLOW once it has overrun and what it held has been taken.
    pub fn take(&self, max: usize, mut out: impl FnMut(&Wc, u64)) -> Result<usize, Errno> {
        if !self.is_ready() {
            return Ok(0);
        }
        let mut taking = self.queue.consumer();
        let mut taken = 0;
        while taken < max {
            // Not copied out of the queue: a copy of a copy is a store that loads wait for.
            let Some(cqe) = taking.front() else {
                if taking.has_overrun() && taken == 0 {
                    return Err(Errno(libc::EOVERFLOW));
                }
                break;
            };
            self.release(cqe.wc.qp_num, cqe.frees);
            out(&cqe.wc, cqe.timestamp);
            taking.drop_front();
            taken += 1;
        }
        self.note_taken(taken);
        Ok(taken)
    }

    /// A completion is polled: its work request leaves the queue that it was posted to.
    #[inline(always)]
    fn release(&self, qpn: u32, frees: Frees) {
        match frees {
            Frees::Send(places) => self.released.add_sends(qpn, places),
            Frees::Receive => self.released.add_receive(qpn),
            Frees::Nothing => self.outliving.remove(qpn),
        }
    }

    /// Called under the lock of the end where completions are taken out.
    #[inline(always)]
    fn note_taken(&self, taken: usize) {
        let unlooked = self.unlooked() + taken;
        self.unlooked.0.store(unlooked, Ordering::Relaxed);
    }

    /// Detaches the completions of a queue pair that is reset or destroyed. What it has earned
    /// stays until it is polled: what was done is done. What failed or was flushed goes: nobody
    /// asks for that any more.
    pub fn detach(&self, qpn: u32) {
        self.queue.producer().whole().retain(|cqe| {
            // Where both queues are one, or after an earlier reset, they are detached already.
            if cqe.wc.qp_num != qpn || cqe.frees == Frees::Nothing {
                return true;
            }
            let earned = cqe.wc.status == WcStatus::Success;
            if earned {
                cqe.frees = Frees::Nothing;
                self.outliving.add(qpn);
            }
            earned
        });
    }

    /// It is destroyed, with what it holds.
    pub fn discard(&self) {
        let mut putting = self.queue.producer();
        let whole = putting.whole();
        for cqe in whole.iter().filter(|cqe| cqe.frees == Frees::Nothing) {
            self.outliving.remove(cqe.wc.qp_num);
        }
    }
}

#[cfg(test)]
mod tests {
    use causeway_identity::{QPN_INDEX_BITS, Slot};
    use causeway_proto::types::{WcFlags, WcOpcode};

    use super::*;
    use crate::completions::Frees::Receive;
    use crate::qps::Numbering;

    const NUMBER: u32 = 5;
    const QPN: u32 = 14 << QPN_INDEX_BITS;

    fn queue() -> CompletionQueue {
        CompletionQueue::new(CqInit {
            number: NUMBER,
            most: 4,
            channel: None,
            events: Arc::new(AsyncQueue::new().unwrap()),
            cookie: 0,
            released: Arc::new(Released::new(Numbering::new(Slot::new(14).unwrap()))),
            outliving: Arc::default(),
        })
    }

    fn received(wr_id: u64) -> Wc {
        Wc {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            vendor_err: 0,
            byte_len: 8,
            imm: 0,
            qp_num: QPN,
            src_qp: 0,
            flags: WcFlags::empty(),
        }
    }

    /// A poll of a queue looks, which wants what it finds in `first`.
    fn open(at_hand: &mut AtHand, cq: u32, first: &mut Wc) {
        // SAFETY: each test has `first` until its look is over.
        unsafe { at_hand.open(cq, first) };
    }

    /// Those that a poll takes out of the queue.
    fn polled(queue: &CompletionQueue) -> Vec<u64> {
        let mut ids = Vec::new();
        queue.take(9, |wc, _| ids.push(wc.wr_id)).unwrap();
        ids
    }

    #[test]
    fn the_first_completion_is_at_hand_and_the_others_are_queued() {
        let (queue, mut at_hand, mut first) = (queue(), AtHand::default(), received(0));
        open(&mut at_hand, NUMBER, &mut first);
        for wr_id in [1, 2, 3] {
            assert_eq!(
                queue.complete(&mut at_hand, received(wr_id), Receive, false),
                Put::Queued
            );
        }
        assert!(at_hand.close());
        assert!(!at_hand.close());
        assert_eq!(first.wr_id, 1);
        assert_eq!(polled(&queue), [2, 3]);
    }

    #[test]
    fn nothing_overtakes_what_another_thread_has_queued_since_the_look_began() {
        let (queue, mut at_hand, mut first) = (queue(), AtHand::default(), received(0));
        open(&mut at_hand, NUMBER, &mut first);
        queue.put(received(1), Receive, false);
        queue.complete(&mut at_hand, received(2), Receive, false);
        assert!(!at_hand.close());
        assert_eq!(polled(&queue), [1, 2]);
    }

    #[test]
    fn nothing_is_at_hand_for_another_queue_or_once_the_look_is_over() {
        let (queue, mut at_hand, mut first) = (queue(), AtHand::default(), received(0));
        open(&mut at_hand, NUMBER + 1, &mut first);
        queue.complete(&mut at_hand, received(1), Receive, false);
        open(&mut at_hand, NUMBER, &mut first);
        assert!(!at_hand.close());
        queue.complete(&mut at_hand, received(2), Receive, false);
        assert!(!at_hand.close());
        assert_eq!(polled(&queue), [1, 2]);
    }

    #[test]
    fn a_queue_that_has_overrun_hands_out_nothing_beside_it() {
        let (queue, mut at_hand, mut first) = (queue(), AtHand::default(), received(0));
        for wr_id in 1..=4 {
            queue.put(received(wr_id), Receive, false);
        }
        assert_eq!(queue.put(received(5), Receive, false), Put::Overrun);
        assert_eq!(polled(&queue), [1, 2, 3, 4]);
        open(&mut at_hand, NUMBER, &mut first);
        queue.complete(&mut at_hand, received(6), Receive, false);
        assert!(!at_hand.close());
        assert_eq!(polled(&queue), [6]);
    }
}
