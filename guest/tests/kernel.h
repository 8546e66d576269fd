/* SPDX-License-Identifier: GPL-2.0 */
/*
 * As much of the kernel as the driver's own files need, for a process with one thread. Nothing
 * runs meanwhile: where a thread would sleep, `kernel.asleep` runs, which is the rest of the world,
 * and no time passes if that wakes it. Interrupts come when the last spin lock is given up. What a
 * kernel with its debugging on would complain of ends the test: sleeping under a spin lock or in an
 * interrupt, locks taken twice, given up by mistake, or in the wrong order.
 */
#ifndef KERNEL_H
#define KERNEL_H

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/ioctl.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef u64 phys_addr_t;
typedef unsigned int gfp_t;
typedef unsigned int vm_fault_t;

#define __user
#define HZ 100
#define MAX_ERRNO 4095
#define PAGE_SHIFT 12
#define PAGE_SIZE (1UL << PAGE_SHIFT)
#define PHYS_PFN(address) ((unsigned long)((address) >> PAGE_SHIFT))
#define PAGE_MASK (~(PAGE_SIZE - 1))
#define PMD_SIZE (2ul << 20)
#define BUILD_BUG_ON(condition) _Static_assert(!(condition), "")
#define pr_warn(text) ((void)(text))
#define cond_resched() may_sleep()
#define msleep(milliseconds) sleep_once()
#define PAGE_ALIGNED(value) (!((u64)(value) % PAGE_SIZE))
#define GFP_KERNEL 1u
#define GFP_ATOMIC 0u
#define __GFP_NOFAIL 2u
#define fatal_signal_pending(task) kernel.killed
#define THIS_MODULE NULL
#define EPOLLIN 1u
#define EPOLLOUT 4u
#define EPOLLHUP 16u

#define cpu_to_le16(x) (x)
#define cpu_to_le32(x) (x)
#define cpu_to_le64(x) (x)
#define le16_to_cpu(x) (x)
#define le32_to_cpu(x) (x)
#define le64_to_cpu(x) (x)
#define READ_ONCE(x) (x)
#define WRITE_ONCE(x, value) ((x) = (value))
#define ARRAY_SIZE(array) (sizeof(array) / sizeof(*(array)))
#define struct_size(p, member, count) (sizeof(*(p)) + sizeof(*(p)->member) * (count))
#define container_of(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define min_t(type, a, b) min((type)(a), (type)(b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define roundup_pow_of_two(x) (1ul << (64 - __builtin_clzl((x) - 1)))
#define round_down(x, to) ((x) & ~((to) - 1))

/* What the tests set and look at. */
struct kernel {
	int spins; /* held */
	bool interrupt; /* whether one is being served */
	void (*asleep)(void); /* while somebody waits */
	void (*interrupts)(void); /* those that are due */
	bool running; /* interrupts, already */
	long allocations; /* until one fails; negative: none does */
	long descriptors; /* the same */
	int mappings_fail; /* so often memory is lacking when what was mapped before is gone */
	bool killed; /* the process is */
	size_t bytes; /* of the largest allocation */
};

extern struct kernel kernel;

void may_sleep(void);
/* The rest of the world goes on. */
void sleep_once(void);
void *allocate(size_t bytes, gfp_t flags);

#define kmalloc(bytes, flags) allocate(bytes, flags)
#define kzalloc(bytes, flags) allocate(bytes, flags)
#define kfree(p) free((void *)(p))
#define kvfree(p) free((void *)(p))

static inline void *ERR_PTR(long error)
{
	return (void *)error;
}

static inline long PTR_ERR(const void *p)
{
	return (long)p;
}

static inline bool IS_ERR(const void *p)
{
	return (unsigned long)p >= (unsigned long)-MAX_ERRNO;
}

/* Lists. */
struct list_head {
	struct list_head *next, *prev;
};

static inline void INIT_LIST_HEAD(struct list_head *list)
{
	list->next = list->prev = list;
}

