# The wheel and the tarball: programs and libraries for machines whose C library is older than that
# of the machine which builds them. What is compiled is the same; only the linker is shown other
# libraries (scripts/old-glibc), so it fails if a symbol is used that they do not have.

GLIBC_OLDEST := 2.28
PORTABLE := $(BUILD)/portable
portable_stubs := $(abspath $(BUILD))/tools/glibc-$(GLIBC_OLDEST)
# libgcc_s.so.1 of this machine is a library of this machine's C library; only its names count.
portable_link := -B$(portable_stubs)/ -L$(portable_stubs) -Wl,--allow-shlib-undefined
portable_programs := causeway-cli:causeway causeway-broker:causewayd causeway-node:causeway-noded

.PHONY: portable wheel tarball
# Options behind `--` are those of one program alone, which cargo keeps apart from the ordinary one.
portable:
	scripts/old-glibc $(GLIBC_OLDEST)
	@mkdir -p $(PORTABLE)/bin
	@for program in $(portable_programs); do \
		$(CARGO) rustc --release $(CARGO_FLAGS) -p $${program%:*} --bin $${program#*:} -- \
			$(addprefix -C link-arg=,$(portable_link)); \
		install -m 755 $(built)$${program#*:} $(PORTABLE)/bin/; \
	done
	$(MAKE) BUILD=$(PORTABLE) LINK_FLAGS="$(portable_link)" libs sisci paths headers

wheel: portable ## Make the wheel for pip, build/wheel/causeway_rdma-*.whl, for glibc 2.28 and newer
	scripts/wheel $(PORTABLE)

tarball: portable ## Make the same as an archive, build/tarball/causeway-*.tar.gz
	scripts/tarball $(PORTABLE)
