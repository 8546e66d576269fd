//! Which segment ids and interrupt numbers are taken, in a file that outlasts the broker.
//!
//! After a restart owners come back one by one. Until one has, nobody else may have what it had, or
//! a newcomer that is quicker would take its place. So the broker writes down what is taken, and
//! its successor reserves that for [`causeway_fabric::limits::RESTORE_GRACE`].
//!
//! The file is a table of records of [`RECORD`] bytes, each written at once; a record of zeroes is
//! free. It lies in the runtime directory, which nobody else can enter, and is made with the first
//! claim. A broker that ends with nothing claimed removes it.
//!
//! Connected sessions know the names, too. So the records say whose each claim is ([`Owner`]).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use causeway_fabric::limits::RESTORE_GRACE;
use causeway_shm::Life;

use super::interrupts::IntKey;
use super::segments::Place;
use crate::config::Tenant;
use crate::ids::TenantId;
use crate::members::{GUEST_USER_FIRST, Member};

/// The file's name.
pub const FILE: &str = "sisci.claims";
/// Bytes of a record.
const RECORD: usize = 40;
/// Most records. What is claimed beyond is not written down, and not reserved after a restart.
const RECORDS_MAX: u32 = 1 << 18;

/// The owner that may come back for something. A session proves its life to the next broker by a
/// ticket that nobody else has; lives of several brokers can have the same number, hence the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Owner {
    /// Those of virtual machines, whose numbers are new with each broker, are one.
    uid: u32,
    /// 0: any session that knows the name.
    life: u64,
}

impl Owner {
    /// Any session that knows the name: where several share what is claimed.
    pub(super) const ANYBODY: Owner = Owner { uid: 0, life: 0 };

    /// A user's session of a life.
    pub(super) fn new(uid: u32, life: Life) -> Owner {
        Owner {
            uid: uid.min(GUEST_USER_FIRST),
            life: life.to_bits(),
        }
    }
}

/// A session as one that claims.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimant {
    /// From now on.
    pub(super) now: Owner,
    /// Under the broker before, if it was there.
    pub(super) before: Option<Owner>,
}

impl Claimant {
    pub(super) fn new(member: &Member) -> Claimant {
        let owner = |life| Owner::new(member.uid, life);
        Claimant {
            now: owner(member.life),
            before: member.had.map(owner),
        }
    }
}

/// What can be claimed: a segment's place, or an interrupt's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    tenant: TenantId,
    kind: u32,
    node: u32,
    id: u32,
}

/// Kinds of claims, as they are in the file.
const SEGMENT: u32 = 1;
const GROUP: u32 = 2;
const INTERRUPT: u32 = 3;
const DATA_INTERRUPT: u32 = 4;

impl Key {
    /// Of a segment.
    pub(super) fn place(tenant: TenantId, place: Place) -> Key {
        let (kind, node, id) = match place {
            Place::Node(node, id) => (SEGMENT, node, id),
            Place::Group(id) => (GROUP, 0, id),
        };
        Key {
            tenant,
            kind,
            node,
            id,
        }
    }

    /// Of an interrupt.
    pub(super) fn number(key: IntKey) -> Key {
        Key {
            tenant: key.tenant,
            kind: if key.data { DATA_INTERRUPT } else { INTERRUPT },
            node: key.node,
            id: key.number,
        }
    }
}

/// A claim's record.
#[derive(Debug)]
struct Record {
    number: u32,
    name: u64,
    owner: Owner,
}

/// The claims of this broker, and those of the one before it.
#[derive(Debug, Default)]
pub struct Claims {
    path: Option<PathBuf>,
    file: Option<File>,
    records: BTreeMap<Key, Record>,
    free: Vec<u32>,
    /// Records that the file has had, free ones too.
    length: u32,
    /// By which tenants go in the file, since their order may change.
    tenants: Vec<u64>,
    /// What was taken under the broker before and has not come back.
    reserved: HashSet<Key>,
    /// How many of those each node of a tenant has, other than groups.
    by_node: HashMap<(TenantId, u32), usize>,
    reserved_until: Option<Instant>,
}

impl Claims {
    /// What a runtime directory knows of an earlier broker's claims. What can't be read is as if
    /// nothing had been claimed.
    pub fn load(dir: &Path, tenants: &[Tenant]) -> Claims {
        let path = dir.join(FILE);
        let mut claims = Claims::default();
        claims.tenants = tenants.iter().map(|tenant| hash(&tenant.name)).collect();
        if let Err(error) = claims.read(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot read the claims of the broker before");
            let _ = fs::remove_file(&path);
        }
        if !claims.reserved.is_empty() {
            claims.reserved_until = Some(Instant::now() + RESTORE_GRACE);
        }
        claims.path = Some(path);
        claims
    }

