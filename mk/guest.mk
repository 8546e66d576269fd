# The Debian package for guests of virtual machines: driver source, libraries, command line.

.PHONY: guest-deb
guest-deb: bins libs paths sisci ## Build build/causeway-guest_*.deb, to install in a guest
	packaging/guest-deb
