#define _GNU_SOURCE
#include "check.h"
#include "remote.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A test may take so long, unless CHECK_SECONDS says otherwise. */
#define TEST_SECONDS 60
#define STATUS_FAILED 1

static int failures;

static unsigned int test_seconds(void)
{
	const char *given = getenv("CHECK_SECONDS");

	return given ? (unsigned int)atoi(given) : TEST_SECONDS;
}

void run_role(struct peer *parent, void (*role)(struct peer *))
{
	alarm(test_seconds());
	failures = 0;
	role(parent);
	_exit(failures ? STATUS_FAILED : 0);
}

void fail(const char *file, int line, const char *what)
{
	fprintf(stderr, "     %s:%d: %s\n", file, line, what);
	failures++;
}

int failures_so_far(void)
{
	return failures;
}

void give_up(const char *file, int line, const char *what, sci_error_t error)
{
	fprintf(stderr, "     %s:%d: %s: %s (%#x)\n", file, line, what, SCIGetErrorString(error),
			(unsigned int)error);
	_exit(STATUS_FAILED);
}

void expect_error(const char *file, int line, const char *what, sci_error_t want, sci_error_t got)
{
	if (want == got)
		return;
	fprintf(stderr, "     %s:%d: %s: not %s but %s (%#x)\n", file, line, what,
			SCIGetErrorString(want), SCIGetErrorString(got), (unsigned int)got);
	failures++;
}

static int run_test(const struct test *test)
{
	pid_t pid = fork();
	int status;

	if (pid < 0) {
		perror("fork");
		exit(STATUS_FAILED);
	}
	if (pid == 0) {
		setpgid(0, 0);
		alarm(test_seconds());
		test->run();
		_exit(failures ? STATUS_FAILED : 0);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	/* Peers that it has left behind. */
	kill(-pid, SIGKILL);
	if (WIFSIGNALED(status))
		fprintf(stderr, "     ended by signal %d\n", WTERMSIG(status));
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* CHECK_SKIP: parts of names, with semicolons between them. */
static int is_skipped(const char *name)
{
	char *list = strdup(getenv("CHECK_SKIP") ? getenv("CHECK_SKIP") : ""), *next = list, *part;
	int found = 0;

	while ((part = strsep(&next, ";")))
		found |= *part && strstr(name, part);
	free(list);
	return found;
}

int run_tests(const struct test *tests, size_t count)
{
	const char *only = getenv("TEST"), *port = getenv("CHECK_SERVE");
	int passed = 0, failed = 0;

	if (port)
		return serve_peers(atoi(port));

	for (size_t i = 0; i < count; i++) {
		int good;

		if (only && !strstr(tests[i].name, only))
			continue;
		if (is_skipped(tests[i].name))
			continue;
		good = run_test(&tests[i]);
		printf("%s %s\n", good ? "ok  " : "FAIL", tests[i].name);
		fflush(stdout);
		*(good ? &passed : &failed) += 1;
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed ? STATUS_FAILED : 0;
}

sci_desc_t open_library(void)
{
	sci_desc_t sd;

	DO(SCIInitialize, NO_FLAGS);
	DO(SCIOpen, &sd, NO_FLAGS);
	return sd;
}

unsigned int own_node(void)
{
	unsigned int node = 0;

	DO(SCIGetLocalNodeId, ADAPTER, &node, NO_FLAGS);
	return node;
}

unsigned int node_of(const struct peer *peer)
{
	return peer->node ? peer->node : own_node();
}

void spawn(struct peer *peer, void (*role)(struct peer *))
{
	int there[2], back[2];

	peer->control = 0;
	peer->node = 0;
	if (getenv("CHECK_PEERS")) {
		spawn_remote(peer, role);
		return;
	}
	if (pipe(there) || pipe(back)) {
		perror("pipe");
		_exit(STATUS_FAILED);
	}
	peer->pid = fork();
	if (peer->pid < 0) {
		perror("fork");
		_exit(STATUS_FAILED);
	}
	if (peer->pid == 0) {
		struct peer parent = {getppid(), there[0], back[1], 0, 0};

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(there[1]);
		close(back[0]);
		run_role(&parent, role);
	}
	close(there[0]);
	close(back[1]);
	peer->in = back[0];
	peer->out = there[1];
}

void say(struct peer *peer, unsigned int number)
{
	if (write(peer->out, &number, sizeof(number)) != sizeof(number)) {
		fprintf(stderr, "     the other side is gone\n");
		_exit(STATUS_FAILED);
	}
}

unsigned int hear(struct peer *peer)
{
	unsigned int number;

	if (read(peer->in, &number, sizeof(number)) != sizeof(number)) {
		fprintf(stderr, "     the other side is gone\n");
		_exit(STATUS_FAILED);
	}
	return number;
}

void join(struct peer *peer)
{
	int status;

	if (peer->control)
		status = status_of_remote(peer);
	else
		while (waitpid(peer->pid, &status, 0) < 0 && errno == EINTR)
			;
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void kill_peer(struct peer *peer)
{
	int status;

	if (peer->control) {
		kill_remote(peer);
		status = status_of_remote(peer);
	} else {
		kill(peer->pid, SIGKILL);
		while (waitpid(peer->pid, &status, 0) < 0 && errno == EINTR)
			;
	}
	EXPECT(WIFSIGNALED(status));
}

static void *sleep_there(void *argument)
{
	struct sleeper *sleeper = argument;

	__atomic_store_n(&sleeper->tid, gettid(), __ATOMIC_RELEASE);
	sleeper->function(sleeper->argument, &sleeper->error);
	return NULL;
}

/* Whether a thread of this process sleeps. */
static int sleeps(pid_t tid)
{
	char path[64], line[512], *state;
	FILE *file;
	int found = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)tid);
	file = fopen(path, "r");
	if (!file)
		give_up(__FILE__, __LINE__, "a thread that was to sleep has ended", SCI_ERR_OK);
	/* The state follows the name, which is in parentheses. */
	if (fgets(line, sizeof(line), file) && (state = strrchr(line, ')')))
		found = state[2] == 'S';
	fclose(file);
	return found;
}

void start_sleeper(struct sleeper *sleeper, void (*function)(void *, sci_error_t *),
		void *argument)
{
	pid_t tid;

	*sleeper = (struct sleeper){.function = function, .argument = argument, .error = 77};
	pthread_create(&sleeper->thread, NULL, sleep_there, sleeper);
	while (!(tid = __atomic_load_n(&sleeper->tid, __ATOMIC_ACQUIRE)) || !sleeps(tid))
		sched_yield();
}

sci_error_t end_of(struct sleeper *sleeper)
{
	pthread_join(sleeper->thread, NULL);
	return sleeper->error;
}

void *offer(sci_desc_t sd, sci_local_segment_t *segment, sci_map_t *map, unsigned int id,
		size_t size)
{
	sci_error_t error;
	void *address;

	DO(SCICreateSegment, sd, segment, id, size, NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCIPrepareSegment, *segment, ADAPTER, NO_FLAGS);
	address = SCIMapLocalSegment(*segment, map, 0, size, NULL, NO_FLAGS, &error);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIMapLocalSegment", error);
	DO(SCISetSegmentAvailable, *segment, ADAPTER, NO_FLAGS);
	return address;
}

void connect_to(sci_desc_t sd, sci_remote_segment_t *segment, unsigned int node, unsigned int id)
{
	sci_error_t error;

	do
		SCIConnectSegment(sd, segment, node, id, ADAPTER, NO_CALLBACK, NO_ARG,
				SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	while (error == SCI_ERR_NO_SUCH_SEGMENT);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIConnectSegment", error);
}
