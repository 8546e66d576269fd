//! Encodes TRP datagrams.

use causeway_identity::QPN_MASK;

use super::{
    Body, Bundled, Common, FLAG_ASK, FLAG_CRC, FLAG_LAST, FLAG_RELAXED, FLAG_RESPONSE, HEADER_LEN,
    HELLO_LEN, Hello, MARKS_MAX, MARKS_SHIFT, Opcode, Packet, Position, VERSION,
};

pub(super) fn packet(packet: &Packet<'_>, out: &mut [u8]) -> Option<usize> {
    match packet {
        Packet::Hello(h) => hello(h, out),
        Packet::Segment(common, body) => segment(common, body, out),
    }
}

fn first_byte(opcode: Opcode) -> u8 {
    VERSION << 4 | opcode as u8
}

fn hello(h: &Hello, out: &mut [u8]) -> Option<usize> {
    if h.dst_qpn > QPN_MASK || h.src_qpn > QPN_MASK {
        return None;
    }
    let d: &mut [u8; HELLO_LEN] = out.first_chunk_mut()?;
    let opcode = if h.accept {
        Opcode::Accept
    } else {
        Opcode::Request
    };
    d[0] = first_byte(opcode);
    d[1] = FLAG_CRC | if h.sends { FLAG_LAST } else { 0 };
    d[2..4].fill(0);
    d[4..8].copy_from_slice(&h.dst_qpn.to_be_bytes());
    d[8..16].copy_from_slice(&h.echo.to_be_bytes());
    d[16..24].copy_from_slice(&h.cookie.to_be_bytes());
    d[24..28].copy_from_slice(&h.psn.to_be_bytes());
    d[28..32].copy_from_slice(&h.expect.to_be_bytes());
    d[32..36].fill(0);
    d[36..40].copy_from_slice(&h.src_qpn.to_be_bytes());
    d[40..42].copy_from_slice(&h.max_datagram.to_be_bytes());
    d[42..44].copy_from_slice(&h.window.to_be_bytes());
    d[44..48].copy_from_slice(&h.features.to_be_bytes());
    d[48..64].copy_from_slice(&h.host_id);
    d[64..80].copy_from_slice(&h.nonce);
    Some(HELLO_LEN)
}

pub(super) fn data_header(common: &Common, p: &Position, out: &mut [u8]) -> Option<()> {
    let opcode = if p.response {
        Opcode::Response
    } else {
        Opcode::Data
    };
    let mut flags = 0;
    if p.last {
        flags |= FLAG_LAST;
    }
    if p.relaxed {
        flags |= FLAG_RELAXED;
    }
    header(common, opcode, flags, p.psn, p.first, out)
}

pub(super) fn bundle_header(common: &Common, b: &Bundled, out: &mut [u8]) -> Option<()> {
    let opcode = if b.response {
        Opcode::ResponseBundle
    } else {
        Opcode::Bundle
    };
    header(common, opcode, 0, b.psn, b.first, out)
}

fn segment(common: &Common, body: &Body<'_>, out: &mut [u8]) -> Option<usize> {
    let (opcode, flags, psn, aux, rest): (_, _, _, _, &[u8]) = match *body {
        Body::Data(ref position, payload) => {
            data_header(common, position, out)?;
            return append(payload, out);
        }
        Body::Bundle(ref bundled, segments) => {
            bundle_header(common, bundled, out)?;
            return append(segments.as_bytes(), out);
        }
        Body::Reject(reason) => (Opcode::Reject, 0, 0, reason as u32, &[]),
        Body::Shutdown(reason) => (Opcode::Shutdown, 0, 0, reason as u32, &[]),
        Body::Sack { response, ranges } => {
            let flags = if response { FLAG_RESPONSE } else { 0 };
            (Opcode::Sack, flags, 0, 0, ranges.as_bytes())
        }
        Body::Rnr { psn, timer } if timer < 32 => (Opcode::Rnr, 0, psn, u32::from(timer), &[]),
        Body::Rnr { .. } => return None,
        Body::Nak { psn, terminate } => (Opcode::Nak, 0, psn, terminate.to_word(), &[]),
        Body::Ack => (Opcode::Ack, 0, 0, 0, &[]),
    };
    header(common, opcode, flags, psn, aux, out)?;
    append(rest, out)
}

fn append(rest: &[u8], out: &mut [u8]) -> Option<usize> {
    let len = HEADER_LEN + rest.len();
    out.get_mut(HEADER_LEN..len)?.copy_from_slice(rest);
    Some(len)
}

fn header(
    common: &Common,
    opcode: Opcode,
    own_flags: u8,
    psn: u32,
    aux: u32,
    out: &mut [u8],
) -> Option<()> {
    let marks = common.marks;
    if common.dst_qpn > QPN_MASK || common.src_qpn > QPN_MASK || marks > MARKS_MAX {
        return None;
    }
    let d: &mut [u8; HEADER_LEN] = out.first_chunk_mut()?;
    let mut flags = own_flags | marks << MARKS_SHIFT;
    if common.ask {
        flags |= FLAG_ASK;
    }
    if common.crc {
        flags |= FLAG_CRC;
    }
    let epoch_dst = u32::from(common.epoch) << 24 | common.dst_qpn;
    let dup_src = u32::from(common.duplicates) << 24 | common.src_qpn;
    d[0] = first_byte(opcode);
    d[1] = flags;
    d[2..4].copy_from_slice(&common.window.to_be_bytes());
    d[4..8].copy_from_slice(&epoch_dst.to_be_bytes());
    d[8..16].copy_from_slice(&common.cookie.to_be_bytes());
    d[16..20].copy_from_slice(&psn.to_be_bytes());
    d[20..24].copy_from_slice(&aux.to_be_bytes());
    d[24..28].copy_from_slice(&common.ack_request.to_be_bytes());
    d[28..32].copy_from_slice(&common.ack_response.to_be_bytes());
    d[32..36].fill(0);
    d[36..40].copy_from_slice(&dup_src.to_be_bytes());
    Some(())
}
