/*
 * libcauseway: memory that processes of one host share in blocks, with permissions; locks in it
 * that survive the death of any process; buffers, and transfers between them as a DMA engine
 * carries them out. The guide is docs/LIBCAUSEWAY.md.
 *
 * Conventions
 *
 * - Functions return 0 or a positive result, and a negative errno value if they fail: -ENOENT and
 *   so on. errno itself is left alone. What each may return is said below; -EPERM in a forked
 *   child, -EINVAL for a null pointer where none is allowed, -ENODEV without a broker and
 *   -ETIMEDOUT if it does not answer may come from all that talk to it.
 * - Any number of threads may call anything at once, but nothing may be closed while a call that
 *   names it is under way.
 * - Everything belongs to the process that opened the library. A forked child has no mappings: it
 *   may call cw_open() for itself, and should leave alone what its parent opened.
 * - Times are in nanoseconds from now; a negative one is for ever.
 * - No function is a cancellation point (pthread_cancel(3)), nor are waits: a thread that is
 *   cancelled in a call ends after it, and leaves nothing locked by the library. Functions of locks
 *   must not be called with asynchronous cancellation.
 * - Loading the library does nothing. cw_open() starts a thread, which sleeps until the broker has
 *   something to say, and, unless one runs, a broker.
 */
#ifndef CAUSEWAY_H
#define CAUSEWAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cw_lib cw_lib;
typedef struct cw_pool cw_pool;
typedef struct cw_block cw_block;
typedef struct cw_dma cw_dma;
typedef struct cw_buffer cw_buffer;

/* ---- The library ---------------------------------------------------------------------------- */

/* Opens a session with the broker of this host (CAUSEWAY_SOCKET, CAUSEWAY_RUNTIME_DIR), starting it
 * if there is none. -EACCES if this user is not admitted, or others may enter the runtime
 * directory; -EDQUOT or -EMFILE without room. The first failure is explained on standard error. */
int cw_open(cw_lib **lib);

/* Ends the session, once all that was opened with it is closed too. Locks that this process holds
 * are then those of a dead owner. */
int cw_close(cw_lib *lib);

/* The number by which others grant this session rights: different for each session, and never used
 * again. 0 in a forked child. */
uint64_t cw_id(cw_lib *lib);

/* A text for what a function returned: strerror(3), which knows no more than the number. */
const char *cw_strerror(int error);

/* ---- Pools ---------------------------------------------------------------------------------- */

/* What a process may do with a block. */
enum cw_access {
	CW_NONE = 0,
	CW_READ = 1,
	CW_WRITE = 2,		/* read and write */
	CW_EXCLUSIVE = 3	/* the same, and nobody else gets the right to write */
};

/* Whom a grant is for, and what its number is. */
enum cw_party {
	CW_SESSION = 0,		/* one session: cw_id() */
	CW_USER = 1,		/* all sessions of a user: its user id */
	CW_EVERYBODY = 2	/* all that may open the pool: 0 */
};

enum cw_flags {
	CW_POOL_PRIVATE = 1,	/* only processes of this user may open the pool */
	CW_POOL_EXISTING = 2,	/* one that exists is opened as it is */
	CW_BLOCK_HUGE = 4,	/* huge pages, if they are to be had; see cw_pages */
	CW_BLOCK_PERSISTENT = 8,	/* the block stays when its owner ends */
	CW_MOVE = 16		/* the block is moved to fresh memory as well: cw_block_move() */
};

/* The pages of a block. */
enum cw_pages {
	CW_PAGES_ORDINARY = 0,
	CW_PAGES_HUGE = 1,	/* of the system's reserve, which a private pool may use */
	CW_PAGES_ADVISED = 2	/* ordinary ones; the system was asked for transparent huge ones */
};

/* Longest name of a pool or a block, and of a command, without the zero byte. */
#define CW_NAME_MAX 63
#define CW_COMMAND_MAX 63

