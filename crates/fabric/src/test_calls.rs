//! What a registry asks of its broker, in tests.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::Result;
use crate::remoting::{Call, Method};

/// The methods that were called, with their bodies.
#[derive(Default)]
pub(crate) struct Calls(pub(crate) Vec<(&'static str, Vec<u8>)>);

impl Call for Calls {
    fn call(
        &mut self,
        _: u16,
        method: &Method,
        body: Vec<u8>,
        _: &[BorrowedFd<'_>],
    ) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.0.push((method.name, body));
        Ok((Vec::new(), Vec::new()))
    }
}
