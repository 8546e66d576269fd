//! The pool service, as a table: named pools of blocks, rights to blocks, and events.
//!
//! Numbers and field orders are the protocol, as in the broker's own service.

use crate::remoting::{byte_enum, message, service};

/// What a session may do with a block. The greater allows what the lesser does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Access {
    /// Nothing.
    #[default]
    None = 0,
    /// Read.
    Read = 1,
    /// Read and write.
    Write = 2,
    /// Read and write, and while this stands nobody else can get the right to write.
    Exclusive = 3,
}

impl Access {
    /// Whether it allows to write.
    pub fn writes(self) -> bool {
        self >= Access::Write
    }
}

/// What a grantee's number names. A session's name is its life
/// (`causeway_shm::Life::to_bits`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PartyKind {
    /// A session, by its name.
    #[default]
    Session = 0,
    /// All sessions of a user, by user id.
    User = 1,
    /// All sessions that may open the pool; the number is 0.
    Everybody = 2,
}

/// The pages of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Pages {
    /// Ordinary ones.
    #[default]
    Ordinary = 0,
    /// Huge ones, all of them taken from the reserve when the block was made.
    Huge = 1,
}

/// The kind of a synchronization object in a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SyncKind {
    /// None, not any more.
    #[default]
    None = 0,
    /// A mutex.
    Mutex = 1,
    /// A reader-writer lock.
    RwLock = 2,
    /// A condition variable.
    Condvar = 3,
    /// A counting semaphore.
    Semaphore = 4,
    /// A barrier.
    Barrier = 5,
}

/// What a session waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum WaitKind {
    /// A block of this name that it may access so.
    #[default]
    Name = 0,
    /// That others let go of a block of its own, so that one session can have exclusive access.
    Exclusive = 1,
}

/// What has become of a synchronization object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SyncHealth {
    /// Nothing.
    #[default]
    Fine = 0,
    /// A lock whose owner died, and what it protects has not been repaired.
    Inconsistent = 1,
    /// A lock that was given up without repair: nobody gets it any more.
    NotRecoverable = 2,
    /// A barrier of which a participant died.
    Broken = 3,
    /// Something else was written where it was.
    Overwritten = 4,
}

byte_enum!(
    SyncHealth,
    "health",
    Fine,
    Inconsistent,
    NotRecoverable,
    Broken,
    Overwritten
);
byte_enum!(Access, "access", None, Read, Write, Exclusive);
byte_enum!(WaitKind, "wait", Name, Exclusive);
byte_enum!(PartyKind, "party", Session, User, Everybody);
byte_enum!(Pages, "pages", Ordinary, Huge);
byte_enum!(
    SyncKind, "kind", None, Mutex, RwLock, Condvar, Semaphore, Barrier
);

