// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The one symbol for which the libraries would need glibc 2.35. libgcc's unwinder, which is linked
// into each of them, asks _dl_find_object(3) where an instruction's unwinding tables lie, if the C
// library of the machine that builds it has that. This definition is the library's own, hidden from
// all others: it passes the question on where the C library can answer, and otherwise looks through
// the loaded objects as libgcc did before, with dl_iterate_phdr(3).

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

// struct dl_find_object of <dlfcn.h> on x86-64; the header of an older C library lacks it.
struct found {
	unsigned long long flags;
	void *map_start;
	void *map_end;
	struct link_map *link_map;
	void *eh_frame;
	unsigned long long reserved[7];
};

typedef int finder(void *address, struct found *result);

// The C library's own function, or NULL.
static finder *real;

// Before any thread can need it: dlsym(3) takes the loader's lock, which a thread that unwinds need
// not take otherwise.
__attribute__((constructor)) static void find_real(void)
{
	real = (finder *)dlsym(RTLD_DEFAULT, "_dl_find_object");
}

struct search {
	uintptr_t address;
	struct found *result;
};

// Whether this object holds the address; then its place and its tables are noted.
static int look(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;
	const ElfW(Phdr) *tables = NULL;
	int holds = 0;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + header->p_vaddr;

		if (header->p_type == PT_GNU_EH_FRAME)
			tables = header;
		if (header->p_type != PT_LOAD || search->address - start >= header->p_memsz)
			continue;
		holds = 1;
		search->result->map_start = (void *)start;
		search->result->map_end = (void *)(start + header->p_memsz);
	}
	if (holds && tables)
		search->result->eh_frame = (void *)(info->dlpi_addr + tables->p_vaddr);
	return holds;
}

// 0, or -1 where nothing is known of the address. Under a name of its own in this file, since newer
// headers declare the other with their own structure.
__attribute__((visibility("hidden"))) int find_object(void *address, struct found *result)
	__asm__("_dl_find_object");

int find_object(void *address, struct found *result)
{
	struct search search = { (uintptr_t)address, result };

	if (real)
		return real(address, result);
	*result = (struct found){ 0 };
	dl_iterate_phdr(look, &search);
	return result->eh_frame ? 0 : -1;
}
