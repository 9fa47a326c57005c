# The two commands most people need: `make demo` and `make check`. Meson and Ninja do the work;
# this file only gives the usual doors their usual names.

SHELL := /bin/bash
BUILD ?= build
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 30

.DEFAULT_GOAL := build
.PHONY: build demo check install bench fuzz asan tsan format clean

build:
	@scripts/install-deps build
	@scripts/configure $(BUILD) -Dprefix=$(PREFIX)
	ninja -C $(BUILD)

# A disk served, read, copied, compared and summed, with a table of what it took.
demo:
	@scripts/install-deps build
	@BUILD=$(BUILD) scripts/demo

# Everything that must hold before a change lands; the stages are listed in scripts/check-all.
check:
	@scripts/install-deps build test static guests
	@scripts/check-all

install: build
	meson install -C $(BUILD) --no-rebuild

# Builds in release mode by itself.
bench:
	@bench/compare

# libFuzzer over every parser, FUZZ_SECONDS each.
fuzz:
	@scripts/install-deps build static
	@FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz

asan tsan:
	@scripts/install-deps build test
	@scripts/check-all --only $@

format:
	@scripts/install-deps static
	@git ls-files -z '*.c' '*.h' | xargs -0 -r clang-format-14 -i

clean:
	rm -rf build build-*
