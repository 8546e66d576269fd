# What `make bench` runs beside the tools: bare baselines, and verbs programs of its own, which are
# linked to the distribution's library as any program is.

BARE := cacheline handover copy wake udp_pingpong udp_stream tcp_pingpong tcp_stream two_sends
VERBS_PROGRAMS := reg_cost one_transfer qp_churn write_send threads
BARE_BINS := $(BARE:%=$(BUILD)/bench/%)
VERBS_BINS := $(VERBS_PROGRAMS:%=$(BUILD)/bench/%)
NULL_VERBS := $(BUILD)/bench/null_verbs.so

.PHONY: bench setup-bench baseline

# ARGS reaches benches/run: make bench ARGS='--quick --no-document'
bench: $(addprefix $(BUILD)/test/,idle paced)
bench: setup-bench all baseline ## Measure, refresh docs/PERFORMANCE.md
	benches/run $(ARGS)

setup-bench:
	scripts/setup bench

baseline: $(BARE_BINS) $(VERBS_BINS) $(NULL_VERBS) ## Build the baselines and programs of make bench

$(BUILD)/bench/two_sends: LIBRARIES := -lrdmacm

$(BARE_BINS): $(BUILD)/bench/%: benches/baseline/%.c benches/baseline/common.h \
		benches/baseline/net.h mk/bench.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -o $@ $< $(LIBRARIES)

$(VERBS_BINS): $(BUILD)/bench/%: benches/baseline/%.c $(wildcard benches/baseline/*.h) \
		tests/verify/common.c tests/verify/common.h mk/bench.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -o $@ $(filter %.c,$^) -pthread -libverbs

$(NULL_VERBS): benches/baseline/null_verbs.c mk/bench.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -fPIC -shared -fvisibility=hidden -o $@ $<
