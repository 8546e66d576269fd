//! Wireshark's dissector (packaging/wireshark) and the codecs agree: on which datagrams are
//! malformed, and on what the others say. tshark reads datagrams of every kind, whole, damaged, cut
//! and extended.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use causeway_wire::cm;
use causeway_wire::datagram::{self, Datagram};
use causeway_wire::group::{
    GROUP_HEADER_LEN, GROUP_SALT_LEN, GroupHeader, KEY_ID_LEN, is_group_sealed,
};
use causeway_wire::rdmap::Segment;
use causeway_wire::secure::{
    ComeAgain, HANDSHAKE_MAX, Handshake, RefusedRequest, SALT_LEN, SEALED_HEADER_LEN, SealedHeader,
    Step, Why, is_handshake, is_sealed, message_header, message_salt,
};
use causeway_wire::trp::{Body, CRC_OFFSET, HEADER_LEN, Packet, crc_matches, seal};
use causeway_wire::versions::{NOTICE_LEN, Notice};

/// Damaged forms of each seed.
const FORMS: usize = 60;
/// Ports of two endpoints' slots, and of a listener of the connection manager and an agent.
const SLOTS: (u16, u16) = (20482, 20481);
const MANAGER: (u16, u16) = (40000, 7471);
/// A CRC that a damaged datagram is not sealed with: it stays wrong.
const UNSEALED_EVERY: usize = 5;

/// xorshift64: the same datagrams in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// What is expected of one frame: malformed, wrong CRC, a malformed segment.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    dissected: bool,
    malformed: bool,
    crc_bad: bool,
    segment_malformed: bool,
}

/// CRC32C, bit by bit: the crate has no dependency that computes it.
fn crc(seed: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!seed, |state, byte| {
        (0..8).fold(state ^ u32::from(*byte), |s, _| {
            s >> 1 ^ if s & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    })
}

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder.join(name))
        .expect("the corpus")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    let read = |path: &PathBuf| std::fs::read(path).expect("a seed");
    paths
        .iter()
        .map(read)
        .filter(|seed| seed.len() > 4)
        .collect()
}

/// A header of TRP's, and each seed of RDMAP behind it, as data and in a bundle.
fn carried() -> Vec<Vec<u8>> {
    let head = seeds("trp")
        .into_iter()
        .find(|seed| seed.len() > HEADER_LEN && seed[0] == 0x10);
    let head = head.expect("a seed of data")[..HEADER_LEN].to_vec();
    let mut all = Vec::new();
    for segment in seeds("rdmap") {
        all.push([&head[..], &segment].concat());
        let mut bundle = [&head[..], &segment, &segment, &[0, 0, 0]].concat();
        let len = (segment.len() as u16 | 0x8000).to_be_bytes();
        bundle.extend([len, len, [0, 2]].concat());
        (bundle[0], bundle[1]) = (0x1a, 0);
        all.push(bundle);
    }
    all
}

/// What travels in the clear of secured connections, and of each message that is sealed.
fn secured() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut head = [0; SEALED_HEADER_LEN];
    let header = SealedHeader {
        phase: 3,
        src_index: 0x2,
        dst_qpn: 0x1001,
        cookie: 0x1122_3344_5566_7788,
        number: 1 << 40,
    };
    header.emit(&mut head);
    let mut slot = vec![[&head[..], &[0x5a; 60]].concat()];
    let message: &[u8] = &[7; 100];
    let steps = [Step::Begin(message), Step::Answer(message)];
    for step in steps.into_iter().chain(Why::ALL.map(Step::Refuse)) {
        let handshake = Handshake {
            dst_qpn: 0x1001,
            src_qpn: 0x2002,
            receiver: u64::from(!matches!(step, Step::Begin(_))),
            sender: u64::from(!matches!(step, Step::Refuse(_))),
            step,
        };
        let mut out = [0; HANDSHAKE_MAX];
        let len = handshake.emit(&mut out).expect("room");
        slot.push(out[..len].to_vec());
    }
    let mut head = [0; GROUP_HEADER_LEN];
    let header = GroupHeader {
        cipher: 1,
        src_qpn: 0x2002,
        time: 1_800_000_000,
        number: 1 << 40,
        key: [7; KEY_ID_LEN],
        salt: [8; GROUP_SALT_LEN],
    };
    header.emit(&mut head);
    slot.push([&head[..], &[0x5a; 60]].concat());
    let names = [&[0; 8][..], &[9; 16]].concat();
    let header = message_header(&names, &[4; SALT_LEN]).expect("names");
    let mut manager = vec![[&header[..], &[0x5a; 80]].concat()];
    manager.extend(Why::ALL.map(|why| RefusedRequest { receiver: 5, why }.emit().to_vec()));
    let (receiver, token) = (5, 6);
    manager.push(ComeAgain { receiver, token }.emit().to_vec());
    (slot, manager)
}

