/* Completion channels, asynchronous events, fork. */
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int readable(int fd, int timeout_ms)
{
	struct pollfd pollfd = { .fd = fd, .events = POLLIN };

	return poll(&pollfd, 1, timeout_ms);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static void check_notification(struct pair *pair)
{
	struct ibv_cq *cq = NULL;
	void *cq_context = NULL;
	struct ibv_wc wc;

	CHECK(fcntl(pair->channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(pair->channel, &cq, &cq_context) == -1 && errno == EAGAIN);
	CHECK(readable(pair->channel->fd, 0) == 0);
	CHECK(ibv_req_notify_cq(pair->cq[1], 1) == 0);
	post_receive(pair, 1);
	CHECK(post_send(pair, 2, IBV_SEND_SIGNALED, 10) == 0);
	CHECK(completion(pair->cq[0], &wc) == IBV_WC_SUCCESS);
	CHECK(completion(pair->cq[1], &wc) == IBV_WC_SUCCESS);
	/* Armed for solicited completions only. */
	CHECK(readable(pair->channel->fd, 50) == 0);
	post_receive(pair, 3);
	CHECK(post_send(pair, 4, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED, 10) == 0);
	CHECK(readable(pair->channel->fd, 5000) == 1);
	CHECK(ibv_get_cq_event(pair->channel, &cq, &cq_context) == 0);
	CHECK(cq == pair->cq[1] && cq_context == pair);
	CHECK(readable(pair->channel->fd, 0) == 0);
	ibv_ack_cq_events(cq, 1);
	CHECK(cq->comp_events_completed == 1);
	CHECK(completion(pair->cq[0], &wc) == IBV_WC_SUCCESS);
	CHECK(completion(pair->cq[1], &wc) == IBV_WC_SUCCESS);
}

static void *acknowledge_later(void *event)
{
	usleep(100000);
	ibv_ack_async_event(event);
	return NULL;
}

/* The limit of an SRQ: an event when fewer receives are left, and destruction waits for its
 * acknowledgment. */
static void check_srq_limit(struct ibv_context *context)
{
	struct ibv_srq_attr limit = { .srq_limit = 1 }, found;
	struct ibv_async_event event;
	struct ibv_wc wc;
	struct pair pair;
	pthread_t thread;
	double start;

	pair_create(&pair, context);
	CHECK(ibv_modify_srq(pair.srq, &limit, 1 << 20) == EINVAL);
	post_receive(&pair, 1);
	CHECK(ibv_modify_srq(pair.srq, &limit, IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_query_srq(pair.srq, &found) == 0 && found.srq_limit == 1);
	CHECK(readable(context->async_fd, 0) == 0);
	CHECK(post_send(&pair, 1, IBV_SEND_SIGNALED, 8) == 0);
	CHECK(completion(pair.cq[1], &wc) == IBV_WC_SUCCESS);
	CHECK(readable(context->async_fd, 5000) == 1);
	NEED(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == pair.srq);
	CHECK(ibv_destroy_srq(pair.srq) == EBUSY);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(pair.qp[i]) == 0 && ibv_destroy_cq(pair.cq[i]) == 0);
	NEED(pthread_create(&thread, NULL, acknowledge_later, &event) == 0);
	start = seconds();
	CHECK(ibv_destroy_srq(pair.srq) == 0);
	CHECK(seconds() - start > 0.05);
	pthread_join(thread, NULL);
	CHECK(ibv_destroy_comp_channel(pair.channel) == 0);
	CHECK(ibv_dereg_mr(pair.mr) == 0 && ibv_dealloc_pd(pair.pd) == 0);
	free(pair.buffer);
}

void check_events(struct pair *pair)
{
	struct ibv_async_event event;
	int flags = fcntl(pair->context->async_fd, F_GETFL);

	check_notification(pair);
	CHECK(fcntl(pair->context->async_fd, F_SETFL, flags | O_NONBLOCK) == 0);
	CHECK(ibv_get_async_event(pair->context, &event) == -1 && errno == EAGAIN);
	check_srq_limit(pair->context);
}

/* A child closes what it inherited and goes; the parent's connections go on. */
void check_fork(struct pair *pair)
{
	struct ibv_wc wc;
	int status = -1;
	pid_t child;

	CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	CHECK(ibv_fork_init() == 0);
	CHECK(ibv_is_fork_initialized() == IBV_FORK_ENABLED);
	child = fork();
	if (child == 0) {
		int failed = ibv_destroy_qp(pair->qp[0]) || ibv_destroy_qp(pair->qp[1]) ||
			     ibv_dereg_mr(pair->mr) || ibv_destroy_cq(pair->cq[0]) ||
			     ibv_dealloc_pd(pair->pd) || ibv_close_device(pair->context);
		exit(failed ? 1 : 0); /* not _exit: the library's destructors must bear it */
	}
	NEED(child > 0);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	post_receive(pair, 1);
	CHECK(post_send(pair, 2, IBV_SEND_SIGNALED, 10) == 0);
	CHECK(completion(pair->cq[0], &wc) == IBV_WC_SUCCESS);
	CHECK(completion(pair->cq[1], &wc) == IBV_WC_SUCCESS);
}
