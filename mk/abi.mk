# Links the libraries: a Rust static library each, a version script made from its symbol
# table, the system's C compiler. Usable alone: make -f mk/abi.mk libs
#
#   BUILD             where the libraries go, under lib/        (build)
#   CARGO_TARGET_DIR  cargo's target directory                  (target)
#   ABI_PROFILE       cargo profile of the static libraries     (release)
#   CAUSEWAY_CRATES   options that name crates to build beside  ()
#   LINK_FLAGS        more options where the compiler links; not in CC, which cargo looks at, too

BUILD ?= build
CARGO_TARGET_DIR ?= target
ABI_PROFILE ?= release
LINK_FLAGS ?=
CARGO ?= cargo
CC ?= cc

abi_profile := $(if $(filter dev,$(ABI_PROFILE)),debug,$(ABI_PROFILE))
abi_archives := $(CARGO_TARGET_DIR)/$(CARGO_BUILD_TARGET)/$(abi_profile)
# What `rustc --print native-static-libs` names for the standard library.
abi_natives := -lrt -lpthread -lm -ldl -lc
# nodelete: the helper thread of an open device must not lose its code to a dlclose.
abi_flags := -shared -nodefaultlibs -Wl,-z,defs -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete \
	-Wl,--gc-sections -Wl,-O1 -Wl,--build-id -Wl,--hash-style=gnu -Wl,--wrap=close \
	-Wl,--wrap=pthread_create

# A hidden definition of the one symbol that would need glibc 2.35, and close(2).
compat := $(addprefix $(BUILD)/obj/,find_object.o close.o threads.o)

comma := ,

.PHONY: libs abi-archives
libs: $(BUILD)/lib/libibverbs.so.1 $(BUILD)/lib/librdmacm.so.1 $(BUILD)/lib/libcauseway.so

abi-archives:
	CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)" $(CARGO) build --quiet $(CARGO_FLAGS) \
		--profile $(ABI_PROFILE) \
		$(CAUSEWAY_CRATES) -p causeway-verbs -p causeway-rdmacm -p causeway

$(compat): $(BUILD)/obj/%.o: compat/%.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -c -o $@ $<

# $(1) soname, $(2) archive, $(3) symbol table, $(4) libraries of ours that it stands on. Those lie
# beside it, which counts where none of the name is loaded yet: in a namespace of dlmopen(3).
define abi_library
$(BUILD)/lib/$(1): abi-archives $(3) mk/version-script.awk $(4) $(compat)
	@mkdir -p $$(@D)
	awk -f mk/version-script.awk $(3) > $$@.map
	$(CC) $(LINK_FLAGS) $(abi_flags) -Wl,-soname,$(1) -Wl,--version-script,$$@.map -o $$@.new \
		-Wl,--whole-archive $(abi_archives)/$(2) -Wl,--no-whole-archive \
		$(4) $(if $(4),-Wl$(comma)-rpath$(comma)'$$$$ORIGIN') \
		$(compat) -static-libgcc -lgcc -lgcc_eh $(abi_natives)
	@# A rename, not a rewrite in place: a running program may have the old one mapped.
	@# It comes last: what a kill leaves before it, the next make makes again and removes.
	@rm $$@.map && mv $$@.new $$@
endef

verbs_symbols := crates/verbs/symbols/ibverbs.sym
rdmacm_symbols := crates/rdmacm/symbols/rdmacm.sym
causeway_symbols := crates/causeway/symbols/causeway.sym
rdmacm_needs := $(BUILD)/lib/libibverbs.so.1

$(eval $(call abi_library,libibverbs.so.1,libcauseway_verbs.a,$(verbs_symbols),))
$(eval $(call abi_library,librdmacm.so.1,libcauseway_rdmacm.a,$(rdmacm_symbols),$(rdmacm_needs)))
$(eval $(call abi_library,libcauseway.so.0,libcauseway.a,$(causeway_symbols),))

# What the linker looks for.
$(BUILD)/lib/libcauseway.so: $(BUILD)/lib/libcauseway.so.0
	ln -sf $(<F) $@
