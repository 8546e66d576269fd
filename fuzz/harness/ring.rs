//! A ring in shared memory whose peer writes anything anywhere.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::script::Script;
use causeway_shm::layout as l;
use causeway_shm::{Attention, Ring, Segment, Side};

/// Least capacity, so that the ring is gone round often.
const CAPACITY: usize = l::MIN_CAPACITY;
/// Longest body that a script's honest records have.
const BODY_MAX: usize = 600;
/// Steps of one script.
const STEPS_MAX: usize = 2_000;

/// `data` is a script: each step is a byte that says what happens, and its operands. Steps of the
/// honest side use the ring as a queue pair would; steps of the peer are honest too, or write a
/// word of their choice.
pub fn run(data: &[u8]) {
    let segment = Segment::create("fuzz", l::ring_len(CAPACITY)).expect("memory");
    let segment = Arc::new(Ring::format(segment, CAPACITY).expect("a ring"));
    let memory = File::from(segment.fd().try_clone_to_owned().expect("a descriptor"));
    let mut script = Script { rest: data };
    let mut ring = Ring::attach(Arc::clone(&segment), Side::A).expect("side A");
    let mut peer = Ring::attach(segment, Side::B).expect("side B");
    let mut seq = 0;
    for _ in 0..STEPS_MAX {
        let Some(step) = script.byte() else { break };
        match step % 10 {
            0 => {
                let at = usize::from(script.u16()) * 8 % l::ring_len(CAPACITY);
                write(&memory, at, script.word());
            }
            // Likely places: what the peer's side says of itself, and its records' headers.
            1 => {
                let at = l::SIDES_AT + l::SIDE_STRIDE + usize::from(script.u16()) % 64 * 8;
                write(&memory, at, script.word());
            }
            2 => {
                let cell = usize::from(script.u16()) % (CAPACITY / l::CELL);
                write(&memory, l::PAGE + CAPACITY + cell * l::CELL, script.word());
            }
            3 | 4 => take(&mut ring),
            5 => send(&mut ring, &mut script, &mut seq),
            6 => send(&mut peer, &mut script, &mut seq),
            7 => take(&mut peer),
            8 => {
                let _ = ring.set_cold(Attention::ACK.and(Attention::ROOM));
                ring.set_hot();
            }
            _ => {
                ring.set_req_ack(script.word() % (1 << 40));
                ring.publish_ack();
                let before = ring.req_ack_seen();
                assert!(ring.req_ack() >= before, "an acknowledgment went back");
            }
        }
    }
}

fn write(memory: &File, at: usize, word: u64) {
    memory
        .write_all_at(&word.to_le_bytes(), at as u64)
        .expect("inside of the segment");
}

fn take(ring: &mut Ring) {
    let corrupt = match ring.rx.peek() {
        Ok(None) => return,
        Ok(Some(record)) => {
            let mut body = vec![0; record.len()];
            record.read(0, &mut body);
            false
        }
        Err(_) => true,
    };
    if corrupt {
        assert!(ring.rx.peek().is_err(), "a corrupt ring recovered");
    } else {
        ring.rx.consume();
    }
}

fn send(ring: &mut Ring, script: &mut Script<'_>, seq: &mut u64) {
    let len = usize::from(script.u16()) % BODY_MAX;
    match ring.tx.reserve(len / 2, len) {
        Err(_) => assert!(ring.tx.reserve(0, 0).is_err(), "a corrupt ring recovered"),
        Ok(None) => {}
        Ok(Some(mut slot)) => {
            let len = slot.len().min(len);
            slot.write(0, &vec![0xee; len]);
            slot.commit((*seq % 7) as u8, 0, *seq, len);
            *seq += 1;
            ring.tx.publish();
        }
    }
}
