/* Interrupts with and without data, back and forth: intr client|server ROUNDS */
#include "common.h"

#define BASE 12

int main(int argc, char *argv[])
{
	int client = argc > 1 && !strcmp(argv[1], "client");
	unsigned int rounds = argc > 2 ? (unsigned int)atoi(argv[2]) : 100;
	unsigned int number = BASE + client, data_number = BASE + 2 + client, node, length;
	char text[64], answer[64];
	sci_desc_t sd;
	sci_error_t error;
	sci_local_interrupt_t local;
	sci_remote_interrupt_t remote;
	sci_local_data_interrupt_t inbox;
	sci_remote_data_interrupt_t outbox;

	SCIInitialize(NO_FLAGS, &error);
	CHECK("SCIInitialize", error);
	SCIOpen(&sd, NO_FLAGS, &error);
	CHECK("SCIOpen", error);
	SCIGetLocalNodeId(0, &node, NO_FLAGS, &error);
	CHECK("SCIGetLocalNodeId", error);
	SCICreateInterrupt(sd, &local, 0, &number, NO_CALLBACK, NO_ARG, SCI_FLAG_FIXED_INTNO,
			&error);
	CHECK("SCICreateInterrupt", error);
	SCICreateDataInterrupt(sd, &inbox, 0, &data_number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO, &error);
	CHECK("SCICreateDataInterrupt", error);
	do {
		SCIConnectInterrupt(sd, &remote, node, 0, BASE + !client, SCI_INFINITE_TIMEOUT,
				NO_FLAGS, &error);
	} while (error != SCI_ERR_OK);
	do {
		SCIConnectDataInterrupt(sd, &outbox, node, 0, BASE + 2 + !client,
				SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	} while (error != SCI_ERR_OK);
	for (unsigned int i = 0; i < rounds; i++) {
		if (client) {
			SCITriggerInterrupt(remote, NO_FLAGS, &error);
			CHECK("SCITriggerInterrupt", error);
		}
		SCIWaitForInterrupt(local, SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
		CHECK("SCIWaitForInterrupt", error);
		if (!client) {
			SCITriggerInterrupt(remote, NO_FLAGS, &error);
			CHECK("SCITriggerInterrupt", error);
		}
	}
	snprintf(text, sizeof(text), "data from the %s", argv[1]);
	SCITriggerDataInterrupt(outbox, text, sizeof(text), NO_FLAGS, &error);
	CHECK("SCITriggerDataInterrupt", error);
	length = sizeof(answer);
	SCIWaitForDataInterrupt(inbox, answer, &length, SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	CHECK("SCIWaitForDataInterrupt", error);
	printf("%s, %u bytes\n", answer, length);
	/* Until the other has heard too. */
	SCITriggerInterrupt(remote, NO_FLAGS, &error);
	CHECK("SCITriggerInterrupt", error);
	SCIWaitForInterrupt(local, SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	CHECK("SCIWaitForInterrupt", error);
	SCIDisconnectInterrupt(remote, NO_FLAGS, &error);
	CHECK("SCIDisconnectInterrupt", error);
	SCIDisconnectDataInterrupt(outbox, NO_FLAGS, &error);
	CHECK("SCIDisconnectDataInterrupt", error);
	SCIRemoveInterrupt(local, NO_FLAGS, &error);
	CHECK("SCIRemoveInterrupt", error);
	SCIRemoveDataInterrupt(inbox, NO_FLAGS, &error);
	CHECK("SCIRemoveDataInterrupt", error);
	SCIClose(sd, NO_FLAGS, &error);
	CHECK("SCIClose", error);
	SCITerminate();
	return strncmp(answer, "data from the ", 14) != 0;
}
