//! What the device of a virtual machine tells its guest, and which doorbells of the guest it wants.

mod common;

use std::time::Instant;

use common::machine::{Machine, RING};
use common::{Host, PATIENCE};

/// An event that says that a doorbell was rung.
const RUNG: u16 = 2;
/// Turns of what is tried many times.
const TURNS: u16 = 40_000;
/// Spins, one more than by which a turn differs from the last one at most.
const STEP: u16 = 17;

/// Rings a doorbell of the guest's own, of which it is told.
fn ring(machine: &Machine, bell: u32) {
    assert_eq!(machine.ask(RING, bell, 0), 0);
}

#[test]
fn a_guest_rings_for_a_buffer_only_if_there_was_none() {
    let host = Host::with_broker("0");
    let machine = Machine::start(&host, "a");
    let bell = machine.doorbell();
    assert!(machine.give(), "nothing was given yet");
    machine.give_quietly();
    ring(&machine, bell);
    assert_eq!(machine.wait_for_events(1), (RUNG, bell));
    assert!(!machine.hears_of_buffers(), "one is left");
    // One is found that no doorbell was rung for.
    assert!(!machine.give());
    for count in 2..=3 {
        ring(&machine, bell);
        assert_eq!(machine.wait_for_events(count), (RUNG, bell));
        assert!(!machine.hears_of_buffers(), "none was missing");
    }
    // None is left: the event waits, and the device says what it waits for.
    ring(&machine, bell);
    let late = Instant::now() + PATIENCE;
    while !machine.hears_of_buffers() {
        assert!(Instant::now() < late, "the guest would never ring");
        std::thread::yield_now();
    }
    assert_eq!(machine.told(), 3);
    assert!(machine.give());
    assert_eq!(machine.wait_for_events(4), (RUNG, bell));
    assert!(!machine.hears_of_buffers());
}

#[test]
fn no_event_is_lost_between_a_buffer_and_its_doorbell() {
    let host = Host::with_broker("0");
    let machine = Machine::start(&host, "a");
    let bell = machine.doorbell();
    // Spins before a buffer is given: so many that the device looks for one at that moment.
    let mut spins = 0_usize;
    for count in 1..=TURNS {
        let asked = machine.post(RING, bell, 0);
        for _ in 0..spins {
            std::hint::spin_loop();
        }
        spins = if machine.give() {
            spins.saturating_sub(usize::from(count % STEP))
        } else {
            spins + usize::from(count % STEP)
        };
        assert_eq!(machine.wait_for_events(count), (RUNG, bell));
        assert_eq!(machine.answer(asked), 0);
    }
}