/* One session that has a pool open. */
struct cw_member {
	uint64_t id;
	int32_t pid;		/* as the broker sees it; 0 if it does not */
	uint32_t uid;
	char command[CW_COMMAND_MAX + 1];
};

/* What is known of a block. */
struct cw_block_info {
	uint64_t handle;	/* 0 if this process has no right to the block */
	uint64_t size;		/* in bytes, whole pages */
	uint64_t owner;		/* the session that it belongs to; 0 if that has ended */
	uint32_t number;	/* its place in the pool */
	uint32_t uid;		/* user of its owner */
	uint32_t access;	/* what this process may do: enum cw_access */
	uint32_t pages;		/* enum cw_pages */
	uint32_t persistent;	/* not 0 if it stays when its owner ends */
	char name[CW_NAME_MAX + 1];
};

/* What is known of a pool. */
struct cw_pool_info {
	uint64_t block_size;	/* as it was made for; 0: each block has a size of its own */
	uint32_t capacity;	/* most blocks */
	uint32_t is_private;
};

/* Makes a pool for so many blocks of a size, and opens it. With a size of 0 each block has its own.
 * -EEXIST unless CW_POOL_EXISTING is set; -EINVAL for a name or number outside its limits; -EDQUOT
 * beyond the tenant's limit; -EACCES if it exists and is another user's alone. */
int cw_pool_create(cw_lib *lib, const char *name, uint64_t block_size, uint32_t capacity,
		   unsigned flags, cw_pool **pool);

/* Opens a pool: -ENOENT, -EACCES. */
int cw_pool_open(cw_lib *lib, const char *name, cw_pool **pool);

/* Closes a pool, once its blocks are closed too. Then this session's own blocks are freed, unless
 * they are persistent. Who else has them mapped keeps them. */
int cw_pool_close(cw_pool *pool);

/* Ends a pool of this user's; its blocks are freed. -ENOENT, -EPERM if it is another user's, -EBUSY
 * while it has blocks of other sessions. */
int cw_pool_destroy(cw_lib *lib, const char *name);

int cw_pool_info(cw_pool *pool, struct cw_pool_info *info);

/* Lists the sessions that have the pool open, and its blocks: up to `count` of them. Returns how
 * many there are. */
int cw_pool_members(cw_pool *pool, struct cw_member *members, size_t count);
int cw_pool_blocks(cw_pool *pool, struct cw_block_info *blocks, size_t count);

/* ---- Blocks --------------------------------------------------------------------------------- */

/* Makes a block: fresh memory, all zeroes, in constant time. It belongs to this session, which may
 * write to it, and nobody else may do anything. `size` is 0 unless each block of the pool has its
 * own; `flags` may be CW_BLOCK_HUGE. -ENOSPC if the pool is full, -EDQUOT beyond a limit, -ENOMEM,
 * -EMFILE. */
int cw_block_alloc(cw_pool *pool, uint64_t size, unsigned flags, cw_block **block);

/* Frees a block of this session's, and closes it. Its memory never becomes another block's. Whoever
 * still accesses it faults. -EPERM if it is another's; it stays open then. */
int cw_block_free(cw_block *block);

/* Takes hold of a block, for CW_READ or CW_WRITE, by its handle or its name. With a time to wait
 * cw_block_find() sleeps until there is such a block that may be accessed so. -ENOENT, -EACCES,
 * when the time is over; -ENOENT at once if the pool is destroyed; -EDQUOT if a thousand threads
 * wait. */
int cw_block_open(cw_pool *pool, uint64_t handle, enum cw_access access, cw_block **block);
int cw_block_find(cw_pool *pool, const char *name, enum cw_access access, int64_t wait_ns,
		  cw_block **block);

/* Becomes the owner of a persistent block whose owner has ended, of the same user. -EPERM, -ENOENT,
 * -EDQUOT, -EBUSY while another may write exclusively. */
int cw_block_adopt(cw_pool *pool, uint64_t handle, cw_block **block);

