// SPDX-License-Identifier: MIT OR Apache-2.0
//
// libcauseway-paths.so: shows a program the device's files without a kernel driver. Its other half,
// libraries.c, opens Causeway's libraries for programs that ask for them by another name.
//
// UCX, NCCL, Mooncake and others look at /sys/class/infiniband and /dev/infiniband themselves,
// beside calling libibverbs. This library, preloaded by `causeway run`, lets the calls by which a
// program names a file see the tree under $CAUSEWAY_SYSFS instead, and nothing else: a path
// elsewhere, and every path while $CAUSEWAY_SYSFS is unset, reaches the C library untouched.
//
// Every wrapper is as async-signal-safe as the function it wraps: it allocates nothing, takes no
// lock, and leaves errno to the wrapped function. The tree's name is copied once, when the library
// is loaded, because getenv(3) races with setenv(3).

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The fortified headers turn the wrapped names into inline functions of the same name.
#ifdef _FORTIFY_SOURCE
#error "build without _FORTIFY_SOURCE: this file defines the functions that it would rename"
#endif

#define EXPORT __attribute__((visibility("default")))

// The root of the tree, without a trailing slash; empty: redirect nothing.
static char tree[PATH_MAX];
static size_t tree_len;

static const char *const redirected[] = {
	"/sys/class/infiniband",
	"/sys/class/infiniband_verbs",
	// Where realpath(3) of the former leads.
	"/sys/devices/virtual/causeway",
	"/dev/infiniband",
};

