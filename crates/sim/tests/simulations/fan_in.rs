//! Many senders into one receiver: none collapses, and all get the same.

use causeway_proto::{Duration, Instant};
use causeway_sim::fan_in::{FanIn, Setup, Stalls, jain};
use causeway_sim::seeds;

const MS: u64 = 1_000_000;
/// Longest that a run may take: far beyond what any does.
const LIMIT: Instant = Instant(100_000 * MS);
/// Bytes that wait at a switch: a small one's share of a port, and a large one's.
const QUEUES: [u64; 3] = [64_000, 256_000, 1_000_000];
/// Messages of 64 KiB that all senders have together: some 35 ms at 1 Gbit/s.
const MESSAGES: u64 = 64;

fn stalls(length: u64, every: u64) -> Option<Stalls> {
    Some(Stalls {
        every: Duration::from_millis(every),
        length: Duration::from_millis(length),
    })
}

/// So many senders, who begin one soon after the other.
fn senders(number: usize) -> Setup {
    Setup {
        messages: MESSAGES / number as u64,
        spread: Duration::from_micros(200),
        ..Setup::new(number)
    }
}

/// Megabytes per second until the last message has arrived, and the world.
fn goodput(setup: Setup, seed: u64) -> (f64, FanIn) {
    let mut world = FanIn::new(setup, seed);
    assert!(world.run(LIMIT), "{}", world.summary());
    assert_eq!(world.lost(), 0, "{}", world.summary());
    let bytes: u64 = world.delivered().iter().sum();
    (bytes as f64 * 1e3 / world.now.0 as f64, world)
}

/// Nobody waits for a time-out while the others go home: where both sides begin at once, and a
/// sender's first datagrams find the queue full of others', all of them.
fn together(number: usize, seed: u64) {
    for queue in QUEUES {
        for stalls in [None, stalls(3, 20), stalls(20, 100)] {
            let with = |setup| Setup {
                queue,
                stalls,
                ..setup
            };
            let (alone, _) = goodput(with(senders(1)), seed);
            let (all, world) = goodput(with(senders(number)), seed);
            assert!(
                all >= 0.8 * alone,
                "{queue} bytes, {stalls:?}: {all:.1} of {alone:.1} MB/s, {}",
                world.summary()
            );
        }
    }
}

#[test]
fn eight_senders_do_as_well_as_one() {
    seeds::run("eight_senders", 6, |seed| together(8, seed));
}

#[test]
fn sixteen_senders_do_as_well_as_one() {
    seeds::run("sixteen_senders", 6, |seed| together(16, seed));
}

#[test]
fn a_divided_buffer_is_not_overrun() {
    let mut dropped = [0, 0];
    for divides in [false, true] {
        for seed in 0..6 {
            let setup = Setup {
                divides,
                queue: 1_000_000,
                messages: 32,
                stalls: stalls(3, 20),
                ..senders(8)
            };
            let (_, world) = goodput(setup, seed);
            dropped[usize::from(divides)] += world.dropped[2];
        }
    }
    let [whole, divided] = dropped;
    println!("dropped at the socket: {whole}, divided {divided}");
    assert!(divided * 10 < whole, "{divided} and {whole} datagrams");
}

#[test]
fn sixteen_flows_share_evenly() {
    seeds::run("sixteen_flows", 3, |seed| {
        for queue in QUEUES {
            let setup = Setup {
                queue,
                messages: u64::MAX,
                ..senders(16)
            };
            let mut world = FanIn::new(setup, seed);
            world.run(Instant(300 * MS));
            let index = jain(&world.delivered());
            assert!(index >= 0.95, "{index:.3}: {}", world.summary());
        }
    });
}

/// Mathis, Semke, Mahdavi, Ott: The macroscopic behavior of the TCP congestion avoidance algorithm
/// (1997): what TCP reaches at best where a path loses a part `loss` of the packets. In MB/s.
fn mathis(datagram: usize, rtt: Duration, loss: f64) -> f64 {
    let constant = f64::sqrt(1.5);
    datagram as f64 / rtt.as_secs_f64() * constant / loss.sqrt() / 1e6
}

#[test]
fn losses_cost_less_than_tcps_model_says() {
    for delay in [50, 250].map(Duration::from_micros) {
        for loss in [0.001, 0.01, 0.05] {
            for seed in 0..3 {
                let setup = Setup {
                    loss,
                    delay,
                    messages: u64::MAX,
                    depth: 64,
                    // The path's loss is all that holds it back.
                    ns_per_byte: 1,
                    queue: 1_000_000,
                    buffer: 8 << 20,
                    ..Setup::new(1)
                };
                let mut world = FanIn::new(setup, seed);
                world.run(Instant(1000 * MS));
                let got = world.delivered()[0] as f64 * 1e3 / world.now.0 as f64;
                let model = mathis(setup.datagram, 2 * delay, loss);
                println!("{loss} {delay:?}: {got:.1} MB/s, model {model:.1}");
                assert!(got > model, "{got} and {model}: {}", world.summary());
            }
        }
    }
}