/* Lets go of a block, and unmaps it. One of this session's own stays until its pool is closed. */
int cw_block_close(cw_block *block);

/* Its handle: names it to others, can't be guessed, and is no right by itself. */
uint64_t cw_block_handle(cw_block *block);

/* Its size in bytes. */
uint64_t cw_block_size(cw_block *block);

int cw_block_info(cw_block *block, struct cw_block_info *info);

/* Whether the broker still knows it, as far as this process has heard: 0 once it was freed or its
 * owner has ended. In the latter case those who have it mapped go on sharing it. */
int cw_block_known(cw_block *block);

/* Names a block of this session's in its pool; an empty name takes it away. `flags` may be
 * CW_BLOCK_PERSISTENT, for a block with a name. -EEXIST, -EINVAL, -EPERM, -ENOENT. */
int cw_block_name(cw_block *block, const char *name, unsigned flags);

/* Lets a party do this with a block of this session's from now on.
 * -ESRCH   there is no such session in the tenant
 * -EBUSY   for CW_EXCLUSIVE: another may write (the owner itself too, unless it grants itself
 *          CW_READ first); for CW_WRITE: another has exclusive access
 * -EAGAIN  for CW_EXCLUSIVE: one that may not write any more has not let go within half a second,
 *          since it is stopped
 * -ESTALE  for CW_EXCLUSIVE: one of another user that may not write any more might: cw_block_move()
 * -ENOSPC  the block has no room for more grants
 * -EINVAL  CW_EXCLUSIVE for more than one session
 * -EPERM, -ENOENT */
int cw_block_grant(cw_block *block, enum cw_party party, uint64_t number, enum cw_access access);

/* Takes back what a party was granted. In processes that use this library accesses fault from when
 * they have heard of it. A hostile one may go on in the memory that it has mapped, until
 * cw_block_move(), which CW_MOVE in `flags` does at once. -EPERM, -ENOENT. */
int cw_block_revoke(cw_block *block, enum cw_party party, uint64_t number, unsigned flags);

/* Moves a block of this session's to fresh memory, which only those get who have a right to it.
 * Addresses stay. Nobody may write to the block meanwhile: what is stored to the old memory after
 * the copy is lost. -EPERM, -ENOENT, -EACCES, -ENOMEM; -EINVAL if the broker was restarted
 * meanwhile, or another session has moved a block that nobody owns: to be tried again. */
int cw_block_move(cw_block *block);

/* Maps a block, for CW_READ or CW_WRITE; it stays mapped until it is closed. All that this process
 * maps of a block is at one address. Accesses beyond the right fault. -EACCES, -ENOMEM. */
int cw_block_map(cw_block *block, enum cw_access access, void **address);

/* ---- Locks ---------------------------------------------------------------------------------- */

/* Objects lie in blocks, at offsets that are multiples of CW_SYNC_ALIGN, and take these bytes. One
 * process makes each (..._init: nobody may be using it), and all that may write to the block use
 * it. Uncontended, locking and unlocking makes no system call.
 *
 * Functions that lock return 0, or CW_OWNER_DEAD: the caller has the lock, but the owner before it
 * died, and what the lock protects may be half changed. The caller repairs that and calls
 * ..._consistent(); if it unlocks without, the lock is not recoverable from then on. A process that
 * is stopped is alive: its locks stay its own.
 *
 * A call for a lock is an access to its block: once that is freed, or the right to write to it is
 * taken back, it faults like any other, also in a thread that waits already.
 *
 * -EINVAL           there is no such object at this offset
 * -EACCES           the block was not opened for writing
 * -EBUSY            ..._try...: it can't be had now
 * -ETIMEDOUT        it could not be had in time
 * -EDEADLK          the calling thread has it already
 * -EPERM            unlock: the calling thread does not have it, or not any more: its process was
 *                   taken for dead, since it was stopped or cut off from the broker for long
 * -ESTALE           the process was taken for dead, and the broker has no other life for it
 * -ENOTRECOVERABLE  see above
 * -EAGAIN           more processes use it at once than it has room for (64)
 * -EOVERFLOW        semaphores: the value is the greatest possible */

