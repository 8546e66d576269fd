//! The device of a virtual machine, with a guest and a QEMU that do anything at any moment: the
//! broker goes on, and so do other machines.

mod common;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use causeway_broker::vm::guest::DETACH_GRACE;
use causeway_fabric::vm::{attach, detach, list};

use common::Host;
use common::machine::{BEGIN, CREATE, ENDING, ENTRIES, LEFT, MEMORY, Machine, OPEN, RING, SHOW};

/// Bytes of the segments that guests make here.
const SEGMENT: u64 = 8192;
/// Turns of what is tried many times.
const TURNS: u64 = 200;

/// splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The machine makes a segment and is shown it: it is served.
fn is_served(machine: &Machine) {
    machine.show(SEGMENT);
    machine.qemu.wait_for(|window| !window.shown.is_empty());
    assert_eq!(machine.ask(BEGIN, 0, 0), 0);
    machine.qemu.wait_for(|window| window.shown.is_empty());
}

/// Says that it is over, also to who waits for a test that has failed.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One processor of the guest does `work` again and again, until the other is done.
fn meanwhile(mut work: impl FnMut() + Send, until: impl FnOnce()) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                work();
            }
        });
        let _over = Over(&over);
        until();
    });
}

#[test]
fn a_guest_that_asks_without_end_is_detached() {
    let host = Host::with_broker("0");
    let machine = Machine::start(&host, "a");
    let other = Machine::start(&host, "b");
    assert_eq!(machine.ask(OPEN, 1, 0), 0);
    machine.show(SEGMENT);
    // What stays in the queue rings a doorbell that there is not.
    machine.ask(RING, 0, 0);
    let (memory, kick) = (machine.memory.clone(), &machine.kicks[0]);
    meanwhile(
        || Machine::flood(&memory, kick),
        || {
            is_served(&other);
            detach(&host.address(), "a").unwrap();
            machine.qemu.wait_for(|window| window.shown.is_empty());
        },
    );
    is_served(&other);
    let names: Vec<_> = list(&host.address()).unwrap();
    assert_eq!(names.len(), 1);
}

#[test]
fn a_machine_that_ends_in_the_middle_of_a_request_comes_again() {
    let host = Host::with_broker("0");
    let other = Machine::start(&host, "b");
    for _ in 0..8 {
        let machine = Machine::start(&host, "a");
        assert_eq!(machine.ask(OPEN, 1, 0), 0);
        let segment = machine.create(SEGMENT);
        machine.qemu.mute_after(0);
        machine.post(SHOW, segment, 0);
        machine.qemu.wait_for(|window| window.asked > 0);
        // While a QEMU does not answer, others are served.
        is_served(&other);
        let qemu = Arc::clone(&machine.qemu);
        drop(machine);
        qemu.unmute();
    }
    is_served(&Machine::start(&host, "a"));
}

#[test]
fn a_machine_that_is_detached_while_qemu_does_not_answer_is_gone() {
    let host = Host::with_broker("0");
    let machine = Machine::start(&host, "a");
    let segment = machine.create(SEGMENT);
    machine.qemu.mute_after(0);
    let last = machine.post(SHOW, segment, 0);
    machine.qemu.wait_for(|window| window.asked > 0);
    detach(&host.address(), "a").unwrap();
    assert!(list(&host.address()).unwrap().is_empty());
    // The same name is free, and what QEMU was told last is taken back when it goes on.
    is_served(&Machine::start(&host, "a"));
    machine.qemu.unmute();
    machine.answer(last);
    machine.qemu.wait_for(|window| window.shown.is_empty());
    assert_ne!(machine.ask(CREATE, 0, SEGMENT), 0, "it is served");
}

#[test]
fn nothing_is_asked_of_a_qemu_that_is_paused() {
    let host = Host::with_broker("0");
    let other = Machine::start(&host, "b");
    let mut machine = Machine::start(&host, "a");
    machine.show(SEGMENT);
    let bases = machine.pause();
    machine.qemu.change(|window| window.asked = 0);
    detach(&host.address(), "a").unwrap();
    is_served(&other);
    machine.qemu.change(|window| assert_eq!(window.asked, 0));
    machine.resume(bases);
    machine.qemu.wait_for(|window| window.shown.is_empty());
}

