//! Two ends over links that lose, repeat and delay.

use super::*;
use causeway_wire::cm::PRIVATE_MAX;
use proptest::prelude::*;

const A: u64 = 11;
const B: u64 = 22;
const STEP: Duration = Duration::from_millis(5);

fn offer(text: &[u8]) -> Offer {
    Offer {
        terms: Terms {
            qpn: 7,
            ..Terms::default()
        },
        private: Private::new(text).unwrap(),
    }
}

/// Two ends and a link that loses, repeats and delays what `fate` says.
struct World {
    now: Instant,
    a: Connection,
    b: Option<Connection>,
    /// To the end named, at the time.
    wire: Vec<(Instant, bool, Message)>,
    fate: Box<dyn FnMut() -> u8>,
    seen: [Vec<Event>; 2],
}

impl World {
    fn new(space: PortSpace, fate: impl FnMut() -> u8 + 'static) -> World {
        let now = Instant(1_000_000_000);
        World {
            now,
            a: Connection::request(A, space, 4000, offer(b"hello"), now),
            b: None,
            wire: Vec::new(),
            fate: Box::new(fate),
            seen: [Vec::new(), Vec::new()],
        }
    }

    fn put(&mut self, to_b: bool, message: Message) {
        let fate = (self.fate)();
        let copies = match fate % 8 {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        for copy in 0..copies {
            let delay = u32::from(fate / 32) + copy;
            self.wire.push((self.now + STEP * delay, to_b, message));
        }
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        let now = self.now;
        while let Some(m) = self.a.poll_transmit() {
            self.put(true, m);
        }
        while let Some(m) = self.b.as_mut().and_then(Connection::poll_transmit) {
            self.put(false, m);
        }
        let (arrived, later) = self.wire.drain(..).partition(|(at, ..)| *at <= now);
        self.wire = later;
        for (_, to_b, message) in Vec::<(Instant, bool, Message)>::from_iter(arrived) {
            match (&mut self.b, to_b) {
                (_, false) => self.a.handle_message(&message, now),
                (Some(b), true) => b.handle_message(&message, now),
                (none, true) if message.kind == Kind::Request => {
                    *none = Some(Connection::incoming(B, &message, false));
                }
                (None, true) => {}
            }
        }
        self.a.handle_timeout(now);
        self.seen[0].extend(std::iter::from_fn(|| self.a.poll()));
        if let Some(b) = &mut self.b {
            b.handle_timeout(now);
            self.seen[1].extend(std::iter::from_fn(|| b.poll()));
        }
    }

    /// Steps until `done`, which must come.
    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        for _ in 0..60_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("{what}: {:?} {:?} {:?}", self.seen, self.a, self.b);
    }

    fn saw(&self, end: usize, event: &Event) -> bool {
        self.seen[end].contains(event)
    }

    fn accepted(&self) -> bool {
        self.seen[0].iter().any(|event| match event {
            Event::Accepted { private, .. } => private.as_slice() == b"yes",
            _ => false,
        })
    }

    fn b(&mut self) -> &mut Connection {
        self.b.as_mut().unwrap()
    }
}

/// A deterministic source of fates.
fn fates(seed: u64) -> impl FnMut() -> u8 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u8
    }
}

