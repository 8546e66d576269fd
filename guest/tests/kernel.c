// SPDX-License-Identifier: GPL-2.0
/* The kernel that the driver's tests run on: see kernel.h. */
#include "kernel.h"

#include <stdio.h>

#define FDS 64

struct kernel kernel = { .allocations = -1, .descriptors = -1 };
struct mm_struct process;
static struct task_struct task = { &process };
struct task_struct *current = &task;
static struct file *fds[FDS];
static bool taken[FDS];

void may_sleep(void)
{
	assert(!kernel.spins && !kernel.interrupt);
}

void sleep_once(void)
{
	may_sleep();
	if (kernel.asleep)
		kernel.asleep();
}

/* Filled with rubbish, or with zeroes where the caller counts on them: which it is not told. */
void *allocate(size_t bytes, gfp_t flags)
{
	if (flags == GFP_KERNEL)
		may_sleep();
	if (!kernel.allocations && !(flags & __GFP_NOFAIL))
		return NULL;
	kernel.allocations -= !!kernel.allocations;
	kernel.bytes = max(kernel.bytes, bytes);
	return calloc(1, bytes);
}

void spin_lock(spinlock_t *lock)
{
	assert(!lock->held);
	lock->held = true;
	kernel.spins++;
}

void spin_unlock(spinlock_t *lock)
{
	assert(lock->held);
	lock->held = false;
	if (--kernel.spins || kernel.running || !kernel.interrupts)
		return;
	kernel.running = kernel.interrupt = true;
	kernel.interrupts();
	kernel.running = kernel.interrupt = false;
}

void mutex_lock(struct mutex *lock)
{
	may_sleep();
	assert(!lock->held);
	lock->held = true;
}

void mutex_unlock(struct mutex *lock)
{
	assert(lock->held);
	lock->held = false;
}

void down_read(struct rw_semaphore *lock)
{
	may_sleep();
	assert(lock->held >= 0);
	lock->held++;
}

void up_read(struct rw_semaphore *lock)
{
	assert(lock->held > 0);
	lock->held--;
}

void down_write(struct rw_semaphore *lock)
{
	may_sleep();
	assert(!lock->held);
	lock->held = -1;
}

void up_write(struct rw_semaphore *lock)
{
	assert(lock->held == -1);
	lock->held = 0;
}

long wait_for_completion_timeout(struct completion *c, unsigned long time)
{
	may_sleep();
	if (!c->done)
		sleep_once();
	return c->done ? (long)time : 0;
}

void work_on(struct work_struct *work)
{
	while (work->due) {
		work->due = false;
		work->function(work);
	}
}

void *xa_load(struct xarray *array, unsigned long number)
{
	for (unsigned int i = 0; i < array->count; i++)
		if (array->slots[i].number == number)
			return array->slots[i].entry;
	return NULL;
}

void *xa_erase(struct xarray *array, unsigned long number)
{
	for (unsigned int i = 0; i < array->count; i++) {
		void *entry = array->slots[i].entry;

		if (array->slots[i].number != number)
			continue;
		array->slots[i] = array->slots[--array->count];
		return entry;
	}
	return NULL;
}

/* The entry with the least number from `number` on. */
bool xa_next(struct xarray *array, unsigned long *number, unsigned long last, void **entry)
{
	unsigned int found = array->count;

	for (unsigned int i = 0; i < array->count; i++) {
		unsigned long at = array->slots[i].number;

		if (at >= *number && at <= last &&
		    (found == array->count || at < array->slots[found].number))
			found = i;
	}
	if (found == array->count)
		return false;
	*number = array->slots[found].number;
	*entry = array->slots[found].entry;
	return true;
}

int xa_insert(struct xarray *array, unsigned long number, void *entry, gfp_t flags)
{
	if (flags == GFP_KERNEL)
		may_sleep();
	if (xa_load(array, number))
		return -EBUSY;
	if (!kernel.allocations || array->count == XA_SLOTS)
		return -ENOMEM;
	kernel.allocations--;
	array->slots[array->count].number = number;
	array->slots[array->count++].entry = entry;
	return 0;
}

void *xa_cmpxchg(struct xarray *array, unsigned long number, void *old, void *entry, gfp_t flags)
{
	void *there = xa_load(array, number);

	assert(entry && flags == GFP_KERNEL);
	if (!old && !there)
		return xa_insert(array, number, entry, flags) ? ERR_PTR(-ENOMEM) : NULL;
	for (unsigned int i = 0; there == old && i < array->count; i++)
		if (array->slots[i].number == number)
			array->slots[i].entry = entry;
	return there;
}