#define CW_SYNC_ALIGN 64
#define CW_MUTEX_SIZE 64
#define CW_COND_SIZE 64
#define CW_SEM_SIZE 64
#define CW_RWLOCK_SIZE 576
#define CW_BARRIER_SIZE 576

#define CW_OWNER_DEAD 1
#define CW_SERIAL 2

int cw_mutex_init(cw_block *block, uint64_t offset);
int cw_mutex_lock(cw_block *block, uint64_t offset);
int cw_mutex_trylock(cw_block *block, uint64_t offset);
int cw_mutex_timedlock(cw_block *block, uint64_t offset, int64_t wait_ns);
int cw_mutex_unlock(cw_block *block, uint64_t offset);
int cw_mutex_consistent(cw_block *block, uint64_t offset);

/* Writers are preferred. After a dead writer, who asks to read has the lock for writing, and
 * CW_OWNER_DEAD says so. A dead reader's share is taken back. */
int cw_rwlock_init(cw_block *block, uint64_t offset);
int cw_rwlock_rdlock(cw_block *block, uint64_t offset, int64_t wait_ns);
int cw_rwlock_tryrdlock(cw_block *block, uint64_t offset);
int cw_rwlock_wrlock(cw_block *block, uint64_t offset, int64_t wait_ns);
int cw_rwlock_trywrlock(cw_block *block, uint64_t offset);
int cw_rwlock_unlock(cw_block *block, uint64_t offset);
int cw_rwlock_consistent(cw_block *block, uint64_t offset);

/* Waits for a signal with the mutex (of the same block) unlocked. It is locked again when the call
 * returns 0, CW_OWNER_DEAD or -ETIMEDOUT. May return without a signal. */
int cw_cond_init(cw_block *block, uint64_t offset);
int cw_cond_wait(cw_block *block, uint64_t offset, uint64_t mutex, int64_t wait_ns);
int cw_cond_signal(cw_block *block, uint64_t offset);
int cw_cond_broadcast(cw_block *block, uint64_t offset);

int cw_sem_init(cw_block *block, uint64_t offset, uint32_t value);
int cw_sem_wait(cw_block *block, uint64_t offset, int64_t wait_ns);
int cw_sem_trywait(cw_block *block, uint64_t offset);
int cw_sem_post(cw_block *block, uint64_t offset);
/* Returns the value. */
int cw_sem_value(cw_block *block, uint64_t offset);

/* Returns CW_SERIAL to the last that arrives, 0 to the others; -EOWNERDEAD if a participant died:
 * who waits, or one that has joined. Then it is broken until it is mended. cw_barrier_join returns
 * that too, where no record is free (64 processes) and one is a dead process's. */
int cw_barrier_init(cw_block *block, uint64_t offset, uint32_t parties);
int cw_barrier_wait(cw_block *block, uint64_t offset, int64_t wait_ns);
int cw_barrier_join(cw_block *block, uint64_t offset);
int cw_barrier_leave(cw_block *block, uint64_t offset);
int cw_barrier_mend(cw_block *block, uint64_t offset);

/* ---- DMA ------------------------------------------------------------------------------------ */

/* A cluster is a set of nodes (processes that have joined it by its name) and their buffers, which
 * all nodes may access. Transfers go between two buffers, one of which is the caller's own. */

enum cw_transfer_state {
	CW_POSTED = 0,		/* waiting, or under way */
	CW_DONE = 1,
	CW_ABORTED = 2,		/* by cw_dma_abort(); some bytes may have been copied */
	CW_FAILED = 3		/* a buffer or its node has gone; likewise */
};

/* Most transfers of a node whose end nobody has seen. */
#define CW_TRANSFERS_MAX 65536

