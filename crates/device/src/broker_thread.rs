//! The broker thread: it calls the broker, and takes the broker's events.
//!
//! A call to the broker lasts as long as the broker takes, and seconds where that is stopped, busy
//! or gone. A thread that makes progress must not wait for so long, or nobody acknowledges what
//! peers sent. So the helper, and threads that post, poll or block, leave broker requests
//! ([`crate::broker_request`]) for a thread that makes no progress, and that takes the broker's
//! news as well: what those change is done under the state's lock, and a thread that sleeps on the
//! sources looks once more.
//!
//! It sleeps until it is called or there is news, and uses no time at all otherwise. It runs one
//! broker request at a time, in their order, and takes news in between: what one of them has begun
//! is over when the next begins. Where the endpoint ends it finishes the call that it is in, and no
//! other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use causeway_biased_lock::BiasedGuard;
use causeway_fabric::Event;
use causeway_proto::Instant;
use rustix::event::{PollFd, PollFlags, poll};

use crate::clock;
use crate::device_files;
use crate::errno::Errno;
use crate::peer_news::{End, PeerNews};
use crate::shared::Shared;
use crate::sharing::Sharing;
use crate::state::State;
use crate::threads;

/// How long the broker's next news may wait: where connections are made by the thousand, a wake for
/// each would cost as much as the connections.
const NEWS_PAUSE: Duration = Duration::from_millis(1);

/// Starts the thread. It blocks every signal: those are the program's.
pub(crate) fn start(sharing: Arc<Sharing>) -> Result<JoinHandle<()>, Errno> {
    threads::spawn("causeway-ask", move || ask_and_listen(&sharing))
}

/// Runs broker requests and takes news until the endpoint ends. No lock is held while the broker is
/// asked.
fn ask_and_listen(sharing: &Arc<Sharing>) {
    let shared = &*sharing.shared;
    let mut deaf_until = Instant(0);
    while !shared.stop.load(Ordering::Acquire) {
        if shared.common.failure.has_happened() {
            shared.engines.each(|_, state| _ = state.abandon());
            return;
        }
        if sharing.carry_out_requests() {
            shared.wake_watchers();
        }
        if shared.await_call(deaf_until) {
            if take_news(sharing) {
                shared.wake_watchers();
            }
            deaf_until = clock::now() + NEWS_PAUSE;
        }
    }
}

/// Takes what the broker and the network have to tell. Returns whether there may be something to do
/// for threads that make progress.
fn take_news(sharing: &Arc<Sharing>) -> bool {
    let shared = &*sharing.shared;
    if let Some(addresses) = shared.news.look() {
        // Without a broker there is nobody to tell.
        let _ = shared.control.report_addresses(&addresses);
    }
    let mut any = false;
    for event in shared.control.poll_events().unwrap_or_default() {
        if shared.stop.load(Ordering::Acquire) {
            break;
        }
        any |= match event {
            Event::SegmentStale { segment } => {
                sharing.renew(segment);
                true
            }
            event => shared.take_event(event),
        };
    }
    any
}

impl Shared {
    /// Has the broker thread carry out the broker requests that wait.
    #[cold]
    pub fn send_broker_requests(&self) {
        if self.broker_thread.send() {
            self.wake_broker_thread();
        }
    }

    /// Wakes the broker thread.
    pub fn wake_broker_thread(&self) {
        self.descriptors
            .heed(causeway_shm::signal(self.broker_thread.fd()));
    }

    /// Gives up the state until the next answer comes that it does not tell of. Returns false if
    /// that takes too long.
    pub fn await_answer(
        &self,
        state: &mut BiasedGuard<'_, State>,
        until: std::time::Instant,
    ) -> bool {
        // Answers are told after the state has changed: what comes after this look is not missed.
        let seen = self.broker_thread.answers();
        BiasedGuard::unlocked(state, || self.broker_thread.await_answer(seen, until))
    }

    /// Sleeps until somebody calls, or there is news. Until the given time it does not listen to
    /// that. Returns whether there is news.
    fn await_call(&self, deaf_until: Instant) -> bool {
        let pause = deaf_until.since(clock::now());
        let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = [
            self.hangup.watched(),
            input(self.broker_thread.fd()),
            input(self.news.fd()),
        ];
        let (watched, timeout) = if pause.is_zero() {
            (&mut fds[..], None)
        } else {
            (&mut fds[..2], Some(clock::timespec(pause)))
        };
        let _ = poll(watched, timeout.as_ref());
        self.descriptors.heed_hangup(&fds[0]);
        let fds = &fds[1..];
        if !self.descriptors.are_intact() {
            return false;
        }
        if !fds[0].revents().is_empty() {
            self.descriptors
                .heed(causeway_shm::drain(self.broker_thread.fd()));
        }
        !fds[1].revents().is_empty()
    }

    /// Takes an event, which does not concern shared memory. Returns whether there may be something
    /// to do for threads that make progress.
    fn take_event(&self, event: Event) -> bool {
        let (qpn, generation, news) = match event {
            Event::PeerDead {
                local_qpn,
                generation,
            } => (local_qpn, generation, PeerNews::Ended(End::Killed)),
            Event::PeerExited {
                local_qpn,
                generation,
            } => (local_qpn, generation, PeerNews::Ended(End::Exited)),
            Event::PeerJoined {
                local_qpn,
                generation,
            } => (local_qpn, generation, PeerNews::Joined),
            Event::LimitsChanged => {
                self.follow_limits();
                return true;
            }
            other => {
                self.take_quiet_event(other);
                return false;
            }
        };
        self.take_peer_news(qpn, generation, news)
    }

    /// Events that leave nothing to do for threads that make progress.
    fn take_quiet_event(&self, event: Event) {
        match event {
            Event::BrokerGone => {
                // Rings and sockets go on; the broker that answers next is told of them.
                match self.control.reattach() {
                    Ok(()) => {
                        tracing::info!("the broker had gone: attached to the next");
                        device_files::show_again(&self.control);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the broker has gone, and no other is there")
                    }
                }
                self.peers.forget_all();
                self.heed_traces();
            }
            Event::TraceChanged => self.heed_traces(),
            Event::RingGivenUp { ring } => self.peers.forget_ring(ring),
            // The ring itself says that a peer has left; the others are taken already.
            _ => {}
        }
    }
}
