//! How a connection can end.

use causeway_fabric::remoting::Malformed;
use rustix::io::Errno;

/// What made a connection end.
pub enum End {
    /// The process has ended, or has nothing more to do here.
    Left,
    /// The connection was broken: the process may come back.
    Lost(Errno),
    /// It has come back by another connection.
    Followed,
    /// What came is no message.
    Rubbish(Malformed),
    /// Nothing came.
    Silent,
    /// It does not read.
    Slow,
    /// There is no secured session, or a plain one is refused.
    Unsecured(&'static str),
    /// Something of this host's.
    Broken(String),
}
