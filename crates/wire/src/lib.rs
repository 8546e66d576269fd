//! Codecs of the Causeway wire formats: TRP, DDP (RFC 5041), RDMAP (RFC 5040, RFC 7306).
#![no_std]
#![forbid(unsafe_code)]

pub mod cm;
mod codec;
pub mod datagram;
pub mod ddp;
pub mod error;
pub mod group;
pub mod plain_send;
pub mod quote;
pub mod rdmap;
pub mod secure;
pub mod terminate;
pub mod trp;
pub mod versions;
