//! Telling a peer that something happened on a ring.

use crate::doorbell::Bell;
use crate::inbox::Inbox;
use crate::ring::{Attention, Ring};
use crate::sync::{Ordering, fence};
use std::io;

/// Leaves word for the peer of `ring` of `events` that have just become visible, and does not wake
/// it for them: it finds them when it looks next. For what nobody waits for.
pub fn leave_word(ring: &Ring, events: Attention, inbox: &Inbox, qpn: u32) {
    fence(Ordering::SeqCst);
    if ring.peer_attention().meets(events) {
        inbox.set(qpn);
    }
}

/// Tells the peer of `ring` of `events` that have just become visible: records published, the
/// acknowledgment or a flag stored, records consumed. `inbox` and `bell` are those of the peer's
/// endpoint, `qpn` is the number of its queue pair. Returns whether the doorbell was rung.
///
/// Costs a fence, and nothing else, while the peer polls. Call it once for a batch, with all events
/// of the batch.
///
/// # No wake-up is lost
///
/// Our stores come before our fence, and our loads of the peer's attention and armed words after.
/// The peer stores its attention word (or armed word), then a fence, then looks at the ring (or
/// inbox) again. Of two SeqCst fences one comes first; the side whose fence is second sees the
/// other's store. So if we find the ring hot and the endpoint awake, the peer's own second look
/// finds our event. Setting the bit is itself an event for a peer that falls asleep meanwhile,
/// hence the second fence.
///
/// # Errors
/// The bell's: the peer's endpoint is to be taken for dead.
#[inline(always)]
pub fn notify(
    ring: &Ring,
    events: Attention,
    inbox: &Inbox,
    bell: &impl Bell,
    qpn: u32,
) -> io::Result<bool> {
    fence(Ordering::SeqCst);
    match ring.peer_attention() {
        Attention::HOT => inbox.ring_if_armed(bell),
        wanted => mark(wanted, events, inbox, bell, qpn),
    }
}

/// Whether the peer finds by itself what was published: [`notify`] would do nothing. Calls nothing.
/// Where this says no, [`notify`] is to follow.
#[inline(always)]
#[must_use]
pub fn is_looking(ring: &Ring, inbox: &Inbox) -> bool {
    fence(Ordering::SeqCst);
    ring.peer_attention() == Attention::HOT && !inbox.is_armed()
}

/// Tells a peer that does not poll the ring.
#[cold]
#[inline(never)]
fn mark(
    wanted: Attention,
    events: Attention,
    inbox: &Inbox,
    bell: &impl Bell,
    qpn: u32,
) -> io::Result<bool> {
    if !wanted.meets(events) {
        return Ok(false);
    }
    inbox.set(qpn);
    causeway_fault::point("inbox.set");
    fence(Ordering::SeqCst);
    inbox.ring_if_armed(bell)
}