/* Joins a cluster, and makes it if it is not there. `flags` may be CW_POOL_PRIVATE. */
int cw_dma_open(cw_lib *lib, const char *cluster, unsigned flags, cw_dma **dma);
int cw_dma_close(cw_dma *dma);

/* This node's number, which is another after the others have taken this process for dead; the nodes
 * of the cluster; its buffers (their numbers are the handles). */
uint64_t cw_dma_node(cw_dma *dma);
int cw_dma_nodes(cw_dma *dma, struct cw_member *nodes, size_t count);
int cw_dma_buffers(cw_dma *dma, struct cw_block_info *buffers, size_t count);

/* Allocates a buffer on this node, made by the broker, in one piece of the address space, in huge
 * pages where they are to be had. -EDQUOT, -ENOSPC, -ENOMEM, -EINVAL. */
int cw_dma_alloc(cw_dma *dma, uint64_t size, cw_buffer **buffer);
/* Frees a buffer of this node's, and closes it. Transfers from and to it fail. */
int cw_dma_free(cw_buffer *buffer);
/* A buffer by its number: -ENOENT, also once its node has ended. */
int cw_dma_find(cw_dma *dma, uint64_t id, cw_buffer **buffer);
int cw_buffer_close(cw_buffer *buffer);

uint64_t cw_buffer_id(cw_buffer *buffer);
/* The node it belongs to: of another node the number that it had when the buffer was found. */
uint64_t cw_buffer_node(cw_buffer *buffer);
uint64_t cw_buffer_size(cw_buffer *buffer);
void *cw_buffer_address(cw_buffer *buffer);
/* enum cw_pages */
int cw_buffer_pages(cw_buffer *buffer);

/* Told of a transfer's end, by a thread that does nothing else. */
typedef void (*cw_dma_callback)(uint64_t transfer, enum cw_transfer_state state, void *argument);

/* Starts a transfer and returns at once, or where a process can have no more threads, when the
 * transfer has ended. Its number stays known until cw_dma_poll() or
 * cw_dma_wait() has told a final state, or the callback, if there is one, has returned. -EXDEV if
 * neither buffer is this node's, -EINVAL for a range outside of its buffer, -ENOENT if a buffer or
 * its node has gone, -EACCES, -EAGAIN with too many transfers (CW_TRANSFERS_MAX), or if the system
 * has no thread for a callback. The callback may come before the call returns. Within one buffer
 * the ranges may overlap, as with memmove(3). */
int cw_dma_transfer(cw_dma *dma, cw_buffer *target, uint64_t to, cw_buffer *source, uint64_t from,
		    uint64_t size, cw_dma_callback callback, void *argument, uint64_t *transfer);

/* A part of a transfer: so many bytes from one place to another. */
struct cw_piece {
	cw_buffer *target;
	uint64_t to;		/* offset in it */
	cw_buffer *source;
	uint64_t from;
	uint64_t size;
};

/* Most parts of a transfer. */
#define CW_PIECES_MAX 1024

/* The same of several parts, which are carried out in their order and end together. -EINVAL also
 * for no part, or more than CW_PIECES_MAX. */
int cw_dma_transferv(cw_dma *dma, const struct cw_piece *pieces, size_t count,
		     cw_dma_callback callback, void *argument, uint64_t *transfer);

/* How many transfers of this node have not ended. */
int cw_dma_outstanding(cw_dma *dma);

/* Returns the state: enum cw_transfer_state. -ENOENT for a number that is not known (any more).
 * cw_dma_wait() returns CW_POSTED when the time is over. */
int cw_dma_poll(cw_dma *dma, uint64_t transfer);
int cw_dma_wait(cw_dma *dma, uint64_t transfer, int64_t wait_ns);
/* Asks a transfer to stop. It has when its state is final. */
int cw_dma_abort(cw_dma *dma, uint64_t transfer);

#ifdef __cplusplus
}
#endif

#endif
