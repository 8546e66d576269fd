//! The size of this kernel's pages, which everybody who shares memory has to agree on.

use causeway_identity::PAGE;

use crate::error::{Error, Result};

/// Whether this kernel has pages of the size that Causeway knows: [`PAGE`].
///
/// # Errors
/// [`Error::PageSize`] on kernels with others, as aarch64 has them with 16 or 64 KiB.
pub fn check() -> Result<()> {
    judge(rustix::param::page_size())
}

fn judge(bytes: usize) -> Result<()> {
    (bytes == PAGE)
        .then_some(())
        .ok_or(Error::PageSize { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_pages_are_refused_by_their_size() {
        assert!(judge(4096).is_ok());
        let refused = judge(65536).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "this kernel's pages have 65536 bytes, and Causeway needs a kernel with pages of 4096"
        );
        assert_eq!(refused.errno(), rustix::io::Errno::OPNOTSUPP.raw_os_error());
    }
}
