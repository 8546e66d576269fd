/*
 * All ranks exchange data by MPI_Allreduce and MPI_Alltoall, and verify every byte that arrives.
 *
 *   exchange [FILE]
 *
 * Rank 0 then prints `exchanged N bytes`: what must have left the ranks, whatever the algorithms.
 * With FILE the ranks stay until that file exists, so that their counters can be read.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ROUNDS 3
#define LOOK_AGAIN_US 10000

/* From one element, over eager messages, to what travels by rendezvous. */
static const int elements[] = { 1, 100, 4000, 262144 };
static const int blocks[] = { 1, 1000, 65536, 1048576 };

static int rank, ranks;
static uint64_t sent;

static void die(const char *what, size_t at)
{
	fprintf(stderr, "rank %d: %s at %zu is wrong\n", rank, what, at);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *allocate(size_t size)
{
	void *memory = malloc(size);

	if (!memory)
		die("malloc", size);
	return memory;
}

/* Any 64 bits that follow from three numbers; distinct arguments give distinct values. */
static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t x = (a << 48) ^ (b << 32) ^ c;

	x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
	return x ^ (x >> 29);
}

/* The sum of every rank's vector, modulo 2^64, which each rank can compute for itself. */
static void allreduce(int count, int round)
{
	uint64_t *in = allocate(count * sizeof(*in));
	uint64_t *out = allocate(count * sizeof(*out));

	for (int i = 0; i < count; i++) {
		in[i] = mix(rank, round, i);
		out[i] = ~0ull;
	}
	MPI_Allreduce(in, out, count, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++) {
		uint64_t want = 0;

		for (int r = 0; r < ranks; r++)
			want += mix(r, round, i);
		if (out[i] != want)
			die("sum", i);
	}
	/* Others must learn all of it. */
	sent += count * sizeof(*in);
	free(in);
	free(out);
}

/* A block for each rank, unlike any other. */
static void alltoall(int block, int round)
{
	size_t size = (size_t)block * ranks;
	uint8_t *out = allocate(size), *in = allocate(size);

	for (size_t i = 0; i < size; i++) {
		out[i] = mix(rank * ranks + i / block, round, i % block);
		in[i] = 0;
	}
	MPI_Alltoall(out, block, MPI_BYTE, in, block, MPI_BYTE, MPI_COMM_WORLD);
	for (size_t i = 0; i < size; i++)
		if (in[i] != (uint8_t)mix((i / block) * ranks + rank, round, i % block))
			die("block", i);
	sent += (uint64_t)block * (ranks - 1);
	free(in);
	free(out);
}

int main(int argc, char **argv)
{
	uint64_t total = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int round = 0; round < ROUNDS; round++) {
		for (size_t i = 0; i < sizeof(elements) / sizeof(*elements); i++)
			allreduce(elements[i], round);
		for (size_t i = 0; i < sizeof(blocks) / sizeof(*blocks); i++)
			alltoall(blocks[i], round);
	}
	MPI_Reduce(&sent, &total, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("%d ranks exchanged %llu bytes\n", ranks, (unsigned long long)total);
		fflush(stdout);
	}
	while (argc > 1 && access(argv[1], F_OK) != 0)
		usleep(LOOK_AGAIN_US);
	MPI_Finalize();
	return 0;
}
