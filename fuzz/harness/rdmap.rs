//! DDP segments and Terminate words.

use causeway_wire::rdmap::{MAX_HEADER, Segment};
use causeway_wire::terminate::Terminate;

/// Decodes `data` as a segment, and its first bytes as a word; what is understood has one encoding.
pub fn run(data: &[u8]) {
    if let Ok((segment, len)) = Segment::parse(data) {
        let mut out = [0; MAX_HEADER];
        assert_eq!(segment.emit(&mut out), Some(len), "{segment:?}");
        assert_eq!(segment.header_len(), len, "{segment:?}");
        assert_eq!(out[..len], data[..len], "{segment:?}");
        // No byte behind the header matters, and none before its end may be missing.
        assert_eq!(Segment::parse(&data[..len]), Ok((segment, len)));
        assert!(Segment::parse(&data[..len - 1]).is_err(), "{segment:?}");
    }
    if let Some(word) = data.first_chunk() {
        let word = u32::from_be_bytes(*word);
        if let Ok(reason) = Terminate::from_word(word) {
            assert_eq!(reason.to_word(), word);
        }
    }
}