// True if `path` is `dir` or lies below it.
static int is_below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	return strncmp(path, dir, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

// Copies `path` to `out` with runs of slashes and "." components removed, as the kernel reads it.
// Returns 0 if it does not fit.
static int squeeze(const char *path, char out[PATH_MAX])
{
	size_t n = 0;

	while (*path) {
		if (path[0] == '/' && path[1] == '/') {
			path++;
		} else if (path[0] == '/' && path[1] == '.' && (path[2] == '/' || !path[2])) {
			path += 2;
		} else {
			if (n + 1 >= PATH_MAX)
				return 0;
			out[n++] = *path++;
		}
	}
	out[n] = '\0';
	return 1;
}

// The path to use instead of `path`: `path` itself, or its counterpart in the tree, built in `buf`.
static const char *redirect(const char *path, char buf[PATH_MAX])
{
	if (!tree_len || !path || path[0] != '/')
		return path;
	// Nearly every path of a program ends here.
	if (path[1] != '/' && path[1] != '.' && path[1] != 's' && path[1] != 'd')
		return path;
	char clean[PATH_MAX];
	if (!squeeze(path, clean))
		return path;
	for (size_t i = 0; i < sizeof redirected / sizeof *redirected; i++) {
		if (!is_below(clean, redirected[i]))
			continue;
		size_t len = strlen(clean);
		if (tree_len + len >= PATH_MAX)
			return path;
		memcpy(buf, tree, tree_len);
		memcpy(buf + tree_len, clean, len + 1);
		return buf;
	}
	return path;
}

// Undoes `redirect` in a path the C library returned, so that a program sees /sys/... again.
static char *restore(char *path)
{
	if (!path || !tree_len || !is_below(path, tree))
		return path;
	size_t len = strlen(path + tree_len);
	if (len == 0)
		memcpy(path, "/", 2);
	else
		memmove(path, path + tree_len, len + 1);
	return path;
}

// The wrapped functions, found when the library is loaded: dlsym(3) is not async-signal-safe.
#define WRAPPED(X)                                                                              \
	X(int, stat, (const char *, struct stat *))                                             \
	X(int, lstat, (const char *, struct stat *))                                            \
	X(int, fstatat, (int, const char *, struct stat *, int))                                \
	X(int, stat64, (const char *, struct stat64 *))                                         \
	X(int, lstat64, (const char *, struct stat64 *))                                        \
	X(int, fstatat64, (int, const char *, struct stat64 *, int))                            \
	X(int, __xstat, (int, const char *, struct stat *))                                     \
	X(int, __lxstat, (int, const char *, struct stat *))                                    \
	X(int, __fxstatat, (int, int, const char *, struct stat *, int))                        \
	X(int, __xstat64, (int, const char *, struct stat64 *))                                 \
	X(int, __lxstat64, (int, const char *, struct stat64 *))                                \
	X(int, __fxstatat64, (int, int, const char *, struct stat64 *, int))                    \
	X(int, statx, (int, const char *, int, unsigned int, struct statx *))                   \
	X(int, open, (const char *, int, ...))                                                  \
	X(int, open64, (const char *, int, ...))                                                \
	X(int, openat, (int, const char *, int, ...))                                           \
	X(int, openat64, (int, const char *, int, ...))                                         \
	X(int, __open_2, (const char *, int))                                                   \
	X(int, __open64_2, (const char *, int))                                                 \
	X(int, __openat_2, (int, const char *, int))                                            \
	X(int, __openat64_2, (int, const char *, int))                                          \
	X(FILE *, fopen, (const char *, const char *))                                          \
	X(FILE *, fopen64, (const char *, const char *))                                        \
	X(DIR *, opendir, (const char *))                                                       \
	X(int, scandir, (const char *, struct dirent ***, filter_fn, compare_fn))               \
	X(int, scandir64, (const char *, struct dirent64 ***, filter64_fn, compare64_fn))       \
	X(char *, realpath, (const char *, char *))                                             \
	X(char *, __realpath_chk, (const char *, char *, size_t))                               \
	X(char *, canonicalize_file_name, (const char *))                                       \
	X(ssize_t, readlink, (const char *, char *, size_t))                                    \
	X(ssize_t, readlinkat, (int, const char *, char *, size_t))                             \
	X(ssize_t, __readlink_chk, (const char *, char *, size_t, size_t))                      \
	X(ssize_t, __readlinkat_chk, (int, const char *, char *, size_t, size_t))               \
	X(int, access, (const char *, int))                                                     \
	X(int, eaccess, (const char *, int))                                                    \
	X(int, euidaccess, (const char *, int))                                                 \
	X(int, faccessat, (int, const char *, int, int))                                        \
	X(int, chdir, (const char *))                                                           \
	X(ssize_t, getxattr, (const char *, const char *, void *, size_t))                      \
	X(ssize_t, lgetxattr, (const char *, const char *, void *, size_t))                     \
	X(ssize_t, listxattr, (const char *, char *, size_t))                                   \
	X(ssize_t, llistxattr, (const char *, char *, size_t))

typedef int (*filter_fn)(const struct dirent *);
typedef int (*compare_fn)(const struct dirent **, const struct dirent **);
typedef int (*filter64_fn)(const struct dirent64 *);
typedef int (*compare64_fn)(const struct dirent64 **, const struct dirent64 **);

#define DECLARE(ret, name, args) static ret(*next_##name) args;
WRAPPED(DECLARE)

static void find_next(void)
{
	// __realpath_chk and its like exist in glibc only; a missing one stays NULL and is never
	// called, because the program that calls it was linked against a C library that has it.
#define FIND(ret, name, args) *(void **)&next_##name = dlsym(RTLD_NEXT, #name);
	WRAPPED(FIND)
}

__attribute__((constructor)) static void load(void)
{
	int saved = errno;
	const char *value = secure_getenv("CAUSEWAY_SYSFS");

	find_next();
	if (value && value[0] == '/' && strlen(value) < sizeof tree) {
		size_t len = strlen(value);
		memcpy(tree, value, len + 1);
		while (len && tree[len - 1] == '/')
			tree[--len] = '\0';
		tree_len = len;
	}
	errno = saved;
}

// Another library's constructor may come before ours.
#define NEXT(name) (next_##name ? next_##name : (find_next(), next_##name))

#define WRAP_PATH(ret, name, params, call)                                                      \
	EXPORT ret name params;                                                                 \
	EXPORT ret name params                                                                  \
	{                                                                                       \
		char buf[PATH_MAX];                                                             \
		path = redirect(path, buf);                                                     \
		return NEXT(name) call;                                                         \
	}

WRAP_PATH(int, stat, (const char *path, struct stat *st), (path, st))
WRAP_PATH(int, lstat, (const char *path, struct stat *st), (path, st))
WRAP_PATH(int, stat64, (const char *path, struct stat64 *st), (path, st))
WRAP_PATH(int, lstat64, (const char *path, struct stat64 *st), (path, st))
WRAP_PATH(int, fstatat, (int dir, const char *path, struct stat *st, int flags),
	  (dir, path, st, flags))
WRAP_PATH(int, fstatat64, (int dir, const char *path, struct stat64 *st, int flags),
	  (dir, path, st, flags))
WRAP_PATH(int, __xstat, (int ver, const char *path, struct stat *st), (ver, path, st))
WRAP_PATH(int, __lxstat, (int ver, const char *path, struct stat *st), (ver, path, st))
WRAP_PATH(int, __xstat64, (int ver, const char *path, struct stat64 *st), (ver, path, st))
WRAP_PATH(int, __lxstat64, (int ver, const char *path, struct stat64 *st), (ver, path, st))
WRAP_PATH(int, __fxstatat, (int ver, int dir, const char *path, struct stat *st, int flags),
	  (ver, dir, path, st, flags))
WRAP_PATH(int, __fxstatat64, (int ver, int dir, const char *path, struct stat64 *st, int flags),
	  (ver, dir, path, st, flags))
WRAP_PATH(int, statx,
	  (int dir, const char *path, int flags, unsigned int mask, struct statx *st),
	  (dir, path, flags, mask, st))
WRAP_PATH(int, __open_2, (const char *path, int flags), (path, flags))
WRAP_PATH(int, __open64_2, (const char *path, int flags), (path, flags))
WRAP_PATH(int, __openat_2, (int dir, const char *path, int flags), (dir, path, flags))
WRAP_PATH(int, __openat64_2, (int dir, const char *path, int flags), (dir, path, flags))
WRAP_PATH(FILE *, fopen, (const char *path, const char *mode), (path, mode))
WRAP_PATH(FILE *, fopen64, (const char *path, const char *mode), (path, mode))
WRAP_PATH(DIR *, opendir, (const char *path), (path))
WRAP_PATH(int, scandir,
	  (const char *path, struct dirent ***list, filter_fn filter, compare_fn compare),
	  (path, list, filter, compare))
WRAP_PATH(int, scandir64,
	  (const char *path, struct dirent64 ***list, filter64_fn filter, compare64_fn compare),
	  (path, list, filter, compare))
WRAP_PATH(int, access, (const char *path, int mode), (path, mode))
WRAP_PATH(int, eaccess, (const char *path, int mode), (path, mode))
WRAP_PATH(int, euidaccess, (const char *path, int mode), (path, mode))
WRAP_PATH(int, faccessat, (int dir, const char *path, int mode, int flags),
	  (dir, path, mode, flags))
WRAP_PATH(int, chdir, (const char *path), (path))
WRAP_PATH(ssize_t, getxattr, (const char *path, const char *name, void *value, size_t size),
	  (path, name, value, size))
WRAP_PATH(ssize_t, lgetxattr, (const char *path, const char *name, void *value, size_t size),
	  (path, name, value, size))
WRAP_PATH(ssize_t, listxattr, (const char *path, char *list, size_t size), (path, list, size))
WRAP_PATH(ssize_t, llistxattr, (const char *path, char *list, size_t size), (path, list, size))
WRAP_PATH(ssize_t, readlink, (const char *path, char *buf_out, size_t size),
	  (path, buf_out, size))
WRAP_PATH(ssize_t, readlinkat, (int dir, const char *path, char *buf_out, size_t size),
	  (dir, path, buf_out, size))
WRAP_PATH(ssize_t, __readlink_chk, (const char *path, char *buf_out, size_t size, size_t room),
	  (path, buf_out, size, room))
WRAP_PATH(ssize_t, __readlinkat_chk,
	  (int dir, const char *path, char *buf_out, size_t size, size_t room),
	  (dir, path, buf_out, size, room))

// A directory of the tree resolves to a path inside the tree: give the program the name it knows.
#define WRAP_RESOLVE(name, params, call)                                                        \
	EXPORT char *name params;                                                               \
	EXPORT char *name params                                                                \
	{                                                                                       \
		char buf[PATH_MAX];                                                             \
		const char *wanted = path;                                                      \
		path = redirect(path, buf);                                                     \
		char *found = NEXT(name) call;                                                  \
		return path == wanted ? found : restore(found);                                 \
	}

WRAP_RESOLVE(realpath, (const char *path, char *resolved), (path, resolved))
WRAP_RESOLVE(__realpath_chk, (const char *path, char *resolved, size_t room),
	     (path, resolved, room))
WRAP_RESOLVE(canonicalize_file_name, (const char *path), (path))

// open(2) reads its third argument only with these flags.
static int takes_mode(int flags)
{
	return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

#define WRAP_OPEN(name, params, with_mode, without_mode)                                        \
	EXPORT int name params;                                                                 \
	EXPORT int name params                                                                  \
	{                                                                                       \
		char buf[PATH_MAX];                                                             \
		mode_t mode;                                                                    \
		va_list more;                                                                   \
		path = redirect(path, buf);                                                     \
		if (!takes_mode(flags))                                                         \
			return NEXT(name) without_mode;                                         \
		va_start(more, flags);                                                          \
		mode = va_arg(more, mode_t);                                                    \
		va_end(more);                                                                   \
		return NEXT(name) with_mode;                                                    \
	}

WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode), (path, flags))
WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), (path, flags))
WRAP_OPEN(openat, (int dir, const char *path, int flags, ...), (dir, path, flags, mode),
	  (dir, path, flags))
WRAP_OPEN(openat64, (int dir, const char *path, int flags, ...), (dir, path, flags, mode),
	  (dir, path, flags))