static inline void list_add(struct list_head *entry, struct list_head *list)
{
	entry->next = list->next;
	entry->prev = list;
	list->next->prev = entry;
	list->next = entry;
}

static inline void list_add_tail(struct list_head *entry, struct list_head *list)
{
	list_add(entry, list->prev);
}

static inline void list_del(struct list_head *entry)
{
	entry->next->prev = entry->prev;
	entry->prev->next = entry->next;
	entry->next = entry->prev = NULL;
}

static inline void list_del_init(struct list_head *entry)
{
	list_del(entry);
	INIT_LIST_HEAD(entry);
}

static inline bool list_empty(const struct list_head *list)
{
	return list->next == list;
}

#define list_entry(p, type, member) container_of(p, type, member)
#define list_first_entry_or_null(list, type, member) \
	(list_empty(list) ? NULL : list_entry((list)->next, type, member))
#define list_first_entry(list, type, member) list_entry((list)->next, type, member)
#define list_next_entry(at, member) list_entry((at)->member.next, typeof(*(at)), member)
#define list_for_each_entry_from(at, list, member) \
	for (; &at->member != (list); at = list_next_entry(at, member))
#define list_for_each_entry(at, list, member) \
	for (at = list_entry((list)->next, typeof(*at), member); &at->member != (list); \
	     at = list_entry(at->member.next, typeof(*at), member))
#define list_for_each_entry_safe(at, other, list, member) \
	for (at = list_entry((list)->next, typeof(*at), member), \
	     other = list_entry(at->member.next, typeof(*at), member); &at->member != (list); \
	     at = other, other = list_entry(other->member.next, typeof(*other), member))

/* References. */
struct kref {
	unsigned int count;
};

static inline void kref_init(struct kref *refs)
{
	refs->count = 1;
}

static inline void kref_get(struct kref *refs)
{
	assert(refs->count);
	refs->count++;
}

static inline void kref_put(struct kref *refs, void (*release)(struct kref *refs))
{
	assert(refs->count);
	if (!--refs->count)
		release(refs);
}

/* Locks. */
typedef struct {
	bool held;
} spinlock_t;

void spin_lock(spinlock_t *lock);
void spin_unlock(spinlock_t *lock);
#define spin_lock_init(lock) ((lock)->held = false)
#define spin_lock_irq(lock) (assert(!kernel.interrupt), spin_lock(lock))
#define spin_unlock_irq(lock) spin_unlock(lock)
#define spin_lock_irqsave(lock, flags) ((flags) = 0, spin_lock(lock))
#define spin_unlock_irqrestore(lock, flags) ((void)(flags), spin_unlock(lock))

struct mutex {
	bool held;
};

struct rw_semaphore {
	int held; /* readers, or -1 */
};

void mutex_lock(struct mutex *lock);
void mutex_unlock(struct mutex *lock);
void down_read(struct rw_semaphore *lock);
void up_read(struct rw_semaphore *lock);
void down_write(struct rw_semaphore *lock);
void up_write(struct rw_semaphore *lock);
#define mutex_init(lock) ((lock)->held = false)
#define init_rwsem(lock) ((lock)->held = 0)
#define rcu_read_lock() ((void)0)
#define rcu_read_unlock() ((void)0)
#define synchronize_rcu() may_sleep()

/* Waiting. */
typedef struct {
	spinlock_t lock;
	unsigned int woken;
} wait_queue_head_t;

struct completion {
	bool done;
};

#define init_waitqueue_head(queue) memset(queue, 0, sizeof(*(queue)))
#define wake_up(queue) ((void)(queue)->woken++)
#define wake_up_all(queue) wake_up(queue)
#define wake_up_locked_poll(queue, mask) wake_up(queue)
#define init_completion(c) ((c)->done = false)
#define complete(c) ((void)((c)->done = true))
#define wait_event_timeout(queue, condition, time) ({ \
	may_sleep(); \
	bool event_ = (condition); \
	if (!event_) { \
		sleep_once(); \
		event_ = (condition); \
	} \
	event_ ? (long)(time) : 0L; \
})
/* Who is waited for comes, or the test ends. */
#define wait_event_killable(queue, condition) ({ \
	may_sleep(); \
	if (!(condition)) \
		sleep_once(); \
	assert(condition); \
	0; \
})
#define wait_event_interruptible_timeout(queue, condition, time) \
	wait_event_timeout(queue, condition, time)