message! {
    /// Makes a pool, and opens it.
    pub struct CreatePoolRequest {
        /// Its name, unique in the tenant.
        name: String,
        /// Bytes of a block; 0: each block has a size of its own.
        block_bytes: u64,
        /// Most blocks.
        capacity: u32,
        /// Whether only processes of the caller's user may open it.
        private: bool,
        /// Whether it is fine if it exists: then it is opened as it is.
        existing: bool,
    }

    /// Names a pool.
    pub struct PoolNameRequest {
        /// Its name.
        name: String,
    }

    /// A pool.
    pub struct PoolReply {
        /// Names it in requests.
        pool: u64,
        /// Bytes of a block; 0: each block has a size of its own.
        block_bytes: u64,
        /// Most blocks.
        capacity: u32,
        /// Whether only processes of its creator's user may open it.
        private: bool,
        /// Its creator's user.
        uid: u32,
    }

    /// Names a pool that the caller has open.
    pub struct PoolRequest {
        /// The pool.
        pool: u64,
    }

    /// Asks for a block.
    pub struct AllocateRequest {
        /// The pool.
        pool: u64,
        /// Its size, where the pool leaves that to the blocks; else 0.
        bytes: u64,
        /// Whether huge pages are welcome.
        huge: bool,
    }

    /// The block exists, and belongs to the caller, which may write. Descriptor: the block,
    /// read-write.
    pub struct AllocateReply {
        /// Names it.
        handle: u64,
        /// Its place in the pool.
        number: u32,
        /// Its size, in whole pages.
        bytes: u64,
        /// Its pages.
        pages: Pages,
    }

    /// Names a block.
    pub struct BlockRequest {
        /// Its handle.
        handle: u64,
    }

    /// Gives a block of the caller a name in its pool.
    pub struct NameRequest {
        /// The block.
        handle: u64,
        /// Its name; empty: none any more.
        name: String,
        /// Whether it stays when its owner ends.
        persistent: bool,
    }

    /// Looks for a block by name.
    pub struct FindRequest {
        /// The pool.
        pool: u64,
        /// The name.
        name: String,
    }

    /// What is known of a block. Bytes of others are shown to any session that has the pool open;
    /// the handle is no right.
    pub struct BlockInfo {
        /// Names it.
        handle: u64,
        /// The pool that it is a block of.
        pool: u64,
        /// Its place in the pool.
        number: u32,
        /// Its size.
        bytes: u64,
        /// Its name; empty if it has none.
        name: String,
        /// The session it belongs to; 0: none any more.
        owner: u64,
        /// User of that session, or of the one that left it.
        uid: u32,
        /// Whether it stays when its owner ends.
        persistent: bool,
        /// What the caller may do.
        access: Access,
        /// Its pages.
        pages: Pages,
    }

    /// Asks for a block to be mapped.
    pub struct OpenRequest {
        /// The block.
        handle: u64,
        /// What for: reading, or writing.
        access: Access,
    }

    /// Asks anew for a block that the caller holds.
    pub struct RefreshRequest {
        /// The block.
        handle: u64,
        /// What the caller is bound to by now: the most that its mapping allows.
        bound: Access,
    }

    /// What was given. Descriptor, unless the access is none: the block, for reading or for both.
    pub struct OpenReply {
        /// What the descriptor allows.
        access: Access,
        /// Size of the block.
        bytes: u64,
        /// How often the block has moved to fresh memory.
        moves: u32,
        /// Its pages.
        pages: Pages,
    }

    /// Changes what a party may do with a block of the caller.
    pub struct GrantRequest {
        /// The block.
        handle: u64,
        /// What the number names.
        kind: PartyKind,
        /// Session, or user id; 0 for everybody.
        party: u64,
        /// What it may do from now on.
        access: Access,
    }

    /// One grant.
    pub struct Grant {
        /// What the number names.
        kind: PartyKind,
        /// Session, or user id; 0 for everybody.
        party: u64,
        /// What it may do.
        access: Access,
    }

    /// What the owner of a block must know.
    pub struct AdoptReply {
        /// Its name.
        name: String,
        /// Whether it stays when its owner ends.
        persistent: bool,
        /// Whether one may hold it that should not any more.
        exposed: bool,
        /// All grants.
        grants: Vec<Grant>,
    }

    /// Asks for the next page of a list.
    pub struct ListRequest {
        /// The pool.
        pool: u64,
        /// The last one seen: a session, or a block's place plus one; 0: from the beginning.
        after: u64,
    }

    /// A session that has a pool open.
    pub struct Member {
        /// Its name.
        session: u64,
        /// Its process, as the broker knows it.
        pid: i32,
        /// Its user.
        uid: u32,
        /// Name of the process.
        comm: String,
    }

    /// Says that there is a synchronization object in a block, for status displays.
    pub struct NoteRequest {
        /// The block.
        handle: u64,
        /// Where.
        offset: u64,
        /// What; [`SyncKind::None`] forgets it.
        kind: SyncKind,
    }

    /// Asks to be told when something has come about ([`EVENT_READY`]).
    pub struct WaitRequest {
        /// Names the wait: the caller's choice, of which each of its waits has another.
        ticket: u64,
        /// What for.
        kind: WaitKind,
        /// Of a name: the pool.
        pool: u64,
        /// The name.
        name: String,
        /// Of a name: what the caller has to be allowed to do with the block.
        access: Access,
        /// Of exclusive access: the block.
        handle: u64,
        /// Of exclusive access: the session that is to have it.
        party: u64,
    }

    /// Names a wait of the caller.
    pub struct TicketRequest {
        /// Its name.
        ticket: u64,
    }

    /// Presents a pool that an earlier broker had, and opens it.
    pub struct RestorePoolRequest {
        /// Its name.
        name: String,
        /// As it was created.
        block_bytes: u64,
        /// As it was created.
        capacity: u32,
        /// As it was created.
        private: bool,
        /// As it was created: counts only if the caller is of that user.
        uid: u32,
    }

    /// Presents a block that an earlier broker made. Descriptor: the block, read-write.
    pub struct RestoreBlockRequest {
        /// Its pool, by this broker's number.
        pool: u64,
        /// Its place in the pool.
        number: u32,
        /// Its size.
        bytes: u64,
        /// Its name.
        name: String,
        /// Whether it stays when its owner ends.
        persistent: bool,
        /// How often it has moved.
        moves: u32,
        /// Whether one may hold it that should not any more.
        exposed: bool,
        /// All grants.
        grants: Vec<Grant>,
    }

    /// Says that the caller holds a block of another, made known to it by an earlier broker.
    pub struct ResumeRequest {
        /// Its pool, by this broker's number.
        pool: u64,
        /// The block.
        handle: u64,
        /// What its descriptor allows.
        access: Access,
    }

    /// Presents a block that the caller holds and somebody else is the owner of. Descriptor: the
    /// block, for reading at least.
    pub struct BringRequest {
        /// Its pool, by this broker's number.
        pool: u64,
        /// The block.
        handle: u64,
    }

    /// Asks for the status page after this place; the default is the first.
    pub struct PoolCursor {
        /// Pool of the last page; 0 is before all.
        pool: u64,
        /// First block of it to be listed.
        number: u32,
    }

    /// One synchronization object.
    pub struct SyncStatus {
        /// Where in the block.
        offset: u64,
        /// What.
        kind: SyncKind,
        /// Its state word, as the block has it now.
        word: u64,
        /// Process that holds it, if the word names one that is known; else 0.
        owner_pid: i32,
        /// Its thread, as it says itself; 0 if that is not known.
        owner_thread: u32,
        /// What has become of it.
        health: SyncHealth,
        /// Whether somebody may sleep on it.
        awaited: bool,
        /// A semaphore's value, or how many have arrived at a barrier.
        count: u32,
        /// How many must arrive at a barrier.
        parties: u32,
        /// Some of the processes that read, or take part.
        entries: Vec<EntryStatus>,
    }

    /// A process inside of a synchronization object.
    pub struct EntryStatus {
        /// The process; 0 if it is not known, or dead.
        pid: i32,
        /// How many of its threads, as the object says.
        threads: u32,
    }

    /// One block.
    pub struct BlockStatus {
        /// Its place in the pool.
        number: u32,
        /// Its size.
        bytes: u64,
        /// Its name; empty if it has none.
        name: String,
        /// Its owner's process; 0 if there is none.
        owner_pid: i32,
        /// Its owner's user.
        uid: u32,
        /// Whether it stays when its owner ends.
        persistent: bool,
        /// Its pages.
        pages: Pages,
        /// Processes that hold it, and what for.
        holders: Vec<HolderStatus>,
        /// Its grants.
        grants: Vec<Grant>,
        /// Its synchronization objects.
        syncs: Vec<SyncStatus>,
    }

    /// One that holds a block.
    pub struct HolderStatus {
        /// Its process.
        pid: i32,
        /// What it was given.
        access: Access,
    }

    /// One pool, with some of its blocks.
    pub struct PoolStatus {
        /// Names the pool.
        pool: u64,
        /// Its name.
        name: String,
        /// Its tenant.
        tenant: String,
        /// Its creator's user.
        uid: u32,
        /// Whether only processes of that user may open it.
        private: bool,
        /// Bytes of a block; 0: each has a size of its own.
        block_bytes: u64,
        /// Most blocks.
        capacity: u32,
        /// Blocks there are.
        used: u32,
        /// Threads that wait for a block's name to appear.
        waiting: u32,
        /// Processes that have it open.
        members: Vec<Member>,
        /// Some blocks.
        blocks: Vec<BlockStatus>,
    }

    /// A page of the status.
    pub struct PoolPage {
        /// The next pool, or more blocks of the same; `None` at the end.
        entry: Option<PoolStatus>,
        /// First block of the next page of the same pool; 0: there is none.
        next: u32,
    }
}

