# Causeway's front door. `make help` lists what one can ask for.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

# rustup's usual place, for shells that have not read its profile.
export PATH := $(PATH):$(HOME)/.cargo/bin

BUILD ?= build
CARGO ?= cargo
CARGO_FLAGS ?= --locked
CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR
CC ?= cc

include mk/abi.mk
include mk/sisci.mk
include mk/c.mk
include mk/causeway.mk
include mk/man.mk
include mk/bench.mk
include mk/lint.mk
include mk/guest.mk
include tests/verify/verify.mk
include tests/sisci/sisci.mk
include tests/mpi/mpi.mk
include tests/ucx/ucx.mk
include tests/vm/vm.mk
include guest/tests/tests.mk
include tests/scale/scale.mk
include tests/counts/counts.mk

.PHONY: all bins libs paths headers examples test-programs setup demo test test-more lint clean \
	help

all: bins libs sisci paths headers examples man ## Build build/bin, lib, include, share and examples

bins: ## Build the programs: causeway, causewayd and causeway-noded
	$(CARGO) build --release $(CARGO_FLAGS) -p causeway-cli -p causeway-broker -p causeway-node
	@mkdir -p $(BUILD)/bin
	install -m 755 $(addprefix $(CARGO_TARGET_DIR)/release/,causeway causewayd causeway-noded) \
		$(BUILD)/bin/

setup: ## Install the Debian packages that building and testing need (only what is missing)
	scripts/setup

demo: setup all ## Run Debian's perftest on one host and on two, end with a table
	tests/demo

# ARGS reaches tests/run: make test ARGS='--list', ARGS='--only clients -k pingpong'
test: setup all test-programs ## Run every test, end with one line of counts
	tests/run $(ARGS)

# ARGS reaches tests/more: make test-more ARGS='kills clients-shm', ARGS='--list'
test-more: setup all test-programs ## Run what takes longer than make test allows, shard by shard
	tests/more $(ARGS)

clean: ## Remove build/ and cargo's output
	rm -rf $(BUILD)
	$(CARGO) clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12
