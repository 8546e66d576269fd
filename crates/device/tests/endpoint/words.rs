//! The short ways of 8 bytes, which call nothing: what they do, and what they decline. They are
//! taken only where the lock is biased towards the thread, and the helper thread may withdraw that
//! at any time: so what is tested holds whichever way each goes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use causeway_cancel::Allowed;
use causeway_device::{Glance, OneSided, Request, Waiting};
use causeway_proto::types::{SendFlags, SendOp, Sge, Wc, WcStatus};

use crate::broker::{Broker, until};
use crate::shorts::{Send, send, talking};
use crate::side::{DEPTH, MEMORY, Side, connect, exchange};

/// Where the tests write to.
const AT: usize = 512;
/// What is nowhere but where a test puts it.
const MARK: u64 = 0x5a5a_0123_4567_89ab;

/// Reached only by a failing test.
const LONG: Duration = Duration::from_secs(60);

/// A WRITE as a program posts it.
struct Write {
    send: Send,
    addr: u64,
    rkey: u32,
}

impl Request for Write {
    fn wr_id(&self) -> u64 {
        self.send.wr_id
    }

    fn flags(&self) -> SendFlags {
        self.send.flags
    }

    fn addr(&self) -> u64 {
        self.send.range.addr
    }

    fn length(&self) -> u32 {
        self.send.range.length
    }

    fn lkey(&self) -> u32 {
        self.send.range.lkey
    }
}

impl OneSided for Write {
    fn remote_addr(&self) -> u64 {
        self.addr
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }
}

/// A WRITE of `a`'s first word without a completion.
fn write(a: &Side, b: &Side) -> Write {
    Write {
        send: Send {
            flags: SendFlags::empty(),
            ..send(a.sge(0, 8))
        },
        addr: (b.memory.addr() + AT) as u64,
        rkey: b.mr.rkey(),
    }
}

/// Two, the first of which asks for the completions that it gets.
fn asking(broker: &Broker) -> (Side, Side) {
    let (a, b) = (Side::asking(broker), Side::new(broker));
    connect(&a, &b);
    (1..4).for_each(|value| exchange(&a, &b, value));
    (a, b)
}

/// Takes the queue pair's lock often in a row, by requests that are declined: it is biased towards
/// this thread then, most likely.
fn earn_bias(side: &Side) {
    let declined = Send {
        flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
        ..send(side.sge(0, 8))
    };
    for _ in 0..2000 {
        assert!(!side.qp.post_two_sided(declined));
    }
}

/// Posts WRITEs until one goes the way that calls nothing, a few at most. Returns whether one did.
fn hurry_write(a: &Side, b: &Side, wr: &Write) -> bool {
    (0..8).any(|_| {
        a.post(1, a.write_to(b, AT + 8), 0).expect("there is room");
        a.complete(1);
        earn_bias(a);
        a.qp.hurry_write(wr)
    })
}

#[test]
fn a_word_is_written_where_it_is_to_be_and_from_inline_bytes_too() {
    let broker = Broker::start();
    let (a, b) = asking(&broker);
    a.memory.word(0).store(MARK, Ordering::Relaxed);
    let done = hurry_write(&a, &b, &write(&a, &b));
    assert_eq!(b.memory.word(AT).load(Ordering::Relaxed) == MARK, done);
    let own = !MARK;
    let mut inline = write(&a, &b);
    inline.send.flags = SendFlags::INLINE;
    inline.send.range = Sge {
        addr: (&raw const own).expose_provenance() as u64,
        length: 8,
        lkey: 0,
    };
    let done = hurry_write(&a, &b, &inline);
    assert_eq!(b.memory.word(AT).load(Ordering::Relaxed) == own, done);
}

#[test]
fn a_word_with_a_wrong_key_or_range_is_declined_and_nothing_written() {
    let broker = Broker::start();
    let (a, b) = asking(&broker);
    let end = (b.memory.addr() + MEMORY) as u64;
    let wrong: [fn(&mut Write, u64); 9] = [
        |wr, _| wr.rkey ^= 1,
        |wr, end| wr.addr = end - 7,
        |wr, end| wr.addr = end - MEMORY as u64 - 1,
        |wr, _| wr.addr = u64::MAX - 3,
        // This one is right, but not stored in one go.
        |wr, _| wr.addr += 4,
        |wr, _| wr.send.range.lkey ^= 1,
        |wr, _| wr.send.range.addr -= 1,
        |wr, _| wr.send.range.addr += MEMORY as u64 - 7,
        |wr, _| wr.send.range.addr = u64::MAX - 3,
    ];
    for (at, spoil) in wrong.into_iter().enumerate() {
        a.memory.word(0).store(0, Ordering::Relaxed);
        let _ = hurry_write(&a, &b, &write(&a, &b));
        a.memory.word(0).store(MARK, Ordering::Relaxed);
        let mut wr = write(&a, &b);
        spoil(&mut wr, end);
        assert!(!a.qp.hurry_write(&wr), "number {at}");
        let written =
            (0..MEMORY / 8).any(|word| b.memory.word(8 * word).load(Ordering::Relaxed) == MARK);
        assert!(!written, "number {at}");
    }
}