fn no_loss() -> impl FnMut() -> u8 {
    || 2
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn connects_and_ends_over_a_bad_link(seed in any::<u64>(), a_ends in any::<bool>()) {
        let mut w = World::new(PortSpace::Tcp, fates(seed));
        w.until("a request", |w| w.b.is_some());
        let now = w.now;
        prop_assert!(w.b().accept(offer(b"yes"), now));
        w.until("accepted", World::accepted);
        prop_assert!(w.a.establish());
        w.until("established", |w| w.saw(1, &Event::Established));
        let now = w.now;
        let ended = if a_ends { w.a.disconnect(now) } else { w.b().disconnect(now) };
        prop_assert!(ended);
        w.until("disconnected", |w| {
            w.saw(0, &Event::Disconnected) && w.saw(1, &Event::Disconnected)
        });
        w.until("finished", |w| w.saw(0, &Event::Finished) && w.saw(1, &Event::Finished));
        // Each of them once, in order.
        prop_assert_eq!(w.seen[0].len(), 3);
        prop_assert_eq!(
            w.seen[1].as_slice(),
            &[Event::Established, Event::Disconnected, Event::Finished]
        );
    }

    #[test]
    fn a_refusal_gets_through_a_bad_link(seed in any::<u64>()) {
        let mut w = World::new(PortSpace::Tcp, fates(seed));
        w.until("a request", |w| w.b.is_some());
        let (now, no) = (w.now, Private::new(b"no").unwrap());
        prop_assert!(w.b().reject(REASON_CONSUMER, no, now));
        let rejected = Event::Rejected { reason: REASON_CONSUMER, private: no };
        w.until("finished", |w| w.saw(0, &Event::Finished));
        prop_assert_eq!(w.seen[0].as_slice(), &[rejected, Event::Finished]);
    }

    #[test]
    fn datagram_services_answer_over_a_bad_link(seed in any::<u64>()) {
        let mut w = World::new(PortSpace::Udp, fates(seed));
        w.until("a request", |w| w.b.is_some());
        let now = w.now;
        prop_assert!(w.b().accept(offer(b"yes"), now));
        w.until("accepted", World::accepted);
        for _ in 0..5_000 {
            w.step();
        }
        prop_assert_eq!((w.seen[0].len(), w.seen[1].len()), (1, 0));
    }
}

#[test]
fn nobody_answers() {
    let mut w = World::new(PortSpace::Tcp, || 0);
    let start = w.now;
    w.until("unreachable", |w| w.saw(0, &Event::Unreachable));
    assert!(w.now.since(start) >= ANSWER_BUDGET);
    w.until("finished", |w| w.saw(0, &Event::Finished));
    assert_eq!(w.a.poll_timeout(), None);
}

#[test]
fn a_peer_that_protects_its_messages_otherwise_is_given_up_soon() {
    let mut w = World::new(PortSpace::Tcp, || 0);
    let start = w.now;
    w.step();
    w.a.handle_unsecured(Why::Key, w.now);
    // Others that say the same, or something else, change neither reason nor time.
    w.step();
    w.a.handle_unsecured(Why::Plain, w.now);
    w.until("the reason", |w| w.saw(0, &Event::NotSecured(Why::Key)));
    let took = w.now.since(start);
    assert!(took >= UNSECURED_PATIENCE && took < UNSECURED_PATIENCE + STEP * 4);
    w.until("finished", |w| w.saw(0, &Event::Finished));
    assert_eq!(w.seen[0].len(), 2);
    assert_eq!(w.a.poll_timeout(), None);
}

#[test]
fn a_forged_word_ends_no_request_that_the_peer_answers() {
    // Before the peer's first message, and after it.
    for early in [true, false] {
        let mut w = World::new(PortSpace::Tcp, no_loss());
        if early {
            w.a.handle_unsecured(Why::Key, w.now);
        }
        w.until("an answer", |w| w.a.remote() == B);
        w.a.handle_unsecured(Why::Key, w.now);
        let asked = w.now;
        w.until("time", |w| w.now.since(asked) > UNSECURED_PATIENCE * 5);
        assert_eq!(w.seen[0], []);
        let now = w.now;
        assert!(w.b().accept(offer(b"yes"), now));
        w.until("accepted", World::accepted);
        // Nor does it end a connection.
        w.a.handle_unsecured(Why::Key, w.now);
        w.a.establish();
        let established = w.now;
        w.until("time", |w| {
            w.now.since(established) > UNSECURED_PATIENCE * 2
        });
        assert!(w.a.is_established());
    }
}

#[test]
fn a_listener_that_wants_a_token_has_answered() {
    let mut w = World::new(PortSpace::Tcp, || 0);
    w.a.handle_unsecured(Why::Key, w.now);
    let retry = Message {
        kind: Kind::Retry,
        receiver: A,
        sender: 77,
        ..Connection::request(B, PortSpace::Tcp, 0, offer(b""), w.now).ack(Acked::Request)
    };
    w.a.handle_message(&retry, w.now);
    w.a.handle_unsecured(Why::Key, w.now);
    w.until("unreachable", |w| !w.seen[0].is_empty());
    assert_eq!(w.seen[0], [Event::Unreachable]);
}