#define nsecs_to_jiffies64(nanoseconds) ((u64)(nanoseconds) / (1000000000 / HZ))
long wait_for_completion_timeout(struct completion *c, unsigned long time);

typedef struct {
	int unused;
} poll_table;

#define poll_wait(file, queue, table) ((void)(table))

/* Work, done by `work_on`. */
struct work_struct {
	void (*function)(struct work_struct *work);
	bool due;
};

#define INIT_WORK(work, what) (*(work) = (struct work_struct){ .function = (what) })
#define schedule_work(work) ((void)((work)->due = true))
#define cancel_work_sync(work) (may_sleep(), (void)((work)->due = false))
void work_on(struct work_struct *work);

struct delayed_work {
	struct work_struct work;
};

#define INIT_DELAYED_WORK(delayed, what) INIT_WORK(&(delayed)->work, what)
#define schedule_delayed_work(delayed, time) schedule_work(&(delayed)->work)
#define cancel_delayed_work_sync(delayed) cancel_work_sync(&(delayed)->work)
#define to_delayed_work(what) container_of(what, struct delayed_work, work)

/* Tables by number. */
#define XA_FLAGS_ALLOC1 1
#define XA_FLAGS_LOCK_IRQ 2
#define XA_SLOTS 8192

struct xarray {
	unsigned int flags;
	unsigned int count;
	struct {
		unsigned long number;
		void *entry;
	} slots[XA_SLOTS];
};

struct xa_limit {
	u32 max;
};

#define xa_init(array) xa_init_flags(array, 0)
#define xa_destroy(array) ((array)->count = 0)
#define xa_mk_value(value) ((void *)(uintptr_t)((value) << 1 | 1))
#define xa_is_value(entry) ((uintptr_t)(entry) & 1)
#define xa_store(array, number, entry, gfp) \
	((void)xa_erase(array, number), (void)xa_insert(array, number, entry, GFP_ATOMIC))
/* Tests let any allocation fail; that of a place for an entry is one. */
void *xa_cmpxchg(struct xarray *array, unsigned long number, void *old, void *entry, gfp_t flags);
#define xa_reserve(array, number, gfp) \
	(may_sleep(), kernel.allocations ? (kernel.allocations--, 0) : -ENOMEM)
#define xa_release(array, number) ((void)(array), (void)(number))
bool xa_next(struct xarray *array, unsigned long *number, unsigned long last, void **entry);
#define xa_for_each_range(array, number, entry, first, last) \
	for (number = (first); xa_next(array, &(number), last, (void **)&(entry)); (number)++)
#define xa_for_each(array, number, entry) xa_for_each_range(array, number, entry, 0, ~0ul)
#define xa_limit_31b ((struct xa_limit){ INT32_MAX })
#define xa_init_flags(array, how) ((array)->flags = (how), (array)->count = 0)
#define xa_insert_irq(array, number, entry, gfp) xa_insert(array, number, entry, gfp)
#define xa_erase_irq(array, number) xa_erase(array, number)
void *xa_load(struct xarray *array, unsigned long number);
void *xa_erase(struct xarray *array, unsigned long number);
int xa_insert(struct xarray *array, unsigned long number, void *entry, gfp_t flags);
int xa_alloc_cyclic(struct xarray *array, u32 *number, void *entry, struct xa_limit limit,
		    u32 *next, gfp_t flags);

/* Files, and a process with descriptors. */
struct file;
struct inode {
	u64 size;
	int refs; /* beside its file's */
};

#define ihold(inode) ((void)(inode)->refs++)
void iput(struct inode *inode);

struct vm_area_struct;

struct address_space {
	struct vm_area_struct *mapped; /* the mappings of its file */
	struct inode *host;
};