int xa_alloc_cyclic(struct xarray *array, u32 *number, void *entry, struct xa_limit limit,
		    u32 *next, gfp_t flags)
{
	int error;

	do {
		*number = *next = *next >= limit.max ? 1 : *next + 1;
		error = xa_insert(array, *number, entry, flags);
	} while (error == -EBUSY);
	return error;
}

struct file *anon_inode_getfile(const char *name, const struct file_operations *operations,
				void *data, int flags)
{
	struct file *file = allocate(sizeof(*file), GFP_KERNEL);

	(void)name;
	if (!file)
		return ERR_PTR(-ENOMEM);
	file->f_op = operations;
	file->private_data = data;
	file->f_mapping = &file->space;
	file->space.host = &file->inode;
	file->flags = flags;
	file->f_mode = flags == O_RDWR ? FMODE_WRITE : 0;
	file->refs = 1;
	return file;
}

void fput(struct file *file)
{
	assert(file->refs > 0);
	if (--file->refs)
		return;
	ihold(&file->inode);
	if (file->f_op && file->f_op->release)
		file->f_op->release(&file->inode, file);
	iput(&file->inode);
}

/* An inode is in its file here, which lasts as long. */
void iput(struct inode *inode)
{
	struct file *file = container_of(inode, struct file, inode);

	assert(inode->refs > 0);
	if (!--inode->refs && !file->refs)
		free(file);
}

struct file *fget(int fd)
{
	if (fd < 0 || fd >= FDS || !fds[fd])
		return NULL;
	fds[fd]->refs++;
	return fds[fd];
}

int get_unused_fd_flags(int flags)
{
	assert(flags == O_CLOEXEC);
	if (!kernel.descriptors)
		return -EMFILE;
	kernel.descriptors--;
	for (int fd = 0; fd < FDS; fd++) {
		if (taken[fd])
			continue;
		taken[fd] = true;
		return fd;
	}
	return -EMFILE;
}

/* close(2), too. */
void put_unused_fd(int fd)
{
	struct file *file = fds[fd];

	assert(taken[fd]);
	taken[fd] = false;
	fds[fd] = NULL;
	if (file)
		fput(file);
}

void fd_install(int fd, struct file *file)
{
	assert(taken[fd] && !fds[fd]);
	fds[fd] = file;
}

static bool faulty(const void *at)
{
	return (uintptr_t)at < PAGE_SIZE;
}

int copy_from_user(void *to, const void *from, size_t bytes)
{
	may_sleep();
	if (faulty(from))
		return (int)bytes;
	memcpy(to, from, bytes);
	return 0;
}

int copy_to_user(void *to, const void *from, size_t bytes)
{
	may_sleep();
	if (faulty(to))
		return (int)bytes;
	memcpy(to, from, bytes);
	return 0;
}

size_t copy_to_iter(const void *from, size_t bytes, struct iov_iter *iter)
{
	return bytes <= iter->count && !copy_to_user(iter->to, from, bytes) ? bytes : 0;
}

void *vmemdup_user(const void *from, size_t bytes)
{
	void *copy;

	if (faulty(from) && bytes)
		return ERR_PTR(-EFAULT);
	copy = allocate(bytes, GFP_KERNEL);
	if (!copy)
		return ERR_PTR(-ENOMEM);
	if (bytes)
		memcpy(copy, from, bytes);
	return copy;
}

static int eventfd_release(struct inode *inode, struct file *file)
{
	(void)inode;
	free(file->private_data);
	return 0;
}

static const struct file_operations eventfd_fops = { .release = eventfd_release };

struct file *eventfd_file(void)
{
	struct eventfd_ctx *event = calloc(1, sizeof(*event));
	struct file *file = calloc(1, sizeof(*file));

	assert(event && file);
	*file = (struct file){ .f_op = &eventfd_fops, .private_data = event, .refs = 1 };
	event->file = file;
	return file;
}

struct eventfd_ctx *eventfd_ctx_fileget(struct file *file)
{
	if (file->f_op != &eventfd_fops)
		return ERR_PTR(-EINVAL);
	file->refs++;
	return file->private_data;
}

void eventfd_ctx_put(struct eventfd_ctx *event)
{
	fput(event->file);
}

void eventfd_signal(struct eventfd_ctx *event)
{
	event->rung++;
}
