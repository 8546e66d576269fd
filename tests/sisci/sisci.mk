# The conformance programs for libsisci.so. Those under tests/sisci/clients are compiled by
# tests/sisci/run itself, against an installed tree.

SISCI_TESTS := misuse local pair three groups copies interrupts data flags dma queues queries \
	restart threads unserved far far_faults windows replicas copied carried
# Those that tests/sisci/faults and tests/sisci/hostile kill, stop and attack.
SISCI_CAST := mortal scenes intruder
# What else tests/sisci and tests/directory start.
SISCI_OTHERS := load steady marked session forger behind
SISCI_BINS := $(addprefix $(BUILD)/test/sisci/,$(SISCI_TESTS) $(SISCI_CAST) $(SISCI_OTHERS))
SISCI_TEST_FLAGS := -std=gnu11 -O2 -g -Wall -Wextra -Werror -D_REENTRANT -I$(BUILD)/include

.PHONY: sisci-tests
sisci-tests: $(SISCI_BINS) ## Build the conformance programs of SISCI

$(patsubst %,$(BUILD)/test/sisci/%,$(SISCI_TESTS) $(SISCI_CAST) session): $(BUILD)/test/sisci/%: \
		tests/sisci/%.c \
		tests/sisci/check.c tests/sisci/check.h tests/sisci/remote.c tests/sisci/remote.h \
		$(BUILD)/lib/libsisci.so $(sisci_headers)
	@mkdir -p $(@D)
	$(CC) $(SISCI_TEST_FLAGS) -pthread -o $@ $(filter %.c,$^) -L$(BUILD)/lib -lsisci

$(addprefix $(BUILD)/test/sisci/,threads far): tests/sisci/no_threads.h

# `windows`, which finds the C library's functions before those of libsisci.so, as a program does
# that has libsisci.so for another library's sake.
$(BUILD)/test/sisci/behind: tests/sisci/windows.c \
		tests/sisci/check.c tests/sisci/check.h tests/sisci/remote.c tests/sisci/remote.h \
		$(BUILD)/lib/libsisci.so $(sisci_headers)
	@mkdir -p $(@D)
	$(CC) $(SISCI_TEST_FLAGS) -pthread -o $@ $(filter %.c,$^) -Wl,--no-as-needed -lc \
		-L$(BUILD)/lib -lsisci

$(addprefix $(BUILD)/test/sisci/,far far_faults windows behind): \
		tests/sisci/far_peer.c tests/sisci/far.h

# Traffic for tests/directory, which does not end by itself, and for tests/sisci/secured.
$(addprefix $(BUILD)/test/sisci/,steady marked): $(BUILD)/test/sisci/%: tests/sisci/%.c \
		tests/sisci/served.c tests/sisci/served.h $(BUILD)/lib/libsisci.so $(sisci_headers)
	@mkdir -p $(@D)
	$(CC) $(SISCI_TEST_FLAGS) -o $@ $(filter %.c,$^) -L$(BUILD)/lib -lsisci

$(BUILD)/test/sisci/load: tests/sisci/load.c $(sisci_headers)
	@mkdir -p $(@D)
	$(CC) $(SISCI_TEST_FLAGS) -o $@ $< -ldl

# A client of a node daemon that does without libsisci.
$(BUILD)/test/sisci/forger: tests/sisci/forger.c tests/verify/common.c tests/verify/common.h
	@mkdir -p $(@D)
	$(CC) $(SISCI_TEST_FLAGS) -o $@ $(filter %.c,$^) -libverbs
