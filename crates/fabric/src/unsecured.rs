//! Why two ends that should have a secured session have none.

use std::fmt;

use rustix::io::Errno;

/// Why there is no secured session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Unsecured {
    /// A message was made by a key that the reader's broker does not have.
    Key = 1,
    /// A message names other addresses or another tenant.
    Binding = 2,
    /// There is no common version or cipher.
    Unsupported = 3,
    /// The end that refuses does not secure this wire.
    Plain = 4,
    /// The end that refuses has a wire to be secured, and this session is plain.
    Required = 5,
    /// The broker of the end that refuses has no key.
    NoKey = 6,
    /// What came is no frame of a handshake: never in a refusal.
    Rubbish = 7,
    /// Nothing came in time: never in a refusal.
    Silent = 8,
    /// This host's broker is of a release that secures no sessions: never in a refusal.
    OldBroker = 9,
    /// This host's broker has no key: never in a refusal.
    NoOwnKey = 10,
    /// The host's node daemon, which carries for this process, does not secure this wire: never in
    /// a refusal.
    Relay = 11,
}

impl Unsecured {
    /// All that a refusal may have.
    const REFUSALS: [Unsecured; 6] = [
        Unsecured::Key,
        Unsecured::Binding,
        Unsecured::Unsupported,
        Unsecured::Plain,
        Unsecured::Required,
        Unsecured::NoKey,
    ];

    /// The reason with a number, of those that a refusal may have.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Unsecured> {
        let mut all = Unsecured::REFUSALS.into_iter();
        all.find(|why| *why as u8 == number)
    }

    /// Whether there may be a secured session later: a daemon or broker that is being started anew,
    /// or has too many callers, says nothing, or ends the connection.
    #[must_use]
    pub fn is_passing(self) -> bool {
        matches!(self, Unsecured::Silent | Unsecured::Rubbish)
    }

    /// The errno value of a call that fails for it.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            Unsecured::Key | Unsecured::Binding => Errno::KEYREJECTED,
            Unsecured::Required | Unsecured::NoKey | Unsecured::NoOwnKey => Errno::NOKEY,
            Unsecured::Unsupported | Unsecured::Plain | Unsecured::Rubbish => Errno::PROTONOSUPPORT,
            Unsecured::Silent => Errno::TIMEDOUT,
            Unsecured::OldBroker | Unsecured::Relay => Errno::OPNOTSUPP,
        }
    }
}

impl fmt::Display for Unsecured {
    /// As the end says it that learns of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unsecured::Key => "the two brokers have different keys for the wire",
            Unsecured::Binding => "the two ends know other addresses or tenants of each other",
            Unsecured::Unsupported => "the two ends have no version or cipher in common",
            Unsecured::Plain => {
                "the other end does not secure the wire to this host, and this end requires it"
            }
            Unsecured::Required => "the other end requires a secured wire, and this end does not",
            Unsecured::NoKey => "the other end's broker has no key for the wire",
            Unsecured::Rubbish => {
                "the other end does not know secured sessions, or is no node daemon"
            }
            Unsecured::Silent => "the other end did not answer in time",
            Unsecured::OldBroker => "this host's broker is too old to secure sessions",
            Unsecured::NoOwnKey => "this host's broker has no key for the wire",
            Unsecured::Relay => "this host's node daemon does not secure the wire to that host",
        })
    }
}