    fn read(&mut self, path: &Path) -> io::Result<()> {
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        let length = file.metadata()?.len() / RECORD as u64;
        self.length = length.min(u64::from(RECORDS_MAX)) as u32;
        let mut record = [0; RECORD];
        for number in 0..self.length {
            file.read_exact_at(&mut record, offset(number))?;
            match self.decode(&record) {
                Some((claim, name, owner)) if !self.records.contains_key(&claim) => {
                    let record = Record {
                        number,
                        name,
                        owner,
                    };
                    self.records.insert(claim, record);
                    self.reserved.insert(claim);
                    if claim.kind != GROUP {
                        *self.by_node.entry((claim.tenant, claim.node)).or_default() += 1;
                    }
                }
                _ => self.free.push(number),
            }
        }
        self.file = Some(file);
        Ok(())
    }

    fn decode(&self, record: &[u8; RECORD]) -> Option<(Key, u64, Owner)> {
        let long = |at: usize| record[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let short = |at: usize| record[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let (tenant, name, kind) = (long(0)?, long(8)?, short(16)?);
        let tenant = self.tenants.iter().position(|known| *known == tenant)?;
        let known = (SEGMENT..=DATA_INTERRUPT).contains(&kind);
        let claim = Key {
            tenant: tenant as TenantId,
            kind,
            node: short(20)?,
            id: short(24)?,
        };
        let owner = Owner {
            uid: short(28)?,
            life: long(32)?,
        };
        known.then_some((claim, name, owner))
    }

    /// Whether something is kept for the session that had it under the broker before.
    pub(super) fn is_reserved(&self, claim: Key) -> bool {
        self.reserved.contains(&claim)
    }

    /// Whether something of a node's is kept for a session that may come back.
    pub(super) fn expects(&self, tenant: TenantId, node: u32) -> bool {
        self.by_node.contains_key(&(tenant, node))
    }

    /// Whether what had this name under the broker before is kept for its owner.
    pub(super) fn awaits(&self, claim: Key, name: u64) -> bool {
        let named = |record: &Record| record.name == name;
        self.is_reserved(claim) && self.records.get(&claim).is_some_and(named)
    }

    /// Whether a session that comes back with this name may have it: it is free, or was the
    /// session's.
    pub(super) fn may_return(&self, claim: Key, name: u64, who: Claimant) -> bool {
        let had = self.records.get(&claim).filter(|_| self.is_reserved(claim));
        had.is_none_or(|had| {
            let his = had.owner == Owner::ANYBODY || Some(had.owner) == who.before;
            had.name == name && his
        })
    }

    /// Nothing is kept there any more. Whether something was.
    fn end_reservation(&mut self, claim: &Key) -> bool {
        let kept = self.reserved.remove(claim);
        if kept
            && claim.kind != GROUP
            && let Entry::Occupied(mut count) = self.by_node.entry((claim.tenant, claim.node))
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        kept
    }

    /// It is taken, under this name.
    pub(super) fn enter(&mut self, claim: Key, name: u64, owner: Owner) {
        let back = self.end_reservation(&claim);
        if let Some(known) = self.records.get(&claim) {
            // What others share stays theirs.
            if back && known.owner != Owner::ANYBODY {
                self.give(claim, owner);
            }
            return;
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.length < RECORDS_MAX => {
                self.length += 1;
                self.length - 1
            }
            None => return,
        };
        let record = Record {
            number,
            name,
            owner,
        };
        self.put(claim, &record);
        self.records.insert(claim, record);
    }

    /// From now on it is this one's, or everybody's.
    pub(super) fn give(&mut self, claim: Key, owner: Owner) {
        if let Some(mut record) = self.records.remove(&claim) {
            if record.owner != owner {
                record.owner = owner;
                self.put(claim, &record);
            }
            self.records.insert(claim, record);
        }
    }

    fn put(&mut self, claim: Key, record: &Record) {
        let mut bytes = [0; RECORD];
        let tenant = self.tenants.get(claim.tenant).copied().unwrap_or(0);
        bytes[0..8].copy_from_slice(&tenant.to_le_bytes());
        bytes[8..16].copy_from_slice(&record.name.to_le_bytes());
        bytes[16..20].copy_from_slice(&claim.kind.to_le_bytes());
        bytes[20..24].copy_from_slice(&claim.node.to_le_bytes());
        bytes[24..28].copy_from_slice(&claim.id.to_le_bytes());
        bytes[28..32].copy_from_slice(&record.owner.uid.to_le_bytes());
        bytes[32..40].copy_from_slice(&record.owner.life.to_le_bytes());
        self.write(record.number, &bytes);
    }

    /// It is free again.
    pub(super) fn strike(&mut self, claim: Key) {
        if let Some(Record { number, .. }) = self.records.remove(&claim) {
            self.free.push(number);
            self.write(number, &[0; RECORD]);
        }
    }

    /// When [`Claims::expire`] has something to do.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.reserved_until
    }

    /// Reserves nothing any more once the time for coming back is over.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.reserved_until.take_if(|until| *until <= now).is_some() {
            self.by_node.clear();
            for claim in std::mem::take(&mut self.reserved) {
                self.strike(claim);
            }
        }
    }

    /// Writes a record. If that fails, a restart is less kind to owners; nothing else depends on
    /// it.
    fn write(&mut self, number: u32, record: &[u8; RECORD]) {
        let Some(path) = &self.path else { return };
        if self.file.is_none() {
            self.file = create(path);
        }
        let written = self
            .file
            .as_ref()
            .map(|f| f.write_all_at(record, offset(number)));
        if let Some(Err(error)) = written {
            tracing::warn!(%error, "cannot write a claim down");
        }
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        if let Some(path) = self.path.take_if(|_| self.records.is_empty()) {
            let _ = fs::remove_file(path);
        }
    }
}

