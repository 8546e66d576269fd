# The documents as a site. mdBook is built once, into build/tools: without its server, and without
# optimization, since the site is small.

MDBOOK_VERSION := 0.5.4
MDBOOK_ROOT := $(BUILD)/tools/mdbook-$(MDBOOK_VERSION)
MDBOOK ?= $(MDBOOK_ROOT)/bin/mdbook

.PHONY: docs

docs: $(MDBOOK) ## Build the documents as a site, build/site
	rm -rf $(BUILD)/site
	$(MDBOOK) build docs --dest-dir $(abspath $(BUILD))/site

$(MDBOOK_ROOT)/bin/mdbook:
	env -u CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG=false $(CARGO) install mdbook --debug \
		--locked --version $(MDBOOK_VERSION) --no-default-features --features search \
		--root $(MDBOOK_ROOT)
