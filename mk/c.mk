# The parts written in C: the path shim, test programs.

CFLAGS_STRICT := -std=gnu11 -O2 -g -Wall -Wextra -Werror -U_FORTIFY_SOURCE
PATHS_LIB := $(BUILD)/lib/libcauseway-paths.so

paths: $(PATHS_LIB) ## Build the path shim

$(PATHS_LIB): pathshim/paths.c pathshim/libraries.c mk/c.mk
	@mkdir -p $(@D)
	$(CC) $(LINK_FLAGS) $(CFLAGS_STRICT) -fPIC -shared -fvisibility=hidden -fno-builtin \
		-fstack-protector-strong \
		-Wl,-soname,$(@F) -Wl,-z,defs -Wl,-z,now -Wl,-z,relro -o $@.new \
		$(filter %.c,$^) -ldl
	@# A rename, not a rewrite in place: a running program may have the old one mapped.
	@mv $@.new $@

TEST_PROGRAMS := $(addprefix $(BUILD)/test/,\
	idle waits closed traffic victim attacker asker meet group)
CM_PEER := $(BUILD)/test/cm_peer
CLOSED := $(addprefix $(BUILD)/test/closed_,cm sisci pool)
test-programs: verify sisci-tests $(TEST_PROGRAMS) $(CM_PEER) $(CLOSED) ## Build the test programs

$(BUILD)/test/idle: tests/idle/idle.c tests/idle/side.c tests/idle/side.h
$(BUILD)/test/waits: tests/idle/waits.c tests/idle/side.c tests/idle/side.h
$(BUILD)/test/closed: tests/cli/closed.c tests/cli/own.c tests/cli/own.h
$(BUILD)/test/traffic: tests/kill/traffic.c
$(BUILD)/test/asker: tests/versions/asker.c
$(BUILD)/test/meet: tests/secure/meet.c
$(BUILD)/test/group: tests/secure/group.c
$(BUILD)/test/victim: $(addprefix tests/hostile/,victim.c hold.c stage.c)
$(BUILD)/test/attacker: $(addprefix tests/hostile/,attacker.c forge.c loot.c breakin.c stage.c)
$(BUILD)/test/victim $(BUILD)/test/attacker: $(wildcard tests/hostile/*.h)
# The version of the remoting protocol, for who forges its messages.
REMOTING := crates/fabric/src/remoting/mod.rs
$(BUILD)/test/attacker: $(REMOTING)
$(BUILD)/test/attacker: CPPFLAGS += -DREMOTING_VERSION=$(shell \
	sed -n 's/^pub const VERSION: u16 = \([0-9]*\);/\1/p' $(REMOTING))
$(TEST_PROGRAMS): tests/verify/common.c tests/verify/common.h mk/c.mk
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS_STRICT) -pthread -o $@ $(filter %.c,$^) -libverbs

$(CM_PEER): $(wildcard tests/cm/*.[ch]) tests/verify/common.c tests/verify/common.h mk/c.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -pthread -o $@ $(filter %.c,$^) -lrdmacm -libverbs

# Programs that close the descriptors of the libraries.
$(BUILD)/test/closed_cm: closed_libs := -lrdmacm -libverbs
$(BUILD)/test/closed_sisci: closed_libs := -L$(BUILD)/lib -lsisci
$(BUILD)/test/closed_pool: closed_libs := -L$(BUILD)/lib -lcauseway -Wl,-rpath,'$$ORIGIN/../lib'
$(BUILD)/test/closed_sisci: $(BUILD)/lib/libsisci.so
$(BUILD)/test/closed_pool: $(BUILD)/lib/libcauseway.so

$(CLOSED): $(BUILD)/test/closed_%: tests/cli/closed_%.c tests/cli/own.c tests/cli/own.h mk/c.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -I$(BUILD)/include -pthread -o $@ $(filter %.c,$^) $(closed_libs)
