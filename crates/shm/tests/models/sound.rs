//! The table as it is.

mod error {
    pub use crate::handles::Error;
    pub type Result<T> = std::result::Result<T, Error>;
}
mod sync {
    pub use crate::handles::Mutex;
    pub use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
}

#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../../../sisci/src/handles.rs"]
pub mod table;
