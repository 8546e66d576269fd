//! What one broker leaves for the next.

use super::pool::Grant;
use crate::remoting::message;

message! {
    /// What the broker writes on a persistent block's memory, for the next one to read: no message.
    pub struct BlockRecord {
        /// Name of its pool.
        pool: String,
        /// Its place in the pool.
        number: u32,
        /// Its name.
        name: String,
        /// The session it belongs to; 0: none.
        owner: u64,
        /// How often it has moved.
        moves: u32,
        /// Whether one may hold it that should not any more.
        exposed: bool,
        /// All grants.
        grants: Vec<Grant>,
    }
}