#[test]
fn a_program_may_think_longer_than_a_network_may_be_silent() {
    let mut w = World::new(PortSpace::Tcp, no_loss());
    let start = w.now;
    w.until("time", |w| w.now.since(start) > ANSWER_BUDGET * 3);
    assert!(w.seen[0].is_empty());
    let now = w.now;
    assert!(w.b().accept(offer(b"yes"), now));
    w.until("accepted", World::accepted);
}

#[test]
fn a_program_that_never_answers_is_given_up() {
    let mut w = World::new(PortSpace::Tcp, no_loss());
    let start = w.now;
    w.until("unreachable", |w| w.saw(0, &Event::Unreachable));
    assert!(w.now.since(start) >= DECISION_BUDGET);
    // Its late accept is refused.
    let now = w.now;
    w.b().accept(offer(b"yes"), now);
    w.until("the end", |w| {
        w.seen[1]
            .iter()
            .any(|e| matches!(e, Event::Unreachable | Event::Rejected { .. }))
    });
}

#[test]
fn a_request_given_up_is_taken_back() {
    let mut w = World::new(PortSpace::Tcp, no_loss());
    w.until("a request", |w| w.b.is_some());
    // It knows the peer to tell once it has heard of it.
    w.step();
    w.step();
    let now = w.now;
    w.a.abandon(now);
    w.until("rejected", |w| {
        let given_up = |e: &Event| {
            matches!(
                e,
                Event::Rejected {
                    reason: REASON_GIVEN_UP,
                    ..
                }
            )
        };
        w.seen[1].iter().any(given_up)
    });
    assert!(!w.b().accept(offer(b"yes"), now));
}

#[test]
fn a_closed_port_refuses_and_a_lost_peer_disconnects() {
    let mut w = World::new(PortSpace::Tcp, no_loss());
    w.a.handle_refused(w.now);
    assert_eq!(w.a.poll(), None);
    let now = w.now + LISTENER_GRACE;
    w.a.handle_refused(now);
    let none = Event::Rejected {
        reason: REASON_NO_SERVICE,
        private: Private::NONE,
    };
    assert_eq!(w.a.poll(), Some(none));

    let mut w = World::new(PortSpace::Tcp, no_loss());
    w.until("a request", |w| w.b.is_some());
    let now = w.now;
    w.b().accept(offer(b"yes"), now);
    w.until("accepted", World::accepted);
    w.a.establish();
    w.until("established", |w| w.saw(1, &Event::Established));
    // A report alone has it asked; then the refusal of what was asked counts.
    let now = w.now;
    w.b().handle_refused(now);
    assert_eq!(w.b().poll(), None);
    assert!(w.b().is_suspected());
    w.b().handle_refused(now);
    assert_eq!(w.b().poll(), Some(Event::Disconnected));
}

/// Two ends of an established connection.
fn established() -> World {
    let mut w = World::new(PortSpace::Tcp, no_loss());
    w.until("a request", |w| w.b.is_some());
    let now = w.now;
    w.b().accept(offer(b"yes"), now);
    w.until("accepted", World::accepted);
    w.a.establish();
    w.until("established", |w| w.saw(1, &Event::Established));
    w
}

#[test]
fn a_suspected_peer_that_answers_stays() {
    let mut w = established();
    for _ in 0..3 {
        let now = w.now;
        w.a.suspect(now);
        w.b().suspect(now);
        assert!(w.a.is_suspected());
        w.until("answers", |w| {
            !w.a.is_suspected() && !w.b.as_ref().is_some_and(Connection::is_suspected)
        });
    }
    assert!(w.a.is_established() && w.a.poll_timeout().is_none());
    assert!(!w.saw(0, &Event::Disconnected) && !w.saw(1, &Event::Disconnected));
}

#[test]
fn a_suspected_peer_that_is_silent_is_gone_after_three_probes() {
    let mut w = established();
    let (mut now, mut probes) = (w.now, 0);
    w.a.suspect(now);
    while w.a.is_established() {
        while let Some(message) = w.a.poll_transmit() {
            probes += u8::from(message.kind == Kind::Probe);
        }
        // Again and again is once.
        w.a.suspect(now);
        now = w.a.poll_timeout().expect("a deadline");
        w.a.handle_timeout(now);
    }
    assert_eq!((probes, w.a.poll()), (PROBES, Some(Event::Disconnected)));
    assert_eq!(now.since(w.now), PROBE_FIRST * 7);
}

