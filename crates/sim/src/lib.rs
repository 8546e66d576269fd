//! Deterministic network and memory for tests of the protocol.
//!
//! Everything a run does follows from one 64-bit seed: the faults of the network, the work that is
//! posted, the moments at which a host stalls. A failing seed is printed and replays exactly:
//!
//! - `CAUSEWAY_SIM_SEED=n` runs seed `n` alone;
//! - `CAUSEWAY_SIM_SEEDS=n` runs the first `n` seeds instead of the default number;
//! - `CAUSEWAY_SIM_SEEDS_MAX=n` runs at most `n` seeds of each test.
//!
//! Time is virtual: a run of a simulated minute takes as long as its events take to process.

pub mod broker;
pub mod bulk;
pub mod fan_in;
pub mod memory;
pub mod mock;
pub mod network;
pub mod pair;
pub mod program;
pub mod qp;
pub mod refused;
pub mod ring;
pub mod rng;
pub mod seeds;
pub mod workload;
pub mod world;
