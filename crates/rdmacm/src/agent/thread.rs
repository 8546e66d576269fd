//! The thread that receives, repeats and gives up.

use std::io;
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;

use super::{Agent, WAKE, now};

/// Events taken from the kernel at once.
const EVENTS_PER_WAIT: usize = 64;

/// Starts the agent's thread, which never ends: the library is not unloaded (`nodelete`). No signal
/// of the program is delivered to it.
pub(super) fn spawn(agent: Arc<Agent>) -> io::Result<()> {
    let outside = block_signals(None);
    let spawned = std::thread::Builder::new()
        .name("causeway-cm".to_owned())
        .spawn(move || run(&agent));
    block_signals(Some(outside));
    spawned.map(drop)
}

/// Blocks all signals but those of faults, which the verbs library recovers from where it copies,
/// or sets the mask given; returns the one before.
fn block_signals(mask: Option<libc::sigset_t>) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; all pointers are to locals.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::sigdelset(&raw mut set, libc::SIGSEGV);
        libc::sigdelset(&raw mut set, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &mask.unwrap_or(set), &raw mut old);
        old
    }
}

fn run(agent: &Agent) {
    let mut events = Vec::with_capacity(EVENTS_PER_WAIT);
    let mut due = agent.lock().run_timers();
    loop {
        let timeout = due.map(|due| {
            let left = due.since(now());
            rustix::event::Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        events.clear();
        match epoll::wait(agent, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Nothing can be received any more, and nothing can be done about it.
            Err(_) => return,
        }
        let mut table = agent.lock();
        for event in &events {
            match event.data.u64() {
                WAKE => {
                    let _ = agent.wake.drain();
                }
                token => table.serve(token),
            }
        }
        // What has arrived need not be asked for again.
        due = table.run_timers();
    }
}
