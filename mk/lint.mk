# What a change must pass before its tests are worth running.

lint: ## Check formatting, lints, docs, and the tree's own rules
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(CARGO_FLAGS) --workspace --no-deps --quiet
	tests/tidy/run
	tests/litmus/run --source -q
	luacheck -q --std lua52+max -g packaging/wireshark
	scripts/checkpatch
