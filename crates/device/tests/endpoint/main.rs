//! The device against a broker of the tests' own: what whole programs reach badly, since theirs
//! answers at once, and rightly.
//!
//! Each device here has an endpoint of its own ([`causeway_device::Context::open_at`]), so a test
//! holds both ends of a connection, or is one of them itself.

mod answers;
mod broker;
mod denied;
mod engines;
mod groups;
mod in_process;
mod introduced;
mod leaving;
mod memory;
mod peer;
mod portions;
mod shorts;
mod side;
mod silent;
mod tables;
mod waits;
mod words;
