# The driver's own files, in a process: with a small kernel of the tests' and sanitizers.

DRIVER_TESTS := $(BUILD)/test/driver
DRIVER_SOURCES := $(addprefix guest/driver/,control.c events.c inplace.c keep.c objects.c pages.c \
	segment.c session.c sleep.c)
# What the driver includes is all in kernel.h.
DRIVER_HEADERS := anon_inodes completion cred delay eventfd file fs highmem kref list log2 \
	memremap mm mman mmu_notifier mutex notifier pkeys poll rwsem scatterlist sched/mm slab \
	spinlock uaccess uio userfaultfd_k virtio virtio_config wait workqueue xarray

test-programs: $(DRIVER_TESTS)

$(DRIVER_TESTS): $(DRIVER_SOURCES) $(wildcard guest/driver/*.h guest/tests/*.[ch]) \
		guest/tests/tests.mk
	@mkdir -p $(@D) $@.include/linux/sched
	@for header in $(DRIVER_HEADERS); do echo '#include "kernel.h"' \
		> $@.include/linux/$$header.h; done
	$(CC) $(CFLAGS_STRICT) -Wno-unused-parameter -Wno-sign-compare \
		-fsanitize=address,undefined -fno-sanitize-recover=all -fno-strict-aliasing \
		-Iguest/tests -I$@.include -o $@ \
		$(filter %.c,$^)
