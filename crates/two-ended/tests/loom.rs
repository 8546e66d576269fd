//! The queue, in every interleaving of small scenarios, and in every reordering that the memory
//! model allows. Its locks are loom's: that of programs has models of its own.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p causeway-two-ended --release --test loom`
#![cfg(loom)]

use causeway_two_ended::{PLANTED, TwoEnded};
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

/// What a thread that waits for a value has asked for.
#[derive(Default)]
struct Telling {
    armed: bool,
}

type Queue = TwoEnded<u32, Telling>;

/// In every interleaving in which no more than so many threads are interrupted.
fn model(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(scenario);
}

fn queue(most: usize) -> Arc<Queue> {
    Arc::new(Queue::limited(most, Telling::default()))
}

/// Puts a value in if there is room. Returns whether somebody is to be told.
fn put(queue: &Queue, value: u32) -> Option<bool> {
    let mut producer = queue.producer();
    if !producer.put(value, |whole| _ = whole.grow()) {
        return None;
    }
    Some(std::mem::take(&mut producer.with().armed))
}

/// Takes all there are now.
fn take(queue: &Queue, into: &mut Vec<u32>) {
    let mut consumer = queue.consumer();
    while let Some(value) = consumer.front() {
        into.push(*value);
        consumer.drop_front();
    }
}

/// What was put in comes out once and in order, while more places are made, and places are used
/// again.
fn one_puts_and_another_takes(most: usize) {
    let queue = queue(most);
    assert_eq!(put(&queue, 0), Some(false));
    let putting = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || (1..4).filter(|value| put(&queue, *value).is_some()).count())
    };
    let mut taken = Vec::new();
    take(&queue, &mut taken);
    take(&queue, &mut taken);
    let fit = putting.join().unwrap();
    take(&queue, &mut taken);
    assert_eq!(taken.len(), fit + 1);
    assert!(taken.is_sorted() && taken.windows(2).all(|two| two[0] != two[1]));
    assert!(queue.is_idle());
}

#[test]
fn values_come_once_and_in_order() {
    for most in [2, 8] {
        model(3, move || one_puts_and_another_takes(most));
    }
}

/// A queue that only seems full to who puts, since who takes is about to say that it has taken, has
/// room: whoever was told that a value has left puts one in its stead.
#[test]
fn what_has_been_taken_leaves_room() {
    model(3, || {
        let queue = queue(2);
        assert!(put(&queue, 0).is_some() && put(&queue, 1).is_some());
        let freed = Arc::new(AtomicBool::new(false));
        let taking = {
            let (queue, freed) = (Arc::clone(&queue), Arc::clone(&freed));
            thread::spawn(move || {
                let mut consumer = queue.consumer();
                assert_eq!(consumer.front().copied(), Some(0));
                // As a completion queue says what is free of a send queue.
                freed.store(true, Ordering::Release);
                consumer.drop_front();
            })
        };
        if freed.load(Ordering::Acquire) {
            assert!(put(&queue, 2).is_some(), "overrun");
        }
        taking.join().unwrap();
    });
}

/// Some are taken out of the middle while others put and take.
#[test]
fn who_reaches_into_the_middle_is_alone() {
    model(2, || {
        let queue = queue(4);
        assert!(put(&queue, 0).is_some() && put(&queue, 1).is_some());
        let removing = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let mut removed = 0;
                queue.producer().whole().retain(|value| {
                    removed += u32::from(*value == 1);
                    *value != 1
                });
                removed
            })
        };
        let putting = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || assert!(put(&queue, 2).is_some()))
        };
        let mut taken = Vec::new();
        take(&queue, &mut taken);
        let removed = removing.join().unwrap();
        putting.join().unwrap();
        take(&queue, &mut taken);
        match removed {
            0 => assert_eq!(taken, [0, 1, 2]),
            _ => assert_eq!(taken, [0, 2]),
        }
    });
}

/// A queue that is never empty never seems so, whoever takes out and puts in.
#[test]
fn what_is_there_is_not_overlooked() {
    model(3, || {
        let queue = queue(4);
        assert!(put(&queue, 0).is_some());
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                assert!(put(&queue, 1).is_some());
                let mut consumer = queue.consumer();
                assert_eq!(consumer.front().copied(), Some(0));
                consumer.drop_front();
            })
        };
        assert!(!queue.is_idle() && queue.len() > 0);
        other.join().unwrap();
    });
}

/// Who arms, and then finds nothing, is told of the next value, and of no other.
#[test]
fn who_arms_and_finds_nothing_is_told() {
    model(3, || {
        let queue = queue(4);
        let putting = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || put(&queue, 1).unwrap())
        };
        queue.producer().with().armed = true;
        let found = !queue.is_idle();
        let told = putting.join().unwrap();
        assert!(found || told, "a value is slept through");
    });
}

#[test]
fn planted_defects_are_found() {
    let planted = [
        ("marks_that_come_before_their_values", "Causality violation"),
        ("one_who_arms_without_the_lock", "slept through"),
        ("a_queue_that_is_called_full_too_early", "overrun"),
    ];
    for (name, words) in planted {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture"])
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success(), "{name} is not found: {said}");
        assert!(said.contains(words), "{name} fails otherwise: {said}");
    }
}

/// A planted defect in the queue's own code.
#[test]
#[ignore = "fails: run by `planted_defects_are_found`"]
fn marks_that_come_before_their_values() {
    PLANTED.store(true, std::sync::atomic::Ordering::Relaxed);
    model(3, || one_puts_and_another_takes(2));
}

/// A planted defect: the two threads store, and then look what the other one has stored.
#[test]
#[ignore = "fails: run by `planted_defects_are_found`"]
fn one_who_arms_without_the_lock() {
    model(3, || {
        let (queue, armed) = (queue(4), Arc::new(AtomicBool::new(false)));
        let putting = {
            let (queue, armed) = (Arc::clone(&queue), Arc::clone(&armed));
            thread::spawn(move || {
                put(&queue, 1).unwrap();
                armed.load(Ordering::Acquire)
            })
        };
        armed.store(true, Ordering::Release);
        let found = !queue.is_idle();
        let told = putting.join().unwrap();
        assert!(found || told, "a value is slept through");
    });
}

/// A planted defect: who puts believes the mark alone.
#[test]
#[ignore = "fails: run by `planted_defects_are_found`"]
fn a_queue_that_is_called_full_too_early() {
    model(3, || {
        let queue = queue(2);
        assert!(put(&queue, 0).is_some() && put(&queue, 1).is_some());
        let freed = Arc::new(AtomicBool::new(false));
        let taking = {
            let (queue, freed) = (Arc::clone(&queue), Arc::clone(&freed));
            thread::spawn(move || {
                let mut consumer = queue.consumer();
                assert_eq!(consumer.front().copied(), Some(0));
                freed.store(true, Ordering::Release);
                consumer.drop_front();
            })
        };
        if freed.load(Ordering::Acquire) {
            assert!(!queue.producer().is_full(), "overrun");
        }
        taking.join().unwrap();
    });
}