/// A machine that is shown a segment of a process's own memory, and another.
fn with_own_memory(host: &Host) -> Machine {
    let machine = Machine::start(host, "a");
    machine.show_own();
    machine.show(SEGMENT);
    machine.qemu.wait_for(|window| window.shown.len() == 2);
    machine
}

#[test]
fn a_driver_copies_its_programs_memory_before_it_is_taken_away() {
    let host = Host::with_broker("0");
    let machine = with_own_memory(&host);
    let begun = Instant::now();
    detach(&host.address(), "a").unwrap();
    machine.qemu.wait_for(|window| window.shown.len() == 1);
    // There was no buffer before.
    assert_eq!(machine.event().0, ENDING);
    assert_ne!(machine.ask(CREATE, 0, SEGMENT), 0, "it is served");
    machine
        .qemu
        .change(|window| assert_eq!(window.shown.len(), 1));
    assert_eq!(machine.ask(LEFT, 0, 0), 0);
    machine.qemu.wait_for(|window| window.shown.is_empty());
    assert!(begun.elapsed() < DETACH_GRACE, "it was not waited for");
    is_served(&Machine::start(&host, "a"));
}

#[test]
fn a_driver_is_told_though_nothing_is_waited_for() {
    let host = Host::with_broker("0");
    let machine = Machine::start(&host, "a");
    machine.show(SEGMENT);
    machine.qemu.wait_for(|window| !window.shown.is_empty());
    detach(&host.address(), "a").unwrap();
    // It made that for others; none of its programs' memory is there.
    machine.qemu.wait_for(|window| window.shown.is_empty());
    assert_eq!(machine.event().0, ENDING);
}

#[test]
fn a_driver_that_does_not_answer_has_its_programs_memory_no_longer_than_that() {
    let host = Host::with_broker("0");
    let (machine, other) = (with_own_memory(&host), Machine::start(&host, "b"));
    let (memory, kick) = (machine.memory.clone(), &machine.kicks[0]);
    machine.ask(RING, 0, 0);
    // It asks without end, of all things not to lose it.
    meanwhile(
        || Machine::flood(&memory, kick),
        || {
            let begun = Instant::now();
            detach(&host.address(), "a").unwrap();
            machine.qemu.wait_for(|window| window.shown.len() == 1);
            is_served(&other);
            machine.qemu.wait_for(|window| window.shown.is_empty());
            assert!(
                begun.elapsed() >= DETACH_GRACE,
                "it was told {DETACH_GRACE:?}"
            );
        },
    );
}

#[test]
fn a_machine_that_is_paused_is_parted_with_when_it_goes_on() {
    let host = Host::with_broker("0");
    let mut machine = with_own_memory(&host);
    let quiet = |machine: &Machine| {
        machine.qemu.change(|window| window.asked = 0);
        thread::sleep(DETACH_GRACE * 5 / 4);
        machine.qemu.change(|window| assert_eq!(window.asked, 0));
    };
    let bases = machine.pause();
    detach(&host.address(), "a").unwrap();
    quiet(&machine);
    machine
        .qemu
        .change(|window| assert_eq!(window.shown.len(), 2));
    // Its time begins then.
    machine.resume(bases);
    machine.qemu.wait_for(|window| window.shown.len() == 1);
    assert_eq!(machine.event().0, ENDING);
    // And is over when it is paused once more.
    let bases = machine.pause();
    quiet(&machine);
    machine.resume(bases);
    machine.qemu.wait_for(|window| window.shown.is_empty());
}

#[test]
fn a_pause_loses_no_answer() {
    let host = Host::with_broker("0");
    let mut machine = Machine::start(&host, "a");
    let segment = machine.create(SEGMENT);
    machine.qemu.mute_after(0);
    let request = machine.post(SHOW, segment, 0);
    machine.qemu.wait_for(|window| window.asked > 0);
    let bases = machine.pause();
    machine.qemu.unmute();
    machine.resume(bases);
    assert_eq!(machine.answer(request), 0);
    // A driver that begins is not told what an earlier one asked.
    let segment = machine.create(SEGMENT);
    machine.qemu.mute_after(0);
    machine.post(SHOW, segment, 0);
    machine.qemu.wait_for(|window| window.asked > 0);
    machine.pause();
    machine.qemu.unmute();
    machine.begin();
    machine.qemu.wait_for(|window| window.shown.is_empty());
    is_served(&machine);
}

