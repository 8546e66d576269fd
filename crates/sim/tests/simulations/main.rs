//! Everything simulated, in one program: each program of tests is optimized as a whole, which takes
//! longer than it runs.

mod ecn;
mod express;
mod fan_in;
mod icmp;
mod link;
mod one_psn;
mod path;
mod qp;
mod ring;
mod stream;
mod trp;
