//! The pages of a window: what the program may do with each, and what it has done.

use std::ops::Range;

use crate::backing::Backing;
use crate::difference;
#[cfg(target_arch = "x86_64")]
use crate::limits::{ASCENT, STORES};
use crate::limits::{CHUNK, FETCHED, GROUPS, KEPT, PAGE, RUNS};
#[cfg(target_arch = "x86_64")]
use crate::loads::Loads;
#[cfg(target_arch = "x86_64")]
use crate::loops::Loops;
use crate::memory::Protection;

/// Bits of a page's words.
const WORDS: usize = PAGE / 8 / 64;

/// What the program may do with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Access {
    /// Every load and store is trapped.
    Closed = 0,
    /// Loads find what was fetched; stores are trapped, sent, and put there too.
    Readable = 1,
    /// Loads and stores go to the memory here; the differences from the twin are sent later.
    Open = 2,
}

/// How interpreted stores are posted.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gathering {
    /// At once: the bytes are here, too.
    Not,
    /// Each by a WRITE of its own.
    Alone,
    /// Many by one.
    Joined,
}

/// The pages of a window, under its lock.
pub(crate) struct Pages {
    access: Vec<u8>,
    /// The interval, from one sync point to the next, of which the counts are.
    #[cfg(target_arch = "x86_64")]
    interval: Vec<u32>,
    stores: Vec<u8>,
    /// Trapped stores from which interpreting might have gone on.
    #[cfg(target_arch = "x86_64")]
    traps: Vec<u8>,
    #[cfg(target_arch = "x86_64")]
    loads: Loads,
    /// Which words of 8 bytes were stored to, since the count of stores began.
    words: Vec<u64>,
    /// The end of the last store that was counted.
    #[cfg(target_arch = "x86_64")]
    stored: usize,
    now: u32,
    /// Pages that are not closed. Room for all of them is there from the beginning, as a handler
    /// must not allocate.
    listed: Vec<u32>,
    /// How often pages were made accessible since all were closed.
    groups: usize,
    /// Those that were made accessible last.
    last: Range<usize>,
    /// Pages whose memory may be in use.
    resident: usize,
    /// Memory for what is compared or moved.
    scratch: Vec<u8>,
    /// The page of which stores were gathered last, plus one; 0 if there is none.
    #[cfg(target_arch = "x86_64")]
    dense: usize,
    /// Where the program stores in loops.
    #[cfg(target_arch = "x86_64")]
    pub(crate) loops: Loops,
}

impl Pages {
    /// All closed. What is counted for each page takes memory once the page is touched.
    pub(crate) fn new(count: usize) -> Pages {
        Pages {
            access: vec![Access::Closed as u8; count],
            #[cfg(target_arch = "x86_64")]
            interval: vec![0; count],
            stores: vec![0; count],
            #[cfg(target_arch = "x86_64")]
            traps: vec![0; count],
            #[cfg(target_arch = "x86_64")]
            loads: Loads::new(count),
            words: vec![0; count * WORDS],
            #[cfg(target_arch = "x86_64")]
            stored: 0,
            now: 1,
            listed: Vec::with_capacity(count),
            groups: 0,
            last: 0..0,
            resident: 0,
            scratch: vec![0; CHUNK],
            #[cfg(target_arch = "x86_64")]
            dense: 0,
            #[cfg(target_arch = "x86_64")]
            loops: Loops::default(),
        }
    }

    fn access(&self, page: usize) -> Access {
        match self.access[page] {
            0 => Access::Closed,
            1 => Access::Readable,
            _ => Access::Open,
        }
    }

    /// Whether the program may do this by itself.
    fn allows(&self, page: usize, access: Access) -> bool {
        self.access(page) >= access
    }

