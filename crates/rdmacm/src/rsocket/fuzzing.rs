//! A stream whose authentic peer is hostile: it says what it likes in its private data and its
//! immediates, writes what it likes to the table, and acknowledges when it likes.

use core::ptr;

use causeway_abi::{IbvContext, IbvPd};

use super::config::Sizes;
use super::flow::SLOTS;
use super::link::Link;
use super::message::{CONN_DATA_LEN, ConnData, MAPPING_LEN, Message, REGION_LEN};
use super::stream::{Piece, Stream};
use crate::errno::Errno;
use crate::id::{self, PS_TCP};
use crate::scripted::{self as verbs, Script, wire};

/// Steps of one input; more show nothing new.
const STEPS_MAX: usize = 600;
/// Longest transfer of the program.
const TRANSFER_MAX: usize = 1 << 16;
/// Errors that end a connection whose peer breaks the protocol or fails.
const ENDS: [i32; 3] = [libc::EPROTO, libc::ECONNRESET, libc::EINVAL];

struct Bench {
    stream: Stream,
    sizes: Sizes,
    /// Memory of the program, with a margin that nothing may write to.
    program: Vec<u8>,
    introduced: bool,
}

/// `data` is a script: each step is a byte that says what happens, and its operands.
pub fn run(data: &[u8]) {
    let mut script = Script { rest: data };
    verbs::reset();
    let sizes = sizes(&mut script);
    let (context, pd) = verbs::context();
    // SAFETY: the identifier gets a channel of its own, and the objects that a bound one has.
    let id = unsafe {
        let id = id::create(ptr::null_mut(), verbs::NO_CONTEXT, PS_TCP, None).expect("memory");
        ((*id).verbs, (*id).pd) = (context, pd);
        id
    };
    // SAFETY: as just made; it outlives the link.
    let link = unsafe { Link::new(id, &sizes) }.expect("a queue pair");
    let mut bench = Bench {
        stream: Stream::new(link, sizes),
        sizes,
        program: vec![0x5a; TRANSFER_MAX + MARGIN],
        introduced: false,
    };
    for _ in 0..STEPS_MAX {
        let Some(step) = script.byte() else { break };
        bench.step(step, &mut script);
        bench.check();
    }
    drop(bench);
    // SAFETY: nothing uses them any more.
    unsafe { end(id, context, pd) };
    wire(|wire| assert_eq!(wire.alive, 0, "objects are left"));
}

/// Bytes behind the program's memory.
const MARGIN: usize = 64;

/// # Safety
/// All are of [`run`], and used by nothing else.
unsafe fn end(id: *mut causeway_abi::RdmaCmId, context: *mut IbvContext, pd: *mut IbvPd) {
    // SAFETY: as the caller promises.
    unsafe {
        assert_eq!(id::destroy_id(id), 0);
        drop(Box::from_raw(pd));
        drop(Box::from_raw(context));
    }
}

/// Small ones, so that every limit is met.
fn sizes(script: &mut Script<'_>) -> Sizes {
    let choice = script.byte().unwrap_or(0);
    let mut sizes = Sizes {
        send_buffer: 0,
        receive_buffer: 0,
        sends: 0,
        receives: 0,
        inline: 0,
        mappings: 0,
    };
    sizes.set_send_buffer(4096 << (choice & 3));
    sizes.set_receive_buffer(4096 << (choice >> 2 & 3));
    sizes.set_sends(16 + u32::from(choice >> 4 & 1) * 30);
    sizes.set_receives(16 + u32::from(choice >> 5 & 1) * 30);
    sizes.set_inline(u32::from(choice >> 6 & 1) * 64);
    sizes.set_mappings(u32::from(choice >> 7) * 5);
    sizes
}

