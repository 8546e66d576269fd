/* Locks: KIND SLOT OFFSET VERB [ARGUMENT], an argument being milliseconds unless said otherwise. */
#include "pool.h"
#include <dirent.h>
#include <sys/socket.h>

struct call {
	cw_block *block;
	uint64_t at;
	const char *verb;
	int64_t wait;		/* in nanoseconds; negative: for ever */
	uint32_t value;		/* the argument, as it is */
};

static int is(const struct call *call, const char *verb)
{
	return !strcmp(call->verb, verb);
}

static int mutex(const struct call *call)
{
	if (is(call, "init"))
		return cw_mutex_init(call->block, call->at);
	if (is(call, "lock"))
		return cw_mutex_timedlock(call->block, call->at, call->wait);
	if (is(call, "try"))
		return cw_mutex_trylock(call->block, call->at);
	if (is(call, "unlock"))
		return cw_mutex_unlock(call->block, call->at);
	if (is(call, "consistent"))
		return cw_mutex_consistent(call->block, call->at);
	return -ENOSYS;
}

static int rwlock(const struct call *call)
{
	if (is(call, "init"))
		return cw_rwlock_init(call->block, call->at);
	if (is(call, "read"))
		return cw_rwlock_rdlock(call->block, call->at, call->wait);
	if (is(call, "tryread"))
		return cw_rwlock_tryrdlock(call->block, call->at);
	if (is(call, "write"))
		return cw_rwlock_wrlock(call->block, call->at, call->wait);
	if (is(call, "trywrite"))
		return cw_rwlock_trywrlock(call->block, call->at);
	if (is(call, "unlock"))
		return cw_rwlock_unlock(call->block, call->at);
	if (is(call, "consistent"))
		return cw_rwlock_consistent(call->block, call->at);
	return -ENOSYS;
}

/* The mutex is the one at 0. */
static int cond(const struct call *call)
{
	if (is(call, "init"))
		return cw_cond_init(call->block, call->at);
	if (is(call, "wait"))
		return cw_cond_wait(call->block, call->at, 0, call->wait);
	if (is(call, "signal"))
		return cw_cond_signal(call->block, call->at);
	if (is(call, "broadcast"))
		return cw_cond_broadcast(call->block, call->at);
	return -ENOSYS;
}

static int sem(const struct call *call)
{
	if (is(call, "init"))
		return cw_sem_init(call->block, call->at, call->value);
	if (is(call, "wait"))
		return cw_sem_wait(call->block, call->at, call->wait);
	if (is(call, "try"))
		return cw_sem_trywait(call->block, call->at);
	if (is(call, "post"))
		return cw_sem_post(call->block, call->at);
	if (is(call, "value"))
		return cw_sem_value(call->block, call->at);
	return -ENOSYS;
}

static int barrier(const struct call *call)
{
	if (is(call, "init"))
		return cw_barrier_init(call->block, call->at, call->value);
	if (is(call, "wait"))
		return cw_barrier_wait(call->block, call->at, call->wait);
	if (is(call, "join"))
		return cw_barrier_join(call->block, call->at);
	if (is(call, "leave"))
		return cw_barrier_leave(call->block, call->at);
	if (is(call, "mend"))
		return cw_barrier_mend(call->block, call->at);
	return -ENOSYS;
}

int locks(char **w)
{
	static const struct {
		const char *kind;
		int (*does)(const struct call *);
	} kinds[] = { { "mutex", mutex }, { "rwlock", rwlock }, { "cond", cond },
		      { "sem", sem }, { "barrier", barrier } };
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (strcmp(w[0], kinds[i].kind))
			continue;
		struct call call = {
			.block = slot_of(w[1])->block,
			.at = strtoull(w[2], NULL, 0),
			.verb = w[3],
			.wait = w[4] ? atoll(w[4]) * 1000000 : -1,
			.value = w[4] ? strtoul(w[4], NULL, 0) : 0,
		};
		answer(kinds[i].does(&call));
		return 1;
	}
	return 0;
}

int cut(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;
	while ((entry = readdir(folder))) {
		int fd = atoi(entry->d_name), type;
		socklen_t length = sizeof(type);
		if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 &&
		    type == SOCK_SEQPACKET)
			count += shutdown(fd, SHUT_RDWR) == 0;
	}
	closedir(folder);
	return count;
}
