# A program of ours on the distribution's UCX: none that is packaged listens through rdma_cm.

test-programs: $(BUILD)/test/ucx_by_address

$(BUILD)/test/ucx_by_address: tests/ucx/by_address.c tests/ucx/ucx.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -o $@ $< -lucp -lucs
