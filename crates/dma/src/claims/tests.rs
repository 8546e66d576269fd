//! Claims in every order that a few threads can make them.

use super::*;
use proptest::prelude::*;

/// What one of the threads does next: it claims, or gives back what it has.
#[derive(Clone, Copy, Debug)]
struct Move {
    thread: usize,
    valid: bool,
    abort: bool,
    /// The engine's thread shares nothing.
    alone: bool,
}

/// Threads; the first is the engine's.
const THREADS: usize = 3;

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = (0..THREADS, 0..40, 0..60, any::<bool>());
    let one = one.prop_map(|(thread, fails, aborts, alone)| Move {
        alone,
        thread,
        valid: fails != 0,
        abort: aborts == 0,
    });
    proptest::collection::vec(one, 0..60)
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    let edge =
        (0..12usize, 0..3usize).prop_map(|(chunks, more)| (chunks * CHUNK + more).max(1) - 1);
    let one = proptest::collection::vec(prop_oneof![edge.clone(), 0..5000usize], 1);
    prop_oneof![
        one,
        proptest::collection::vec(prop_oneof![edge, 0..20usize], 0..6)
    ]
}

/// A plan at addresses that nobody looks at.
fn plan(lengths: &[usize], overlapping: bool) -> Plan {
    let descriptors = lengths.iter().map(|&len| Descriptor {
        src: std::ptr::without_provenance(1 << 40),
        dst: std::ptr::without_provenance_mut((1 << 40) + if overlapping { 1 } else { 1 << 30 }),
        len,
    });
    Plan::new(descriptors.collect(), None)
}

/// Bytes from the transfer's beginning to a place.
fn bytes(lengths: &[usize], at: At) -> usize {
    lengths[..at.index].iter().sum::<usize>() + at.offset
}

struct Game {
    plan: Plan,
    claims: Claims,
    hands: [Option<Part>; THREADS],
    /// What was copied, from and to, in the order in which it was claimed.
    copied: Vec<(usize, usize)>,
    lengths: Vec<usize>,
    ends: Vec<State>,
}

impl Game {
    fn new(lengths: Vec<usize>, overlapping: bool) -> Game {
        let plan = plan(&lengths, overlapping);
        Game {
            claims: Claims::new(&plan),
            plan,
            hands: [None; THREADS],
            copied: Vec::new(),
            lengths,
            ends: Vec::new(),
        }
    }

    fn step(&mut self, thread: usize, valid: bool, alone: bool) {
        if self.hands[thread].take().is_some() {
            self.ends.extend(self.claims.give_back(valid));
            return;
        }
        let role = match thread {
            0 if alone => Role::LastResort,
            0 => Role::Engine,
            _ => Role::Waiter,
        };
        let taken = self.claims.is_taken(role);
        let claim = self.claims.claim(&self.plan, role);
        assert_eq!(taken, claim == Claim::Nothing);
        match claim {
            Claim::Nothing => {}
            Claim::Over(state) => self.ends.push(state),
            Claim::Part(part) => {
                assert!(self.ends.is_empty());
                let busy = self.hands.iter().flatten().count();
                assert!(busy < self.claims.sharers as usize);
                assert!(busy == 0 || role != Role::LastResort);
                let range = (
                    bytes(&self.lengths, part.from),
                    bytes(&self.lengths, part.to),
                );
                assert!(range.0 < range.1 && range.1 - range.0 <= CHUNK);
                if self.claims.sharers == 1 {
                    // In order, one behind another.
                    assert_eq!(range.0, self.copied.last().map_or(0, |last| last.1));
                }
                if range.1 == self.lengths.iter().sum::<usize>() {
                    // The last bytes go alone.
                    assert_eq!(busy, 0);
                }
                self.copied.push(range);
                self.hands[thread] = Some(part);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_byte_is_copied_once_and_the_end_is_told_once(
        lengths in lengths(),
        overlapping: bool,
        moves in moves(),
    ) {
        let mut game = Game::new(lengths, overlapping);
        let mut whole = true;
        for Move { thread, valid, abort, alone } in moves {
            if abort && game.ends.is_empty() {
                game.claims.stop(State::Aborted);
                whole = false;
            }
            whole &= valid || game.hands[thread].is_none();
            game.step(thread, valid, alone);
        }
        // Then all go on as they should.
        let total: usize = game.lengths.iter().sum();
        for turn in 0..THREADS * 2 * (total / CHUNK + game.lengths.len() + 4) {
            game.step(turn % THREADS, true, turn % 2 == 0);
        }
        prop_assert_eq!(game.ends.len(), 1);
        prop_assert!(game.hands.iter().all(Option::is_none));
        prop_assert_eq!(game.ends[0] == State::Done, whole);
        game.copied.sort_unstable();
        prop_assert!(game.copied.windows(2).all(|two| two[0].1 <= two[1].0));
        if whole {
            let sum: usize = game.copied.iter().map(|(from, to)| to - from).sum();
            prop_assert_eq!(sum, total);
        }
    }
}

#[test]
fn the_engine_goes_backward_once_a_waiter_has_begun() {
    let mut game = Game::new(vec![8 * CHUNK], false);
    game.step(0, true, false);
    game.step(1, true, false);
    game.step(0, true, false);
    game.step(0, true, false);
    let tail = 8 * CHUNK - TAIL;
    assert_eq!(
        game.copied,
        [(0, CHUNK), (CHUNK, 2 * CHUNK), (7 * CHUNK, tail)]
    );
    // A third has to wait.
    game.step(2, true, false);
    assert_eq!(game.copied.len(), 3);
}
