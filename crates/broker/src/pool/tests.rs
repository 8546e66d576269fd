//! What the tables do.
