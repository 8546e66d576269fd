# The Debian packages: libraries and programs, library for development, SISCI, the guests' driver.

.PHONY: deb
deb: all ## Build the Debian packages: build/deb/*.deb
	packaging/deb
