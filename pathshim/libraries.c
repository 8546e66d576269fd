// SPDX-License-Identifier: MIT OR Apache-2.0
//
// dlopen(3) and dlmopen(3) of libibverbs and librdmacm, under whatever name, give Causeway's.
//
// LD_PRELOAD answers for the names that a program is linked with. A program that opens a library
// while it runs may say libibverbs.so, as the development packages call it, or give a path, or
// open it in a namespace of its own; the distribution's library, which has no devices, would come
// then. The libraries meant are those beside this one. Every other name reaches the C library
// untouched, and from its caller: see below.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the two functions below are written for x86-64 and aarch64"
#endif

// What is beside this library; empty if it is not there.
static struct {
	const char *name;
	char path[PATH_MAX];
} ours[] = { { .name = "libibverbs.so.1" }, { .name = "librdmacm.so.1" } };

// The C library's functions. Not static: the code below names them.
__attribute__((visibility("hidden"))) void *causeway_next_dlopen;
__attribute__((visibility("hidden"))) void *causeway_next_dlmopen;
__attribute__((visibility("hidden"))) const char *causeway_library(const char *name);

__attribute__((constructor)) static void load(void)
{
	int saved = errno;
	Dl_info self;

	causeway_next_dlopen = dlsym(RTLD_NEXT, "dlopen");
	causeway_next_dlmopen = dlsym(RTLD_NEXT, "dlmopen");
	// The name as it stands in LD_PRELOAD: what is loaded under the same directory is found by
	// it even if the program has changed its root directory meanwhile.
	if (!dladdr(ours, &self) || !self.dli_fname || self.dli_fname[0] != '/') {
		errno = saved;
		return;
	}
	size_t dir = (size_t)(strrchr(self.dli_fname, '/') - self.dli_fname) + 1;
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
		if (dir + strlen(ours[i].name) >= sizeof ours[i].path)
			continue;
		memcpy(ours[i].path, self.dli_fname, dir);
		strcpy(ours[i].path + dir, ours[i].name);
		if (access(ours[i].path, R_OK) != 0)
			ours[i].path[0] = '\0';
	}
	errno = saved;
}

// True if `base` is `name`, which ends in ".so.1", without the version or with a longer one.
static int means(const char *base, const char *name)
{
	size_t len = strlen(name), bare = len - strlen(".1");

	if (strncmp(base, name, len) == 0)
		return base[len] == '\0' || base[len] == '.';
	return strncmp(base, name, bare) == 0 && base[bare] == '\0';
}

// The library to open for `name`: ours if it is one of the two, else `name` itself.
const char *causeway_library(const char *name)
{
	// Another library's constructor may come before ours.
	if (!causeway_next_dlopen)
		load();
	if (!name)
		return name;
	const char *slash = strrchr(name, '/');
	const char *base = slash ? slash + 1 : name;
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if (ours[i].path[0] && means(base, ours[i].name))
			return ours[i].path;
	return name;
}

// The C library takes the directories to search (RPATH, RUNPATH, $ORIGIN) and the namespace from
// the object that called it, which it knows by the return address. So these two replace the name
// and jump, with the caller's return address in place; a function in C would be the caller itself.
#ifdef __x86_64__
__asm__(".text\n"
	".globl dlopen\n"
	".type dlopen, @function\n"
	"dlopen:\n"
	"	.cfi_startproc\n"
	"	endbr64\n"
	"	push %rsi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	call causeway_library\n"
	"	pop %rsi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	mov %rax, %rdi\n"
	"	jmp *causeway_next_dlopen(%rip)\n"
	"	.cfi_endproc\n"
	".size dlopen, . - dlopen\n"
	".globl dlmopen\n"
	".type dlmopen, @function\n"
	"dlmopen:\n"
	"	.cfi_startproc\n"
	"	endbr64\n"
	"	push %rdi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	push %rdx\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	sub $8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	mov %rsi, %rdi\n"
	"	call causeway_library\n"
	"	mov %rax, %rsi\n"
	"	add $8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	pop %rdx\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	pop %rdi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	jmp *causeway_next_dlmopen(%rip)\n"
	"	.cfi_endproc\n"
	".size dlmopen, . - dlmopen\n");
#else
// The hint is `bti c`, which older processors pass over. A jump by x16 may lead to one.
__asm__(".text\n"
	".globl dlopen\n"
	".type dlopen, @function\n"
	"dlopen:\n"
	"	.cfi_startproc\n"
	"	hint #34\n"
	"	stp x29, x30, [sp, -32]!\n"
	"	.cfi_def_cfa_offset 32\n"
	"	.cfi_offset x29, -32\n"
	"	.cfi_offset x30, -24\n"
	"	mov x29, sp\n"
	"	str x1, [sp, 16]\n"
	"	bl causeway_library\n"
	"	ldr x1, [sp, 16]\n"
	"	ldp x29, x30, [sp], 32\n"
	"	.cfi_restore x29\n"
	"	.cfi_restore x30\n"
	"	.cfi_def_cfa_offset 0\n"
	"	adrp x16, causeway_next_dlopen\n"
	"	ldr x16, [x16, :lo12:causeway_next_dlopen]\n"
	"	br x16\n"
	"	.cfi_endproc\n"
	".size dlopen, . - dlopen\n"
	".globl dlmopen\n"
	".type dlmopen, @function\n"
	"dlmopen:\n"
	"	.cfi_startproc\n"
	"	hint #34\n"
	"	stp x29, x30, [sp, -32]!\n"
	"	.cfi_def_cfa_offset 32\n"
	"	.cfi_offset x29, -32\n"
	"	.cfi_offset x30, -24\n"
	"	mov x29, sp\n"
	"	stp x0, x2, [sp, 16]\n"
	"	mov x0, x1\n"
	"	bl causeway_library\n"
	"	mov x1, x0\n"
	"	ldp x0, x2, [sp, 16]\n"
	"	ldp x29, x30, [sp], 32\n"
	"	.cfi_restore x29\n"
	"	.cfi_restore x30\n"
	"	.cfi_def_cfa_offset 0\n"
	"	adrp x16, causeway_next_dlmopen\n"
	"	ldr x16, [x16, :lo12:causeway_next_dlmopen]\n"
	"	br x16\n"
	"	.cfi_endproc\n"
	".size dlmopen, . - dlmopen\n");
#endif
