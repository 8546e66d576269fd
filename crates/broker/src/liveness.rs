//! Liveness: the lives of one tenant, and the life tables that show them.
//!
//! One table is handed to all of the tenant. After a restart of the broker, processes that come
//! back bring the earlier broker's table, which they have mapped and go on reading; the broker
//! knows it by its name and owner, which no other user can give to a memfd. If a newcomer was
//! quicker and has been given a new one, the tables are *merged*: both show the same from then on.
//! An entry that two of them gave to different lives stays with the one that the broker knows.
//!
//! A life of an earlier broker is *absent* until its owner comes back, for at most
//! [`RESTORE_GRACE`]; the tables show it as alive meanwhile. A *ticket*, an empty memfd whose name
//! says it, proves whose a life was.
//!
//! A virtual machine can write to whatever it is shown, so each has a table of its own: what it
//! writes there deceives nobody but itself.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use causeway_fabric::fds::{check_memfd, private_memfd, private_memfd_name, reopen};
use causeway_fabric::limits::RESTORE_GRACE;
use causeway_shm::layout::{LIFE_BYTES, LIFE_ENTRIES};
use causeway_shm::{Life, LifeWriter, Segment, SegmentError};
use rustix::io::Errno;

use crate::ids::VmId;
use crate::sys::random;

/// Most tables of a tenant: that of this broker and those of earlier ones.
pub const LIFE_TABLES_MAX: usize = 4;
/// Most lives of a tenant at a time. Half of the entries, so that a free one is found quickly.
pub const LIVES_MAX: usize = LIFE_ENTRIES / 2;

/// Name of a life table's memfd, before its tenant's.
const TABLE_NAME: &str = "causeway-life:";
/// Name of the memfd of a virtual machine's table, which is never taken for another's.
const VM_TABLE_NAME: &str = "causeway-vm-life";
/// Name of a ticket's memfd, before tenant, index and generation.
const TICKET_NAME: &str = "causeway-ticket:";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Dead,
    Alive,
    Absent,
}

/// One table: its memfd, for its readers, and the broker's mapping.
#[derive(Debug)]
struct Table {
    fd: OwnedFd,
    inode: u64,
    writer: LifeWriter,
}

/// The table of a virtual machine, and how many of its sessions have it.
#[derive(Debug)]
struct VmTable {
    table: Table,
    users: usize,
}

/// The lives of a tenant.
#[derive(Debug)]
pub struct Liveness {
    tenant: String,
    own_uid: u32,
    tables: Vec<Table>,
    vm_tables: BTreeMap<VmId, VmTable>,
    states: Vec<State>,
    /// The last one of each entry; 0 if none yet.
    generations: Vec<u32>,
    first_generation: u32,
    living: usize,
    /// Where the search for a dead entry begins: what died last is used again last.
    next: u16,
    /// Until when the absent may come.
    absent_until: Option<Instant>,
    /// Whether something died that nobody was woken for.
    unannounced: bool,
}

impl Liveness {
    /// No lives and no table yet. `own_uid` is the broker's user.
    pub fn new(tenant: &str, own_uid: u32) -> Liveness {
        Liveness {
            tenant: tenant.to_owned(),
            own_uid,
            tables: Vec::new(),
            vm_tables: BTreeMap::new(),
            states: vec![State::Dead; LIFE_ENTRIES],
            generations: vec![0; LIFE_ENTRIES],
            // Those of another table that this one may have to be merged with differ.
            first_generation: next_generation(random() as u32),
            living: 0,
            next: random() as u16,
            absent_until: None,
            unannounced: false,
        }
    }