fn damaged(seed: &[u8], random: &mut Random, form: usize) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    if form > 0 {
        for _ in 0..=random.below(2) {
            // Headers more often than payload.
            let at = random.below(
                bytes
                    .len()
                    .min(if form.is_multiple_of(2) { 48 } else { 400 }),
            );
            bytes[at] = match random.below(3) {
                0 => bytes[at] ^ 1 << random.below(8),
                1 => 0,
                _ => random.below(256) as u8,
            };
        }
    }
    // What is longer than a datagram with a good CRC would be taken for several.
    let unsealed = form % UNSEALED_EVERY == UNSEALED_EVERY - 1;
    match (form, random.below(6)) {
        (1.., 0) => bytes.truncate(random.below(bytes.len()).max(1)),
        (1.., 1) if !unsealed => bytes.extend(std::iter::repeat_n(0, random.below(20))),
        _ => {}
    }
    if let (2.., Some(flags)) = (random.below(6), bytes.get_mut(1)) {
        *flags |= cm::FLAG_CRC;
    }
    let flagged = bytes.get(1).is_some_and(|flags| flags & cm::FLAG_CRC != 0);
    if (flagged || bytes[0] == 0) && !unsealed {
        seal(&mut bytes, crc);
    }
    bytes
}

/// What the codecs say of a datagram at a slot's port.
fn of_slot(bytes: &[u8]) -> Verdict {
    let mut verdict = Verdict {
        dissected: true,
        malformed: false,
        crc_bad: false,
        segment_malformed: false,
    };
    if bytes[0] == 0 {
        // A notice's checksum is judged with the rest; the dissector has two words for it.
        let mut sealed = bytes.to_vec();
        seal(&mut sealed, crc);
        verdict.malformed = Notice::parse(&sealed, crc).is_none();
        verdict.crc_bad = bytes.len() == NOTICE_LEN && !crc_matches(bytes, crc);
        return verdict;
    }
    if datagram::is_datagram(bytes) {
        verdict.malformed = Datagram::parse(bytes).is_err();
        return verdict;
    }
    if is_sealed(bytes) {
        verdict.malformed = SealedHeader::parse(bytes).is_err();
        return verdict;
    }
    if is_group_sealed(bytes) {
        verdict.malformed = GroupHeader::parse(bytes).is_err();
        return verdict;
    }
    if is_handshake(bytes) {
        verdict.malformed = Handshake::parse(bytes).is_err();
        return verdict;
    }
    // Where the length does not allow for a header the CRC's field is not looked for.
    let hello = matches!(bytes[0], 0x11 | 0x12);
    let read = if hello { 80 } else { HEADER_LEN };
    let known = bytes[0] >> 4 == 1 && bytes[0] & 0xf < 12;
    let bears = hello || bytes.get(1).is_some_and(|flags| flags & 4 != 0);
    let whole = if hello {
        bytes.len() == read
    } else {
        bytes.len() >= read
    };
    verdict.crc_bad = known && whole && bears && !crc_matches(bytes, crc);
    match Packet::parse(bytes) {
        Err(_) => verdict.malformed = true,
        Ok(Packet::Segment(_, Body::Data(_, segment))) => {
            verdict.segment_malformed = !whole_segment(segment);
        }
        Ok(Packet::Segment(_, Body::Bundle(_, segments))) => {
            verdict.segment_malformed = segments.iter().any(|(s, _)| !whole_segment(s));
        }
        Ok(_) => {}
    }
    verdict
}

/// Whether bytes are one DDP segment, with nothing behind it that does not belong there.
fn whole_segment(bytes: &[u8]) -> bool {
    Segment::parse(bytes)
        .is_ok_and(|(segment, len)| len == bytes.len() || segment.message.has_payload())
}

/// Messages of the connection manager are told by their CRC, and then judged. Sealed ones, and
/// refusals of them, bear none.
fn of_manager(bytes: &[u8]) -> Verdict {
    let notice = RefusedRequest::parse(bytes).is_some() || ComeAgain::parse(bytes).is_some();
    let secured = message_salt(bytes).is_ok() || notice;
    let length = (cm::HEADER_LEN..=cm::MESSAGE_MAX).contains(&bytes.len());
    let opcode = matches!(bytes[0] & 0xf, 1..=4 | 8 | 12 | 13) && bytes[0] >= 0x10;
    let dissected = length && opcode && bytes[1] & cm::FLAG_CRC != 0 && crc_matches(bytes, crc);
    Verdict {
        dissected: dissected || secured,
        malformed: dissected && cm::Message::parse(bytes).is_err(),
        crc_bad: false,
        segment_malformed: false,
    }
}

