//! The endpoint of this process: what its threads share, and the threads that are its own.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Once, Weak};
use std::thread::JoinHandle;

use causeway_fabric::{Address, WirePref};
use parking_lot::Mutex;

use crate::broker_thread;
use crate::bypass;
use crate::checksums::Checksums;
use crate::device_files;
use crate::ecn;
use crate::engines::ENGINES_MAX;
use crate::errno::{Errno, OpenError};
use crate::fork;
use crate::grow::most_engines;
use crate::helper;
use crate::shared::Shared;
use crate::sharing::Sharing;
use crate::silence::patience;
use crate::state::State;

/// How long the end of the program waits for a call in another thread.
const EXIT_PATIENCE: std::time::Duration = std::time::Duration::from_millis(100);
/// How often it looks whether that has ended.
const EXIT_LOOK: std::time::Duration = std::time::Duration::from_millis(1);

/// The endpoint: one per process, alive while a context is.
pub(crate) struct Endpoint {
    pub shared: Arc<Shared>,
    /// Memory that peers on this host can map.
    pub sharing: Arc<Sharing>,
    /// The helper and the broker thread.
    threads: Mutex<Vec<JoinHandle<()>>>,
    pid: u32,
}

static ENDPOINT: Mutex<Weak<Endpoint>> = Mutex::new(Weak::new());

/// The process's endpoint, attached to the broker if it was not.
///
/// # Errors
/// What keeps it from attaching: no broker can be reached or started, no slot is free.
pub(crate) fn endpoint() -> Result<Arc<Endpoint>, OpenError> {
    let mut current = ENDPOINT.lock();
    // A forked child gets an endpoint of its own; its parent's is left alone.
    if let Some(endpoint) = current.upgrade().filter(|e| e.pid == std::process::id()) {
        return Ok(endpoint);
    }
    let endpoint = Endpoint::alone(None)?;
    // Before the program connects to anybody: its first message is recorded, too.
    endpoint.shared.common.traces.lead();
    endpoint.shared.heed_traces();
    *current = Arc::downgrade(&endpoint);
    static AT_EXIT: Once = Once::new();
    // SAFETY: registers a function that lives as long as the library, which is never unloaded
    // while its helper thread runs.
    AT_EXIT.call_once(|| _ = unsafe { libc::atexit(settle_at_exit) });
    Ok(endpoint)
}

/// From now on a child made by fork(2) does without the memory that peers can map, as with
/// hardware (`ibv_fork_init(3)`). Otherwise it gets a copy, for which fork(2) waits.
pub fn fork_init() {
    fork::note_init();
    let endpoint = ENDPOINT.lock().upgrade();
    if let Some(endpoint) = endpoint.filter(|e| e.pid == std::process::id()) {
        endpoint.sharing.keep_from_children();
    }
}

/// Runs when the program has returned from `main` or called exit(3), after all that it has
/// registered for that: queue pairs that it has left end as if they were destroyed.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_LAST: extern "C" fn() = leave_at_exit;

extern "C" fn leave_at_exit() {
    with_states_at_exit(State::leave_all);
}

/// A program that ends without destroying its queue pairs has received what it has polled: peers
/// must hear of it, as a NIC would have told them before.
extern "C" fn settle_at_exit() {
    with_states_at_exit(State::settle_all);
}

fn with_states_at_exit(f: impl Fn(&mut State)) {
    let endpoint = ENDPOINT.try_lock().and_then(|current| current.upgrade());
    let Some(endpoint) = endpoint.filter(|e| e.pid == std::process::id()) else {
        return;
    };
    if !endpoint.shared.descriptors.are_intact() {
        return;
    }
    // Held only by a thread that exit(3) has caught in the middle of a call.
    let begun = std::time::Instant::now();
    let mut left: Vec<_> = endpoint.shared.engines.iter().collect();
    while begun.elapsed() < EXIT_PATIENCE {
        left.retain(|engine| match engine.state.try_lock() {
            Some(mut state) if state.is_nobody_inside() => {
                f(&mut state);
                false
            }
            _ => true,
        });
        if left.is_empty() {
            return;
        }
        std::thread::sleep(EXIT_LOOK);
    }
}