    /// The table for a newcomer, for reading; made if there is none.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn table(&mut self) -> Result<OwnedFd, Errno> {
        if self.tables.is_empty() {
            let fd = private_memfd(&format!("{TABLE_NAME}{}", self.tenant), LIFE_BYTES as u64)?;
            self.tables.push(open_table(fd, LifeWriter::format)?);
        }
        reopen(&self.tables[0].fd, false)
    }

    /// The table for a session of a virtual machine, for reading and writing. To be followed by
    /// [`Liveness::leave_vm`] when the session ends.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn vm_table(&mut self, vm: VmId) -> Result<OwnedFd, Errno> {
        if let Some(known) = self.vm_tables.get_mut(&vm) {
            let fd = known.table.fd.try_clone().map_err(errno_of)?;
            known.users += 1;
            return Ok(fd);
        }
        let fd = private_memfd(VM_TABLE_NAME, LIFE_BYTES as u64)?;
        let given = fd.try_clone().map_err(errno_of)?;
        let table = open_table(fd, LifeWriter::format)?;
        for index in 0..=u16::MAX {
            let generation = self.generations[usize::from(index)];
            if generation != 0 {
                table.show(Life { index, generation }, self.is_shown_alive(index));
            }
        }
        self.vm_tables.insert(vm, VmTable { table, users: 1 });
        Ok(given)
    }

    /// A session of a virtual machine has ended.
    pub fn leave_vm(&mut self, vm: VmId) {
        if let Some(known) = self.vm_tables.get_mut(&vm) {
            known.users -= 1;
            if known.users == 0 {
                self.vm_tables.remove(&vm);
            }
        }
    }

    /// Goes on with the table that a client of an earlier broker brought, if that is what it is.
    /// Returns whether it shows this tenant's lives from now on.
    pub fn adopt(&mut self, brought: &OwnedFd, now: Instant) -> bool {
        let ours = check_memfd(brought, LIFE_BYTES as u64).is_ok()
            && private_memfd_name(brought, self.own_uid, TABLE_NAME) == Some(self.tenant.clone());
        let Some(inode) = inode_of(brought).filter(|_| ours) else {
            return false;
        };
        if self.tables.iter().any(|table| table.inode == inode) {
            return true;
        }
        if self.tables.len() >= LIFE_TABLES_MAX {
            return false;
        }
        let resumed = reopen(brought, true).and_then(|fd| open_table(fd, LifeWriter::resume));
        let Ok(table) = resumed else {
            return false;
        };
        self.tables.push(table);
        self.merge();
        self.absent_until = Some(now + RESTORE_GRACE);
        true
    }

    /// Brings the last table and the others to one state.
    fn merge(&mut self) {
        let Some(last) = self.tables.last() else {
            return;
        };
        let theirs = last.writer.table();
        for index in 0..=u16::MAX {
            let (life, alive) = theirs.entry(index);
            let at = usize::from(index);
            if life.generation != 0 && self.states[at] == State::Dead {
                if alive && self.living < LIVES_MAX && self.generations[at] != life.generation {
                    self.set(life, State::Absent);
                    continue;
                }
                if self.generations[at] == 0 {
                    self.generations[at] = life.generation;
                }
            }
            let generation = self.generations[at];
            if generation != 0 {
                self.show(Life { index, generation });
            }
        }
        self.unannounced = true;
    }

    /// Gives an entry to something new.
    ///
    /// # Errors
    /// `ENOSPC` beyond [`LIVES_MAX`].
    pub fn begin(&mut self) -> Result<Life, Errno> {
        if self.living >= LIVES_MAX {
            return Err(Errno::NOSPC);
        }
        while self.states[usize::from(self.next)] != State::Dead {
            self.next = self.next.wrapping_add(1);
        }
        let index = self.next;
        self.next = index.wrapping_add(1);
        let generation = match self.generations[usize::from(index)] {
            0 => self.first_generation,
            last => next_generation(last),
        };
        let life = Life { index, generation };
        self.set(life, State::Alive);
        Ok(life)
    }

    /// Something is dead. [`Liveness::announce`] wakes sleepers.
    pub fn end(&mut self, life: Life) {
        if self.knows(life) {
            self.set(life, State::Dead);
            self.unannounced = true;
        }
    }

    /// Takes a life of an earlier broker up again. False if it was not absent.
    pub fn reclaim(&mut self, life: Life) -> bool {
        let absent = self.is_absent(life);
        if absent {
            self.set(life, State::Alive);
        }
        absent
    }

    /// As [`Liveness::reclaim`]; another life if that one was not absent.
    ///
    /// # Errors
    /// As [`Liveness::begin`].
    pub fn reclaim_or_begin(&mut self, life: Life) -> Result<Life, Errno> {
        match self.reclaim(life) {
            true => Ok(life),
            false => self.begin(),
        }
    }

    /// Whether something may be about to come back.
    pub fn is_absent(&self, life: Life) -> bool {
        self.knows(life) && self.states[usize::from(life.index)] == State::Absent
    }

    /// Whether something is alive or may be about to come back.
    pub fn knows(&self, life: Life) -> bool {
        let at = usize::from(life.index);
        self.states[at] != State::Dead && self.generations[at] == life.generation
    }

    /// Proves to the next broker whose the life was.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn ticket(&self, life: Life) -> Result<OwnedFd, Errno> {
        let Life { index, generation } = life;
        private_memfd(&format!("{}{index}:{generation}", self.ticket_prefix()), 0)
    }

    /// The life that a ticket is for.
    pub fn life_of_ticket(&self, ticket: &OwnedFd) -> Option<Life> {
        let text = private_memfd_name(ticket, self.own_uid, &self.ticket_prefix())?;
        let (index, generation) = text.split_once(':')?;
        Some(Life {
            index: index.parse().ok()?,
            generation: generation.parse().ok()?,
        })
    }

    fn ticket_prefix(&self) -> String {
        format!("{TICKET_NAME}{}:", self.tenant)
    }

    /// When [`Liveness::expire`] has something to do.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.absent_until
    }

    /// Gives up on those that did not come back.
    pub fn expire(&mut self, now: Instant) {
        if self.absent_until.is_none_or(|until| now < until) {
            return;
        }
        self.absent_until = None;
        for index in 0..=u16::MAX {
            let at = usize::from(index);
            if self.states[at] == State::Absent {
                let generation = self.generations[at];
                self.end(Life { index, generation });
            }
        }
    }

    /// Has sleepers that wait for a death look again, though nothing has died.
    pub fn stir(&mut self) {
        self.unannounced = true;
    }

    /// Wakes sleepers that wait for a death, if something died.
    pub fn announce(&mut self) {
        if std::mem::take(&mut self.unannounced) {
            self.all_tables().for_each(|table| table.writer.announce());
        }
    }

    fn set(&mut self, life: Life, state: State) {
        let at = usize::from(life.index);
        let counts = |state| usize::from(state != State::Dead);
        self.living = self.living + counts(state) - counts(self.states[at]);
        self.states[at] = state;
        self.generations[at] = life.generation;
        self.show(life);
    }

    fn show(&self, life: Life) {
        let alive = self.is_shown_alive(life.index);
        self.all_tables().for_each(|table| table.show(life, alive));
    }

    fn is_shown_alive(&self, index: u16) -> bool {
        self.states[usize::from(index)] != State::Dead
    }

    fn all_tables(&self) -> impl Iterator<Item = &Table> {
        let of_vms = self.vm_tables.values().map(|known| &known.table);
        self.tables.iter().chain(of_vms)
    }
}

