//! Opening what comes for groups.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use causeway_aead::{Opener, Refusal, Stamp};
use causeway_wire::group::{CLOCK_TOLERANCE, GROUP_HEADER_LEN, GroupHeader, KEY_ID_LEN};

use super::{Cipher, GroupAsk, Keyring, SALT_LEN, epoch_of, name};

/// Senders whose numbers are remembered, of all groups. That whose last datagram is the oldest goes
/// for another.
pub const SENDERS_MAX: usize = 4096;

/// A sender that has been heard, by all that its key depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Name {
    of: GroupAsk,
    address: IpAddr,
    qpn: u32,
    cipher: u8,
    key: [u8; KEY_ID_LEN],
    salt: [u8; SALT_LEN],
}

#[derive(Debug)]
struct Heard {
    opener: Opener,
    /// The latest time that a datagram bore.
    latest: u32,
}

/// Why nothing is taken of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// It is no sealed datagram of a group.
    Malformed,
    /// It is of another time, or of a time of which what has come is not remembered any more.
    Stale,
    /// The secrets are not known that it may be sealed by.
    Unknown(GroupAsk),
    /// It was opened before, or is too old to tell.
    Replayed,
    /// No member has sealed it, or it was changed on the way.
    Forged,
}

/// What opens the datagrams that come for groups.
#[derive(Debug, Default)]
pub struct Receivers {
    keyring: Keyring,
    heard: HashMap<Name, Heard>,
    /// The same by when they were heard last.
    by_latest: BTreeSet<(u32, Name)>,
    /// Of senders that are not known nothing is taken that is not later: they may have been heard,
    /// and forgotten.
    floor: Option<u32>,
}

impl Receivers {
    /// The secrets that it has, and has the broker asked for.
    pub fn keyring(&mut self) -> &mut Keyring {
        &mut self.keyring
    }

    /// Opens a datagram in place that came `from` an address for a group. Returns what was
    /// encrypted, and the sender's queue pair.
    ///
    /// # Errors
    /// [`Unopened`]. Nothing has changed then.
    pub fn open<'a>(
        &mut self,
        (from, group): (IpAddr, IpAddr),
        datagram: &'a mut [u8],
        time: u32,
    ) -> Result<(&'a mut [u8], u32), Unopened> {
        let header = GroupHeader::parse(datagram).map_err(|_| Unopened::Malformed)?;
        let cipher = Cipher::from_number(header.cipher).ok_or(Unopened::Malformed)?;
        if header.time.abs_diff(time) > CLOCK_TOLERANCE {
            return Err(Unopened::Stale);
        }
        let epoch = epoch_of(header.time);
        let sender = Name {
            of: GroupAsk { group, epoch },
            address: from,
            qpn: header.src_qpn,
            cipher: header.cipher,
            key: header.key,
            salt: header.salt,
        };
        if let Some(heard) = self.heard.get_mut(&sender) {
            let text = open(&mut heard.opener, datagram, &header)?;
            if header.time > heard.latest {
                self.by_latest.remove(&(heard.latest, sender));
                heard.latest = header.time;
                self.by_latest.insert((heard.latest, sender));
            }
            return Ok((text, header.src_qpn));
        }
        if self.floor.is_some_and(|floor| header.time <= floor) {
            return Err(Unopened::Stale);
        }
        let key = self.keyring.find(&sender.of, &header.key);
        let key = key.ok_or(Unopened::Unknown(sender.of))?;
        let name = name(cipher, (from, header.src_qpn), header.salt);
        let mut opener = Opener::new(cipher, &key.secret.of_sender(&name));
        // A member has sealed it: so its sender gets a place, and nobody else does.
        let text = open(&mut opener, datagram, &header)?;
        self.make_room(time);
        let latest = header.time;
        self.heard.insert(sender, Heard { opener, latest });
        self.by_latest.insert((latest, sender));
        Ok((text, header.src_qpn))
    }

    /// Forgets senders of which nothing can be taken any more, and one more if there is no room.
    fn make_room(&mut self, time: u32) {
        while let Some((latest, sender)) = self.by_latest.first().copied()
            && (self.heard.len() >= SENDERS_MAX || latest < time.saturating_sub(CLOCK_TOLERANCE))
        {
            self.by_latest.pop_first();
            self.heard.remove(&sender);
            // Its datagrams were this old, or older: none is taken again, of whatever sender.
            self.floor = self.floor.max(Some(latest));
        }
    }

    /// How many senders are known.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.heard.len(), self.by_latest.len());
        self.heard.len()
    }
}

fn open<'a>(
    opener: &mut Opener,
    datagram: &'a mut [u8],
    header: &GroupHeader,
) -> Result<&'a mut [u8], Unopened> {
    let stamp = Stamp {
        number: header.number,
        phase: 0,
    };
    let opened = opener.open(datagram, GROUP_HEADER_LEN, stamp);
    opened.map_err(|refusal| match refusal {
        Refusal::Replayed => Unopened::Replayed,
        Refusal::Forged => Unopened::Forged,
    })
}
