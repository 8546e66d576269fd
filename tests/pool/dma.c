/* Transfers by the thousand, in parts, and those that are ended on the way. */
#include "pool.h"

/* Starts so many that are not looked at, then one more; looks at all: how many were started, what
 * the one more was told, how many were done, and what another was told afterwards. */
static void fill(char **w)
{
	cw_buffer *to = slot_of(w[1])->buffer, *from = slot_of(w[2])->buffer;
	int result = 0, done = 0, again, count = 0;
	uint64_t *ids = calloc(CW_TRANSFERS_MAX, sizeof(*ids)), id = 0;
	while (count < CW_TRANSFERS_MAX &&
	       (result = cw_dma_transfer(dma, to, 0, from, 0, 64, NULL, NULL, &ids[count])) == 0)
		count++;
	result = cw_dma_transfer(dma, to, 0, from, 0, 64, NULL, NULL, &id);
	for (int i = 0; i < count; i++)
		done += cw_dma_wait(dma, ids[i], -1) == CW_DONE;
	again = cw_dma_transfer(dma, to, 0, from, 0, 64, NULL, NULL, &id);
	done += again == 0 && cw_dma_wait(dma, id, -1) == CW_DONE;
	/* A final state is told once. */
	again = again ? again : cw_dma_poll(dma, id);
	printf("ok %d %d %d %d %d\n", count, result, done, again, cw_dma_outstanding(dma));
	free(ids);
}

/* Starts COUNT transfers of SIZE, says so, aborts them if told to, and counts how they ended. */
static void burst(char **w)
{
	cw_buffer *to = slot_of(w[1])->buffer, *from = slot_of(w[2])->buffer;
	uint64_t size = strtoull(w[3], NULL, 0);
	int count = atoi(w[4]), ends[4] = { 0 };
	uint64_t *ids = calloc(count, sizeof(*ids));
	for (int i = 0; i < count; i++) {
		int result = cw_dma_transfer(dma, to, 0, from, 0, size, NULL, NULL, &ids[i]);
		if (result < 0) {
			printf("ok %d %d\n", result, i);
			free(ids);
			return;
		}
	}
	printf("ok %d\n", count);
	for (int i = count - 1; atoi(w[5]) && i >= 0; i--)
		cw_dma_abort(dma, ids[i]);
	for (int i = 0; i < count; i++) {
		int state = cw_dma_wait(dma, ids[i], -1);
		if (state >= 0)
			ends[state]++;
	}
	printf("ok %d %d %d\n", ends[CW_DONE], ends[CW_ABORTED], ends[CW_FAILED]);
	free(ids);
}

/* Three words in three parts, the second of which takes what the first has brought. */
static void parts(char **w)
{
	cw_buffer *there = slot_of(w[1])->buffer, *here = slot_of(w[2])->buffer;
	uint64_t id, *own = cw_buffer_address(here);
	struct cw_piece pieces[] = {
		{ there, 0, here, 0, 8 },
		{ here, 64, there, 0, 8 },
		{ there, 8, here, 64, 8 },
	};
	struct cw_piece wrong = { there, cw_buffer_size(there), here, 0, 1 };
	own[0] = 77;
	if (cw_dma_transferv(dma, pieces, 0, NULL, NULL, &id) != -EINVAL ||
	    cw_dma_transferv(dma, NULL, 1, NULL, NULL, &id) != -EINVAL ||
	    cw_dma_transferv(dma, pieces, CW_PIECES_MAX + 1, NULL, NULL, &id) != -EINVAL ||
	    cw_dma_transferv(dma, &wrong, 1, NULL, NULL, &id) != -EINVAL) {
		answer(-EBADMSG);
		return;
	}
	int result = cw_dma_transferv(dma, pieces, 3, NULL, NULL, &id);
	if (result == 0)
		result = cw_dma_wait(dma, id, -1);
	printf("ok %d %" PRIu64 "\n", result, own[8]);
}

/* Moves all but some bytes of a buffer within it, up and down: how many bytes are wrong. */
static void overlap(char **w)
{
	cw_buffer *buffer = slot_of(w[1])->buffer;
	unsigned char *bytes = cw_buffer_address(buffer);
	uint64_t id, size = cw_buffer_size(buffer), shift = 4104, moved = size - shift;
	unsigned char *model = malloc(size);
	int result = 0, wrong = 0;
	for (uint64_t i = 0; i < size; i++)
		model[i] = bytes[i] = i * 7 + i / 251;
	for (int up = 1; up >= 0 && result == 0; up--) {
		uint64_t from = up ? 0 : shift, to = up ? shift : 0;
		result = cw_dma_transfer(dma, buffer, to, buffer, from, moved, NULL, NULL, &id);
		if (result == 0 && cw_dma_wait(dma, id, -1) != CW_DONE)
			result = -EBADMSG;
		memmove(model + to, model + from, moved);
		for (uint64_t i = 0; i < size; i++)
			wrong += bytes[i] != model[i];
	}
	free(model);
	answer(result ? result : wrong);
}

/* Objects by their numbers: whether each buffer of the cluster is found by its own. */
static int objects(void)
{
	static struct cw_block_info all[SLOTS];
	static struct cw_member nodes[SLOTS];
	int count = cw_dma_buffers(dma, all, SLOTS), members = cw_dma_nodes(dma, nodes, SLOTS);
	for (int i = 0; i < count; i++) {
		cw_buffer *found;
		int known = 0, result = cw_dma_find(dma, all[i].handle, &found);
		if (result < 0)
			return result;
		for (int j = 0; j < members; j++)
			known |= nodes[j].id == cw_buffer_node(found);
		if (cw_buffer_id(found) != all[i].handle || cw_buffer_size(found) != all[i].size ||
		    cw_buffer_node(found) != all[i].owner || !known)
			return -EBADMSG;
		cw_buffer_close(found);
	}
	return count;
}

int dma_calls(char **w)
{
	if (!strcmp(w[0], "fill"))
		fill(w);
	else if (!strcmp(w[0], "burst"))
		burst(w);
	else if (!strcmp(w[0], "parts"))
		parts(w);
	else if (!strcmp(w[0], "overlap"))
		overlap(w);
	else if (!strcmp(w[0], "objects"))
		answer(objects());
	else
		return 0;
	return 1;
}