service! {
    /// Number of the pool service in message headers.
    service 4, handler PoolService, stub PoolStub {
        /// Makes a pool, and opens it.
        1 => create_pool(CreatePoolRequest; fds 0..=0) -> PoolReply;
        /// Opens a pool.
        2 => open_pool(PoolNameRequest; fds 0..=0) -> PoolReply;
        /// Closes a pool: the caller's blocks are freed, others' released.
        3 => close_pool(PoolRequest; fds 0..=0) -> ();
        /// Ends a pool that the caller's user created.
        4 => destroy_pool(PoolNameRequest; fds 0..=0) -> ();
        /// Makes a block.
        5 => allocate(AllocateRequest; fds 0..=0) -> AllocateReply;
        /// Ends a block.
        6 => free(BlockRequest; fds 0..=0) -> ();
        /// Names a block.
        7 => set_name(NameRequest; fds 0..=0) -> ();
        /// Finds a block by its name.
        8 => find(FindRequest; fds 0..=0) -> BlockInfo;
        /// Tells of a block.
        9 => info(BlockRequest; fds 0..=0) -> BlockInfo;
        /// Grants the descriptor of a block, by the caller's rights.
        10 => open(OpenRequest; fds 0..=0) -> OpenReply;
        /// Asks anew for a block that the caller holds, after an event about it.
        11 => refresh(RefreshRequest; fds 0..=0) -> OpenReply;
        /// The caller does not hold a block any more.
        12 => release(BlockRequest; fds 0..=0) -> ();
        /// Changes what a party may do.
        13 => grant(GrantRequest; fds 0..=0) -> ();
        /// Gives fresh memory for a block, to be filled. Descriptor: that memory, read-write.
        14 => begin_move(BlockRequest; fds 0..=0) -> ();
        /// The fresh memory takes the place of the old.
        15 => end_move(BlockRequest; fds 0..=0) -> ();
        /// Makes the caller the owner of a block that has none, of its own user.
        16 => adopt(BlockRequest; fds 0..=0) -> AdoptReply;
        /// Lists the sessions that have a pool open.
        17 => members(ListRequest; fds 0..=0) -> MemberPage;
        /// Lists blocks.
        18 => blocks(ListRequest; fds 0..=0) -> BlockPage;
        /// Notes a synchronization object.
        19 => note(NoteRequest; fds 0..=0) -> ();
        /// Presents a pool after a restart of the broker.
        20 => restore_pool(RestorePoolRequest; fds 0..=0) -> PoolReply;
        /// Presents a block after a restart of the broker.
        21 => restore_block(RestoreBlockRequest; fds 1..=1) -> ();
        /// Says which block of another the caller holds, after a restart of the broker. True if
        /// the block is not known yet, and the caller is to bring it, too.
        22 => resume(ResumeRequest; fds 0..=0) -> bool;
        /// Lists pools.
        23 => status(PoolCursor; fds 0..=0) -> PoolPage;
        /// Asks to be told when something has come about. True if it has already: then there will
        /// be no event. Waits are forgotten once they are told, and with their session.
        24 => wait(WaitRequest; fds 0..=0) -> bool;
        /// The caller waits no longer.
        25 => give_up(TicketRequest; fds 0..=0) -> ();
        /// Presents a block of another after a restart of the broker: a persistent one is known
        /// again without its owner.
        26 => bring(BringRequest; fds 1..=1) -> ();
    }
}

