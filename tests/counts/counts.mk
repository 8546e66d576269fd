# The program of tests/counts: instructions that the library executes in an operation.

$(BUILD)/test/counts: $(addprefix tests/counts/,counts.c operations.c counts.h counts.mk) \
		tests/verify/common.c tests/verify/common.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -o $@ $(filter %.c,$^) -libverbs

test-programs: $(BUILD)/test/counts
