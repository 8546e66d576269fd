//! The sessions' service: what every client has in common that is no endpoint.

use crate::remoting::{message, service};

message! {
    /// Presents a session. Descriptors, of one that an earlier broker knew: its life table, and
    /// the ticket that proves which life was its.
    pub struct OpenRequest {
        /// Name of the process, for status displays.
        comm: String,
    }

    /// The session is open. Descriptors, in this order: the life table, for reading, unless the
    /// one it brought goes on; a ticket, unless the life that it brought goes on.
    pub struct OpenReply {
        /// Its life.
        life: LifeBody,
        /// Whether the table that it brought goes on.
        same_table: bool,
        /// Whether it has the life that it had.
        same_life: bool,
    }

    /// Names something that lives or is dead: `causeway_shm::Life`.
    pub struct LifeBody {
        /// Its entry in the tenant's life table.
        index: u16,
        /// Tells it from others that had the entry.
        generation: u32,
    }
}

service! {
    /// Number of the sessions' service in message headers.
    service 2, handler SessionService, stub SessionStub {
        /// Makes the connection a session, which the services that follow ask for.
        1 => open(OpenRequest; fds 0..=2) -> OpenReply;
        /// Whether something of the caller's tenant is alive, in the broker's own registry.
        2 => confirm(LifeBody; fds 0..=0) -> bool;
    }
}