fn create(path: &Path) -> Option<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    let made = options
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path);
    made.inspect_err(|error| tracing::warn!(%error, "cannot write claims down"))
        .ok()
}

fn offset(number: u32) -> u64 {
    u64::from(number) * RECORD as u64
}

/// FNV-1a, 64 bits: the same in every build.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn who(uid: u32, index: u16) -> Claimant {
        let generation = 3;
        let owner = Owner::new(uid, Life { index, generation });
        Claimant {
            now: owner,
            before: Some(owner),
        }
    }

    fn claim(id: u32) -> Key {
        Key::place(0, Place::Node(4, id))
    }

    #[test]
    fn what_a_killed_broker_had_is_reserved_until_its_time_is_over() {
        let made = tempfile::tempdir().unwrap();
        let dir = made.path();
        let tenants = Config::without_file().tenants;
        let mut first = Claims::load(dir, &tenants);
        assert!(!dir.join(FILE).exists());
        for id in 0..4 {
            first.enter(claim(id), u64::from(id) + 100, who(7, 1).now);
        }
        first.strike(claim(1));
        assert!(first.next_expiry().is_none() && !first.is_reserved(claim(0)));
        // As if it were killed.
        std::mem::forget(first);
        let mut second = Claims::load(dir, &tenants);
        let reserved: Vec<bool> = (0..5).map(|id| second.is_reserved(claim(id))).collect();
        assert_eq!(reserved, [true, false, true, true, false]);
        let returns = |id, name, who| second.may_return(claim(id), name, who);
        let stranger = who(8, 2);
        assert!(returns(0, 100, who(7, 1)) && returns(1, 7, stranger));
        assert!(!returns(0, 101, who(7, 1)));
        // A session that knows the name, and no more.
        let no_ticket = Claimant {
            before: None,
            ..who(7, 1)
        };
        for other in [who(7, 2), who(8, 1), stranger, no_ticket] {
            assert!(!returns(0, 100, other));
        }
        // The owner has another life from now on.
        second.enter(claim(0), 100, who(7, 5).now);
        assert!(!second.is_reserved(claim(0)) && second.may_return(claim(0), 7, stranger));
        let end = second.next_expiry().unwrap();
        second.expire(end.checked_sub(RESTORE_GRACE / 2).unwrap());
        assert!(second.is_reserved(claim(2)));
        second.expire(end);
        assert!(!second.is_reserved(claim(2)) && second.next_expiry().is_none());
        std::mem::forget(second);
        let mut third = Claims::load(dir, &tenants);
        assert!(third.is_reserved(claim(0)) && !third.is_reserved(claim(2)));
        assert!(!third.may_return(claim(0), 100, who(7, 1)));
        assert!(third.may_return(claim(0), 100, who(7, 5)));
        third.enter(claim(0), 100, who(7, 5).now);
        third.give(claim(0), Owner::ANYBODY);
        std::mem::forget(third);
        let mut third = Claims::load(dir, &tenants);
        assert!(third.may_return(claim(0), 100, stranger));
        third.enter(claim(0), 100, stranger.now);
        std::mem::forget(third);
        let mut third = Claims::load(dir, &tenants);
        assert!(
            third.may_return(claim(0), 100, who(7, 5)),
            "it is shared still"
        );
        assert!(!third.may_return(claim(0), 99, who(7, 5)));
        third.strike(claim(0));
        drop(third);
        assert!(!dir.join(FILE).exists(), "nothing is claimed");
        fs::write(dir.join(FILE), [1; 3 * RECORD + 5]).unwrap();
        assert!(Claims::load(dir, &tenants).next_expiry().is_none());
    }
}