struct kiocb {
	struct file *ki_filp;
};

/* One piece of a process's memory. */
struct iov_iter {
	char __user *to;
	size_t count;
};

#define iov_iter_count(iter) ((iter)->count)
size_t copy_to_iter(const void *from, size_t bytes, struct iov_iter *iter);

struct file_operations {
	void *owner;
	int (*open)(struct inode *inode, struct file *file);
	int (*release)(struct inode *inode, struct file *file);
	ssize_t (*read)(struct file *file, char __user *to, size_t bytes, loff_t *at);
	ssize_t (*read_iter)(struct kiocb *call, struct iov_iter *to);
	ssize_t (*write)(struct file *file, const char __user *from, size_t bytes, loff_t *at);
	__poll_t (*poll)(struct file *file, poll_table *table);
	long (*unlocked_ioctl)(struct file *file, unsigned int number, unsigned long argument);
	long (*compat_ioctl)(struct file *file, unsigned int number, unsigned long argument);
	int (*mmap)(struct file *file, struct vm_area_struct *vma);
	unsigned long (*get_unmapped_area)(struct file *file, unsigned long address,
					   unsigned long length, unsigned long page,
					   unsigned long flags);
};

#define FMODE_WRITE 1
#define FMODE_PREAD 2
#define FMODE_NOWAIT 4

struct file {
	int f_mode;
	const struct file_operations *f_op;
	void *private_data;
	struct address_space *f_mapping;
	struct address_space space;
	struct inode inode;
	int flags;
	int refs;
};

#define file_inode(file) (&(file)->inode)
#define i_size_write(node, bytes) ((node)->size = (bytes))
#define compat_ptr_ioctl NULL
struct file *anon_inode_getfile(const char *name, const struct file_operations *operations,
				void *data, int flags);
#define anon_inode_create_getfile(name, operations, data, flags, context) \
	anon_inode_getfile(name, operations, data, flags)
void fput(struct file *file);
#define get_file(file) ((file)->refs++, (file))
struct file *fget(int fd);
int get_unused_fd_flags(int flags);
void put_unused_fd(int fd);
void fd_install(int fd, struct file *file);

/* Addresses below a page are no process's. */
int copy_from_user(void *to, const void __user *from, size_t bytes);
int copy_to_user(void __user *to, const void *from, size_t bytes);
void *vmemdup_user(const void __user *from, size_t bytes);
#define u64_to_user_ptr(address) ((void __user *)(uintptr_t)(address))

struct eventfd_ctx {
	struct file *file;
	unsigned int rung;
};

struct eventfd_ctx *eventfd_ctx_fileget(struct file *file);
void eventfd_ctx_put(struct eventfd_ctx *event);
void eventfd_signal(struct eventfd_ctx *event);
struct file *eventfd_file(void);

#define init_user_ns 0
#define current_euid() 1000
#define from_kuid(space, user) (user)

#include "memory.h"

/* Not called: main.c is not here. */
struct notifier_block {
	int unused;
};

/* The device's queues, which the tests' host serves. */
struct virtio_device {
	void *priv;
};

struct scatterlist {
	void *at;
	unsigned int bytes;
};

struct virtqueue {
	struct virtio_device *vdev;
};

static inline void sg_init_one(struct scatterlist *sg, const void *at, unsigned int bytes)
{
	*sg = (struct scatterlist){ (void *)at, bytes };
}

int virtqueue_add_sgs(struct virtqueue *vq, struct scatterlist *sgs[], unsigned int out,
		      unsigned int in, void *data, gfp_t flags);
int virtqueue_add_inbuf(struct virtqueue *vq, struct scatterlist *sg, unsigned int count,
			void *data, gfp_t flags);
bool virtqueue_kick(struct virtqueue *vq);
bool virtqueue_enable_cb(struct virtqueue *vq);
void virtqueue_disable_cb(struct virtqueue *vq);
void *virtqueue_get_buf(struct virtqueue *vq, unsigned int *length);
void *virtqueue_detach_unused_buf(struct virtqueue *vq);

#endif
