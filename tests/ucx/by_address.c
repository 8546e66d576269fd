/* A client and a server of UCX that find each other by address, as programs on UCX do: the server
 * accepts what a listener reports, and echoes messages of several sizes; the client compares.
 *
 *   by_address server PORT CLIENTS
 *   by_address client ADDRESS PORT
 */
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

#define LARGEST (256 * 1024)
#define ROUNDS 20
#define SECONDS 60
#define CLIENTS_MAX 16

static const size_t sizes[] = { 1, 64, 4000, 20000, LARGEST };
static ucp_worker_h worker;
static time_t give_up;
static ucp_conn_request_h requests[CLIENTS_MAX];
static int requested;
static bool ended;
static char in[LARGEST], out[LARGEST];

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "by_address: failed: ");
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	exit(1);
}

static void need(ucs_status_t status, const char *what)
{
	if (status != UCS_OK)
		fail("%s: %s", what, ucs_status_string(status));
}

static void progress(void)
{
	if (time(NULL) > give_up)
		fail("nothing happens any more");
	ucp_worker_progress(worker);
}

static ucs_status_t finish(void *request, const char *what)
{
	ucs_status_t status = UCS_OK;

	if (UCS_PTR_IS_ERR(request))
		need(UCS_PTR_STATUS(request), what);
	if (request) {
		while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
			progress();
		ucp_request_free(request);
	}
	return status;
}

static void await(void *request, const char *what)
{
	need(finish(request, what), what);
}

static void send_all(ucp_ep_h ep, size_t size)
{
	ucp_request_param_t param = { 0 };

	await(ucp_stream_send_nbx(ep, out, size, &param), "send");
}

/* The peer ends the connection when it has all, maybe before the last send is known to be done
 * here: UCX cancels it then. Whether all has arrived the peer has compared. */
static void send_last(ucp_ep_h ep, size_t size)
{
	ucp_request_param_t param = { 0 };
	ucs_status_t status = finish(ucp_stream_send_nbx(ep, out, size, &param), "last send");

	if (status != UCS_ERR_CANCELED)
		need(status, "last send");
}

static void receive_all(ucp_ep_h ep, size_t size)
{
	ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
		.flags = UCP_STREAM_RECV_FLAG_WAITALL,
	};
	size_t length = 0;
	void *request = ucp_stream_recv_nbx(ep, in, size, &length, &param);

	await(request, "receive");
}

/* The peer has closed its end, which is the way in which these connections end. */
static void peer_ended(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)arg;
	(void)ep;
	if (status != UCS_ERR_CONNECTION_RESET)
		fail("the connection ended: %s", ucs_status_string(status));
	ended = true;
}

static void requested_by(ucp_conn_request_h request, void *arg)
{
	(void)arg;
	if (requested == CLIENTS_MAX)
		fail("too many clients");
	requests[requested++] = request;
}

static void set_up(void)
{
	ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES,
		.features = UCP_FEATURE_STREAM,
	};
	ucp_worker_params_t of_worker = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SINGLE,
	};
	ucp_config_t *config;
	ucp_context_h context;

	give_up = time(NULL) + SECONDS;
	need(ucp_config_read(NULL, NULL, &config), "configuration");
	need(ucp_init(&params, config, &context), "context");
	ucp_config_release(config);
	need(ucp_worker_create(context, &of_worker, &worker), "worker");
}

static void serve_one(ucp_conn_request_h request)
{
	ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST |
			      UCP_EP_PARAM_FIELD_ERR_HANDLER |
			      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
		.conn_request = request,
		.err_handler.cb = peer_ended,
		.err_mode = UCP_ERR_HANDLING_MODE_PEER,
	};
	ucp_request_param_t close = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
		.flags = UCP_EP_CLOSE_FLAG_FORCE,
	};
	ucp_ep_h ep;

	ended = false;
	need(ucp_ep_create(worker, &params, &ep), "accept");
	for (int round = 0; round < ROUNDS; round++) {
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			receive_all(ep, sizes[i]);
			memcpy(out, in, sizes[i]);
			if (round == ROUNDS - 1 && i == sizeof(sizes) / sizeof(*sizes) - 1)
				send_last(ep, sizes[i]);
			else
				send_all(ep, sizes[i]);
		}
	}
	while (!ended)
		progress();
	await(ucp_ep_close_nbx(ep, &close), "close");
}

static int serve(struct sockaddr_in at, int clients)
{
	ucp_listener_params_t params = {
		.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
			      UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
		.sockaddr = { (struct sockaddr *)&at, sizeof(at) },
		.conn_handler.cb = requested_by,
	};
	ucp_listener_h listener;

	need(ucp_listener_create(worker, &params, &listener), "listen");
	for (int served = 0; served < clients; served++) {
		while (requested == served)
			progress();
		serve_one(requests[served]);
	}
	ucp_listener_destroy(listener);
	printf("%d clients served\n", clients);
	return 0;
}

static int connect_to(struct sockaddr_in peer)
{
	ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
			      UCP_EP_PARAM_FIELD_ERR_HANDLER |
			      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
		.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
		.sockaddr = { (struct sockaddr *)&peer, sizeof(peer) },
		.err_handler.cb = peer_ended,
		.err_mode = UCP_ERR_HANDLING_MODE_PEER,
	};
	ucp_request_param_t close = { 0 };
	ucp_ep_h ep;
	size_t bytes = 0;

	need(ucp_ep_create(worker, &params, &ep), "connect");
	for (int round = 0; round < ROUNDS; round++) {
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			for (size_t at = 0; at < sizes[i]; at++)
				out[at] = (char)(at * 7 + (size_t)round + i);
			send_all(ep, sizes[i]);
			memset(in, 0, sizes[i]);
			receive_all(ep, sizes[i]);
			if (memcmp(in, out, sizes[i]))
				fail("other bytes came back, of %zu", sizes[i]);
			bytes += sizes[i];
		}
	}
	ucp_ep_print_info(ep, stdout);
	await(ucp_ep_close_nbx(ep, &close), "close");
	printf("%zu bytes came back\n", bytes);
	return 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 4)
		fail("usage: by_address server PORT CLIENTS | client ADDRESS PORT");
	set_up();
	if (!strcmp(argv[1], "server")) {
		address.sin_port = htons((uint16_t)atoi(argv[2]));
		return serve(address, atoi(argv[3]));
	}
	address.sin_port = htons((uint16_t)atoi(argv[3]));
	if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
		fail("no address: %s", argv[2]);
	return connect_to(address);
}