#[test]
fn queues_stop_and_go_while_the_guest_rings() {
    let host = Host::with_broker("0");
    let mut machine = Machine::start(&host, "a");
    for _ in 0..TURNS {
        machine.kicks.iter().for_each(|kick| kick.write(1).unwrap());
        let request = machine.post(OPEN, 0, 0);
        let bases = machine.pause();
        machine.resume(bases);
        machine.answer(request);
    }
    is_served(&machine);
}

/// The device's thread has taken the doorbells of queues that are stopped and begun again before it
/// comes to them.
#[test]
fn a_doorbell_that_is_replaced_after_it_was_rung() {
    let host = Host::with_broker("0");
    let mut machine = Machine::start(&host, "a");
    let (segment, other) = (machine.create(SEGMENT), machine.create(SEGMENT));
    machine.qemu.mute_after(0);
    machine.post(SHOW, segment, 0);
    machine.qemu.wait_for(|window| window.asked > 0);
    // Stopped, the thread leaves the rest of its queue for the next turn, in which it takes all
    // that has been rung meanwhile.
    let bases = machine.pause();
    machine.resume(bases);
    let second = machine.post(SHOW, other, 0);
    machine.kicks[1].write(1).unwrap();
    // A mapping takes two requests of QEMU; the second one's is not answered.
    machine.qemu.change(|window| window.mute = Some(2));
    machine.qemu.wait_for(|window| window.asked > 2);
    let bases = machine.pause();
    machine.resume(bases);
    machine.qemu.unmute();
    assert_eq!(machine.answer(second), 0);
    assert_eq!(machine.ask(BEGIN, 0, 0), 0);
    is_served(&machine);
}

#[test]
fn rings_that_change_while_they_are_read_hurt_nobody_else() {
    let host = Host::with_broker("0");
    let mut machine = Machine::start(&host, "a");
    let other = Machine::start(&host, "b");
    let (memory, mut state) = (machine.memory.clone(), 1);
    let kicks = machine
        .kicks
        .each_ref()
        .map(|kick| kick.try_clone().unwrap());
    // Tables and rings of both queues, and a little behind them.
    let scribble = || {
        let (at, what) = (random(&mut state) % 0x8000, random(&mut state));
        let count = (what >> 60) as usize % 8 + 1;
        memory.write(at, &what.to_le_bytes()[..count]);
        Machine::flood(&memory, &kicks[0]);
        let _ = kicks[1].write(1);
    };
    meanwhile(scribble, || (0..TURNS).for_each(|_| is_served(&other)));
    machine.pause();
    memory.write(0, &[0; MEMORY]);
    machine.begin();
    is_served(&machine);
}

#[test]
fn what_is_no_vhost_user_ends_that_connection_only() {
    let host = Host::with_broker("0");
    let other = Machine::start(&host, "b");
    let socket = attach(&host.address(), "a", "").unwrap().socket;
    let mut state = 7;
    for turn in 0..TURNS {
        let mut connection = UnixStream::connect(&socket).unwrap();
        // The first word is a request's number, more often than not.
        let mut bytes: Vec<u8> = (0..64)
            .flat_map(|_| random(&mut state).to_le_bytes())
            .collect();
        if turn % 4 > 0 {
            let (number, size) = (turn as u32 % 48, (turn as u32 * 7) % 80);
            bytes[0..4].copy_from_slice(&number.to_le_bytes());
            bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
            bytes[8..12].copy_from_slice(&size.to_le_bytes());
        }
        let _ = connection.write_all(&bytes[..turn as usize % bytes.len()]);
    }
    is_served(&other);
    is_served(&Machine::start(&host, "a"));
}

#[test]
fn a_queue_full_of_requests_is_answered_whole() {
    let host = Host::with_broker("0");
    let machine = Machine::start(&host, "a");
    let mut last = 0;
    for _ in 0..ENTRIES {
        last = machine.post(RING, 0, 0);
    }
    machine.answer(last);
    is_served(&machine);
}
