# The MPI test program, by the compiler wrappers of both implementations.

MPI_PROGRAMS := $(BUILD)/test/exchange.openmpi $(BUILD)/test/exchange.mpich

.PHONY: mpi-programs
mpi-programs: $(MPI_PROGRAMS) ## Build the MPI test program for OpenMPI and MPICH
test-programs: mpi-programs

$(MPI_PROGRAMS): $(BUILD)/test/exchange.%: tests/mpi/exchange.c tests/mpi/mpi.mk
	@mkdir -p $(@D)
	mpicc.$* $(CFLAGS_STRICT) -o $@ $<