message! {
    /// A page of members.
    pub struct MemberPage {
        /// They, by name; an empty list is the end.
        members: Vec<Member>,
    }

    /// A page of blocks.
    pub struct BlockPage {
        /// They, by place; an empty list is the end.
        blocks: Vec<BlockInfo>,
    }
}

/// Number of the event about blocks that the session holds, whose memory or whose rights to it are
/// others now: a list of handles. Each is told once, until [`PoolStub::refresh`] has been called.
pub const EVENT_CHANGED: u16 = 1;
/// Number of the event about blocks that the session held and that were freed: a list of handles.
pub const EVENT_FREED: u16 = 2;
/// Number of the event about blocks that the session holds and whose owner has ended: a list of
/// handles. The broker knows them no more; their holders share them still.
pub const EVENT_ORPHANED: u16 = 3;
/// Number of the event about waits ([`PoolStub::wait`]) that have come to their end: a list of
/// tickets. What was waited for may have passed again by the time that the caller looks.
pub const EVENT_READY: u16 = 4;
/// Number of the event about pools that the session has open no longer though it has not closed
/// them, since they were destroyed or do not admit it: a list of the broker's numbers. It does not
/// present them to the next broker.
pub const EVENT_POOL_CLOSED: u16 = 5;
/// Most handles, tickets or pools in one message.
pub const HANDLES_PER_MESSAGE: usize = 2048;
