/*
 * A hostile process of a node daemon's relay, which sends it what no library would:
 *
 *	carried VERSION NODE
 *
 * VERSION is that of the remoting protocol, NODE one of another host. It says what the relay has
 * answered wrongly, if anything.
 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RELAY_NUMBER 0xffffffffu
#define RELAY_VERSION 1
#define NODE_SERVICE 3
#define RELAY_SERVICE 5
#define CONNECT 1
#define JOIN 2
#define HEADER 24
#define SEGMENT (1u << 20)
/* The methods by which a process says who it is. */
#define OPEN 64
#define HELLO 70
#define PROVE 71

static unsigned int version, own;
static sci_desc_t sd;

/* A pipe to the relay: what goes there, and what comes back. */
struct pipe {
	sci_remote_data_interrupt_t out;
	sci_local_data_interrupt_t in;
};

static void put(unsigned char *at, unsigned int value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		at[i] = (unsigned char)(value >> 8 * i);
}

static unsigned int get(const unsigned char *at)
{
	return at[0] | at[1] << 8 | at[2] << 16 | (unsigned int)at[3] << 24;
}

static void trigger(struct pipe *pipe, const void *record, unsigned int len)
{
	sci_error_t error;

	/* The relay may have left. */
	SCITriggerDataInterrupt(pipe->out, (void *)(uintptr_t)record, len, NO_FLAGS, &error);
}

/* Greets in a version, naming a number; 0 stands for an interrupt of this process. */
static struct pipe greet(unsigned int greeted, unsigned int number)
{
	unsigned char record[8];
	unsigned int got = 0;
	struct pipe pipe;

	DO(SCIConnectDataInterrupt, sd, &pipe.out, own, ADAPTER, RELAY_NUMBER, LONG_MS, NO_FLAGS);
	DO(SCICreateDataInterrupt, sd, &pipe.in, ADAPTER, &got, NULL, NO_ARG, NO_FLAGS);
	put(record, greeted, 4);
	put(record + 4, number ? number : got, 4);
	trigger(&pipe, record, sizeof(record));
	return pipe;
}

static void leave(struct pipe *pipe)
{
	DO(SCIDisconnectDataInterrupt, pipe->out, NO_FLAGS);
	DO(SCIRemoveDataInterrupt, pipe->in, NO_FLAGS);
}

static void send_message(struct pipe *pipe, int service, int method, const void *body,
			 unsigned int len)
{
	unsigned char message[4 + HEADER + 64] = {0};

	put(message, HEADER + len, 4);
	put(message + 4, 0x5743, 2);
	put(message + 6, version, 2);
	put(message + 8, (unsigned int)service, 2);
	put(message + 10, (unsigned int)method, 2);
	put(message + 12, 1, 4);
	put(message + 20, len, 4);
	memcpy(message + 4 + HEADER, body, len);
	trigger(pipe, message, 4 + HEADER + len);
}

/* The status of the answer, and the first word of its body. */
static int answer(struct pipe *pipe, unsigned int *word)
{
	unsigned char message[4096];
	unsigned int len = sizeof(message);
	sci_error_t error;

	SCIWaitForDataInterrupt(pipe->in, message, &len, LONG_MS, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK && len >= 4 + HEADER);
	if (word)
		*word = get(message + 4 + HEADER);
	return (int)get(message + 16);
}

static int ask(struct pipe *pipe, int service, int method, const void *body, unsigned int len)
{
	send_message(pipe, service, method, body, len);
	return answer(pipe, NULL);
}

static int join_with(struct pipe *pipe, unsigned int interrupt, unsigned int segment)
{
	unsigned char body[8];

	put(body, interrupt, 4);
	put(body + 4, segment, 4);
	return ask(pipe, RELAY_SERVICE, JOIN, body, sizeof(body));
}

static void greetings(void)
{
	struct pipe pipes[] = {
		greet(RELAY_VERSION + 1, 0), greet(RELAY_VERSION, RELAY_NUMBER),
		greet(RELAY_VERSION, 12345),
	};

	for (unsigned int i = 0; i < COUNT(pipes); i++)
		leave(&pipes[i]);
}