/// A capture of IPv4 packets (pcap, LINKTYPE_RAW), each from an address of its own: what one frame
/// says must not depend on another.
fn write_capture(path: &Path, frames: &[((u16, u16), Vec<u8>)]) {
    let mut out = Vec::new();
    out.extend(0xa1b2_c3d4_u32.to_ne_bytes());
    out.extend([2_u16, 4].map(u16::to_ne_bytes).concat());
    out.extend([0_u32, 0, 1 << 18, 101].map(u32::to_ne_bytes).concat());
    for (at, ((from, to), bytes)) in frames.iter().enumerate() {
        let length = (bytes.len() + 28) as u32;
        out.extend([0, 0, length, length].map(u32::to_ne_bytes).concat());
        out.extend([0x45, 0]);
        out.extend((length as u16).to_be_bytes());
        out.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        out.extend((0x0a00_0000 + at as u32).to_be_bytes());
        out.extend([10, 255, 0, 1]);
        let udp = [*from, *to, bytes.len() as u16 + 8, 0];
        out.extend(udp.map(u16::to_be_bytes).concat());
        out.extend(bytes);
    }
    let mut file = std::fs::File::create(path).expect("a file");
    file.write_all(&out).expect("room");
}

/// What tshark says of each frame of a capture, as its filters see it.
fn tshark(path: &Path) -> Vec<Verdict> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging/wireshark/causeway.lua")
        .canonicalize()
        .expect("the dissector");
    let mut command = Command::new("tshark");
    command.arg("-X");
    command.arg(format!("lua_script:{}", script.display()));
    command.args(["-r", path.to_str().expect("a path"), "-T", "fields"]);
    for field in [
        "_ws.col.Protocol",
        "causeway.malformed",
        "causeway.crc.bad",
        "causeway.segment.malformed",
    ] {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark: see scripts/setup");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(!errors.contains("Lua"), "{errors}");
    assert!(!text.contains("Lua Error"), "{text}");
    text.lines()
        .map(|line| {
            let mut columns = line.split('\t');
            let mut next = || columns.next().is_some_and(|text| !text.is_empty());
            let dissected = line.starts_with("Causeway");
            next();
            Verdict {
                dissected,
                malformed: next(),
                crc_bad: next(),
                segment_malformed: next(),
            }
        })
        .collect()
}

#[test]
fn wireshark_and_the_codecs_agree() {
    let mut random = Random(0x5eed);
    let mut frames = Vec::new();
    let mut notice = [0; NOTICE_LEN];
    let said = Notice {
        speaks: 1,
        answers: 2,
        dst_qpn: 0x1001,
        src_qpn: 0x2002,
        cookie: 7,
    };
    said.emit(&mut notice, crc).expect("room");
    let slot = [
        seeds("trp"),
        seeds("datagram"),
        carried(),
        vec![notice.to_vec()],
        secured().0,
    ]
    .concat();
    let manager = [seeds("cm"), secured().1].concat();
    for (ports, all) in [(SLOTS, slot), (MANAGER, manager)] {
        for seed in all {
            for form in 0..FORMS {
                frames.push((ports, damaged(&seed, &mut random, form)));
            }
        }
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dissector.pcap");
    write_capture(&path, &frames);
    let found = tshark(&path);
    assert_eq!(found.len(), frames.len());
    let mut counts = [0; 4];
    for (at, ((ports, bytes), found)) in frames.iter().zip(found).enumerate() {
        let wanted = if *ports == SLOTS {
            of_slot(bytes)
        } else {
            of_manager(bytes)
        };
        assert_eq!(found, wanted, "frame {} of {path:?}: {bytes:02x?}", at + 1);
        let flags = [
            wanted.dissected,
            wanted.malformed,
            wanted.crc_bad,
            wanted.segment_malformed,
        ];
        counts = std::array::from_fn(|i| counts[i] + usize::from(flags[i]));
    }
    // Each verdict occurs often, and so does its opposite.
    assert!(
        counts.iter().all(|n| *n > 50 && *n < frames.len() - 50),
        "{counts:?}"
    );
    // The CRC's place is what the dissector thinks it is.
    assert_eq!(CRC_OFFSET, 32);
}
