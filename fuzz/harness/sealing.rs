//! What somebody without keys says to a node daemon whose wire is secured: frames of a handshake
//! that are made up, and records that are made up, repeated, left out, cut and changed.

use causeway_fabric::remoting::{Header, Kind, Received};
use causeway_fabric::sealing::{Frame, Keys, MAGIC, Sealing};
use causeway_fabric::services::channel::ChannelReply;
use causeway_fabric::services::node::SERVICE;
use causeway_fabric::services::secure::SecretBytes;
use causeway_fabric::{First, Stream};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

/// Records that the peer has sealed.
const RECORDS: usize = 8;
/// Records after which its keys change.
const PHASE: u64 = 3;
/// Number of ChaCha20-Poly1305, which is on every processor.
const CIPHER: u8 = 2;

/// The first byte chooses; the others are what is said.
pub fn run(data: &[u8]) {
    match data.split_first() {
        None => {}
        Some((choice, said)) if choice % 2 == 0 => frames(said),
        Some((_, script)) => records(script),
    }
}

/// A connection's beginning is a frame, or it is not: one that is taken encodes to what came.
fn frames(said: &[u8]) {
    let (stream, theirs) = pair();
    send(&theirs, said, SendFlags::NOSIGNAL).expect("room for all");
    match stream.receive_first() {
        Ok(First::Frame(frame)) => assert!(said.starts_with(&frame.encode())),
        Ok(First::Plain) => assert!(said.len() >= MAGIC.len() && !said.starts_with(&MAGIC)),
        Ok(First::Malformed(_)) => assert!(said.len() >= MAGIC.len()),
        Ok(First::Closed) => panic!("it is open"),
        Err(errno) => {
            assert_eq!(errno, Errno::AGAIN);
            assert_eq!(Frame::take(said).ok().flatten(), None);
        }
    }
}

/// Each step names a record of the peer's, and what becomes of it. What is taken is what the peer
/// has sealed, in order, and nothing after the first that was not.
fn records(script: &[u8]) {
    let (stream, theirs) = pair();
    stream.secure(keys(1, 2), Some(PHASE));
    let (mut sealing, _) = keys(2, 1).split(Some(PHASE));
    let sealed: Vec<Vec<u8>> = (0..RECORDS).map(|n| record(&mut sealing, n)).collect();
    let all = sealed.concat();
    let mut sent = Vec::new();
    let (mut said, mut taken) = (0, 0);
    for step in script.chunks_exact(3) {
        let [what, which, how] = [step[0], step[1], step[2]].map(usize::from);
        let mut bytes = match what % 5 {
            0 => sealed.get(said).cloned().unwrap_or_default(),
            _ => sealed[which % RECORDS].clone(),
        };
        let length = bytes.len().max(1);
        match what % 5 {
            2 if !bytes.is_empty() => bytes[how % length] ^= 1 << (which % 8),
            3 => bytes.truncate(how % length),
            4 => bytes = step.to_vec(),
            _ => {}
        }
        if bytes.is_empty() {
            continue;
        }
        sent.extend_from_slice(&bytes);
        let honest = all.starts_with(&sent);
        said = whole(&sealed, same(&all, &sent));
        send(&theirs, &bytes, SendFlags::NOSIGNAL).expect("room for all");
        loop {
            match stream.receive() {
                Ok(Received::Message(header, body, _)) => {
                    assert_eq!((header.request, body.len()), (taken as u32, taken));
                    taken += 1;
                }
                Ok(Received::Malformed(_)) => {
                    assert!(!honest, "what the peer has sealed is not believed");
                    return;
                }
                Ok(other) => panic!("{other:?}"),
                Err(errno) => {
                    assert_eq!(errno, Errno::AGAIN);
                    break;
                }
            }
        }
        assert!(taken <= said && (taken == said || !honest));
    }
}

/// How many bytes both begin with.
fn same(all: &[u8], sent: &[u8]) -> usize {
    all.iter().zip(sent).take_while(|(a, b)| a == b).count()
}

/// How many records so many bytes hold.
fn whole(sealed: &[Vec<u8>], mut bytes: usize) -> usize {
    let fits = |record: &&Vec<u8>| match bytes.checked_sub(record.len()) {
        Some(left) => {
            bytes = left;
            true
        }
        None => false,
    };
    sealed.iter().take_while(fits).count()
}

fn record(sealing: &mut Sealing, number: usize) -> Vec<u8> {
    let header = Header {
        kind: Kind::Request,
        service: SERVICE,
        method: 3,
        request: number as u32,
        status: 0,
        fds: 0,
    };
    let sealed = sealing.seal(&header.encode(&vec![7; number]));
    sealed.expect("a number is left")
}

fn keys(send: u8, receive: u8) -> Keys {
    let reply = ChannelReply {
        cipher: CIPHER,
        send: SecretBytes([send; 32]),
        receive: SecretBytes([receive; 32]),
        ..ChannelReply::default()
    };
    Keys::of(&reply).expect("a cipher")
}

fn pair() -> (Stream, std::os::fd::OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (ours, theirs) = pair.expect("two sockets");
    (Stream::new(ours), theirs)
}