static void messages(unsigned int node)
{
	static const int own_methods[] = { OPEN, HELLO, PROVE };
	unsigned char body[4], rubbish[4000];
	struct pipe pipe = greet(RELAY_VERSION, 0);

	/* Before all else. */
	EXPECT(join_with(&pipe, 1, 1) == ENOTCONN);
	EXPECT(ask(&pipe, NODE_SERVICE, 3, body, 4) == ENOTCONN);
	EXPECT(ask(&pipe, RELAY_SERVICE, 99, body, 0) == ENOSYS);
	EXPECT(ask(&pipe, RELAY_SERVICE, CONNECT, body, 3) == EBADMSG);
	put(body, own, 4);
	EXPECT(ask(&pipe, RELAY_SERVICE, CONNECT, body, 4) == EHOSTUNREACH);
	put(body, node, 4);
	EXPECT(ask(&pipe, RELAY_SERVICE, CONNECT, body, 4) == 0);
	EXPECT(ask(&pipe, RELAY_SERVICE, CONNECT, body, 4) == EISCONN);
	for (unsigned int i = 0; i < COUNT(own_methods); i++)
		EXPECT(ask(&pipe, NODE_SERVICE, own_methods[i], body, 4) == EPERM);
	memset(rubbish, 0xff, sizeof(rubbish));
	trigger(&pipe, rubbish, sizeof(rubbish));
	leave(&pipe);
}

static unsigned int offer_segment(sci_local_segment_t *segment, unsigned int id, unsigned int size)
{
	DO(SCICreateSegment, sd, segment, id, size, NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCIPrepareSegment, *segment, ADAPTER, NO_FLAGS);
	DO(SCISetSegmentAvailable, *segment, ADAPTER, NO_FLAGS);
	return id;
}

/* A record that is sent as a request: the operation, and place and length. */
static void request(unsigned int node, unsigned int segment, const unsigned int *fields)
{
	unsigned char body[8], record[21] = {0};
	unsigned int number = 0, relays;
	struct pipe pipe = greet(RELAY_VERSION, 0), data;

	put(body, node, 4);
	EXPECT(ask(&pipe, RELAY_SERVICE, CONNECT, body, 4) == 0);
	DO(SCICreateDataInterrupt, sd, &data.in, ADAPTER, &number, NULL, NO_ARG, NO_FLAGS);
	put(body, number, 4);
	put(body + 4, segment, 4);
	send_message(&pipe, RELAY_SERVICE, JOIN, body, sizeof(body));
	EXPECT(answer(&pipe, &relays) == 0);
	DO(SCIConnectDataInterrupt, sd, &data.out, own, ADAPTER, relays, LONG_MS, NO_FLAGS);
	record[0] = (unsigned char)fields[0];
	put(record + 13, fields[1], 4);
	put(record + 17, fields[2], 4);
	trigger(&data, record, sizeof(record));
	leave(&data);
	leave(&pipe);
}

int main(int argc, char **argv)
{
	/* Operation, place, bytes. */
	static const unsigned int requests[][3] = {
		{ 1, SEGMENT, 1 }, { 2, SEGMENT - 1, 2 }, { 1, 0xffffffff, 0xffffffff },
		{ 2, 0, 0 }, { 1, 0, 0x4001 }, { 9, 0, 1 }, { 3, 0, 1 },
	};
	sci_local_segment_t fitting, large;
	unsigned int node, id, too_large;
	unsigned char body[4];
	struct pipe pipe;

	if (argc != 3)
		return 2;
	version = (unsigned int)atoi(argv[1]);
	node = (unsigned int)atoi(argv[2]);
	sd = open_library();
	own = own_node();
	greetings();
	messages(node);
	id = offer_segment(&fitting, 700, SEGMENT);
	too_large = offer_segment(&large, 701, 2 * SEGMENT);
	pipe = greet(RELAY_VERSION, 0);
	put(body, node, 4);
	EXPECT(ask(&pipe, RELAY_SERVICE, CONNECT, body, 4) == 0);
	EXPECT(join_with(&pipe, 1, too_large) == EMFILE);
	EXPECT(join_with(&pipe, 1, 799) == ENOENT);
	EXPECT(join_with(&pipe, 12345, id) == ENOENT);
	leave(&pipe);
	for (unsigned int i = 0; i < COUNT(requests); i++)
		request(node, id, requests[i]);
	puts("done");
	return 0;
}
