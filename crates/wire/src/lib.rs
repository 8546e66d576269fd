//! Codecs of the Causeway wire formats: TRP, DDP (RFC 5041), RDMAP (RFC 5040, RFC 7306), the
//! connection manager's datagrams, UD datagrams, and the sealed forms of these.
//!
//! They turn bytes into values and back, without I/O or state, and no input makes them panic.
//! `docs/WIRE.md` describes every byte.
#![no_std]
#![forbid(unsafe_code)]

pub mod cm;
mod codec;
pub mod datagram;
pub mod ddp;
pub mod error;
pub mod group;
pub mod integrity;
pub mod plain_send;
pub mod quote;
pub mod rdmap;
pub mod secure;
pub mod terminate;
pub mod trp;
pub mod versions;
