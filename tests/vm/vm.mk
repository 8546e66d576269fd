# What tests/vm runs in guests, beside the distribution's programs and the conformance tests.

VM_CLIENTS := $(addprefix $(BUILD)/test/vm/,pingpong intr reflect dmabench)
VM_PROGRAMS := $(addprefix $(BUILD)/test/vm/,segments locks intruder home owner ioctls) \
	$(VM_CLIENTS)

test-programs: $(VM_PROGRAMS)

$(BUILD)/test/vm/segments: $(addprefix tests/,vm/segments.c sisci/check.c sisci/remote.c) \
		$(wildcard tests/sisci/*.h) $(BUILD)/lib/libsisci.so $(sisci_headers)
	@mkdir -p $(@D)
	$(CC) $(SISCI_TEST_FLAGS) -pthread -o $@ $(filter %.c,$^) -L$(BUILD)/lib -lsisci

$(VM_CLIENTS): $(BUILD)/test/vm/%: tests/sisci/clients/%.c tests/sisci/clients/common.h \
		$(BUILD)/lib/libsisci.so $(sisci_headers)
	@mkdir -p $(@D)
	$(CC) $(SISCI_TEST_FLAGS) -pthread -o $@ $(filter %.c,$^) -L$(BUILD)/lib -lsisci

$(BUILD)/test/vm/locks: tests/vm/locks.c $(CAUSEWAY_HEADER) $(BUILD)/lib/libcauseway.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -I$(BUILD)/include -o $@ $< -L$(BUILD)/lib -lcauseway

$(BUILD)/test/vm/intruder: tests/vm/intruder.c guest/driver/causeway_ioctl.h $(CAUSEWAY_HEADER) \
		$(BUILD)/lib/libcauseway.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -I$(BUILD)/include -o $@ $< -L$(BUILD)/lib -lcauseway

$(BUILD)/test/vm/owner: tests/vm/owner.c tests/verify/common.c $(VERIFY_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(VERIFY_CFLAGS) -pthread -o $@ $(filter %.c,$^) -libverbs

$(BUILD)/test/vm/home: tests/vm/home.c guest/driver/causeway_ioctl.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -pthread -o $@ $<

$(BUILD)/test/vm/ioctls: $(addprefix tests/vm/,ioctls.c calls.c ioctls.h) \
		guest/driver/causeway_ioctl.h $(BUILD)/lib/libsisci.so $(sisci_headers)
	@mkdir -p $(@D)
	$(CC) $(SISCI_TEST_FLAGS) -pthread -o $@ $(filter %.c,$^) -L$(BUILD)/lib -lsisci
