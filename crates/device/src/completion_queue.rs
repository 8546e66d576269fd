//! A completion queue as queue pairs and polls have it in common.
//!
//! It has a lock of its own, which is taken after an engine's. Polls take what waits in it by that
//! alone, so a thread that polls and one that posts do not keep each other waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use causeway_biased_lock::{BiasedLock, hurry};
use causeway_proto::types::{Wc, WcStatus};

use crate::at::At;
use crate::channel::EventQueue;
use crate::completions::{Completions, Cqe, Frees};
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
    /// It holds something, or has overrun. Changed under the lock.
    ready: AtomicBool,
    /// Completions that polls have taken since one last looked for more.
    unlooked: AtomicUsize,
    state: BiasedLock<CqState>,
    /// Queue pairs that complete here. Changed by who creates or destroys one.
    users: AtomicU32,
    pub channel: Option<Arc<EventQueue<usize>>>,
    events: Arc<AsyncQueue>,
    /// Names it in events.
    cookie: usize,
    released: Arc<Released>,
    outliving: Arc<Outliving>,
}

/// What its lock guards.
struct CqState {
    queue: Completions,
    armed: Armed,
    overrun: bool,
    /// Completions carry the time.
    timestamps: bool,
    /// Completion events handed to the channel, ever.
    announced: u64,
}

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
            ready: AtomicBool::new(false),
            unlooked: AtomicUsize::new(0),
            state: BiasedLock::new(CqState {
                queue: Completions::limited(init.most),
                armed: Armed::No,
                overrun: false,
                timestamps: false,
                announced: 0,
            }),
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
        self.state.is_locked()
    }

    /// How many completions it may hold.
    pub fn most(&self) -> usize {
        self.state.lock().queue.most()
    }

    /// Records the time of each completion from now on.
    pub fn record_timestamps(&self) {
        self.state.lock().timestamps = true;
    }

    /// Changes how many it may hold.
    ///
    /// # Errors
    /// EINVAL for fewer than it holds.
    pub fn resize(&self, most: usize) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.queue.len() > most {
            return Err(Errno(libc::EINVAL));
        }
        state.queue.set_most(most);
        Ok(())
    }

    /// Announces the next completion, or the next solicited one. To ask for all is not narrowed by
    /// asking for solicited ones.
    pub fn arm(&self, solicited_only: bool) {
        let mut state = self.state.lock();
        state.armed = match (solicited_only, state.armed) {
            (true, Armed::Any) => Armed::Any,
            (true, _) => Armed::Solicited,
            (false, _) => Armed::Any,
        };
    }

    /// Announces nothing any more. How many completion events it has handed to the channel, ever.
    pub fn disarm(&self) -> u64 {
        let mut state = self.state.lock();
        state.armed = Armed::No;
        state.announced
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
        self.state.lock().queue.len()
    }

    /// Whether a poll finds anything, be it that the queue has overrun.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
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
        self.unlooked.load(Ordering::Relaxed)
    }

    /// A poll has looked for more.
    #[inline(always)]
    pub fn note_looked(&self) {
        self.unlooked.store(0, Ordering::Relaxed);
    }

    /// Queues a completion. In line where it is made, and given to nobody else: so it is built in
    /// the queue, and nothing has to load what was just stored.
    #[inline(always)]
    pub fn put(&self, wc: Wc, frees: Frees, solicited: bool) -> Put {
        match hurry(&self.state) {
            Some(mut state) => self.put_in(&mut state, wc, frees, solicited),
            None => self.put_slowly(&wc, frees, solicited),
        }
    }

    /// As [`CompletionQueue::put`], where the lock is not biased towards this thread.
    #[cold]
    #[inline(never)]
    fn put_slowly(&self, wc: &Wc, frees: Frees, solicited: bool) -> Put {
        self.put_in(&mut self.state.lock(), *wc, frees, solicited)
    }

    #[inline(always)]
    fn put_in(&self, state: &mut CqState, wc: Wc, frees: Frees, solicited: bool) -> Put {
        if state.queue.is_full() && !state.make_room(&self.outliving) {
            return self.overflow(state);
        }
        let timestamp = if state.timestamps {
            crate::clock::now().0
        } else {
            0
        };
        let failed = wc.status != WcStatus::Success;
        state.queue.put(Cqe {
            wc,
            timestamp,
            frees,
        });
        self.ready.store(true, Ordering::Release);
        match &self.channel {
            Some(channel) => self.tell(state, channel, solicited || failed),
            None => Put::Queued,
        }
    }

    /// There is no room for a completion.
    #[cold]
    #[inline(never)]
    fn overflow(&self, state: &mut CqState) -> Put {
        if std::mem::replace(&mut state.overrun, true) {
            return Put::Lost;
        }
        self.ready.store(true, Ordering::Release);
        self.events.push(AsyncEvent {
            event_type: EventType::CqErr,
            source: EventSource::Cq(self.cookie),
        });
        Put::Overrun
    }

    /// Tells the channel of the newest completion, if that is asked for.
    #[inline(never)]
    fn tell(&self, state: &mut CqState, channel: &EventQueue<usize>, solicited: bool) -> Put {
        let announce = match state.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited,
        };
        if announce {
            state.armed = Armed::No;
            state.announced += 1;
            channel.push(self.cookie);
        }
        match announce || state.queue.len() >= ENOUGH {
            true => Put::Enough,
            false => Put::Queued,
        }
    }

    /// Takes completions that wait, up to `max`, one after the other until `out` returns false,
    /// which has taken nothing then, or one is out of the ordinary. Returns how many: none where
    /// the lock is not biased towards this thread. [`CompletionQueue::take`] may take others.
    #[inline(always)]
    pub fn take_plain(&self, max: usize, mut out: impl FnMut(&Wc) -> bool) -> usize {
        let Some(mut state) = hurry(&self.state) else {
            return 0;
        };
        let mut taken = 0;
        while taken < max
            && let Some(cqe) = state.queue.front()
            && cqe.frees != Frees::Nothing
            && out(&cqe.wc)
        {
            self.release(cqe);
            state.queue.drop_front();
            taken += 1;
        }
        self.note_taken(&state, taken);
        taken
    }

    /// Takes up to `max` completions, oldest first, with their times in nanoseconds.
    ///
    /// # Errors
    /// EOVERFLOW once it has overrun and what it held has been taken.
    pub fn take(&self, max: usize, mut out: impl FnMut(&Wc, u64)) -> Result<usize, Errno> {
        let mut state = self.state.lock();
        let mut taken = 0;
        while taken < max {
            // Not copied out of the queue: a copy of a copy is a store that loads wait for.
            let Some(cqe) = state.queue.front() else {
                if state.overrun && taken == 0 {
                    return Err(Errno(libc::EOVERFLOW));
                }
                break;
            };
            self.release(cqe);
            out(&cqe.wc, cqe.timestamp);
            state.queue.drop_front();
            taken += 1;
        }
        self.note_taken(&state, taken);
        Ok(taken)
    }

    /// A completion is polled: its work request leaves the queue that it was posted to.
    #[inline(always)]
    fn release(&self, cqe: &Cqe) {
        match cqe.frees {
            Frees::Send(places) => self.released.add_sends(cqe.wc.qp_num, places),
            Frees::Receive => self.released.add_receive(cqe.wc.qp_num),
            Frees::Nothing => self.outliving.remove(cqe.wc.qp_num),
        }
    }

    #[inline(always)]
    fn note_taken(&self, state: &CqState, taken: usize) {
        if state.queue.is_empty() && !state.overrun {
            self.ready.store(false, Ordering::Relaxed);
        }
        let unlooked = self.unlooked() + taken;
        self.unlooked.store(unlooked, Ordering::Relaxed);
    }

    /// Detaches the completions of a queue pair that is reset or destroyed. What it has earned
    /// stays until it is polled: what was done is done. What failed or was flushed goes: nobody
    /// asks for that any more.
    pub fn detach(&self, qpn: u32) {
        let mut state = self.state.lock();
        state.queue.retain_mut(|cqe| {
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
        if state.queue.is_empty() && !state.overrun {
            self.ready.store(false, Ordering::Relaxed);
        }
    }

    /// It is destroyed, with what it holds.
    pub fn discard(&self) {
        let state = self.state.lock();
        for cqe in state.queue.iter().filter(|cqe| cqe.frees == Frees::Nothing) {
            self.outliving.remove(cqe.wc.qp_num);
        }
    }
}

impl CqState {
    /// Makes room for another completion, if that can be. In a queue that holds as many as it may,
    /// those of queue pairs that are gone do: programs size a queue for those that they have.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, outliving: &Outliving) -> bool {
        if self.queue.grow() {
            return true;
        }
        let gone = self.queue.take_first(|cqe| cqe.frees == Frees::Nothing);
        if let Some(gone) = gone {
            outliving.remove(gone.wc.qp_num);
        }
        gone.is_some()
    }
}
