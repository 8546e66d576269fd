//! Reading and writing big-endian fields of headers whose length has been checked.
//!
//! A decoder takes a fixed-size array off the front of its input once; every access after that
//! has a constant offset into a constant length, so the compiler drops the checks.

/// Takes `N` bytes off the front of `input`, or `None` if it is shorter.
#[inline(always)]
pub(crate) fn take<'a, const N: usize>(input: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = input.split_first_chunk::<N>()?;
    *input = tail;
    Some(head)
}

/// Room for `N` bytes at the front of `out`, or `None` if it is shorter.
#[inline(always)]
pub(crate) fn room<'a, const N: usize>(out: &mut &'a mut [u8]) -> Option<&'a mut [u8; N]> {
    let (head, tail) = core::mem::take(out).split_first_chunk_mut::<N>()?;
    *out = tail;
    Some(head)
}

/// Copies `W` bytes at offset `AT`; an offset past the end does not compile.
#[inline(always)]
pub(crate) fn get<const AT: usize, const W: usize, const N: usize>(header: &[u8; N]) -> [u8; W] {
    const { assert!(AT + W <= N, "field outside its header") };
    let mut field = [0; W];
    field.copy_from_slice(&header[AT..AT + W]);
    field
}

/// Stores `W` bytes at offset `AT`; an offset past the end does not compile.
#[inline(always)]
pub(crate) fn put<const AT: usize, const W: usize, const N: usize>(
    header: &mut [u8; N],
    field: [u8; W],
) {
    const { assert!(AT + W <= N, "field outside its header") };
    header[AT..AT + W].copy_from_slice(&field);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_and_go_where_they_belong() {
        let mut buf = [0u8; 8];
        let mut out = &mut buf[..];
        let head = room::<6>(&mut out).unwrap();
        put::<1, 4, 6>(head, 0x0102_0304u32.to_be_bytes());
        assert_eq!(out.len(), 2);
        assert_eq!(buf, [0, 1, 2, 3, 4, 0, 0, 0]);
        let mut input = &buf[..];
        let head = take::<6>(&mut input).unwrap();
        assert_eq!(u32::from_be_bytes(get::<1, 4, 6>(head)), 0x0102_0304);
        assert_eq!(input.len(), 2);
        assert!(take::<3>(&mut input).is_none());
        assert_eq!(input.len(), 2, "a failed take leaves the input alone");
    }
}
