// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What a program does that becomes a daemon: it closes every descriptor that it does not know, and
// opens files and sockets of its own under their numbers.

#define _GNU_SOURCE
#include "own.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	// More than the library has.
	FILES = 96,
	PAIRS = 32,
	FILE_BYTES = 4096,
	AT = 16,
	HIGHEST = 4096,
	FAILED = 3,
};

#define need(good, what)                                                                   \
	do {                                                                               \
		if (!(good))                                                               \
			err(FAILED, "%s", what);                                           \
	} while (0)

static int files[FILES];
static int pairs[PAIRS][2];

static int new_file(void)
{
	char text[FILE_BYTES];
	int fd = memfd_create("own", 0);

	memset(text, 'x', sizeof text);
	need(fd >= 0 && write(fd, text, sizeof text) == sizeof text, "file");
	need(lseek(fd, AT, SEEK_SET) == AT, "lseek");
	return fd;
}

// dup2(2) fails with EBUSY where another thread is just about to open that number.
static void put(int file, int fd)
{
	int put;

	do {
		put = dup2(file, fd);
	} while (put < 0 && errno == EBUSY);
	need(put == fd, "dup2");
}

void close_all(const char *how)
{
	if (strcmp(how, "range") == 0) {
		need(syscall(SYS_close_range, 3, ~0U, 0) == 0, "close_range");
	} else if (strcmp(how, "loop") == 0) {
		for (int fd = 3; fd < HIGHEST; fd++)
			syscall(SYS_close, fd);
	} else {
		// Files take the places of what is open, the other half of it stays.
		for (int i = 0; i < FILES; i += 2) {
			int fd = 3 + i;

			files[i] = fd;
			if (fcntl(fd, F_GETFD) >= 0) {
				int file = new_file();

				put(file, fd);
				close(file);
			} else {
				put(new_file(), fd);
			}
		}
	}
}

void open_own(const char *how)
{
	bool all = strcmp(how, "dup2") != 0;

	for (int i = 0; i < FILES; i++) {
		if (all || i % 2)
			files[i] = new_file();
	}
	for (int i = 0; i < PAIRS; i++) {
		int type = i % 2 ? SOCK_STREAM : SOCK_DGRAM;

		need(socketpair(AF_UNIX, type, 0, pairs[i]) == 0, "socketpair");
		need(write(pairs[i][0], "hello", 5) == 5, "write");
	}
}

void check_own(const char *when)
{
	for (int i = 0; i < FILES; i++) {
		char text[FILE_BYTES + 2] = "";

		if (pread(files[i], text, FILE_BYTES + 1, 0) != FILE_BYTES)
			errx(FAILED, "%s: file %d has another length: %m", when, files[i]);
		if (strspn(text, "x") < FILE_BYTES)
			errx(FAILED, "%s: file %d was written to", when, files[i]);
		if (lseek(files[i], 0, SEEK_CUR) != AT)
			errx(FAILED, "%s: file %d was read or written", when, files[i]);
	}
	for (int i = 0; i < PAIRS; i++) {
		char text[64];
		ssize_t n = recv(pairs[i][1], text, sizeof text, MSG_PEEK | MSG_DONTWAIT);

		if (n != 5 || memcmp(text, "hello", 5) != 0)
			errx(FAILED, "%s: the sockets %d, %d: %zd bytes", when, pairs[i][0],
			     pairs[i][1], n);
		if (recv(pairs[i][0], text, sizeof text, MSG_PEEK | MSG_DONTWAIT) != -1)
			errx(FAILED, "%s: something was sent by socket %d", when, pairs[i][1]);
	}
}


void check_child(const char *when)
{
	int status = 0;
	pid_t child = fork();

	need(child >= 0, "fork");
	if (child == 0) {
		check_own(when);
		_exit(0);
	}
	need(waitpid(child, &status, 0) == child, "waitpid");
	if (status)
		errx(FAILED, "%s: a child lacks its files", when);
}
