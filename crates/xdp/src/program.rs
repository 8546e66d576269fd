//! The program that steers datagrams to sockets of AF_XDP (RFC 9669 has the instructions). It is
//! so short that it needs no compiler.
//!
//! A datagram goes to the socket of its queue if it was sent by AF_XDP ([`MARK`]), is short and
//! whole, and its queue, address and port stand in a table. All else goes on to the kernel, and so
//! does all if that socket is gone.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::bpf::{self, Map};
use crate::{MARK, PAYLOAD_MAX};

/// Bytes of a [`key`].
pub const KEY_LEN: usize = 24;

/// The key of what is steered: the queue that it comes by, the address that it is for, the port.
#[must_use]
pub fn key(queue: u32, address: IpAddr, port: u16) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    key[..4].copy_from_slice(&queue.to_ne_bytes());
    key[4..6].copy_from_slice(&port.to_be_bytes());
    let address = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    key[8..].copy_from_slice(&address.octets());
    key
}

// Registers (RFC 9669, section 2): r0 returns, r1 to r5 are arguments, r6 to r9 survive calls.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
const R6: u8 = 6;
const STACK: u8 = 10;

/// `XDP_PASS` of `linux/bpf.h`.
const PASS: i32 = 2;
const CALL_LOOKUP: i32 = 1;
const CALL_REDIRECT: i32 = 51;

/// Where the key lies on the stack.
const KEY: i16 = -(KEY_LEN as i16);

/// One instruction: operation, target, source, offset, immediate value (section 3).
fn op(code: u8, dst: u8, src: u8, offset: i16, value: i32) -> u64 {
    let registers = u64::from(src << 4 | dst);
    let offset = u64::from(offset.cast_unsigned());
    u64::from(code) | registers << 8 | offset << 16 | u64::from(value.cast_unsigned()) << 32
}

#[derive(Clone, Copy)]
enum Size {
    B = 0x10,
    H = 0x08,
    W = 0x00,
}

/// Instructions, and the jumps among them whose aim is not known yet.
#[derive(Default)]
struct Code {
    list: Vec<u64>,
    to_pass: Vec<usize>,
}

impl Code {
    fn push(&mut self, instruction: u64) {
        self.list.push(instruction);
    }

    fn copy(&mut self, dst: u8, src: u8) {
        self.push(op(0xbf, dst, src, 0, 0));
    }

    fn set(&mut self, dst: u8, value: i32) {
        self.push(op(0xb7, dst, 0, 0, value));
    }

    fn add(&mut self, dst: u8, value: i32) {
        self.push(op(0x07, dst, 0, 0, value));
    }

    fn load(&mut self, size: Size, dst: u8, (src, at): (u8, i16)) {
        self.push(op(0x61 | size as u8, dst, src, at, 0));
    }

    fn store(&mut self, size: Size, (dst, at): (u8, i16), src: u8) {
        self.push(op(0x63 | size as u8, dst, src, at, 0));
    }

    /// Stores a word that is known.
    fn store_word(&mut self, (dst, at): (u8, i16), value: i32) {
        self.push(op(0x62, dst, 0, at, value));
    }

    /// A map's descriptor: two instructions long (section 5.4).
    fn map(&mut self, dst: u8, map: &Map) {
        self.push(op(0x18, dst, 1, 0, map.number()));
        self.push(0);
    }

    fn call(&mut self, function: i32) {
        self.push(op(0x85, 0, 0, 0, function));
    }

    fn exit(&mut self) {
        self.push(op(0x95, 0, 0, 0, 0));
    }

    /// Passes the packet on if `dst` is not `value`.
    fn pass_unless(&mut self, dst: u8, value: i32) {
        self.to_pass.push(self.list.len());
        self.push(op(0x55, dst, 0, 0, value));
    }

    /// Passes it on if `dst` is greater than `src`.
    fn pass_if_greater(&mut self, dst: u8, src: u8) {
        self.to_pass.push(self.list.len());
        self.push(op(0x2d, dst, src, 0, 0));
    }

    /// Passes it on if there are fewer bytes than headers.
    fn pass_without(&mut self, headers: i32) {
        self.copy(R4, R2);
        self.add(R4, headers);
        self.pass_if_greater(R4, R3);
    }

    /// Passes it on if there are more bytes than a short datagram with such headers has.
    fn pass_if_long(&mut self, headers: i32) {
        self.copy(R4, R2);
        self.add(R4, headers + PAYLOAD_MAX as i32);
        self.pass_if_greater(R3, R4);
    }

    /// A jump if `dst` is `value`, whose aim is set by [`Code::land`].
    fn jump_if(&mut self, dst: u8, value: i32) -> usize {
        self.push(op(0x15, dst, 0, 0, value));
        self.list.len() - 1
    }

    fn jump(&mut self) -> usize {
        self.push(op(0x05, 0, 0, 0, 0));
        self.list.len() - 1
    }

    /// A jump made before leads here.
    fn land(&mut self, jump: usize) {
        let distance = (self.list.len() - jump - 1) as u64;
        self.list[jump] |= distance << 16;
    }
}

/// A value as two bytes of a packet are loaded.
fn be(value: u16) -> i32 {
    i32::from(value.to_be())
}

