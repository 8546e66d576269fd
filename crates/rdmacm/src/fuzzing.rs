//! What the fuzz targets of this crate run (fuzz/README.md), and their corpora's replay.

pub use crate::agent::fuzzing::run as agent;
pub use crate::rsocket::fuzzing::run as rsocket;

#[cfg(test)]
#[path = "../../../fuzz/harness/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_rsocket() {
        corpus::replay("rsocket", rsocket);
    }

    #[test]
    fn replay_agent() {
        corpus::replay("agent", agent);
    }
}