/// What the environment says of wire, checksums and whether wires are to be secured.
///
/// # Errors
/// EINVAL if it says something unintelligible, of these or of what is read where it is used.
fn settings() -> Result<(WirePref, (Checksums, bool)), OpenError> {
    let unknown = OpenError::new(libc::EINVAL, "CAUSEWAY_WIRE is not auto, shm or udp");
    let wire = WirePref::from_env().ok_or(unknown)?;
    let unknown = OpenError::new(libc::EINVAL, "CAUSEWAY_CRC is not auto, on or off");
    let checksums = Checksums::from_env().ok_or(unknown)?;
    let unknown = "CAUSEWAY_ECN is not 0 or 1";
    ecn::setting().ok_or(OpenError::new(libc::EINVAL, unknown))?;
    let unknown = "CAUSEWAY_PORT is not udp or xdp";
    bypass::setting().ok_or(OpenError::new(libc::EINVAL, unknown))?;
    let unknown = "CAUSEWAY_PATIENCE is not a number of seconds, 0 to 86400";
    patience().ok_or(OpenError::new(libc::EINVAL, unknown))?;
    let unknown = "CAUSEWAY_LOOK is not on or off";
    let not_engines = format!("CAUSEWAY_ENGINES is not a number from 1 to {ENGINES_MAX}");
    most_engines().ok_or(OpenError::new(libc::EINVAL, &not_engines))?;
    causeway_look::setting().ok_or(OpenError::new(libc::EINVAL, unknown))?;
    let unknown = "CAUSEWAY_SECURE is not auto or required";
    let secured = causeway_fabric::secure::wanted();
    let secured = secured.ok_or(OpenError::new(libc::EINVAL, unknown))?;
    Ok((wire, (checksums, secured)))
}

impl Endpoint {
    /// An endpoint beside whatever others there are, attached to the broker at an address, or to
    /// the one that the environment names.
    pub fn alone(broker: Option<&Address>) -> Result<Arc<Self>, OpenError> {
        causeway_biased_lock::allow();
        // What finds out how this processor does it is not to be found half done by a child made by
        // fork(2).
        let _ = causeway_proto::crc32c(0, &[]);
        fork::tell_of_copies();
        Ok(Arc::new(Endpoint::attach(broker)?))
    }

    fn attach(broker: Option<&Address>) -> Result<Self, OpenError> {
        let (wire, protection) = settings()?;
        let shared = Arc::new(Shared::attach(broker, wire, protection)?);
        device_files::show_again(&shared.control);
        let endpoint = Endpoint {
            sharing: Arc::new(Sharing::new(Arc::clone(&shared))),
            shared,
            threads: Mutex::default(),
            pid: std::process::id(),
        };
        endpoint.start(|endpoint| helper::start(Arc::clone(&endpoint.shared)))?;
        endpoint.start(|endpoint| broker_thread::start(Arc::clone(&endpoint.sharing)))?;
        Ok(endpoint)
    }

    /// Starts a thread that ends with the endpoint.
    fn start(
        &self,
        start: impl FnOnce(&Self) -> Result<JoinHandle<()>, Errno>,
    ) -> Result<(), OpenError> {
        let thread = start(self).map_err(|errno| {
            let reason = format!("cannot start a thread (clone3, clone): {errno}");
            OpenError::new(errno.0, &reason)
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        if !self.shared.descriptors.are_intact() {
            // The numbers are the program's: nothing is closed. Nor can the threads be woken.
            std::mem::forget(Arc::clone(&self.sharing));
            return;
        }
        self.shared.kick();
        self.shared.wake_broker_thread();
        self.shared.groups.wake();
        let own = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            // The broker thread may be in a call to the broker, which it ends.
            if thread.thread().id() != own {
                let _ = thread.join();
            }
        }
    }
}
