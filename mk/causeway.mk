# The header of libcauseway and the examples, built as any program would be that uses it.

CAUSEWAY_HEADER := $(BUILD)/include/causeway.h
EXAMPLES := $(addprefix $(BUILD)/examples/,writer reader dma)
POOL_PROGRAMS := $(BUILD)/test/pool

headers: $(CAUSEWAY_HEADER)

$(CAUSEWAY_HEADER): include/causeway.h
	@mkdir -p $(@D)
	install -m 644 $< $@

examples: $(EXAMPLES) ## Build the examples of libcauseway

$(EXAMPLES): $(BUILD)/examples/%: examples/%.c examples/common.h $(CAUSEWAY_HEADER) \
		$(BUILD)/lib/libcauseway.so mk/causeway.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -I$(BUILD)/include -o $@ $< -L$(BUILD)/lib -lcauseway \
		-Wl,-rpath,'$$ORIGIN/../lib'

.PHONY: install-causeway
install: install-causeway

install-causeway: headers libs
	install -d $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/include
	install -m 644 $(CAUSEWAY_HEADER) $(DESTDIR)$(PREFIX)/include/
	install -m 755 $(BUILD)/lib/libcauseway.so.0 $(DESTDIR)$(PREFIX)/lib/
	ln -sf libcauseway.so.0 $(DESTDIR)$(PREFIX)/lib/libcauseway.so

test-programs: $(POOL_PROGRAMS)

$(BUILD)/test/pool: $(wildcard tests/pool/*.c) $(wildcard tests/pool/*.h) $(CAUSEWAY_HEADER) \
		$(BUILD)/lib/libcauseway.so mk/causeway.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -I$(BUILD)/include -o $@ $(filter %.c,$^) -L$(BUILD)/lib -lcauseway \
		-pthread -Wl,-rpath,'$$ORIGIN/../lib'
