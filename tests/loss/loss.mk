# The program of tests/loss: many hosts that send to one.

$(BUILD)/test/fan_in: tests/loss/fan_in.c tests/verify/common.c tests/verify/common.h \
		tests/loss/loss.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -o $@ $(filter %.c,$^) -libverbs

test-programs: $(BUILD)/test/fan_in
