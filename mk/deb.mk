# The Debian packages: libraries and programs, containers, library for development, SISCI, the
# guests' driver.

.PHONY: deb
deb: all kube ## Build the Debian packages: build/deb/*.deb
	packaging/deb
