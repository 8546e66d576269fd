# Manual pages and completions. Those of the command line come from its own definition, those of
# libcauseway's functions from its header; the others are written by hand in docs/man.
#
#   SHARE   where they go: as below /usr/share  (build/share)

SHARE ?= $(BUILD)/share
MANUAL_PAGES := $(wildcard docs/man/*.[1-9])

.PHONY: man install-man
man: bins ## Make the manual pages and the shells' completions, in build/share
	rm -rf $(SHARE)/man
	install -d $(SHARE)/man/man1 $(SHARE)/man/man3 $(SHARE)/man/man5 $(SHARE)/man/man7 \
		$(SHARE)/man/man8
	$(BUILD)/bin/causeway manual $(SHARE)
	scripts/man3 include/causeway.h docs/man/functions $(SHARE)/man/man3
	@for page in $(MANUAL_PAGES); do \
		install -m 644 "$$page" "$(SHARE)/man/man$${page##*.}/"; \
	done

install: install-man

install-man: man
	install -d $(DESTDIR)$(PREFIX)/share
	cp -R $(SHARE)/. $(DESTDIR)$(PREFIX)/share/
