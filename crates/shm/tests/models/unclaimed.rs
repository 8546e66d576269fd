//! The table as it was before an object was claimed by the thread that gives it up: a thread that
//! comes too late takes the entry's next object.

mod error {
    pub use crate::handles::Error;
    pub type Result<T> = std::result::Result<T, Error>;
}
mod sync {
    pub use crate::handles::Mutex;
    pub use loom::sync::atomic::{AtomicPtr, Ordering};

    /// Words at and above which there is no generation in it, but a mark of an end.
    const MARKS: u64 = 0xffff_fffe << 32;

    pub struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        pub fn new(word: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(word))
        }

        pub fn fetch_add(&self, n: u64, order: Ordering) -> u64 {
            self.0.fetch_add(n, order)
        }

        pub fn fetch_sub(&self, n: u64, order: Ordering) -> u64 {
            self.0.fetch_sub(n, order)
        }

        pub fn fetch_update(
            &self,
            set: Ordering,
            fetch: Ordering,
            f: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            self.0.fetch_update(set, fetch, f)
        }

        /// The defect: where the next object is, it is taken for the one that was claimed.
        pub fn compare_exchange(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            let claimed = self.0.compare_exchange(current, new, success, failure);
            claimed.or_else(|found| {
                let is_next = found >> 32 != 0 && found < MARKS;
                if is_next { Ok(current) } else { Err(found) }
            })
        }
    }
}

#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../../../sisci/src/handles.rs"]
pub mod table;
