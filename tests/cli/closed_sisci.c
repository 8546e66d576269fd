// SPDX-License-Identifier: MIT OR Apache-2.0
//
// closed_sisci HOW: as closed, for a program of SISCI.

#include "own.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sisci_api.h>

enum { ADAPTER = 0, NUMBER = 17, SEGMENT = 7, BYTES = 65536, WAIT_MS = 100, NAP_US = 100000 };

#define DO(call, ...)                                                                      \
	do {                                                                               \
		call(__VA_ARGS__, &error);                                                 \
		if (error != SCI_ERR_OK) {                                                 \
			fprintf(stderr, "%s: %x\n", #call, error);                         \
			return 1;                                                          \
		}                                                                          \
	} while (0)

static sci_callback_action_t heard(void *arg, sci_local_interrupt_t interrupt, sci_error_t status)
{
	(void)interrupt;
	(void)status;
	++*(volatile int *)arg;
	return SCI_CALLBACK_CONTINUE;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	unsigned int node, number = NUMBER, other = NUMBER + 1;
	volatile int calls = 0;
	sci_local_interrupt_t waited, called;
	sci_remote_interrupt_t remote, to_called;
	sci_local_segment_t segment;
	sci_error_t error;
	sci_map_t map;
	sci_desc_t sd;
	void *memory;

	alarm(60);
	DO(SCIInitialize, 0);
	DO(SCIOpen, &sd, 0);
	DO(SCIGetLocalNodeId, ADAPTER, &node, 0);
	DO(SCICreateSegment, sd, &segment, SEGMENT, BYTES, NULL, NULL, 0);
	DO(SCIPrepareSegment, segment, ADAPTER, 0);
	memory = SCIMapLocalSegment(segment, &map, 0, BYTES, NULL, 0, &error);
	if (error != SCI_ERR_OK)
		return 1;
	DO(SCISetSegmentAvailable, segment, ADAPTER, 0);
	DO(SCICreateInterrupt, sd, &waited, ADAPTER, &number, NULL, NULL, SCI_FLAG_FIXED_INTNO);
	DO(SCICreateInterrupt, sd, &called, ADAPTER, &other, heard, (void *)&calls,
	   SCI_FLAG_FIXED_INTNO | SCI_FLAG_USE_CALLBACK);
	DO(SCIConnectInterrupt, sd, &remote, node, ADAPTER, number, SCI_INFINITE_TIMEOUT, 0);
	DO(SCIConnectInterrupt, sd, &to_called, node, ADAPTER, other, SCI_INFINITE_TIMEOUT, 0);
	DO(SCITriggerInterrupt, remote, 0);
	DO(SCIWaitForInterrupt, waited, SCI_INFINITE_TIMEOUT, 0);
	DO(SCITriggerInterrupt, to_called, 0);
	while (!calls)
		usleep(1000);

	close_all(how);
	open_own(how);
	// None of these need succeed.
	for (int i = 0; i < 3; i++) {
		SCITriggerInterrupt(remote, 0, &error);
		SCITriggerInterrupt(to_called, 0, &error);
	}
	SCIWaitForInterrupt(waited, WAIT_MS, 0, &error);
	check_own("after interrupts");
	memset(memory, 1, BYTES);
	SCISetSegmentUnavailable(segment, ADAPTER, 0, &error);
	check_own("after calls");
	check_child("in a child");
	usleep(NAP_US);
	SCIDisconnectInterrupt(remote, 0, &error);
	SCIRemoveInterrupt(waited, 0, &error);
	SCIUnmapSegment(map, 0, &error);
	SCIRemoveSegment(segment, 0, &error);
	SCIClose(sd, 0, &error);
	SCITerminate();
	check_own("after the end");
	printf("ok\n");
	return 0;
}
