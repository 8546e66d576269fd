// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Calls every function by which a program names a file, on the path given, and prints what each
// says: the test compares the lines with those of the same tree at its real place.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern int __xstat(int ver, const char *path, struct stat *st);
extern int __lxstat(int ver, const char *path, struct stat *st);
extern int __fxstatat(int ver, int dir, const char *path, struct stat *st, int flags);
extern int __open_2(const char *path, int flags);
extern int __openat_2(int dir, const char *path, int flags);
extern char *__realpath_chk(const char *path, char *resolved, size_t room);
extern ssize_t __readlink_chk(const char *path, char *buf, size_t size, size_t room);

#define STAT_VER 1

static void say(const char *call, long result)
{
	printf("%s %s\n", call, result >= 0 ? "ok" : strerrorname_np(errno));
}

// Prints the first line of what an open descriptor reads, or why it could not be opened.
static void say_content(const char *call, int fd)
{
	char line[64] = "";
	ssize_t n;

	if (fd < 0) {
		say(call, fd);
		return;
	}
	n = read(fd, line, sizeof line - 1);
	line[strcspn(line, "\n")] = '\0';
	printf("%s %s\n", call, n >= 0 ? line : strerrorname_np(errno));
	close(fd);
}

static void say_text(const char *call, const char *text)
{
	printf("%s %s\n", call, text ? text : strerrorname_np(errno));
}

static void stats(const char *path)
{
	struct stat st;
	struct stat64 st64;
	struct statx stx;

	say("stat", stat(path, &st));
	say("lstat", lstat(path, &st));
	say("fstatat", fstatat(AT_FDCWD, path, &st, 0));
	say("stat64", stat64(path, &st64));
	say("lstat64", lstat64(path, &st64));
	say("fstatat64", fstatat64(AT_FDCWD, path, &st64, 0));
	say("__xstat", __xstat(STAT_VER, path, &st));
	say("__lxstat", __lxstat(STAT_VER, path, &st));
	say("__fxstatat", __fxstatat(STAT_VER, AT_FDCWD, path, &st, 0));
	say("statx", statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &stx));
	say("access", access(path, R_OK));
	say("eaccess", eaccess(path, R_OK));
	say("faccessat", faccessat(AT_FDCWD, path, R_OK, 0));
}

static void opens(const char *path)
{
	FILE *stream;

	say_content("open", open(path, O_RDONLY));
	say_content("open64", open64(path, O_RDONLY));
	say_content("openat", openat(AT_FDCWD, path, O_RDONLY));
	say_content("openat64", openat64(AT_FDCWD, path, O_RDONLY));
	say_content("__open_2", __open_2(path, O_RDONLY));
	say_content("__openat_2", __openat_2(AT_FDCWD, path, O_RDONLY));
	stream = fopen(path, "r");
	say_content("fopen", stream ? dup(fileno(stream)) : -1);
	if (stream)
		fclose(stream);
}

static void lists(const char *path)
{
	struct dirent **list;
	DIR *dir = opendir(path);
	int n = scandir(path, &list, NULL, alphasort);

	say("opendir", dir ? 0 : -1);
	if (dir)
		closedir(dir);
	say("scandir", n);
	while (n-- > 0)
		free(list[n]);
}

static void names(const char *path)
{
	char buf[PATH_MAX] = "";
	char *found = realpath(path, NULL);
	ssize_t n;

	say_text("realpath", found);
	free(found);
	say_text("realpath-buf", realpath(path, buf));
	say_text("__realpath_chk", __realpath_chk(path, buf, sizeof buf));
	found = canonicalize_file_name(path);
	say_text("canonicalize_file_name", found);
	free(found);
	memset(buf, 0, sizeof buf);
	n = readlink(path, buf, sizeof buf - 1);
	say_text("readlink", n >= 0 ? buf : NULL);
	n = readlinkat(AT_FDCWD, path, buf, sizeof buf - 1);
	say_text("readlinkat", n >= 0 ? buf : NULL);
	n = __readlink_chk(path, buf, sizeof buf - 1, sizeof buf);
	say_text("__readlink_chk", n >= 0 ? buf : NULL);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		printf("== %d\n", i);
		stats(argv[i]);
		opens(argv[i]);
		lists(argv[i]);
		names(argv[i]);
	}
	// The caller's errno must survive a successful call.
	struct stat st;
	errno = EXDEV;
	say("errno", stat("/", &st) == 0 && errno == EXDEV ? 0 : -1);
	return 0;
}
