/* Messages by data interrupts, taken by a callback: mailbox client|server */
#include "common.h"

#define INTERRUPT_NO 77
#define MESSAGES 500

struct message {
	unsigned int number;
	char text[60];
};

static volatile unsigned int received;

static sci_callback_action_t on_message(void *arg, sci_local_data_interrupt_t interrupt,
		void *data, unsigned int length, sci_error_t status)
{
	struct message *message = data;

	(void)interrupt;
	if (status != SCI_ERR_OK || length != sizeof(*message) || message->number != received ||
			strcmp(message->text, arg)) {
		fprintf(stderr, "message %u is not what it should be\n", received);
		exit(EXIT_FAILURE);
	}
	received++;
	return received < MESSAGES ? SCI_CALLBACK_CONTINUE : SCI_CALLBACK_CANCEL;
}

static void client(sci_desc_t sd)
{
	struct message message = {0, "a message"};
	sci_remote_data_interrupt_t interrupt;
	sci_error_t error;

	do {
		SCIConnectDataInterrupt(sd, &interrupt, local_node_id(0), 0, INTERRUPT_NO,
				SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	} while (error != SCI_ERR_OK);
	while (message.number < MESSAGES) {
		SCITriggerDataInterrupt(interrupt, &message, sizeof(message), NO_FLAGS, &error);
		switch (error) {
		case SCI_ERR_OK:
			message.number++;
			break;
		case SCI_ERR_NOSPC:
			usleep(100);
			break;
		default:
			CHECK("SCITriggerDataInterrupt", error);
		}
	}
	SCIDisconnectDataInterrupt(interrupt, NO_FLAGS, &error);
	CHECK("SCIDisconnectDataInterrupt", error);
}

static void server(sci_desc_t sd)
{
	char text[] = "a message";
	sci_local_data_interrupt_t interrupt;
	unsigned int number = INTERRUPT_NO;
	sci_error_t error;

	SCICreateDataInterrupt(sd, &interrupt, 0, &number, on_message, text,
			SCI_FLAG_FIXED_INTNO | SCI_FLAG_USE_CALLBACK, &error);
	CHECK("SCICreateDataInterrupt", error);
	while (received < MESSAGES)
		usleep(100);
	SCIRemoveDataInterrupt(interrupt, NO_FLAGS, &error);
	CHECK("SCIRemoveDataInterrupt", error);
	printf("%u messages\n", received);
}

int main(int argc, char *argv[])
{
	sci_desc_t sd;
	sci_error_t error;

	SCIInitialize(NO_FLAGS, &error);
	CHECK("SCIInitialize", error);
	SCIOpen(&sd, NO_FLAGS, &error);
	CHECK("SCIOpen", error);
	if (argc > 1 && !strcmp(argv[1], "client"))
		client(sd);
	else
		server(sd);
	SCIClose(sd, NO_FLAGS, &error);
	CHECK("SCIClose", error);
	SCITerminate();
	return EXIT_SUCCESS;
}