    /// Whether any page is not closed.
    pub(crate) fn any_accessible(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Lends the scratch memory, to be given back.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.scratch)
    }

    pub(crate) fn give_scratch(&mut self, scratch: Vec<u8>) {
        self.scratch = scratch;
    }

    /// The range's parts that lie in pages of one kind each.
    fn parts(&self, at: usize, len: usize) -> impl Iterator<Item = (Range<usize>, Access)> + '_ {
        let end = at + len;
        let mut next = at;
        std::iter::from_fn(move || {
            let start = next;
            if start == end {
                return None;
            }
            let access = self.access(start / PAGE);
            while next < end && self.access(next / PAGE) == access {
                next = end.min((next / PAGE + 1) * PAGE);
            }
            Some((start..next, access))
        })
    }

    /// Stores bytes: where pages are closed, by one WRITE.
    pub(crate) fn store(&mut self, backing: &Backing, at: usize, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        self.loads.note_store();
        for (part, access) in self.parts(at, bytes.len()) {
            let bytes = &bytes[part.start - at..part.end - at];
            if access < Access::Open {
                backing.send(part.start, bytes);
            }
            if access > Access::Closed {
                // Fails where the host has no memory left, as the program's own store would.
                let _ = backing.memory.copy_in(part.start, bytes);
            }
        }
    }

    /// Loads bytes: where pages are closed, by one READ.
    pub(crate) fn load(&mut self, backing: &Backing, at: usize, into: &mut [u8]) {
        for (part, access) in self.parts(at, into.len()) {
            let into = &mut into[part.start - at..part.end - at];
            if access == Access::Closed || backing.memory.copy_out(part.start, into).is_err() {
                backing.fetch(part.start, into);
            }
        }
    }

    /// Begins to count anew if a sync point lies between.
    #[cfg(target_arch = "x86_64")]
    fn begin(&mut self, page: usize) {
        if self.interval[page] != self.now {
            self.interval[page] = self.now;
            self.loads.forget(page);
            #[cfg(target_arch = "x86_64")]
            {
                self.traps[page] = 0;
            }
            self.forget_stores(page);
        }
    }

    fn forget_stores(&mut self, page: usize) {
        self.stores[page] = 0;
        self.words[page * WORDS..(page + 1) * WORDS].fill(0);
    }

    /// Counts a trapped store; whether the page is to be opened instead. A program that stores to
    /// the same word again has waited for something: it may be that the owner has changed the word
    /// meanwhile. So the count begins anew, and the store stays exact. One that goes on from the
    /// last is another part of the word.
    ///
    /// `at` is the byte that was not accessible.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn count_store(&mut self, at: usize, bytes: Range<usize>) -> bool {
        let (page, word) = (at / PAGE, at % PAGE / 8);
        self.begin(page);
        let (index, bit) = (page * WORDS + word / 64, 1 << (word % 64));
        let goes_on = bytes.start == self.stored;
        self.stored = bytes.end;
        if self.words[index] & bit != 0 && !goes_on {
            self.forget_stores(page);
        }
        self.words[index] |= bit;
        self.stores[page] = self.stores[page].saturating_add(1);
        self.stores[page] >= STORES || self.ascends(at, Access::Open)
    }

    /// Counts a trapped store in a loop; whether interpreting may go on from it. Where that has led
    /// to many traps of a page, or to an open page before this one, this one is to be opened, too.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn count_trap(&mut self, at: usize) -> bool {
        let page = at / PAGE;
        self.begin(page);
        self.traps[page] = self.traps[page].saturating_add(1);
        self.traps[page] < STORES && !self.ascends(at, Access::Open)
    }

    /// Counts an interpreted store; how it may be posted. It joins others where stores are so many
    /// that the page would be opened if they were trapped.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn count_gathered(&mut self, at: usize, len: usize) -> Gathering {
        let (page, last) = (at / PAGE, (at + len - 1) / PAGE);
        self.loads.note_store();
        if self.access(page) != Access::Closed || self.access(last) != Access::Closed {
            return Gathering::Not;
        }
        let goes_on = page + 1 == self.dense || page == self.dense && at % PAGE < ASCENT;
        if self.dense > 0 && goes_on || self.count_store(at, at..at + len) {
            self.dense = page + 1;
            return Gathering::Joined;
        }
        Gathering::Alone
    }

    /// Gathering goes on behind this byte.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn note_gathered(&mut self, last: usize) {
        self.dense = last / PAGE + 1;
    }

    /// How many of `len` bytes come before one in a page that is not closed.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn closed(&self, at: usize, len: usize) -> usize {
        let pages = at / PAGE..(at + len).div_ceil(PAGE);
        let closed = |page: &usize| self.access(*page) == Access::Closed;
        let end = match pages.clone().find(|page| !closed(page)) {
            Some(page) => page * PAGE,
            None => at + len,
        };
        end.saturating_sub(at).min(len)
    }

    /// Counts a trapped load; whether the page is to be made readable instead.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn count_load(&mut self, at: usize) -> bool {
        let page = at / PAGE;
        self.begin(page);
        self.loads.are_many_with(page, at % PAGE / 8) || self.ascends(at, Access::Readable)
    }

    /// Whether an access goes on from the page before, which the program may access already.
    #[cfg(target_arch = "x86_64")]
    fn ascends(&self, at: usize, access: Access) -> bool {
        let page = at / PAGE;
        at % PAGE < ASCENT && page > 0 && self.access(page - 1) == access
    }

    /// Fetches a page, with its followers if the program goes upwards, and makes it accessible.
    /// False if there is no memory for it.
    pub(crate) fn expose(&mut self, backing: &Backing, page: usize, access: Access) -> bool {
        if self.allows(page, access) {
            // Another thread has seen to it, and may have stored there.
            return true;
        }
        if self.groups >= GROUPS {
            self.close(backing);
        }
        let pages = page..page + self.followers(page, access);
        let bytes = backing.bytes(&pages);
        // SAFETY: the twin is the lock's holder's.
        let twin = unsafe { backing.memory.twin(bytes.clone()) };
        backing.fetch(bytes.start, twin);
        let protection = match access {
            Access::Open => Protection::Both,
            Access::Readable | Access::Closed => Protection::Loads,
        };
        let done = backing.memory.copy_in(bytes.start, twin).is_ok()
            && backing.memory.protect(pages.clone(), protection);
        if !done {
            return false;
        }
        for page in pages.clone() {
            if self.access(page) == Access::Closed {
                self.listed.push(page as u32);
            }
            self.access[page] = access as u8;
        }
        self.groups += 1;
        self.resident += pages.len();
        self.last = pages;
        true
    }

    /// How many pages to fetch: twice as many as last time, if the program goes on from there.
    fn followers(&self, page: usize, access: Access) -> usize {
        let goes_on = page > 0 && page == self.last.end && self.access(page - 1) == access;
        if !goes_on {
            return 1;
        }
        let most = FETCHED.min(2 * self.last.len());
        let closed = self.access[page..].iter().skip(1).take(most - 1);
        1 + closed
            .take_while(|access| **access == Access::Closed as u8)
            .count()
    }

    /// Closes all pages and sends what the program has changed in those that were open.
    pub(crate) fn close(&mut self, backing: &Backing) {
        let mut listed = std::mem::take(&mut self.listed);
        listed.sort_unstable();
        // Those that stay accessible move to the front.
        let (mut kept, mut at) = (0, 0);
        while at < listed.len() {
            let first = listed[at] as usize;
            let follow = |(step, page): &(usize, &u32)| **page as usize == first + step;
            let count = listed[at..].iter().enumerate().take_while(follow).count();
            if !self.close_group(backing, first..first + count) {
                listed.copy_within(at..at + count, kept);
                kept += count;
            }
            at += count;
        }
        listed.truncate(kept);
        self.listed = listed;
        self.groups = 0;
        self.last = 0..0;
        if kept == 0 && self.resident > KEPT {
            backing.memory.discard();
            self.resident = 0;
        }
    }

    /// Closes neighbouring pages. First nobody can store any more, then the pages are compared:
    /// a store is in the comparison, or it is trapped and waits for the lock. False if the kernel
    /// does not protect them, for want of memory: what was changed so far is sent.
    fn close_group(&mut self, backing: &Backing, pages: Range<usize>) -> bool {
        let closed = backing.memory.protect(pages.clone(), Protection::Nothing);
        let mut page = pages.start;
        while page < pages.end {
            let most = pages.end.min(page + CHUNK / PAGE);
            let open = self.access[page..most].iter();
            let open = open
                .take_while(|access| **access == Access::Open as u8)
                .count();
            if open == 0 {
                page += 1;
                continue;
            }
            self.send_changes(backing, backing.bytes(&(page..page + open)));
            page += open;
        }
        if closed {
            self.access[pages.clone()].fill(Access::Closed as u8);
            pages.for_each(|page| self.forget_stores(page));
        }
        closed
    }

    fn send_changes(&mut self, backing: &Backing, bytes: Range<usize>) {
        let new = &mut self.scratch[..bytes.len()];
        if backing.memory.copy_out(bytes.start, new).is_err() {
            return;
        }
        // SAFETY: the twin is the lock's holder's.
        let old = unsafe { backing.memory.twin(bytes.clone()) };
        let mut runs = [const { 0..0 }; RUNS];
        let mut count = 0;
        difference::each(old, new, |changed| {
            runs[count] = changed;
            count += 1;
            if count == RUNS {
                backing.send_runs(bytes.start, new, &runs);
                count = 0;
            }
        });
        if count > 0 {
            backing.send_runs(bytes.start, new, &runs[..count]);
        }
        // Of use only if the pages could not be protected.
        old.copy_from_slice(new);
    }

    /// A sync point: as `close`, and all counts begin anew.
    pub(crate) fn sync(&mut self, backing: &Backing) {
        self.close(backing);
        #[cfg(target_arch = "x86_64")]
        {
            self.dense = 0;
        }
        self.now = self.now.wrapping_add(1);
    }
}
