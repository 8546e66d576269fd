//! What a fuzzing input is to a harness that carries out steps.

/// Operands from the script; zeroes after its end.
pub struct Script<'a> {
    pub rest: &'a [u8],
}

impl Script<'_> {
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)])
    }

    pub fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        word.fill_with(|| self.byte().unwrap_or(0));
        u64::from_le_bytes(word)
    }
}