#[test]
fn a_peer_that_has_ended_the_connection_says_so() {
    let mut w = established();
    let now = w.now;
    // Its shutdown was lost.
    w.b().disconnect(now);
    while w.b().poll_transmit().is_some() {}
    w.b().end(now);
    w.a.suspect(now);
    w.until("the end", |w| w.saw(0, &Event::Disconnected));
}

#[test]
fn who_may_be_forged_draws_less_than_three_times_what_it_sent() {
    for text in [&b""[..], &[7; PRIVATE_MAX]] {
        let now = Instant(1);
        let request = Connection::request(A, PortSpace::Ib, 1, offer(b""), now).last;
        let mut b = Connection::incoming(B, &request, false);
        assert!(b.accept(offer(text), now));
        let mut sent = 0;
        while b.state == State::Accepting {
            b.handle_timeout(b.poll_timeout().expect("a deadline"));
            while let Some(message) = b.poll_transmit() {
                sent += message.wire_len();
            }
        }
        assert!(sent >= 64 + 2 * (64 + text.len()), "an accept may be lost");
        assert!(sent < AMPLIFICATION * request.wire_len(), "{sent} bytes");
        // A question draws an answer, each time.
        b.handle_message(&request, now);
        assert!(!b.is_proved());
    }
}

#[test]
fn who_knows_the_name_is_where_it_says() {
    let mut w = World::new(PortSpace::Tcp, no_loss());
    w.until("a request", |w| w.b.is_some());
    assert!(!w.b().is_proved());
    // Though the program has not answered yet.
    w.until("proof", |w| w.b.as_ref().is_some_and(Connection::is_proved));
    assert!(w.seen[0].is_empty());
}

#[test]
fn a_token_comes_back_once_at_once() {
    let mut w = World::new(PortSpace::Tcp, no_loss());
    let mut retry = w.a.poll_transmit().expect("a request");
    (retry.kind, retry.receiver, retry.sender) = (Kind::Retry, A, 99);
    w.a.handle_message(&retry, w.now);
    let again = w.a.poll_transmit().expect("a request");
    assert_eq!((again.kind, again.receiver), (Kind::Request, 99));
    w.a.handle_message(&retry, w.now);
    assert_eq!(w.a.poll_transmit(), None);
    w.a.handle_timeout(w.a.poll_timeout().expect("a time"));
    assert_eq!(w.a.poll_transmit().map(|m| m.receiver), Some(99));
    assert_eq!(w.a.remote(), 0, "a token is no name");
}

#[test]
fn a_stranger_is_not_heard() {
    let mut w = World::new(PortSpace::Tcp, no_loss());
    w.until("a request", |w| w.b.is_some());
    let now = w.now;
    w.b().accept(offer(b"yes"), now);
    w.until("accepted", World::accepted);
    w.a.establish();
    let mut forged = w.b().ack(Acked::Accept);
    forged.kind = Kind::Shutdown;
    forged.sender = 99;
    w.a.handle_message(&forged, now);
    assert!(w.a.is_established());
}

#[test]
fn ends_that_cross() {
    let mut w = World::new(PortSpace::Tcp, no_loss());
    w.until("a request", |w| w.b.is_some());
    let now = w.now;
    w.b().accept(offer(b"yes"), now);
    w.until("accepted", World::accepted);
    w.a.establish();
    w.until("established", |w| w.saw(1, &Event::Established));
    let now = w.now;
    assert!(w.a.disconnect(now) && w.b().disconnect(now));
    w.until("finished", |w| {
        w.saw(0, &Event::Finished) && w.saw(1, &Event::Finished)
    });
    for end in 0..2 {
        let ended = w.seen[end].iter().filter(|e| **e == Event::Disconnected);
        assert_eq!(ended.count(), 1);
    }
}

