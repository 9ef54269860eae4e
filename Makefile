# The front door. `make help` says what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# One profile for tests and demo: nothing is compiled twice.
CARGO ?= cargo
BENCH ?= admission guard
STAGE := ./scripts/stage

.PHONY: help
help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

ifneq ($(filter-out node plane,$(DEMO)),)
$(error DEMO is node or plane, not $(DEMO))
endif

.PHONY: demo
demo: tools ## Run the main job on a real node, or on a control plane where none can run (DEMO=plane); KEEP=1 leaves it running
	@KEEP=$(KEEP) DEMO=$(DEMO) ./scripts/demo

.PHONY: test
test: tools lint ## Run all tests but those on a real node (make test-node)
	@$(STAGE) "build the tests (the first time some minutes, in which nothing is printed)" $(CARGO) test --quiet --workspace --no-run
	@$(STAGE) "tests that need nothing, or a socket" $(CARGO) test --workspace --lib --bins --test drift --test model --test admission --test guard --test cli --test server
	@$(STAGE) "tests of the control plane itself" $(CARGO) test --workspace --test balancer --test ending --test faults --test planes --test store_watch -- --test-threads=2
	@$(STAGE) "tests on a control plane" $(CARGO) test --test plane --test plane_guard -- --test-threads=2
	@$(STAGE) "tests of the chart (the first time some minutes, in which helm is built)" $(CARGO) test --test chart
	@$(STAGE) "examples in the documentation" $(CARGO) test --quiet --workspace --doc
	@$(STAGE) "the demo, on a control plane" $(MAKE) --no-print-directory demo DEMO=plane

.PHONY: test-node
test-node: rust ## Run the tests, and the demo, on a real node; where none can run they say why, and pass
	@why=$$(./tests/cluster/node.sh check); if [ -n "$$why" ]; then echo "not run: no node can run here: $$why"; else \
	  $(STAGE) "what a real node runs (the first time 10 to 15 minutes, in which little is printed)" bash -c './tests/cluster/build.sh node >/dev/null' && \
	  $(STAGE) "the image (the first time some minutes, in which nothing is printed)" bash -c './scripts/image --quiet >/dev/null' && \
	  $(STAGE) "the node itself" $(CARGO) test --workspace --test machine && \
	  $(STAGE) "the chart on a node" $(CARGO) test --test node && \
	  $(STAGE) "the demo, on a node" $(MAKE) --no-print-directory demo DEMO=node; fi

.PHONY: test-fast
test-fast: rust ## Run the tests that need no control plane
	@$(CARGO) test --workspace --lib --bins --test drift --test model --test admission --test guard --test cli --test server

.PHONY: bench
bench: tools ## Measure what an admission and a guard cost, on a quiet machine; BENCH=guard for one of the two
	@$(STAGE) "build for release" ./scripts/release bench --quiet $(BENCH:%=--bench %) --no-run
	@for bench in $(BENCH); do ./scripts/release bench --quiet --bench $$bench; done

.PHONY: lint
lint: rust ## Check format, lints, manifests, dependencies and what must not be committed
	@$(STAGE) "format" $(CARGO) fmt --all --check
	@$(STAGE) "lints" $(CARGO) clippy --quiet --workspace --all-targets -- --deny warnings
	@$(STAGE) "documentation" env RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --quiet --workspace --no-deps
	@$(STAGE) "rules of the repository" ./scripts/lint

.PHONY: fmt
fmt: rust ## Format the code
	@$(CARGO) fmt --all

.PHONY: manifests
manifests: rust ## Write anew what is made from the types and from the chart
	@UPDATE_MANIFESTS=1 $(CARGO) test --quiet --test drift
	@UPDATE_MANIFESTS=1 $(CARGO) test --quiet --test chart -- agreement renders

.PHONY: image
image: rust ## Build the image that the chart installs, without a registry; as root; SBOM=1 lists what is in it, too
	@$(STAGE) "the program for release, and an image of it (the first time some minutes, in which nothing is printed)" ./scripts/image
	@[ -z "$(SBOM)" ] || $(STAGE) "what is in the program" ./scripts/image --sbom

.PHONY: cluster
cluster: rust ## Start a real node with the chart on it, and leave it running (Linux, root)
	@$(STAGE) "what a real node runs (the first time 10 to 15 minutes, in which little is printed)" bash -c './tests/cluster/build.sh node >/dev/null'
	@$(STAGE) "the image (the first time some minutes, in which nothing is printed)" bash -c './scripts/image --quiet >/dev/null'
	@$(STAGE) "what starts the node" $(CARGO) build --quiet --workspace --bin cluster
	@target=$${CARGO_TARGET_DIR:-target}; $$target/debug/cluster $$target/image/deployer-guard.tar $$target/cluster.end

.PHONY: cluster-down
cluster-down: ## End what `make cluster` or `make demo KEEP=1` left running
	@none="no cluster was left running"; for state in $${CARGO_TARGET_DIR:-target}/{cluster,demo}.end; do \
	  if [ -s "$$state" ]; then bash "$$state"; rm -f "$$state"; none=''; fi; done; [ -z "$$none" ] || echo "$$none"

.PHONY: certs
certs: ## Make certificates for development, in certs/out
	@./certs/make.sh

.PHONY: tools
tools: rust ## Build etcd, kube-apiserver, kube-controller-manager and kubectl, once, outside the tree
	@$(STAGE) "etcd and Kubernetes 1.36 (the first time 10 minutes or so, in which nothing is printed)" bash -c './tests/cluster/build.sh >/dev/null'

# Rust of the version in rust-toolchain.toml. Nothing to do where it is there.
.PHONY: rust
rust:
	@./scripts/rust
