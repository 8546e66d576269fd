//! The queue as programs have it; what interleaves how is for the models (`tests/loom.rs`).

use std::sync::atomic::AtomicBool;

use super::*;

type Queue = TwoEnded<u64, ()>;

/// Puts a value in if there is room, or more of it can be made.
fn put(queue: &Queue, value: u64) -> bool {
    queue.producer().put(value, |whole| _ = whole.grow())
}

fn pop(queue: &Queue) -> Option<u64> {
    let mut consumer = queue.consumer();
    let value = *consumer.front()?;
    consumer.drop_front();
    Some(value)
}

fn all(queue: &Queue) -> Vec<u64> {
    queue.producer().whole().iter().collect()
}

#[test]
fn it_is_a_queue_however_often_it_wraps_and_grows() {
    let queue = Queue::limited(usize::MAX, ());
    let (mut count, mut taken) = (0, 0);
    for round in 0..100 {
        for _ in 0..round % 40 {
            assert!(put(&queue, count));
            count += 1;
        }
        assert!(all(&queue).into_iter().eq(taken..count));
        for _ in 0..queue.len() / 2 {
            assert_eq!(pop(&queue), Some(taken));
            taken += 1;
        }
        assert_eq!(queue.len() as u64, count - taken);
        assert_eq!(queue.is_idle(), queue.is_empty());
    }
}

#[test]
fn some_are_taken_out_of_its_middle_and_the_others_keep_their_order() {
    let queue = Queue::limited(usize::MAX, ());
    (0..30).for_each(|value| assert!(put(&queue, value)));
    (0..10).for_each(|value| assert_eq!(pop(&queue), Some(value)));
    queue.producer().whole().retain(|value| {
        let keep = value.is_multiple_of(3);
        *value += 1;
        keep
    });
    assert!(put(&queue, 99));
    assert_eq!(all(&queue), [13, 16, 19, 22, 25, 28, 99]);
    let first = |is: fn(u64) -> bool| queue.producer().whole().take_first(|value| is(*value));
    assert_eq!(first(|value| value.is_multiple_of(2)), Some(16));
    assert_eq!(first(|value| value == 1), None);
    assert_eq!(all(&queue), [13, 19, 22, 25, 28, 99]);
    assert_eq!(pop(&queue), Some(13));
    queue.producer().whole().retain(|_| false);
    assert!(queue.is_idle() && pop(&queue).is_none());
}

#[test]
fn it_holds_no_more_than_it_may() {
    let queue = Queue::limited(20, ());
    (0..20).for_each(|value| assert!(put(&queue, value)));
    assert!(!put(&queue, 20));
    assert!(!queue.producer().set_most(19));
    assert!(queue.producer().set_most(40));
    assert!(!queue.producer().is_full(), "there are more places");
    (20..40).for_each(|value| assert!(put(&queue, value)));
    assert!(!put(&queue, 40));
    assert_eq!(pop(&queue), Some(0));
    assert!(put(&queue, 40));
    assert!(all(&queue).into_iter().eq(1..41));
    assert_eq!((queue.producer().most(), queue.len()), (40, 40));
}

#[test]
fn one_that_has_overrun_is_not_idle_and_goes_on() {
    let queue = Queue::limited(2, ());
    assert!(put(&queue, 0) && put(&queue, 1) && !put(&queue, 2));
    assert!(!queue.consumer().has_overrun());
    assert!(!queue.producer().note_overrun());
    assert!(queue.producer().note_overrun());
    assert!(queue.consumer().has_overrun());
    assert_eq!((queue.len(), queue.producer().len()), (2, 2));
    assert_eq!(
        (pop(&queue), pop(&queue), pop(&queue)),
        (Some(0), Some(1), None)
    );
    assert!(queue.is_empty() && !queue.is_idle());
    assert!(put(&queue, 3) && put(&queue, 4) && !put(&queue, 5));
    assert_eq!(all(&queue), [3, 4]);
    assert_eq!(pop(&queue), Some(3));
    assert!(queue.consumer().has_overrun());
}

#[test]
fn what_is_biased_to_another_thread_is_not_hurried() {
    causeway_biased_lock::allow();
    let queue = Queue::limited(4, ());
    for value in 0..1 << 17 {
        assert!(put(&queue, value));
        assert_eq!(pop(&queue), Some(value));
    }
    assert!(queue.hurry_producer().is_some() && queue.hurry_consumer().is_some());
    std::thread::scope(|scope| {
        let other = || queue.hurry_producer().is_none() && queue.hurry_consumer().is_none();
        assert!(scope.spawn(other).join().unwrap());
    });
    let producer = queue.producer();
    assert!(queue.is_locked());
    let other_end = std::thread::scope(|scope| scope.spawn(|| pop(&queue)).join().unwrap());
    assert_eq!(other_end, None, "the other end is free");
    drop(producer);
    assert!(!queue.is_locked());
}

#[test]
fn two_threads_hold_an_end_each() {
    // Processors that are emulated in turns take milliseconds to notice each other.
    let values: u64 = match std::env::var_os("CAUSEWAY_TEST_EMULATED") {
        Some(_) => 20_000,
        None => 300_000,
    };
    causeway_biased_lock::allow();
    let queue = Queue::limited(64, ());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0;
            while value < values {
                // Now and then somebody reaches into the middle.
                if value.is_multiple_of(1000) {
                    queue.producer().whole().retain(|_| true);
                }
                match put(&queue, value) {
                    true => value += 1,
                    false => std::thread::yield_now(),
                }
            }
            done.store(true, Ordering::Release);
        });
        let mut next = 0;
        while next < values {
            let ended = done.load(Ordering::Acquire);
            match pop(&queue) {
                Some(value) => {
                    assert_eq!(value, next);
                    next += 1;
                }
                None => {
                    assert!(!ended, "{next} is lost");
                    std::thread::yield_now();
                }
            }
        }
    });
    assert!(queue.is_idle());
}