#[test]
fn who_is_told_to_come_again_does_so_with_the_token_twice_in_each_attempt() {
    let mut w = World::new(PortSpace::Tcp, || 0);
    let drawn = |a: &mut Connection| {
        let messages = std::iter::from_fn(|| a.poll_transmit());
        Vec::from_iter(messages.map(|m| (m.kind, m.receiver)))
    };
    assert_eq!(drawn(&mut w.a), [(Kind::Request, 0)]);
    // It was lost for so long that it is repeated seldom.
    w.now = w.now + REPEAT_MAX;
    while w.a.interval < REPEAT_MAX {
        w.now = w.a.poll_timeout().expect("a time");
        w.a.handle_timeout(w.now);
        drawn(&mut w.a);
    }
    for token in 70..80 {
        w.a.handle_come_again(token, w.now);
    }
    let twice = [(Kind::Request, 70), (Kind::Request, 71)];
    assert_eq!(drawn(&mut w.a), twice);
    // With a token it is repeated soon, as when it was new; the next changes nothing of that.
    let due = w.a.poll_timeout().expect("a time");
    assert!(due <= w.now + REPEAT_FIRST * 3 / 2);
    w.now = due;
    w.a.handle_timeout(w.now);
    assert_eq!(drawn(&mut w.a), [(Kind::Request, 79)]);
    let due = w.a.poll_timeout();
    w.a.handle_come_again(80, w.now);
    assert_eq!(drawn(&mut w.a), [(Kind::Request, 80)]);
    assert_eq!(w.a.poll_timeout(), due);
}

#[test]
fn nobody_comes_again_whom_the_peer_has_answered() {
    fn heeds_nothing(end: &mut Connection) {
        let before = end.outbox.len();
        end.handle_come_again(77, Instant(u64::MAX / 2));
        assert_eq!(end.outbox.len(), before);
    }
    let mut w = World::new(PortSpace::Tcp, no_loss());
    w.until("an answer", |w| w.a.remote() == B);
    heeds_nothing(&mut w.a);
    heeds_nothing(w.b());
    let now = w.now;
    assert!(w.b().accept(offer(b"yes"), now));
    w.until("accepted", World::accepted);
    w.a.establish();
    heeds_nothing(&mut w.a);
    assert!(w.a.is_established());
}

/// When a request of that name is sent, and when it fails, if nobody answers.
fn attempts(name: u64) -> (Vec<Duration>, Duration) {
    let start = Instant(1);
    let mut a = Connection::request(name, PortSpace::Tcp, 4000, offer(b"hello"), start);
    let mut sent = Vec::new();
    let mut now = start;
    loop {
        while a.poll_transmit().is_some() {
            sent.push(now.since(start));
        }
        match a.poll() {
            None => {}
            Some(Event::Unreachable) => return (sent, now.since(start)),
            Some(event) => panic!("{event:?}"),
        }
        now = a.poll_timeout().expect("a time");
        a.handle_timeout(now);
    }
}

#[test]
fn requests_of_one_moment_are_not_repeated_in_step() {
    const CONNECTIONS: usize = 3500;
    const SLICE: Duration = Duration::from_millis(100);
    let mut names = fates(5);
    let mut name = || u64::from_le_bytes(std::array::from_fn(|_| names()));
    let mut slices = vec![0; (ANSWER_BUDGET.as_millis() / SLICE.as_millis()) as usize + 1];
    for _ in 0..CONNECTIONS {
        for at in attempts(name()).0 {
            slices[(at.as_millis() / SLICE.as_millis()) as usize] += 1;
        }
    }
    // From where they are a second apart, about a tenth of them fall in each slice.
    let apart = &slices[30..95];
    let (least, most) = (apart.iter().min().unwrap(), apart.iter().max().unwrap());
    assert!(*least > CONNECTIONS / 20, "{slices:?}");
    assert!(*most < CONNECTIONS / 5, "{slices:?}");
}

#[test]
fn whatever_the_intervals_a_request_fails_on_time() {
    for name in 1..1000 {
        let (sent, failed) = attempts(name);
        assert_eq!(failed, ANSWER_BUDGET);
        // Without jitter it is sent 15 times.
        assert!((13..=21).contains(&sent.len()), "{sent:?}");
        for (n, pair) in sent.windows(2).enumerate() {
            let nominal = (REPEAT_FIRST * (1 << n.min(6))).min(REPEAT_MAX);
            let interval = pair[1] - pair[0];
            assert!(
                (nominal / 2..=nominal * 3 / 2).contains(&interval),
                "{sent:?}"
            );
        }
        assert_eq!(
            attempts(name),
            (sent, failed),
            "the same name repeats alike"
        );
    }
}
