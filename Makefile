# Needs cargo and make, and Go for `make conformance`; everything else comes with them. `make` lists the targets.

CARGO ?= cargo
CARGO_DENY ?= cargo-deny
# Where cargo puts what it builds; honoured so that a shared target directory works here too.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# Where the real components are built: outside the clone, once for each version of them.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/talos-ghcr
# The programs of a real Kubernetes and a real registry: those that the environment names, or built here.
ASSETS = export KUBEBUILDER_ASSETS="$${KUBEBUILDER_ASSETS:-$$(tests/conformance/kubernetes/build.sh "$(CACHE)")}" && \
  test -n "$$KUBEBUILDER_ASSETS" &&
# Whoever brings the programs of Kubernetes may have no Go: the table then says what cannot run for want of a registry.
REGISTRY = if command -v go >/dev/null; then export TALOS_GHCR_REGISTRY_BINARY="$${TALOS_GHCR_REGISTRY_BINARY:-$$(tests/conformance/registry/build.sh "$(CACHE)")}" && \
  test -n "$$TALOS_GHCR_REGISTRY_BINARY" || exit 1; fi;
# Who plays Kubernetes in the demo: simulated or real.
KUBERNETES ?= simulated
# What `make conformance` runs: all suites unless some are named, as in `make conformance SUITES="demo rights"`.
SUITES ?=
# With REQUIRE=1 a suite that cannot run because something is missing has failed.
REQUIRE ?=
# The lock file is part of what is tested: a build never changes it.
LOCKED := --locked

.DEFAULT_GOAL := help
.PHONY: help build lint fmt test crash fleet test-page demo deny conformance

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build talos-ghcr and talos-ghcr-lab
	$(CARGO) build $(LOCKED) --workspace --bins

lint: ## Check format, clippy, rustdoc, and scripts where shellcheck is; a warning is an error
	@if command -v shellcheck >/dev/null; then shellcheck ci/*.sh .ci/run; else echo "no shellcheck here: the scripts are not checked"; fi
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(LOCKED) --workspace --all-targets -- -D warnings
	$(CARGO) clippy $(LOCKED) -p coordinator --test conformance -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(LOCKED) --workspace --no-deps --document-private-items

fmt: ## Format the code
	$(CARGO) fmt --all

test: ## Run all tests
	$(CARGO) test $(LOCKED) --workspace

# CRASH_DEATH="killed after it" CRASH_REQUEST=17 is one case of it, CRASH_EVERY=3 every third request.
crash: ## Kill, cut off or stop a run at every one of its mutating requests, and print what came of it
	$(CARGO) test $(LOCKED) -p coordinator --test acceptance -- every_death_at_every_request --ignored --nocapture

fleet: ## Roll a fleet of 3 control planes and 200 workers of three Talos versions, and print what each node costs
	$(CARGO) test $(LOCKED) -p coordinator --test acceptance -- a_roll_of_two_hundred_workers --ignored --nocapture

# CHROMIUM=/path/to/it names another than the one on the path. The pages and their pictures are left in target/tmp/page.
test-page: ## Show the page of `run --report FILE.html` in a real Chromium: wide and narrow, light and dark, asking nobody
	$(CARGO) test $(LOCKED) -p coordinator --test acceptance -- page:: --ignored --test-threads 1

demo: ## Roll a credential through a simulated cluster and show each step (KUBERNETES=real: with a real API server)
	@$(CARGO) build $(LOCKED) --workspace --bins
	@$(if $(filter real,$(KUBERNETES)),$(ASSETS)) $(TARGET_DIR)/debug/talos-ghcr-lab demo \
	  --product $(TARGET_DIR)/debug/talos-ghcr --kubernetes $(KUBERNETES)

conformance: ## Run against a real API server, kubectl and a real registry (needs Go, or KUBEBUILDER_ASSETS)
	@$(CARGO) build $(LOCKED) --workspace --bins
	@$(CARGO) test $(LOCKED) --quiet --no-run -p lab -p coordinator --lib --test acceptance --test conformance
	@$(ASSETS) $(REGISTRY) CARGO="$(CARGO)" $(TARGET_DIR)/debug/talos-ghcr-lab conformance $(if $(REQUIRE),--require) $(SUITES)

deny: ## Check dependencies: bans, licences, sources (needs cargo-deny)
	$(CARGO_DENY) --locked check bans licenses sources

.PHONY: dist image
# ARCHES="amd64 arm64" insists on both; VERSION=v1.2.3 is compared with Cargo.toml.
dist: ## Build the archives of a release into dist/: static binaries, licences, manual (ci/dist.sh says what it needs)
	ARCHES="$(ARCHES)" VERSION="$(VERSION)" CARGO="$(CARGO)" ci/dist.sh

image: ## Build a container image of what `make dist` made (needs podman, docker or buildah)
	ci/image.sh

.PHONY: model
model: ## Check the laws on every state of larger clusters, with the product's own decisions (tests/model/README.md)
	$(CARGO) test $(LOCKED) -p model --test model -- --ignored --nocapture --test-threads 1

.PHONY: conformance-talos
# A person's own Talos cluster; only I_MEAN_IT=1 lets it reboot nodes, and killing a run needs a second credential.
conformance-talos: ## Run the suite against your own Talos cluster: tests/conformance/talos/README.md
	@if [ -z "$(TALOSCONFIG)" ] || [ -z "$(KUBECONFIG)" ]; then \
	    echo "conformance-talos: TALOSCONFIG=... and KUBECONFIG=... must name the files of a Talos cluster (tests/conformance/talos/README.md)" >&2; exit 1; fi
	$(CARGO) test $(LOCKED) -p coordinator --test conformance -- talos:: --ignored --test-threads 1 --nocapture \
	    $(if $(filter 1,$(I_MEAN_IT)),,--skip talos::roll::) \
	    $(if $(TALOS_GHCR_OTHER_CREDENTIAL_FILE),,--skip talos::roll::a_run_killed)
