# The verification programs, against the distribution's own verbs headers and library: what runs
# under `causeway run` is what any program would be.

VERIFY_CFLAGS := -std=gnu11 -O2 -g -Wall -Wextra -Werror
VERIFY_DIR := $(BUILD)/test
VERIFY_HEADERS := $(wildcard tests/verify/*.h)
VERIFY_SOURCES := $(addprefix tests/verify/,verify.c setup.c request.c respond.c plan.c common.c \
	churn.c farewell.c)
ERRORS_SOURCES := $(wildcard tests/verify/err*.c) tests/verify/common.c

.PHONY: verify
VERIFY_PROGRAMS := verify verify-asan errors reconnect protected threads paced
verify: $(VERIFY_PROGRAMS:%=$(VERIFY_DIR)/%) ## Build what verifies

$(VERIFY_DIR)/verify: $(VERIFY_SOURCES) $(VERIFY_HEADERS) tests/verify/verify.mk
	@mkdir -p $(@D)
	$(CC) $(VERIFY_CFLAGS) -pthread -o $@ $(VERIFY_SOURCES) -libverbs

# The sanitizer in the program itself: `causeway run` preloads libraries, and a shared one would
# have to come first.
$(VERIFY_DIR)/verify-asan: $(VERIFY_SOURCES) $(VERIFY_HEADERS) tests/verify/verify.mk
	@mkdir -p $(@D)
	$(CC) $(VERIFY_CFLAGS) -fsanitize=address -static-libasan -pthread -o $@ \
		$(VERIFY_SOURCES) -libverbs

$(VERIFY_DIR)/errors: $(ERRORS_SOURCES) $(VERIFY_HEADERS) tests/verify/verify.mk
	@mkdir -p $(@D)
	$(CC) $(VERIFY_CFLAGS) -pthread -o $@ $(ERRORS_SOURCES) -libverbs

# Small programs of one process or two.
$(addprefix $(VERIFY_DIR)/,reconnect protected threads paced): $(VERIFY_DIR)/%: \
		tests/verify/%.c tests/verify/common.c $(VERIFY_HEADERS) tests/verify/verify.mk
	@mkdir -p $(@D)
	$(CC) $(VERIFY_CFLAGS) -pthread -o $@ $< tests/verify/common.c -libverbs
