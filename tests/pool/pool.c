/* An actor: does what it is told, a line at a time, and answers with a line. */
#include "pool.h"

cw_lib *lib;
cw_pool *pool;
cw_dma *dma;
struct slot slots[SLOTS];

static sigjmp_buf before_fault;
static volatile sig_atomic_t guarded;
static int guard_off;

static void on_fault(int number)
{
	if (guarded)
		siglongjmp(before_fault, number);
	signal(number, SIG_DFL);
	raise(number);
}

/* Does something that may fault: 0, or the signal. */
int guard(void (*function)(void *), void *argument)
{
	if (guard_off) {
		function(argument);
		return 0;
	}
	int number = sigsetjmp(before_fault, 1);
	if (number == 0) {
		guarded = 1;
		function(argument);
	}
	guarded = 0;
	return number;
}

struct slot *slot_of(const char *word)
{
	unsigned long number = strtoul(word, NULL, 0);
	if (number >= SLOTS || !(slots[number].block || slots[number].buffer)) {
		fprintf(stderr, "no slot %s\n", word);
		exit(2);
	}
	return &slots[number];
}

int free_slot(void)
{
	for (int i = 0; i < SLOTS; i++)
		if (!slots[i].block && !slots[i].buffer)
			return i;
	fprintf(stderr, "no slot left\n");
	exit(2);
}

void answer(int result)
{
	printf("ok %d\n", result);
}

void answer_slot(int result, int slot)
{
	if (result < 0)
		answer(result);
	else
		printf("ok %d %" PRIu64 "\n", slot, cw_block_handle(slots[slot].block));
}

static uint64_t number(const char *word)
{
	return strtoull(word, NULL, 0);
}

static void do_read(void *argument)
{
	struct touch *touch = argument;
	touch->value = *touch->at;
}

static void do_write(void *argument)
{
	struct touch *touch = argument;
	*touch->at = touch->value;
}

/* Reads or writes a word: its value, or "fault". */
static void touch(struct slot *slot, const char *offset, const char *value)
{
	struct touch touch = { (volatile uint64_t *)((char *)slot->address + number(offset)), 0 };
	if (value)
		touch.value = number(value);
	if (guard(value ? do_write : do_read, &touch))
		printf("ok fault\n");
	else
		printf("ok %" PRIu64 "\n", touch.value);
}

static int pools(char **w)
{
	if (!strcmp(w[0], "create"))
		answer(cw_pool_create(lib, w[1], number(w[2]), number(w[3]), number(w[4]), &pool));
	else if (!strcmp(w[0], "pool"))
		answer(cw_pool_open(lib, w[1], &pool));
	else if (!strcmp(w[0], "closepool"))
		answer(cw_pool_close(pool));
	else if (!strcmp(w[0], "destroy"))
		answer(cw_pool_destroy(lib, w[1]));
	else if (!strcmp(w[0], "members"))
		answer(cw_pool_members(pool, NULL, 0));
	else if (!strcmp(w[0], "blocks"))
		answer(cw_pool_blocks(pool, NULL, 0));
	else if (!strcmp(w[0], "id"))
		printf("ok %" PRIu64 "\n", cw_id(lib));
	else
		return 0;
	return 1;
}

static int finders(char **w)
{
	int slot = free_slot();
	cw_block **to = &slots[slot].block;
	if (!strcmp(w[0], "alloc"))
		answer_slot(cw_block_alloc(pool, number(w[1]), number(w[2]), to), slot);
	else if (!strcmp(w[0], "find"))
		answer_slot(cw_block_find(pool, w[1], number(w[2]), atoll(w[3]) * 1000000, to),
			    slot);
	else if (!strcmp(w[0], "handle"))
		answer_slot(cw_block_open(pool, number(w[1]), number(w[2]), to), slot);
	else if (!strcmp(w[0], "adopt"))
		answer_slot(cw_block_adopt(pool, number(w[1]), to), slot);
	else
		return 0;
	return 1;
}

static int blocks(char **w)
{
	static const char *const known[] = { "name", "grant", "revoke", "move", "map", "read",
		"write", "free", "close", "known", "access", "owner", "number", NULL };
	int found = 0;
	for (int i = 0; known[i]; i++)
		found |= !strcmp(w[0], known[i]);
	if (!found)
		return 0;
	struct slot *slot = slot_of(w[1]);
	struct cw_block_info info = { 0 };
	if (!strcmp(w[0], "name")) {
		answer(cw_block_name(slot->block, w[2], number(w[3])));
	} else if (!strcmp(w[0], "grant")) {
		answer(cw_block_grant(slot->block, number(w[2]), number(w[3]), number(w[4])));
	} else if (!strcmp(w[0], "revoke")) {
		answer(cw_block_revoke(slot->block, number(w[2]), number(w[3]), number(w[4])));
	} else if (!strcmp(w[0], "move")) {
		answer(cw_block_move(slot->block));
	} else if (!strcmp(w[0], "map")) {
		answer(cw_block_map(slot->block, number(w[2]), &slot->address));
	} else if (!strcmp(w[0], "read")) {
		touch(slot, w[2], NULL);
	} else if (!strcmp(w[0], "write")) {
		touch(slot, w[2], w[3]);
	} else if (!strcmp(w[0], "known")) {
		answer(cw_block_known(slot->block));
	} else if (!strcmp(w[0], "free")) {
		int result = cw_block_free(slot->block);
		if (result == 0)
			slot->block = NULL;
		answer(result);
	} else if (!strcmp(w[0], "close")) {
		answer(cw_block_close(slot->block));
		slot->block = NULL;
	} else {
		int result = cw_block_info(slot->block, &info);
		uint64_t value = !strcmp(w[0], "access") ? info.access :
			!strcmp(w[0], "owner") ? info.owner : info.number;
		if (result < 0)
			answer(result);
		else
			printf("ok %" PRIu64 "\n", value);
	}
	return 1;
}

static int others(char **w)
{
	if (!strcmp(w[0], "guard"))
		guard_off = !number(w[1]), answer(0);
	else if (!strcmp(w[0], "cut"))
		answer(cut());
	else if (!strcmp(w[0], "fork"))
		answer(in_child(slot_of(w[1])));
	else if (!strcmp(w[0], "orphans"))
		answer(orphans());
	else if (!strcmp(w[0], "churn"))
		answer(churn(number(w[1])));
	else
		return 0;
	return 1;
}

/* From outside, while a call is under way that does not return. */
static void on_cut(int number)
{
	(void)number;
	cut();
}

int main(void)
{
	char line[1024];
	struct sigaction action = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	signal(SIGUSR1, on_cut);
	setvbuf(stdout, NULL, _IOLBF, 0);
	int result = cw_open(&lib);
	printf("ok %d\n", result);
	if (result < 0)
		return 1;
	while (fgets(line, sizeof(line), stdin)) {
		char *words[WORDS] = { NULL };
		int count = 0;
		for (char *word = strtok(line, " \n"); word && count < WORDS - 1;
		     word = strtok(NULL, " \n"))
			words[count++] = !strcmp(word, "-") ? "" : word;
		if (count == 0)
			continue;
		if (!pools(words) && !finders(words) && !blocks(words) && !locks(words) &&
		    !transfers(words) && !dma_calls(words) && !evil(words) && !misuse(words) &&
		    !others(words))
			printf("bad %s\n", words[0]);
	}
	return 0;
}
