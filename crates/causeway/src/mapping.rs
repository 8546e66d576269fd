//! A block in this process's address space.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use causeway_fabric::pool::{Access, OpenReply, Pages, PoolSession};
use causeway_shm::Segment;
use causeway_shm::lock::Memory;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::library::Handle;

/// What a process has of a block that it holds: one range of addresses, the same as long as
/// anything of the block is in use.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) library: Arc<Handle>,
    pub(crate) handle: u64,
    pub(crate) bytes: usize,
    pub(crate) pages: Pages,
    /// Whether transparent huge pages were asked for.
    pub(crate) advised: AtomicBool,
    /// Whether the broker knows the block no more: freed, or its owner has ended. Changed under the
    /// lock of `present`.
    gone: AtomicBool,
    present: Mutex<Present>,
}

/// How the block is there now.
#[derive(Debug)]
struct Present {
    /// What the descriptor allows; less than what was asked for once that was taken away.
    access: Access,
    moves: u32,
    /// `None` once nothing is left of the right to it.
    fd: Option<OwnedFd>,
    /// Made by the first mapping. Replaced in place when rights or memory change.
    view: Option<View>,
    /// For transfers: never replaced, so that one that is under way when a right is taken away does
    /// not fault, but fails. Ends with the transfers.
    engine: Option<(Access, Arc<Segment>)>,
}

#[derive(Clone, Debug)]
struct View {
    access: Access,
    segment: Arc<Segment>,
    memory: Arc<Memory>,
}

impl Held {
    pub(crate) fn new(library: Arc<Handle>, handle: u64, reply: &OpenReply, fd: OwnedFd) -> Held {
        Held {
            library,
            handle,
            bytes: usize::try_from(reply.bytes).unwrap_or(usize::MAX),
            pages: reply.pages,
            advised: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            present: Mutex::new(Present {
                access: reply.access,
                moves: reply.moves,
                fd: Some(fd),
                view: None,
                engine: None,
            }),
        }
    }

    fn huge(&self) -> bool {
        self.pages == Pages::Huge
    }

    /// Whether the broker still knows the block, as far as this process has heard.
    pub(crate) fn is_known(&self) -> bool {
        !self.gone.load(Ordering::Acquire)
    }

    /// What the process may do with it.
    pub(crate) fn access(&self) -> Access {
        self.present.lock().access
    }

    /// What its mapping allows.
    fn mapped(&self) -> Access {
        let present = self.present.lock();
        present
            .view
            .as_ref()
            .map_or(Access::None, |view| view.access)
    }

    /// Takes over a descriptor that allows more, which `ask` gets from the broker. It is asked
    /// under the lock: otherwise [`Held::follow`] could get a later answer and be undone by this
    /// one.
    pub(crate) fn widen(
        &self,
        ask: impl FnOnce(&PoolSession) -> Result<(OpenReply, OwnedFd)>,
    ) -> Result<()> {
        let mut present = self.present.lock();
        let (reply, fd) = ask(self.library.session())?;
        // An owner that was taken for dead may have brought it again.
        self.gone.store(false, Ordering::Release);
        if reply.moves != present.moves && reply.access < present.access {
            // It has moved, and more of it was asked for before.
            return self.refresh(&mut present);
        }
        if present.fd.is_some() && reply.access <= present.access && reply.moves == present.moves {
            return Ok(());
        }
        present.engine = None;
        if let Some(view) = &mut present.view {
            let access = if view.access == Access::None {
                reply.access
            } else {
                view.access
            };
            let access = access.min(reply.access);
            view.segment
                .replace(Some(fd.as_fd()), access.writes(), self.huge())?;
            view.access = access;
        }
        present.access = reply.access;
        present.moves = reply.moves;
        present.fd = Some(fd);
        Ok(())
    }

    fn view(&self, access: Access) -> Result<View> {
        if !self.library.is_own_process() {
            return Err(Error::of("map a block", Errno::PERM));
        }
        let mut present = self.present.lock();
        let Present {
            access: allowed,
            fd,
            view,
            ..
        } = &mut *present;
        let denied = || Error::of("map a block", Errno::ACCESS);
        let fd = fd
            .as_ref()
            .filter(|_| access <= *allowed)
            .ok_or_else(denied)?;
        if let Some(view) = view {
            if access > view.access {
                view.segment
                    .replace(Some(fd.as_fd()), access.writes(), self.huge())?;
                view.access = access;
                self.advise(&view.segment);
            }
            return Ok(view.clone());
        }
        let mapped = Segment::map_block(fd.as_fd(), self.bytes, access.writes(), self.huge())?;
        self.advise(&mapped);
        let segment = Arc::new(mapped);
        let made = View {
            access,
            memory: Arc::new(Memory::new(Arc::clone(&segment))),
            segment,
        };
        *view = Some(made.clone());
        Ok(made)
    }

