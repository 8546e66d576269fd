# The program of tests/scale: many queue pairs, processes and connections.

$(BUILD)/test/scale: tests/scale/scale.c tests/scale/side.c tests/scale/slots.c \
		tests/verify/common.c tests/verify/common.h tests/scale/side.h tests/scale/scale.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -o $@ $(filter %.c,$^) -pthread -libverbs

test-programs: $(BUILD)/test/scale
