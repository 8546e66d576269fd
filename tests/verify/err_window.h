/* What the cases about memory windows have in common. */
#ifndef CAUSEWAY_VERIFY_ERR_WINDOW_H
#define CAUSEWAY_VERIFY_ERR_WINDOW_H

#include "err.h"

/* Part of the buffer that windows are bound to, unless said otherwise. */
#define WINDOW_AT 8192
#define WINDOW_BYTES 16384
#define REMOTE_ACCESS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
/* A region that peers reach by windows only, and one that they reach by its own key too. */
#define HIDDEN (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)
#define OPEN (ANY_ACCESS | IBV_ACCESS_MW_BIND)

/* A pair, of which b binds windows to its buffer. */
struct scene {
	struct pair p;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	/* The window's address, as the peer names it. */
	uint64_t at;
	uint32_t rkey;
};

/* What binds a window to that part. */
struct ibv_mw_bind_info info_of(struct side *s, struct ibv_mr *mr, int access);
/* Posts a BIND_MW of `mw`, which gets the key `rkey`. */
int post_bind(struct side *s, uint64_t wr_id, struct ibv_mw *mw, uint32_t rkey,
	      struct ibv_mw_bind_info info);
/* Posts a request that invalidates a key. */
int post_inv(struct side *s, uint64_t wr_id, enum ibv_wr_opcode op, uint32_t rkey);
/* A pair, and a window of type 2 bound by b. */
void scene_open(struct env *env, struct scene *s, int mr_access, int access);
/* An access that succeeds. */
void allowed(struct pair *p, enum ibv_wr_opcode op, uint32_t len, uint64_t at, uint32_t rkey);

#endif
