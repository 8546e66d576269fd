# Builds for aarch64 on another machine, by Debian's cross compiler and rustup's libraries for the
# target (scripts/setup aarch64 installs both).

AARCH64_TARGET := aarch64-unknown-linux-gnu
AARCH64_BUILD := $(BUILD)/aarch64
# Conformance programs that need one host, and have no instructions of x86-64.
AARCH64_SISCI := misuse local pair three groups interrupts data flags dma queues queries restart
AARCH64_CC := aarch64-linux-gnu-gcc
# For programs that are linked as any verbs program is: Debian's headers, and this build's library.
AARCH64_LINK := $(AARCH64_BUILD)/link
aarch64_env := CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$(AARCH64_CC) \
	CC_aarch64_unknown_linux_gnu=$(AARCH64_CC)
aarch64_make = $(aarch64_env) $(MAKE) BUILD=$(AARCH64_BUILD) \
	CARGO_BUILD_TARGET=$(AARCH64_TARGET) CC="$(AARCH64_CC) -L$(AARCH64_LINK)"

.PHONY: aarch64 aarch64-tests
aarch64: ## Build programs and libraries for aarch64 into build/aarch64
	@mkdir -p $(AARCH64_LINK)
	$(aarch64_make) bins libs sisci paths
	ln -sf ../lib/libibverbs.so.1 $(AARCH64_LINK)/libibverbs.so
	ln -sf ../lib/librdmacm.so.1 $(AARCH64_LINK)/librdmacm.so

# Not the sanitizer, whose static library the cross compiler does not bring, nor `errors`, which
# reads x86-64 registers in a handler of its own.
aarch64_verify = $(filter-out verify-asan errors,$(VERIFY_PROGRAMS))
aarch64-tests: aarch64
	$(aarch64_make) $(aarch64_verify:%=$(AARCH64_BUILD)/test/%) \
		$(AARCH64_SISCI:%=$(AARCH64_BUILD)/test/sisci/%)
