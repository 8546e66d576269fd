//! What a daemon does that a broker has started: it ends with the broker, and gives up what it does
//! not need.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

/// Called by the program's first thread, before there are others: they inherit what it has then.
///
/// # Errors
/// `ESRCH` if the broker has ended already; the kernel's.
pub fn settle(broker: i32) -> Result<(), Errno> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    if getppid() != Pid::from_raw(broker) {
        return Err(Errno::SRCH);
    }
    // No program that it runs can gain anything.
    set_no_new_privs(true)?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none)
}