impl Table {
    fn show(&self, life: Life, alive: bool) {
        if alive {
            self.writer.begin(life);
        } else {
            self.writer.end(life);
        }
    }
}

fn open_table(
    fd: OwnedFd,
    open: fn(Arc<Segment>) -> Result<LifeWriter, SegmentError>,
) -> Result<Table, Errno> {
    let inode = inode_of(&fd).ok_or(Errno::INVAL)?;
    let mapped = fd.try_clone().map_err(errno_of)?;
    let segment = Segment::map(mapped, LIFE_BYTES).map_err(|_| Errno::NOMEM)?;
    let writer = open(Arc::new(segment)).map_err(|_| Errno::INVAL)?;
    Ok(Table { fd, inode, writer })
}

fn next_generation(last: u32) -> u32 {
    last.wrapping_add(1).max(1)
}

fn inode_of(fd: impl AsFd) -> Option<u64> {
    rustix::fs::fstat(fd).ok().map(|stat| stat.st_ino)
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::MFILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway_shm::LifeTable;

    fn liveness() -> Liveness {
        Liveness::new("web", rustix::process::geteuid().as_raw())
    }

    fn table(liveness: &mut Liveness) -> (OwnedFd, LifeTable) {
        let fd = liveness.table().unwrap();
        let mapped = Segment::map_read_only(fd.try_clone().unwrap(), LIFE_BYTES).unwrap();
        (fd, LifeTable::open(Arc::new(mapped)).unwrap())
    }

    #[test]
    fn entries_are_used_again_late_and_as_others() {
        let mut liveness = liveness();
        let (_, table) = table(&mut liveness);
        let first = liveness.begin().unwrap();
        assert!(table.is_alive(first) && liveness.knows(first));
        let deaths = table.deaths();
        liveness.end(first);
        liveness.announce();
        assert!(!table.is_alive(first) && !liveness.knows(first));
        assert_ne!(table.deaths(), deaths);
        let others: Vec<Life> = (0..LIVES_MAX).map(|_| liveness.begin().unwrap()).collect();
        assert!(others.iter().all(|life| life.index != first.index));
        assert_eq!(liveness.begin(), Err(Errno::NOSPC));
        others.into_iter().for_each(|life| liveness.end(life));
        let again = (0..LIVES_MAX).map(|_| liveness.begin().unwrap());
        let again: Vec<Life> = again.filter(|life| life.index == first.index).collect();
        assert_eq!(again[0].generation, next_generation(first.generation));
    }

    #[test]
    fn a_machine_has_a_table_of_its_own_which_is_nobody_elses() {
        let mut liveness = liveness();
        let (_, common) = table(&mut liveness);
        let [stays, goes] = [(); 2].map(|()| liveness.begin().unwrap());
        let given = liveness.vm_table(7).unwrap();
        let again = liveness.vm_table(7).unwrap();
        assert_eq!(
            inode_of(&given),
            inode_of(&again),
            "one for all of its sessions"
        );
        assert_ne!(inode_of(&given), inode_of(liveness.vm_table(8).unwrap()));
        let mapped = Segment::map(again, LIFE_BYTES).unwrap();
        // What the machine writes is seen by itself alone.
        let forger = LifeWriter::resume(Arc::new(mapped)).unwrap();
        let seen = forger.table();
        assert!(
            seen.is_alive(stays) && seen.is_alive(goes),
            "who was there before"
        );
        forger.end(stays);
        assert!(common.is_alive(stays) && liveness.knows(stays));
        let deaths = seen.deaths();
        liveness.end(goes);
        liveness.announce();
        assert!(!seen.is_alive(goes) && seen.deaths() != deaths);
        assert!(
            !liveness.adopt(&given, Instant::now()),
            "not even after a restart"
        );
        liveness.leave_vm(7);
        liveness.leave_vm(7);
        assert_eq!(liveness.vm_tables.len(), 1);
    }

    #[test]
    fn the_next_broker_goes_on_with_the_table() {
        let now = Instant::now();
        let mut old = liveness();
        let (fd, seen) = table(&mut old);
        let [back, away, gone] = [(); 3].map(|()| old.begin().unwrap());
        let ticket = old.ticket(back).unwrap();
        old.end(gone);
        drop(old);
        let mut new = liveness();
        assert!(new.adopt(&fd, now) && new.adopt(&fd, now));
        assert_eq!(new.tables.len(), 1);
        assert_eq!(new.life_of_ticket(&ticket), Some(back));
        assert!(new.reclaim(back) && !new.reclaim(back) && !new.reclaim(gone));
        assert!(new.knows(away), "as long as it may come");
        new.expire(now);
        assert!(seen.is_alive(away));
        new.expire(now + RESTORE_GRACE);
        assert!(seen.is_alive(back) && !seen.is_alive(away));
        assert_eq!(new.next_expiry(), None);
    }

    #[test]
    fn a_newcomer_that_was_quicker_sees_the_same() {
        let mut old = liveness();
        let (fd, old_table) = table(&mut old);
        let back = old.begin().unwrap();
        let taken = old.begin().unwrap();
        drop(old);
        let mut new = liveness();
        let (_, new_table) = table(&mut new);
        new.next = taken.index;
        let newcomer = new.begin().unwrap();
        assert!(new.adopt(&fd, Instant::now()));
        for table in [&old_table, &new_table] {
            assert!(table.is_alive(back) && table.is_alive(newcomer));
            assert!(!table.is_alive(taken), "its entry is another's");
        }
        assert!(new.reclaim(back) && !new.reclaim(taken));
        new.end(back);
        assert!(!old_table.is_alive(back) && !new_table.is_alive(back));
    }

    #[test]
    fn only_own_tables_and_tickets_count() {
        let mut liveness = liveness();
        let forged = private_memfd("causeway-life:ftp", LIFE_BYTES as u64).unwrap();
        let blank = private_memfd("causeway-life:web", LIFE_BYTES as u64).unwrap();
        for fd in [forged, blank, crate::testing::descriptor()] {
            assert!(!liveness.adopt(&fd, Instant::now()));
            assert_eq!(liveness.life_of_ticket(&fd), None);
        }
        for name in ["web:1", "web:1:2:3", "web:65536:1", "web:1:-1", "ftp:1:1"] {
            let fd = private_memfd(&format!("{TICKET_NAME}{name}"), 0).unwrap();
            assert_eq!(liveness.life_of_ticket(&fd), None, "{name}");
        }
    }
}