/// Ethernet's type, behind its two addresses.
const TYPE_AT: i16 = 12;
/// The packet.
const IP_AT: i16 = 14;
/// Bytes of all headers (Ethernet, IP without options, UDP).
const IPV4_HEADERS: i32 = 14 + 20 + 8;
const IPV6_HEADERS: i32 = 14 + 40 + 8;

/// The instructions: `steered` has the keys, `sockets` a socket for each queue.
#[must_use]
pub fn instructions(steered: &Map, sockets: &Map) -> Vec<u64> {
    let mut code = Code::default();
    code.copy(R6, R1);
    // Where the frame begins and ends (`struct xdp_md`).
    code.load(Size::W, R2, (R6, 0));
    code.load(Size::W, R3, (R6, 4));
    code.pass_without(IPV4_HEADERS);
    code.load(Size::H, R5, (R2, TYPE_AT));
    let v6 = code.jump_if(R5, be(0x86dd));
    code.pass_unless(R5, be(0x0800));
    ipv4(&mut code);
    let found = code.jump();
    code.land(v6);
    ipv6(&mut code);
    code.land(found);
    code.store(Size::W, (STACK, KEY + 4), R5);
    code.load(Size::W, R5, (R6, 16));
    code.store(Size::W, (STACK, KEY), R5);
    code.copy(R2, STACK);
    code.add(R2, i32::from(KEY));
    code.map(R1, steered);
    code.call(CALL_LOOKUP);
    let none = code.jump_if(R0, 0);
    code.map(R1, sockets);
    code.load(Size::W, R2, (R6, 16));
    code.set(R3, PASS);
    code.call(CALL_REDIRECT);
    code.exit();
    code.land(none);
    let to_pass = std::mem::take(&mut code.to_pass);
    to_pass.into_iter().for_each(|jump| code.land(jump));
    code.set(R0, PASS);
    code.exit();
    code.list
}

/// Writes the address of an IPv4 packet into the key, and leaves the port in r5.
fn ipv4(code: &mut Code) {
    code.pass_if_long(IPV4_HEADERS);
    code.load(Size::B, R5, (R2, IP_AT));
    code.pass_unless(R5, 0x45);
    code.load(Size::H, R5, (R2, IP_AT + 4));
    code.pass_unless(R5, i32::from(u16::from_ne_bytes(MARK)));
    // No fragment: neither an offset nor more to follow.
    code.load(Size::H, R5, (R2, IP_AT + 6));
    code.push(op(0x57, R5, 0, 0, be(0x3fff)));
    code.pass_unless(R5, 0);
    code.load(Size::B, R5, (R2, IP_AT + 9));
    code.pass_unless(R5, 17);
    code.store_word((STACK, KEY + 8), 0);
    code.store_word((STACK, KEY + 12), 0);
    code.store_word((STACK, KEY + 16), 0x0000_ffff_u32.to_be().cast_signed());
    code.load(Size::W, R5, (R2, IP_AT + 16));
    code.store(Size::W, (STACK, KEY + 20), R5);
    code.load(Size::H, R5, (R2, IP_AT + 20 + 2));
}

/// The same of an IPv6 packet.
fn ipv6(code: &mut Code) {
    code.pass_without(IPV6_HEADERS);
    code.pass_if_long(IPV6_HEADERS);
    code.load(Size::H, R5, (R2, IP_AT + 2));
    code.pass_unless(R5, i32::from(u16::from_ne_bytes(MARK)));
    code.load(Size::B, R5, (R2, IP_AT + 6));
    code.pass_unless(R5, 17);
    for word in (0..16).step_by(4) {
        code.load(Size::W, R5, (R2, IP_AT + 24 + word));
        code.store(Size::W, (STACK, KEY + 8 + word), R5);
    }
    code.load(Size::H, R5, (R2, IP_AT + 40 + 2));
}

/// Loads the program.
///
/// # Errors
/// As [`bpf::load`].
pub fn load(steered: &Map, sockets: &Map) -> io::Result<OwnedFd> {
    bpf::load(&instructions(steered, sockets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_encoded_as_the_rfc_says() {
        // r0 = 2; exit
        assert_eq!(
            op(0xb7, R0, 0, 0, 2).to_le_bytes(),
            [0xb7, 0, 0, 0, 2, 0, 0, 0]
        );
        assert_eq!(
            op(0x95, 0, 0, 0, 0).to_le_bytes(),
            [0x95, 0, 0, 0, 0, 0, 0, 0]
        );
        // *(u32 *)(r10 - 24) = r5
        let store = op(0x63, STACK, R5, KEY, 0).to_le_bytes();
        assert_eq!(store, [0x63, 0x5a, 0xe8, 0xff, 0, 0, 0, 0]);
    }

    #[test]
    fn the_kernel_finds_the_program_safe() {
        let load = || load(&Map::hash(KEY_LEN, 16)?, &Map::sockets(16)?);
        match load() {
            Ok(_) => {}
            // Loading it takes privileges. Of what is not safe the kernel says EACCES or EINVAL.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        }
    }

    #[test]
    fn keys_name_queue_port_and_address() {
        let v4 = key(3, IpAddr::from([10, 0, 0, 1]), 0x5001);
        assert_eq!(v4[..8], [3_u32.to_ne_bytes(), [0x50, 0x01, 0, 0]].concat());
        assert_eq!(
            v4[8..],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1]
        );
    }
}
