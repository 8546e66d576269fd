//! The C structures of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`, field for field, and their
//! constants.
//!
//! Pure layout, shared by the libraries that offer them: no function, no state.
//!
//! Beside them stands what Causeway's own libraries tell each other (`traced`).
//!
//! Each structure carries the size, and where inline functions reach into it the offsets, that
//! binaries were compiled with; `layout_test` compares them with the installed header.

#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "names and meanings are the headers'"
)]

mod attr;
mod cma;
mod context;
#[cfg(test)]
mod layout_test;
mod objects;
mod traced;
mod wr;

pub use attr::*;
pub use cma::*;
pub use context::*;
pub use objects::*;
pub use traced::*;
pub use wr::*;

/// Bytes that a `pthread_mutex_t` has more than on x86-64, where it has 40: what follows one in a
/// structure lies so much farther on. 8 on aarch64.
pub const MUTEX_MORE: usize = core::mem::size_of::<libc::pthread_mutex_t>() - 40;

/// Asserts a structure's size and field offsets at compile time.
#[macro_export]
macro_rules! layout {
    ($type:ty, $size:expr $(, $field:ident @ $offset:expr)* $(,)?) => {
        const _: () = {
            assert!(core::mem::size_of::<$type>() == $size);
            $(assert!(core::mem::offset_of!($type, $field) == $offset);)*
        };
    };
}