impl Bench {
    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 16 {
            0 => self.introduce(script),
            1 => self.arrive(Some(script.word() as u32)),
            2 => self.arrive(Some(likely(script))),
            3 => self.write_table(script),
            4 => wire(|wire| wire.complete(true)),
            5 => {
                let count = script.byte().unwrap_or(0);
                wire(|wire| (0..count).for_each(|_| wire.complete(true)));
            }
            6 => self.progress(),
            7 | 8 => self.send(usize::from(script.u16())),
            9 | 10 => self.receive(script),
            11 => self.tell(script),
            12 => self.write_mapped(script),
            13 => self.progress(),
            14 => match script.byte().unwrap_or(0) % 8 {
                0 => wire(|wire| wire.complete(false)),
                1 => wire(|wire| wire.arrive(None, false)),
                2 => self.arrive(None),
                3 => wire(|wire| wire.posts_left = 2),
                _ => {}
            },
            _ => self.flood(script),
        }
    }

    fn arrive(&mut self, immediate: Option<u32>) {
        wire(|wire| wire.arrive(immediate, true));
    }

    /// The peer tells of itself, once.
    fn introduce(&mut self, script: &mut Script<'_>) {
        let mut bytes = [0; CONN_DATA_LEN];
        bytes.fill_with(|| script.byte().unwrap_or(0));
        // Most scripts should get beyond the version.
        bytes[0] = bytes[0].max(1) & 3;
        if let Some(peer) = ConnData::decode(&bytes)
            && !std::mem::replace(&mut self.introduced, true)
        {
            match self.stream.introduce(&peer) {
                Ok(()) => self.stream.connected = true,
                Err(errno) => assert_eq!(errno, Errno(libc::EPROTO)),
            }
        }
    }

    /// The peer writes an entry, or a word anywhere in the table.
    fn write_table(&mut self, script: &mut Script<'_>) {
        let entries = usize::from(self.sizes.mappings);
        let len = SLOTS * REGION_LEN + entries * MAPPING_LEN;
        let at = usize::from(script.byte().unwrap_or(0)) * 8 % len;
        let bytes = script.word().to_ne_bytes();
        // SAFETY: the bytes are a local's.
        let put = unsafe { self.stream.link.table.put(at as u32, bytes.as_ptr(), 8) };
        put.expect("inside of the table");
    }

    /// The library looks what has happened.
    fn progress(&mut self) {
        wire(|wire| wire.polls = 0);
        self.stream.progress();
    }

    fn send(&mut self, len: usize) {
        wire(|wire| wire.polls = 0);
        let mut at = 0;
        while at < len && self.stream.writable && self.stream.outgoing.can_send() {
            let piece = Piece {
                start: self.program[at..].as_mut_ptr(),
                len: len - at,
            };
            // SAFETY: the piece is in the program's memory.
            match unsafe { self.stream.send(piece) } {
                Ok(sent) => {
                    assert!(sent > 0 && sent as usize <= len - at);
                    at += sent as usize;
                }
                Err(errno) => return self.stream.lost(Some(errno)),
            }
        }
    }

    fn receive(&mut self, script: &mut Script<'_>) {
        wire(|wire| wire.polls = 0);
        let first = usize::from(script.u16());
        let second = usize::from(script.byte().unwrap_or(0));
        let flags = script.byte().unwrap_or(0);
        let first = first.min(TRANSFER_MAX - second);
        let (start, rest) = self.program.split_at_mut(first);
        let pieces = [
            Piece {
                start: start.as_mut_ptr(),
                len: first,
            },
            Piece {
                start: rest.as_mut_ptr(),
                len: second,
            },
        ];
        let skip = usize::from(flags >> 1) * 16;
        let unread = self.stream.incoming.unread() as usize;
        // SAFETY: the pieces are in the program's memory.
        let outcome = unsafe { self.stream.receive(&pieces, skip, flags & 1 != 0) };
        match outcome {
            Ok(got) => assert!(got <= unread && got <= first + second),
            Err(errno) => self.stream.lost(Some(errno)),
        }
    }

    /// The program shuts a direction, or a keepalive is due.
    fn tell(&mut self, script: &mut Script<'_>) {
        if !self.stream.can_tell() || !self.stream.connected {
            return;
        }
        let message = match script.byte().unwrap_or(0) % 4 {
            0 => {
                self.stream.writable = false;
                Message::Shutdown
            }
            1 => {
                (self.stream.readable, self.stream.writable) = (false, false);
                Message::Disconnect
            }
            _ => Message::Keepalive,
        };
        if let Err(errno) = self.stream.tell(message) {
            self.stream.lost(Some(errno));
        }
    }

    /// `riowrite`, as far as there is room.
    fn write_mapped(&mut self, script: &mut Script<'_>) {
        let (offset, count) = (script.word(), usize::from(script.u16()));
        wire(|wire| wire.polls = 0);
        let mut done = 0;
        while done < count && self.stream.writable && self.stream.outgoing.has_room() {
            let Ok((place, left)) = self.stream.find(offset.wrapping_add(done as u64)) else {
                return;
            };
            let want = self.stream.message_len(count - done);
            let want = want.min(u32::try_from(left).unwrap_or(u32::MAX));
            let len = self.stream.outgoing.buffered(want);
            let from = self.program[done..].as_ptr();
            // SAFETY: the bytes are in the program's memory.
            if let Err(errno) = unsafe { self.stream.write(from, len, place, None) } {
                return self.stream.lost(Some(errno));
            }
            done += len as usize;
        }
    }

    /// A peer that sends without end: one pass of the library ends nevertheless.
    fn flood(&mut self, script: &mut Script<'_>) {
        let immediate = likely(script);
        wire(|wire| wire.flood = Some(immediate));
        self.progress();
        wire(|wire| wire.flood = None);
    }

    fn check(&mut self) {
        let unread = self.stream.incoming.unread();
        assert!(unread <= self.sizes.receive_buffer, "{unread} bytes unread");
        assert!(self.program[TRANSFER_MAX..].iter().all(|b| *b == 0x5a));
        if let Some(Errno(code)) = self.stream.error {
            assert!(ENDS.contains(&code), "the connection ended by {code}");
            assert!(self.stream.ended());
        }
        if !self.stream.ended() {
            let (sends, waiting) = wire(|wire| (wire.sends.len(), wire.waiting()));
            let under_way = self.stream.under_way() as usize;
            assert!(sends <= under_way && under_way <= sends + waiting);
        }
    }
}

/// An immediate that the protocol knows, more often than not.
fn likely(script: &mut Script<'_>) -> u32 {
    let (kind, value) = (script.byte().unwrap_or(0), script.u16());
    match kind % 8 {
        0 | 1 => Message::Data(value.into()).encode(),
        2 | 3 => Message::Credits {
            limit: value,
            grants: kind & 8 != 0,
        }
        .encode(),
        4 => Message::Mapping.encode(),
        5 => Message::Keepalive.encode(),
        6 if kind & 0x70 == 0 => Message::Shutdown.encode(),
        7 if kind & 0xf0 == 0 => Message::Disconnect.encode(),
        _ => Message::Data(1).encode(),
    }
}
