//! Gathering payload out of registered memory, and scattering it there.

use crate::bytes::{Bytes, BytesMut, Payloads, PayloadsMut};
use crate::host::{Host, MemError};
use crate::types::{Payload, Sge};

/// Copies `len` bytes from `offset` of a work request's payload to `out` at `at`, which has room.
pub fn gather<H: Host>(
    host: &H,
    pd: u32,
    payload: &Payload,
    offset: u32,
    mut out: BytesMut<'_>,
) -> Result<(), MemError> {
    match payload {
        Payload::Inline(data) => {
            let from = offset as usize;
            let range = data.get(from..from + out.len()).ok_or(MemError::Bounds)?;
            if out.put(0, range) {
                Ok(())
            } else {
                Err(MemError::Bounds)
            }
        }
        Payload::Window(_) => Err(MemError::Bounds),
        Payload::Sges(sges) => {
            if let [sge] = sges.as_slice()
                && let Some(addr) = inside(sge, offset, out.len())
            {
                return host.read_local(pd, sge.lkey, addr, out);
            }
            let mut done = 0;
            for (addr, len, lkey) in pieces(sges, offset, out.len()) {
                host.read_local(pd, lkey, addr, out.slice(done, len))?;
                done += len;
            }
            if done == out.len() {
                Ok(())
            } else {
                Err(MemError::Bounds)
            }
        }
    }
}

/// As [`gather`], of the payloads of several units that follow each other. Returns how many it has
/// filled; what is wrong with the next one, [`gather`] says.
pub fn gather_parts<H: Host>(
    host: &H,
    pd: u32,
    payload: &Payload,
    offset: u32,
    parts: PayloadsMut<'_>,
) -> usize {
    if let Payload::Sges(sges) = payload
        && let [sge] = sges.as_slice()
        && let Ok(len) = usize::try_from(parts.total())
        && let Some(addr) = inside(sge, offset, len)
    {
        return host.read_local_parts(pd, sge.lkey, addr, parts);
    }
    let each = parts.each() as u32;
    let places = (0..).map(|i: u32| offset.wrapping_add(i.wrapping_mul(each)));
    let fill = |(at, part)| gather(host, pd, payload, at, part).is_ok();
    places.zip(parts).map(fill).take_while(|done| *done).count()
}

/// As [`scatter`], of the payloads of several units that follow each other. Returns how many it has
/// placed; what is wrong with the next one, [`scatter`] says.
pub fn scatter_parts<H: Host>(
    host: &H,
    pd: u32,
    sges: &[Sge],
    offset: u32,
    parts: Payloads<'_>,
) -> usize {
    if let [sge] = sges
        && let Ok(len) = usize::try_from(parts.total())
        && let Some(addr) = inside(sge, offset, len)
    {
        return host.write_local_parts(pd, sge.lkey, addr, parts);
    }
    let each = parts.each() as u32;
    let places = (0..).map(|i: u32| offset.wrapping_add(i.wrapping_mul(each)));
    let place = |(at, part)| scatter(host, pd, sges, at, part).is_ok();
    places
        .zip(parts)
        .map(place)
        .take_while(|done| *done)
        .count()
}

/// Copies `src` to `offset` of a scatter list. The caller has checked that the list is long enough.
pub fn scatter<H: Host>(
    host: &H,
    pd: u32,
    sges: &[Sge],
    offset: u32,
    src: Bytes<'_>,
) -> Result<(), MemError> {
    if let [sge] = sges
        && let Some(addr) = inside(sge, offset, src.len())
        && !src.is_empty()
    {
        return host.write_local(pd, sge.lkey, addr, src);
    }
    let mut rest = src;
    for (addr, len, lkey) in pieces(sges, offset, src.len()) {
        let (piece, tail) = rest.split_at(len);
        host.write_local(pd, lkey, addr, piece)?;
        rest = tail;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(MemError::Bounds)
    }
}

/// Address of `len` bytes from `offset` of an entry, if it has so many.
#[inline]
fn inside(sge: &Sge, offset: u32, len: usize) -> Option<u64> {
    let end = (offset as usize).checked_add(len)?;
    (end <= sge.length as usize).then(|| sge.addr.wrapping_add(offset.into()))
}

/// The pieces of a scatter/gather list that `len` bytes from `offset` fall into: address, length,
/// key.
fn pieces(sges: &[Sge], offset: u32, len: usize) -> impl Iterator<Item = (u64, usize, u32)> + '_ {
    let mut skip = u64::from(offset);
    let mut left = len;
    sges.iter().filter_map(move |sge| {
        let length = u64::from(sge.length);
        if skip >= length || left == 0 {
            skip = skip.saturating_sub(length);
            return None;
        }
        let here = usize::try_from(length - skip)
            .unwrap_or(usize::MAX)
            .min(left);
        let addr = sge.addr.wrapping_add(skip);
        skip = 0;
        left -= here;
        Some((addr, here, sge.lkey))
    })
}