#[test]
fn a_queue_pair_whose_requests_all_complete_and_a_full_queue_decline_a_word() {
    let broker = Broker::start();
    let (a, b) = asking(&broker);
    let _ = hurry_write(&a, &b, &write(&a, &b));
    // Unsignaled ones keep their places until a completion behind them is polled.
    let most = DEPTH as usize;
    let taken = (0..=most)
        .take_while(|_| a.qp.hurry_write(&write(&a, &b)))
        .count();
    assert!(taken <= most, "the queue holds no more");
    let (c, d) = talking(&broker);
    for _ in 0..8 {
        earn_bias(&c);
        c.post(1, c.write_to(&d, AT), 0).expect("there is room");
        c.complete(1);
        assert!(
            !c.qp.hurry_write(&write(&c, &d)),
            "it must have a completion"
        );
    }
}

/// Polls as `ibv_poll_cq(3)` does; says whether a word was taken by the way that calls nothing.
fn poll(side: &Side, words: &mut u32) -> Option<Wc> {
    let mut found = None;
    if side.cq.waiting() == Waiting::None
        && let Some(mut held) = side.cq.hurry()
        && let Glance::Word(ring) = side.cq.glance(&mut held)
        // SAFETY: the glance has shown it.
        && unsafe { side.cq.take_message::<true>(&mut held, ring, |wc| found = Some(*wc)) }
    {
        *words += 1;
        return found;
    }
    side.cq.poll(1, |wc, _| found = Some(*wc)).unwrap();
    found
}

/// Sends a word, in one of the ways, and takes it and its completion.
fn send_word(a: &Side, b: &Side, value: u64, (sent, taken): (&mut u32, &mut u32)) {
    a.memory.word(0).store(value, Ordering::Relaxed);
    assert!(b.qp.post_recv_range(value, b.sge(8, 8)), "there is room");
    let wr = Send {
        wr_id: value,
        ..send(a.sge(0, 8))
    };
    match a.qp.hurry_send(&wr) {
        true => *sent += 1,
        false if a.qp.post_two_sided(wr) => {}
        false => a.post(value, SendOp::Send, 0).expect("there is room"),
    }
    let (mut received, mut completed) = (None, None);
    until("both completions", || {
        received = received.or_else(|| poll(b, taken));
        completed = completed.or_else(|| poll(a, &mut 0));
        received.is_some() && completed.is_some()
    });
    for wc in [received.unwrap(), completed.unwrap()] {
        let of = (wc.wr_id, wc.status, wc.byte_len);
        assert_eq!(of, (value, WcStatus::Success, 8));
    }
    assert_eq!(b.memory.word(8).load(Ordering::Relaxed), value);
}

#[test]
fn words_are_sent_and_taken_in_order_whichever_way_each_goes() {
    let broker = Broker::start();
    let (a, b) = talking(&broker);
    let (mut sent, mut taken, mut value) = (0, 0, 100);
    for _ in 0..300 {
        value += 1;
        if value % 64 == 0 {
            [&a, &b].into_iter().for_each(earn_bias);
        }
        send_word(&a, &b, value, (&mut sent, &mut taken));
    }
    // The other way round they bring acknowledgments along, and go on in order.
    for _ in 0..100 {
        value += 1;
        send_word(&b, &a, value, (&mut sent, &mut taken));
        send_word(&a, &b, value + 1000, (&mut sent, &mut taken));
    }
}

#[test]
fn a_word_with_options_or_a_wrong_range_is_not_sent() {
    let broker = Broker::start();
    let (a, b) = talking(&broker);
    let (mut sent, mut value) = (0, 100);
    let right = a.sge(0, 8);
    let with = |flags| Send {
        flags: SendFlags::SIGNALED | flags,
        ..send(right)
    };
    let at = |addr, lkey| {
        send(Sge {
            addr,
            lkey,
            ..right
        })
    };
    let declined = [
        with(SendFlags::SOLICITED),
        with(SendFlags::FENCE),
        with(SendFlags::INLINE),
        at(right.addr, right.lkey ^ 1),
        at(right.addr - 1, right.lkey),
        at(right.addr + MEMORY as u64 - 7, right.lkey),
    ];
    for wr in declined {
        value += 1;
        send_word(&a, &b, value, (&mut sent, &mut 0));
        earn_bias(&a);
        assert!(!a.qp.hurry_send(&wr), "{:?} {:?}", wr.flags, wr.range);
    }
    send_word(&a, &b, value + 1, (&mut sent, &mut 0));
}

#[test]
fn a_peer_that_sleeps_is_woken_by_a_word() {
    let broker = Broker::start();
    let ((a, channel), b) = (Side::with_channel(&broker), Side::new(&broker));
    connect(&a, &b);
    for _ in 0..16 {
        a.cq.req_notify(false).unwrap();
        a.post_recv(1, 8);
        earn_bias(&b);
        let wr = send(b.sge(0, 8));
        if !b.qp.hurry_send(&wr) {
            b.post(9, SendOp::Send, 0).unwrap();
        }
        channel.get_event_within(LONG, Allowed::NO).unwrap();
        a.cq.ack_events(1);
        a.complete(1);
        b.complete(9);
    }
}
