/*
 * Calls by data interrupts: rpc client|server CALLS. A call names the data interrupt that its reply
 * is to come by; the server connects to it, and replies, in the callback that the call came to.
 */
#include "common.h"

#define SERVICE_NO 1234
#define MAX_BYTES 1024
#define WAIT_MS 20000

enum operation { INVERT, STOP };

struct call {
	unsigned int number, node, reply_to, operation, length;
	unsigned char bytes[MAX_BYTES];
};

#define CALL_BYTES(call) ((unsigned int)(sizeof(*(call)) - MAX_BYTES + (call)->length))

static sci_desc_t sd;

struct service {
	volatile int stopped;
	unsigned int served;
	int connected;
	sci_remote_data_interrupt_t caller;
};

static sci_callback_action_t on_call(void *arg, sci_local_data_interrupt_t interrupt, void *data,
		unsigned int length, sci_error_t status)
{
	struct service *service = arg;
	struct call call;
	sci_error_t error;

	(void)interrupt;
	CHECK("the callback", status);
	memcpy(&call, data, length);
	if (!service->connected) {
		SCIConnectDataInterrupt(sd, &service->caller, call.node, 0, call.reply_to, WAIT_MS,
				NO_FLAGS, &error);
		CHECK("SCIConnectDataInterrupt", error);
		service->connected = 1;
	}
	for (unsigned int i = 0; i < call.length; i++)
		call.bytes[i] = (unsigned char)~call.bytes[i];
	SCITriggerDataInterrupt(service->caller, &call, CALL_BYTES(&call), NO_FLAGS, &error);
	CHECK("SCITriggerDataInterrupt", error);
	service->served++;
	if (call.operation == STOP)
		service->stopped = 1;
	return SCI_CALLBACK_CONTINUE;
}

static void server(void)
{
	struct service service = {0, 0, 0, NULL};
	sci_local_data_interrupt_t interrupt;
	unsigned int number = SERVICE_NO;
	sci_error_t error;

	SCICreateDataInterrupt(sd, &interrupt, 0, &number, on_call, &service,
			SCI_FLAG_FIXED_INTNO | SCI_FLAG_USE_CALLBACK, &error);
	CHECK("SCICreateDataInterrupt", error);
	while (!service.stopped)
		usleep(1000);
	SCIRemoveDataInterrupt(interrupt, NO_FLAGS, &error);
	CHECK("SCIRemoveDataInterrupt", error);
	SCIDisconnectDataInterrupt(service.caller, NO_FLAGS, &error);
	CHECK("SCIDisconnectDataInterrupt", error);
	printf("%u calls\n", service.served);
}

static void make_call(sci_remote_data_interrupt_t service, sci_local_data_interrupt_t replies,
		struct call *call)
{
	unsigned char sent = (unsigned char)call->number;
	unsigned int length = sizeof(*call);
	struct call reply;
	sci_error_t error;

	memset(call->bytes, sent, call->length);
	SCITriggerDataInterrupt(service, call, CALL_BYTES(call), NO_FLAGS, &error);
	CHECK("SCITriggerDataInterrupt", error);
	SCIWaitForDataInterrupt(replies, &reply, &length, WAIT_MS, NO_FLAGS, &error);
	CHECK("SCIWaitForDataInterrupt", error);
	if (reply.number != call->number || length != CALL_BYTES(call)) {
		fprintf(stderr, "call %u is answered by %u\n", call->number, reply.number);
		exit(EXIT_FAILURE);
	}
	for (unsigned int i = 0; i < reply.length; i++)
		if (reply.bytes[i] != (unsigned char)~sent) {
			fprintf(stderr, "call %u: byte %u is wrong\n", call->number, i);
			exit(EXIT_FAILURE);
		}
}

static void client(unsigned int calls)
{
	struct call call = {0, local_node_id(0), 0, INVERT, 0, {0}};
	sci_remote_data_interrupt_t service;
	sci_local_data_interrupt_t replies;
	sci_error_t error;

	SCICreateDataInterrupt(sd, &replies, 0, &call.reply_to, NO_CALLBACK, NO_ARG, NO_FLAGS,
			&error);
	CHECK("SCICreateDataInterrupt", error);
	do {
		SCIConnectDataInterrupt(sd, &service, call.node, 0, SERVICE_NO,
				SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	} while (error == SCI_ERR_NO_SUCH_INTNO);
	CHECK("SCIConnectDataInterrupt", error);
	for (; call.number < calls; call.number++) {
		call.length = call.number % MAX_BYTES;
		call.operation = call.number + 1 < calls ? INVERT : STOP;
		make_call(service, replies, &call);
	}
	SCIDisconnectDataInterrupt(service, NO_FLAGS, &error);
	CHECK("SCIDisconnectDataInterrupt", error);
	SCIRemoveDataInterrupt(replies, NO_FLAGS, &error);
	CHECK("SCIRemoveDataInterrupt", error);
}

int main(int argc, char *argv[])
{
	sci_error_t error;

	if (argc != 3)
		return EXIT_FAILURE;
	SCIInitialize(NO_FLAGS, &error);
	CHECK("SCIInitialize", error);
	SCIOpen(&sd, NO_FLAGS, &error);
	CHECK("SCIOpen", error);
	if (!strcmp(argv[1], "client"))
		client((unsigned int)atoi(argv[2]));
	else
		server();
	SCIClose(sd, NO_FLAGS, &error);
	CHECK("SCIClose", error);
	SCITerminate();
	return EXIT_SUCCESS;
}
