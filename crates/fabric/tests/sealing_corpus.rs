//! Replays the fuzzing corpus of secured sessions (fuzz/README.md).

#[path = "../../../fuzz/harness/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/harness/sealing.rs"]
mod sealing;

use causeway_fabric::sealing::{Frame, Unsecured};

#[test]
fn replay_sealing() {
    corpus::replay("sealing", sealing::run);
}

#[test]
#[ignore = "writes the seeds"]
fn write_the_seeds() {
    let frames = |bytes: &[u8]| [&[0], bytes].concat();
    let records = |steps: &[[u8; 3]]| [&[1], steps.concat().as_slice()].concat();
    let write = |name: &str, data: Vec<u8>| corpus::write_seed("sealing", name, &data);
    let begin = Frame::Begin(vec![9; 120]).encode();
    write("begin", frames(&begin));
    write("begin-cut", frames(&begin[..70]));
    write("answer", frames(&Frame::Answer(vec![8; 400]).encode()));
    write("refusal", frames(&Frame::Refusal(Unsecured::Key).encode()));
    write("plain", frames(b"GET / HTTP/1.1\r\n\r\n"));
    write("all", records(&[[0, 0, 0]; 8]));
    write("repeated", records(&[[0, 0, 0], [1, 0, 0]]));
    write("left-out", records(&[[0, 0, 0], [1, 2, 0]]));
    write("changed", records(&[[0, 0, 0], [2, 1, 9], [1, 1, 0]]));
    write("cut", records(&[[0, 0, 0], [3, 1, 9], [1, 1, 0]]));
    write("made-up", records(&[[0, 0, 0], [4, 0, 0], [4, 9, 9]]));
}