    fn advise(&self, segment: &Segment) {
        if self.advised.load(Ordering::Relaxed) {
            segment.advise_huge();
        }
    }

    /// The mapping for transfers.
    pub(crate) fn engine_view(&self, access: Access) -> Result<Arc<Segment>> {
        let mut present = self.present.lock();
        if let Some((mapped, segment)) = &present.engine
            && *mapped >= access
        {
            return Ok(Arc::clone(segment));
        }
        let denied = || Error::of("transfer to or from a block", Errno::ACCESS);
        let may = access <= present.access;
        let fd = present.fd.as_ref().filter(|_| may).ok_or_else(denied)?;
        let mapped = Segment::map_block(fd.as_fd(), self.bytes, access.writes(), self.huge())?;
        self.advise(&mapped);
        let segment = Arc::new(mapped);
        present.engine = Some((access, Arc::clone(&segment)));
        Ok(segment)
    }

    /// The broker said that something about the block has changed: binds the process to what is
    /// left, and goes where it is.
    pub(crate) fn follow(&self) -> Result<()> {
        let mut present = self.present.lock();
        // What is taken away is given up first, then said to be.
        let right = self.library.session().info(self.handle)?.access;
        self.bind(&mut present, right)?;
        self.refresh(&mut present)
    }

    fn refresh(&self, present: &mut Present) -> Result<()> {
        loop {
            let bound = present.access;
            causeway_fault::point("block.bound");
            let (reply, fd) = self.library.session().refresh(self.handle, bound)?;
            causeway_fault::point("block.refreshed");
            if let Some(fd) = fd {
                if reply.moves != present.moves {
                    present.engine = None;
                    if let Some(view) = &mut present.view {
                        let writable = view.access.min(reply.access).writes();
                        view.segment
                            .replace(Some(fd.as_fd()), writable, self.huge())?;
                    }
                }
                present.moves = reply.moves;
                present.fd = Some(fd);
            }
            if reply.access >= bound {
                return Ok(());
            }
            self.bind(present, reply.access)?;
        }
    }

    /// Lets go of all beyond `right`.
    fn bind(&self, present: &mut Present, right: Access) -> Result<()> {
        if right >= present.access {
            return Ok(());
        }
        present.engine = None;
        if let Some(view) = &mut present.view
            && view.access > right
        {
            let fd = present.fd.as_ref().filter(|_| right != Access::None);
            let fd = fd.map(AsFd::as_fd);
            view.segment.replace(fd, false, self.huge())?;
            view.access = right;
        }
        present.access = right;
        if right == Access::None {
            present.fd = None;
        }
        Ok(())
    }

    /// Shows what the process has of the block to a broker that does not know it.
    pub(crate) fn bring(&self) -> Result<()> {
        let present = self.present.lock();
        match &present.fd {
            Some(fd) => Ok(self.library.session().bring(self.handle, fd.as_fd())?),
            None => Ok(()),
        }
    }

    /// The block was freed: nothing of it stays.
    pub(crate) fn freed(&self) {
        let mut present = self.present.lock();
        self.gone.store(true, Ordering::Release);
        if let Err(error) = self.bind(&mut present, Access::None) {
            // Only without memory for a page table; what was mapped stays until it is unmapped.
            debug_assert!(false, "cannot unmap a freed block: {error}");
        }
    }

    /// Its owner has ended: processes that have it mapped keep it.
    pub(crate) fn orphaned(&self) {
        let _present = self.present.lock();
        self.gone.store(true, Ordering::Release);
    }

