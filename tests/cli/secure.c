/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* secure [settle]: opens the device, and names the LID of its port if that has one. It may be a
 * set-user-id program; with `settle` it takes on the user that it runs for altogether, before. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	uid_t user = geteuid();
	struct ibv_device **list;
	struct ibv_context *context;
	struct ibv_port_attr port;

	(void)argv;
	if (argc > 1 && setresuid(user, user, user))
		return 2;
	list = ibv_get_device_list(NULL);
	context = list && *list ? ibv_open_device(*list) : NULL;
	if (context && !ibv_query_port(context, 1, &port) && port.lid)
		printf("LID %u\n", port.lid);
	else
		puts(context ? "opened" : strerror(errno));
	return 0;
}
