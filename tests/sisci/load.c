/*
 * A client that knows the library by its file's name alone: loads it, looks its functions up by the
 * names for a single thread, and uses them. Loading must do nothing.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>

#include <sisci_types.h>

static int failed;

static int entries(const char *directory)
{
	DIR *dir = opendir(directory);
	int count = 0;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static void check(const char *what, int good)
{
	printf("%s %s\n", good ? "ok  " : "FAIL", what);
	failed += !good;
}

int main(void)
{
	int fds = entries("/proc/self/fd");
	void *library = dlopen("libsisci.so", RTLD_NOW | RTLD_LOCAL);
	void (*initialize)(unsigned int, sci_error_t *);
	void (*open_descriptor)(sci_desc_t *, unsigned int, sci_error_t *);
	void (*close_descriptor)(sci_desc_t, unsigned int, sci_error_t *);
	const unsigned int *flag;
	sci_error_t error = SCI_ERR_BUSY;
	sci_desc_t sd;

	check("it is loaded", library != NULL);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	check("loading opens nothing", entries("/proc/self/fd") == fds);
	check("loading starts no thread", entries("/proc/self/task") == 3);
#define FIND(pointer, name) (*(void **)&(pointer) = dlsym(library, name)) != NULL
	check("SCIInitialize", FIND(initialize, "_SISCI_PUBLIC_FUNC_ST_SCIInitialize"));
	check("SCIOpen", FIND(open_descriptor, "_SISCI_PUBLIC_FUNC_MT_SCIOpen"));
	check("SCIClose", FIND(close_descriptor, "SCIClose"));
	flag = dlsym(library, "_SISCI_PUBLIC_CONST_SCI_FLAG_AUTO_ID");
	check("a constant", flag && *flag == 0x20000000);
	initialize(0, &error);
	check("initialized", error == SCI_ERR_OK);
	check("which starts no thread", entries("/proc/self/task") == 3);
	open_descriptor(&sd, 0, &error);
	check("opened", error == SCI_ERR_OK);
	close_descriptor(sd, 0, &error);
	check("closed", error == SCI_ERR_OK);
	printf("%d passed, %d failed\n", 11 - failed, failed);
	return failed != 0;
}