    /// Moves the block's contents to fresh memory, which only sessions with a right to it get.
    pub(crate) fn move_contents(&self) -> Result<()> {
        // A child must not wait for a lock that another thread of its parent had.
        self.library.check_process("move a block")?;
        let session = self.library.session();
        // First: what the broker gives now is to be what this thread fills, and no other.
        let mut present = self.present.lock();
        let fresh = match session.begin_move(self.handle) {
            // This process has not followed the last move, or has just come back to a broker.
            Err(error) if error.errno() == Errno::INVAL.raw_os_error() => {
                self.refresh(&mut present)?;
                session.begin_move(self.handle)?
            }
            outcome => outcome?,
        };
        causeway_fault::point("block.move.begun");
        let old = present
            .fd
            .as_ref()
            .ok_or_else(|| Error::of("move a block", Errno::ACCESS))?;
        let from = Segment::map_block(old.as_fd(), self.bytes, false, self.huge())?;
        let to = Segment::map_block(fresh.as_fd(), self.bytes, true, self.huge())?;
        copy_data(old, (&from, &to), self.bytes);
        causeway_fault::point("block.move.copied");
        if let Err(error) = session.end_move(self.handle, fresh.as_fd()) {
            // It may have been carried out all the same: the next move is not to copy the old
            // memory over what others have written to the fresh one.
            let _ = self.refresh(&mut present);
            return Err(error.into());
        }
        causeway_fault::point("block.moved");
        present.engine = None;
        if let Some(view) = &present.view {
            let writable = view.access.writes();
            view.segment
                .replace(Some(fresh.as_fd()), writable, self.huge())?;
        }
        present.moves = present.moves.wrapping_add(1);
        // The broker tells us too: by then this is what it is.
        present.fd = Some(fresh);
        Ok(())
    }
}

/// Copies what there is of data: a hole stays one.
fn copy_data(old: &OwnedFd, (from, to): (&Segment, &Segment), bytes: usize) {
    use rustix::fs::SeekFrom;
    let mut at = 0u64;
    let len = bytes as u64;
    loop {
        // Without SEEK_DATA, all is data.
        let begin = match rustix::fs::seek(old, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            Err(Errno::NXIO) => return,
            Err(_) => at,
        };
        let end = rustix::fs::seek(old, SeekFrom::Hole(begin))
            .unwrap_or(len)
            .min(len);
        if begin >= end {
            return;
        }
        let (offset, count) = (begin as usize, (end - begin) as usize);
        // SAFETY: the range lies within both mappings, which live for the call and are different
        // memory; no reference covers them.
        unsafe {
            let (src, dst) = (from.as_ptr().add(offset), to.as_ptr().add(offset));
            std::ptr::copy_nonoverlapping(src, dst, count);
        }
        at = end;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.library.is_own_process() {
            // A child does not have the mappings, and must not unmap what is there now.
            let present = self.present.get_mut();
            std::mem::forget(present.view.take());
            std::mem::forget(present.engine.take());
            return;
        }
        self.library.let_go(self.handle, self.is_known());
    }
}

/// A block that is mapped. Clones share the mapping, as do all mappings of one block in a process:
/// they have one address. It ends with the last of them, or earlier for a process that may not
/// access it any more.
///
/// If the right to access it is taken away, or the block is freed, accesses through the pointer
/// fault (SIGSEGV), here and nowhere else.
#[derive(Clone, Debug)]
pub struct Mapping {
    held: Arc<Held>,
    view: View,
}

impl Mapping {
    pub(crate) fn new(held: Arc<Held>, access: Access) -> Result<Mapping> {
        let view = held.view(access.min(Access::Write))?;
        Ok(Mapping { held, view })
    }

    /// Address of the first byte. Valid for [`Mapping::len`] bytes as long as this lives, unless
    /// the block is taken away.
    pub fn as_ptr(&self) -> *mut u8 {
        self.view.segment.as_ptr()
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        self.held.bytes
    }

    /// What the process may do with it now: less than what was asked for if it was taken away.
    pub fn access(&self) -> Access {
        self.held.access()
    }

    /// Copies from the block. Others may write meanwhile: a lock keeps them from it.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not inside of the block, `EACCES` once it may not be read.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.check(offset, to.len(), Access::Read)?;
        // SAFETY: the source was checked to lie within the mapping, which lives as long as `self`;
        // the destination is the caller's own.
        unsafe {
            let from = self.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
        }
        Ok(())
    }

    /// Copies into the block.
    ///
    /// # Errors
    /// As for [`Mapping::read`]; `EACCES` if it is mapped for reading.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check(offset, from.len(), Access::Write)?;
        // SAFETY: as above, the other way.
        unsafe {
            let to = self.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
        }
        Ok(())
    }

    fn check(&self, offset: usize, len: usize, access: Access) -> Result<()> {
        if !self.held.library.is_own_process() {
            return Err(Error::of("access a block", Errno::PERM));
        }
        if offset > self.len() || len > self.len() - offset {
            return Err(Error::of("access a block", Errno::INVAL));
        }
        if access > self.held.mapped() {
            return Err(Error::of("access a block", Errno::ACCESS));
        }
        Ok(())
    }

    /// The memory as locks see it.
    pub(crate) fn memory(&self) -> &Memory {
        &self.view.memory
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }
}

/// What a process holds, by the blocks' handles.
pub(crate) type Registry = HashMap<u64, Weak<Held>>;
