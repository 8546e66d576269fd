# Links libsisci.so: a Rust static library, an export list and the decorated names made from its
# symbol table, the system's C compiler; and installs it with its headers. Usable alone:
# make -f mk/sisci.mk sisci
#
#   BUILD, CARGO_TARGET_DIR, ABI_PROFILE, CAUSEWAY_CRATES, LINK_FLAGS   as in mk/abi.mk
#   PREFIX, DESTDIR                        where `make install` puts things  (/usr/local)
#   DIS_COMPAT                             if set, `make install` also makes /opt/DIS

BUILD ?= build
CARGO_TARGET_DIR ?= target
ABI_PROFILE ?= release
LINK_FLAGS ?=
CARGO ?= cargo
CC ?= cc
PREFIX ?= /usr/local
DESTDIR ?=
DIS_COMPAT ?=

sisci_table := crates/sisci/symbols/sisci.sym
sisci_profile := $(if $(filter dev,$(ABI_PROFILE)),debug,$(ABI_PROFILE))
sisci_archives := $(CARGO_TARGET_DIR)/$(CARGO_BUILD_TARGET)/$(sisci_profile)
sisci_archive := $(sisci_archives)/libcauseway_sisci.a
sisci_headers := $(addprefix $(BUILD)/include/,sisci_api.h sisci_types.h sisci_error.h \
	sisci_api_macros.h dis_types.h)
# The library's own calls of these do not go through its exports (crates/sisci/src/interpose.rs and
# dispositions.rs).
sisci_copies := memcpy memmove memset __memcpy_chk __memmove_chk __memset_chk sigaction
comma := ,
# nodelete: the library's threads must not lose their code to a dlclose.
sisci_flags := -shared -nodefaultlibs -Wl,-z,defs -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete \
	-Wl,--gc-sections -Wl,-O1 -Wl,--build-id -Wl,--hash-style=gnu -Wl,--wrap=close \
	-Wl,--wrap=pthread_create $(patsubst %,-Wl$(comma)--wrap=%,$(sisci_copies))
sisci_programs := $(addprefix $(BUILD)/bin/,causeway causewayd causeway-noded)
sisci_natives := -lrt -lpthread -lm -ldl -lc
# As mk/abi.mk has them.
sisci_compat := $(addprefix $(BUILD)/obj/sisci/,find_object.o close.o threads.o)

.PHONY: sisci sisci-archive install
sisci: $(BUILD)/lib/libsisci.so $(sisci_headers) ## Build libsisci.so and its headers

sisci-archive:
	CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)" $(CARGO) build --quiet $(CARGO_FLAGS) \
		--profile $(ABI_PROFILE) $(CAUSEWAY_CRATES) -p causeway-sisci

$(sisci_compat): $(BUILD)/obj/sisci/%.o: compat/%.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -c -o $@ $<

# The linker reads the names as a script: each is the function of the plain name. What is exported
# is what the table has, and nothing else.
$(BUILD)/lib/libsisci.so: sisci-archive $(sisci_table) mk/sisci-names.awk $(sisci_compat)
	@mkdir -p $(@D)
	awk -v what=names -f mk/sisci-names.awk $(sisci_table) > $@.ld
	awk -v what=exports -f mk/sisci-names.awk $(sisci_table) > $@.map
	$(CC) $(LINK_FLAGS) $(sisci_flags) -Wl,-soname,libsisci.so \
		-Wl,--version-script,$@.map -o $@.new \
		-Wl,--whole-archive $(sisci_archive) -Wl,--no-whole-archive $@.ld \
		$(sisci_compat) -static-libgcc -lgcc -lgcc_eh $(sisci_natives)
	@# A rename, not a rewrite in place: a running program may have the old one mapped.
	@# It comes last: what a kill leaves before it, the next make makes again and removes.
	@rm $@.ld $@.map && mv $@.new $@

$(sisci_headers): $(BUILD)/include/%.h: include/%.h
	@mkdir -p $(@D)
	install -m 644 $< $@

# What programs for Dolphin's library look for: headers in two places, the library in two,
# the broker in one.
install: bins sisci ## Install programs, libsisci.so and headers (DESTDIR, PREFIX, DIS_COMPAT=1)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/include
	install -m 755 $(sisci_programs) $(DESTDIR)$(PREFIX)/bin/
	install -m 755 $(BUILD)/lib/libsisci.so $(DESTDIR)$(PREFIX)/lib/
	install -m 644 $(sisci_headers) $(DESTDIR)$(PREFIX)/include/
ifneq ($(DIS_COMPAT),)
	install -d $(addprefix $(DESTDIR)/opt/DIS/,include/dis lib64 lib bin)
	install -m 644 $(sisci_headers) $(DESTDIR)/opt/DIS/include/
	install -m 644 $(sisci_headers) $(DESTDIR)/opt/DIS/include/dis/
	install -m 755 $(BUILD)/lib/libsisci.so $(DESTDIR)/opt/DIS/lib64/
	install -m 755 $(BUILD)/lib/libsisci.so $(DESTDIR)/opt/DIS/lib/
	@# Where the library looks for it first: beside itself, in ../bin.
	install -m 755 $(sisci_programs) $(DESTDIR)/opt/DIS/bin/
endif
