//! Deterministic network and memory for tests of the protocol
