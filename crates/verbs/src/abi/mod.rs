//! The C structures of `<infiniband/verbs.h>`, field for field, and its constants.
//!
//! Each structure carries the size, and where inline functions reach into it the offsets, that
//! binaries were compiled with; `layout_test` compares them with the installed header.

mod attr;
mod context;
#[cfg(test)]
mod layout_test;
mod objects;
mod wr;

pub(crate) use attr::*;
pub(crate) use context::*;
pub(crate) use objects::*;
pub(crate) use wr::*;

/// Asserts a structure's size and field offsets at compile time.
macro_rules! layout {
    ($type:ty, $size:expr $(, $field:ident @ $offset:expr)* $(,)?) => {
        const _: () = {
            assert!(core::mem::size_of::<$type>() == $size);
            $(assert!(core::mem::offset_of!($type, $field) == $offset);)*
        };
    };
}
pub(crate) use layout;
