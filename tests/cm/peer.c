/* One program for all roles of the connection manager's tests. */
#include "peer.h"

#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	const char *role = argc > 1 ? argv[1] : "";

	if (!strcmp(role, "server") && argc == 3)
		return serve(argv[2]);
	if (!strcmp(role, "sequential") && argc == 5)
		return connect_one_by_one(argv[2], argv[3], atoi(argv[4]));
	if (!strcmp(role, "concurrent") && argc == 5)
		return connect_at_once(argv[2], argv[3], atoi(argv[4]));
	if (!strcmp(role, "die") && argc == 5)
		return die_at(argv[2], argv[3], argv[4]);
	if (!strcmp(role, "hold") && argc == 4)
		return hold_one(argv[2], argv[3]);
	if (!strcmp(role, "misuse") && argc == 4)
		return misuse(argv[2], argv[3]);
	if (!strcmp(role, "edges") && argc == 3)
		return hear_each_event(argv[2]);
	if (!strcmp(role, "cancel") && argc == 4)
		return cancelled(argv[2], argv[3]);
	if (!strcmp(role, "signals") && argc == 4)
		return hear_signals(argv[2], argv[3]);
	fail("usage: peer server PORT | sequential, concurrent HOST PORT COUNT |\n"
	     "       die HOST PORT STAGE | hold, misuse, cancel, signals HOST PORT |\n"
	     "       edges HOST");
}
