//! Replays the fuzzing corpora of the queue pair, of runs of datagrams, of secured connections and
//! of secured multicast (fuzz/README.md).

#[path = "../../../fuzz/harness/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/harness/group.rs"]
mod group;
#[path = "../../../fuzz/harness/nobody.rs"]
mod nobody;
#[path = "../../../fuzz/harness/qp.rs"]
mod qp;
#[path = "../../../fuzz/harness/runs.rs"]
mod runs;
#[path = "../../../fuzz/harness/script.rs"]
mod script;
#[path = "../../../fuzz/harness/secure.rs"]
mod secure;
#[path = "../../../fuzz/harness/tampering.rs"]
mod tampering;
#[path = "../../../fuzz/harness/variants.rs"]
mod variants;
#[path = "../../../fuzz/harness/qp_victim.rs"]
mod victim;

use causeway_sim::rng::Rng;
use causeway_wire::group::{GROUP_HEADER_LEN, GROUP_OVERHEAD, GroupHeader};
use causeway_wire::secure::{
    COOKIE_LEN, ComeAgain, HANDSHAKE_MAX, Handshake, SEALED_MESSAGE, SealedHeader, Step, Why,
};

/// Seeds: random scripts of each kind of victim and carrier.
const SEEDS: u64 = 8;
/// Scripts that are tried beside the corpus.
const RANDOM_SCRIPTS: u64 = 20_000;
/// The same for `tampering`, and their bytes.
const RANDOM_TAMPERING: u64 = 300;
const TAMPERING_BYTES: usize = 4096;
/// The same for `runs`.
const RANDOM_RUNS: u64 = 3_000;
/// Bytes of a seed.
const SEED_BYTES: usize = 900;

#[test]
fn replay_qp() {
    corpus::replay("qp", qp::run);
}

#[test]
fn replay_runs() {
    corpus::replay("runs", |script| {
        runs::run(script);
    });
}

#[test]
fn replay_secure() {
    corpus::replay("secure", secure::run);
}

#[test]
fn replay_tampering() {
    corpus::replay("tampering", |script| {
        tampering::run(script);
    });
}

#[test]
fn replay_group() {
    corpus::replay("group", group::run);
}

#[test]
#[ignore = "writes the corpus"]
fn write_group_seeds() {
    let mut sealed = [0; GROUP_OVERHEAD + 16];
    let header = GroupHeader {
        cipher: 1,
        src_qpn: 0x1001,
        // That of the harness.
        time: 1_800_000_007,
        number: 7,
        key: [1; 8],
        salt: [9; 16],
    };
    header.emit(sealed.first_chunk_mut().expect("long enough"));
    corpus::write_seed("group", "sealed", &sealed);
    corpus::write_seed("group", "short", &sealed[..GROUP_HEADER_LEN]);
    let unknown = GroupHeader {
        key: [3; 8],
        ..header
    };
    unknown.emit(sealed.first_chunk_mut().expect("long enough"));
    corpus::write_seed("group", "unknown-key", &sealed);
    let old = GroupHeader {
        time: 1_799_000_000,
        ..header
    };
    old.emit(sealed.first_chunk_mut().expect("long enough"));
    corpus::write_seed("group", "old", &sealed);
    for which in 0..3 {
        corpus::write_seed("group", &format!("copy-{which}"), &[which]);
        corpus::write_seed("group", &format!("changed-{which}"), &[which, 0, 15, 1]);
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_secure_seeds() {
    let mut sealed = [0; 64];
    let header = SealedHeader {
        phase: 0,
        src_index: 0,
        dst_qpn: 1,
        cookie: 0xA,
        number: 7,
    };
    header.emit(sealed.first_chunk_mut().expect("long enough"));
    corpus::write_seed("secure", "sealed", &sealed);
    let steps = [
        ("begin", 0, 0xB, Step::Begin(b"message")),
        ("answer", 0xA, 0xB, Step::Answer(b"answer")),
        ("refusal", 0xA, 0, Step::Refuse(Why::Key)),
        ("cookie", 0xA, 0, Step::Cookie([5; COOKIE_LEN])),
        ("proved", 0, 0xB, Step::Proved([5; COOKIE_LEN], b"message")),
    ];
    for (name, receiver, sender, step) in steps {
        let mut out = [0; HANDSHAKE_MAX];
        let handshake = Handshake {
            dst_qpn: 1,
            src_qpn: 2,
            receiver,
            sender,
            step,
        };
        let len = handshake.emit(&mut out).expect("representable");
        corpus::write_seed("secure", name, &out[..len]);
    }
    let mut message = [0; 80];
    message[0] = SEALED_MESSAGE;
    corpus::write_seed("secure", "message", &message);
    let again = ComeAgain {
        receiver: 5,
        token: 6,
    };
    corpus::write_seed("secure", "come-again", &again.emit());
    for which in 0..4 {
        corpus::write_seed("secure", &format!("copy-{which}"), &[which]);
        corpus::write_seed("secure", &format!("changed-{which}"), &[which, 0, 30, 1]);
    }
}

/// Scripts that nobody has chosen.
#[test]
fn random_scripts() {
    for seed in 0..RANDOM_SCRIPTS {
        let mut rng = Rng::new(seed);
        let length = rng.below(1_500) as usize;
        let script = random_script(&mut rng, length);
        let caught = std::panic::catch_unwind(|| qp::run(&script));
        assert!(caught.is_ok(), "seed {seed}");
    }
}

fn random_script(rng: &mut Rng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.below(256) as u8).collect()
}

#[test]
fn random_tampering() {
    let mut forged = 0;
    for seed in 0..RANDOM_TAMPERING {
        let script = random_script(&mut Rng::new(seed), TAMPERING_BYTES);
        let caught = std::panic::catch_unwind(|| tampering::run(&script));
        forged += caught.unwrap_or_else(|_| panic!("seed {seed}"));
    }
    // A forged datagram takes some ten bytes of a random script.
    assert!(
        forged > RANDOM_TAMPERING * TAMPERING_BYTES as u64 / 20,
        "{forged}"
    );
}

#[test]
fn random_runs() {
    let mut in_runs = [0; 2];
    for seed in 0..RANDOM_RUNS {
        let script = random_script(&mut Rng::new(seed), SEED_BYTES);
        let caught = std::panic::catch_unwind(|| runs::run(&script));
        let these = caught.unwrap_or_else(|_| panic!("seed {seed}"));
        in_runs = std::array::from_fn(|crc| in_runs[crc] + these[crc]);
    }
    // Many a script ends with a refusal before there is a run.
    for (crc, in_runs) in ["without CRC", "with CRC"].iter().zip(in_runs) {
        assert!(in_runs > RANDOM_RUNS / 20, "{crc}: {in_runs}");
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_runs_seeds() {
    for seed in 0..SEEDS {
        let script = random_script(&mut Rng::new(seed), SEED_BYTES);
        corpus::write_seed("runs", &format!("random-{seed}"), &script);
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_tampering_seeds() {
    for seed in 0..SEEDS {
        let script = random_script(&mut Rng::new(seed), SEED_BYTES);
        corpus::write_seed("tampering", &format!("random-{seed}"), &script);
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_qp_seeds() {
    for kind in 0..SEEDS {
        let mut rng = Rng::new(kind);
        let mut script: Vec<u8> = (0..SEED_BYTES).map(|_| rng.below(256) as u8).collect();
        script[0] = kind as u8;
        corpus::write_seed("qp", &format!("random-{kind}"), &script);
    }
}
