//! How one side makes sure that a process is the other side's, when it reads from its memory.
//!
//! The other side says where it has the ring mapped. This one stores a number in the ring that
//! nobody can foresee, and reads it from there together with what it wants. A process that does not
//! have the ring mapped does not have that number: not one that has executed another program since
//! (`execve(2)`), not a child made by fork(2), to which rings are not passed on, and not one that
//! has only got the number of the process that ended.

use super::Ring;
use crate::layout as l;
use crate::sync::Ordering;

/// What is found in the other side's process, and nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The address there.
    pub at: u64,
    /// The word that it has.
    pub word: u64,
}

impl Ring {
    /// Lets the other side look for the ring in this process.
    pub fn show_mapping(&self) {
        let at = self.mem.segment().as_ptr().expose_provenance() as u64;
        self.own(l::MAPPED_AT).store(at, Ordering::Release);
    }

    /// Has a number be found in the other side's process until the next call: where, if that side
    /// has said so. What it says may lie.
    #[must_use]
    pub fn challenge(&self, number: u64) -> Option<Proof> {
        let at = self.peers(l::MAPPED_AT).load(Ordering::Acquire);
        let offset = (self.side.words() + l::CHALLENGE) as u64;
        let at = at.checked_add(offset).filter(|found| *found != offset)?;
        self.own(l::CHALLENGE).store(number, Ordering::SeqCst);
        Some(Proof { at, word: number })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Side;
    use super::*;
    use crate::sync::Arc;

    #[test]
    fn a_number_is_found_where_the_other_side_says() {
        let segment = Arc::new(Ring::create().unwrap());
        let side = |side| Ring::attach(Arc::clone(&segment), side).unwrap();
        let (a, b) = (side(Side::A), side(Side::B));
        assert_eq!(a.challenge(7), None, "it has not said");
        b.show_mapping();
        for number in [7, 8] {
            let proof = a.challenge(number).unwrap();
            assert_eq!(proof.word, number);
            // SAFETY: inside the segment, which is mapped here, and aligned.
            let found = unsafe {
                std::ptr::with_exposed_provenance::<u64>(proof.at as usize).read_volatile()
            };
            assert_eq!(found, number);
        }
        assert_eq!(b.challenge(7), None);
    }
}
