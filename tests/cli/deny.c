// SPDX-License-Identifier: MIT OR Apache-2.0
//
// deny ERRNO NUMBER[,NUMBER...] COMMAND...: runs a command to which the kernel answers some system
// calls with an error, as sandboxes and older kernels do (seccomp(2)).

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { CALLS_MAX = 32 };

int main(int argc, char **argv)
{
	struct sock_filter code[2 * CALLS_MAX + 2];
	unsigned short n = 0;

	if (argc < 4)
		return 2;
	unsigned int answer = SECCOMP_RET_ERRNO | (unsigned int)atoi(argv[1]);

	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
						 offsetof(struct seccomp_data, nr));
	char *word = strtok(argv[2], ",");

	for (; word && n < 2 * CALLS_MAX; word = strtok(NULL, ",")) {
		unsigned int number = (unsigned int)atoi(word);

		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { .len = n, .filter = code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
		perror("seccomp");
		return 2;
	}
	execvp(argv[3], argv + 3);
	perror(argv[3]);
	return 2;
}
