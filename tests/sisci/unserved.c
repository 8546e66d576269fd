/* What is left where no broker is to be had: the library says so, and asks again each time. */
#include "check.h"

static void refused(void)
{
	sci_desc_t sd;
	unsigned int node;

	DO(SCIInitialize, NO_FLAGS);
	for (int again = 0; again < 3; again++) {
		REFUSED(SCI_ERR_SYSTEM, SCIOpen, &sd, NO_FLAGS);
		REFUSED(SCI_ERR_SYSTEM, SCIGetLocalNodeId, ADAPTER, &node, NO_FLAGS);
	}
	EXPECT(strstr(SCIGetErrorString(SCI_ERR_SYSTEM), "broker"));
	SCITerminate();
}

int main(void)
{
	static const struct test tests[] = {{"refused without a broker", refused}};

	return run_tests(tests, COUNT(tests));
}
