/* The conventions of the calls: return values, errno, public fields, waiting. One process. */
#include "check.h"

int main(void)
{
	struct ibv_context *context = open_first(), *second = open_first();
	struct pair pair;

	CHECK(context != second);
	CHECK(ibv_close_device(second) == 0);
	check_queries(context);
	check_creation(context);
	check_unsupported(context);
	check_buffers(context);
	pair_create(&pair, context);
	check_posting(&pair);
	check_events(&pair);
	check_fork(&pair);
	pair_destroy(&pair);
	check_extended(context);
	CHECK(ibv_close_device(context) == 0);
	return failures != 0;
}
