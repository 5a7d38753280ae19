# For people: the build itself is CMake's (CMakeLists.txt, CMakePresets.json).
#
#   make            build/ckpt
#   make demo       both main jobs on real input
#   make check      the tests; CKPT_INTEROP=1 adds those that need torch, megatron-core and zarr
#   make check-long the long forms: whole servers under load, whose packages it installs, soaks, kills, bit flips; hours
#   make package    a Debian package, and a tarball whose binary starts on any x86-64 Linux: build/packages
#   make install    binary, man pages, shell completions: PREFIX=/usr/local, DESTDIR=
#   make clean      remove what was built
#   make deps       the Debian packages: installs them as root, else says which are missing

PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
# Most tests wait more than they work. Those that take two processors are counted as two (PROCESSORS).
TEST_JOBS ?= $(shell echo $$((2 * $(JOBS))))

BUILD_PACKAGES = g++ cmake ninja-build pkg-config libcli11-dev libfmt-dev nlohmann-json3-dev libzstd-dev \
                 libssl-dev libxxhash-dev libcurl4-openssl-dev libexpat1-dev zlib1g-dev libbz2-dev liblz4-dev \
                 libblosc-dev libsnappy-dev libre2-dev doctest-dev libprotobuf-dev protobuf-compiler
# Loaded when they are needed: for a packet filter that holds TCP connections off, for a URL, for Reed-Solomon codes.
RUN_PACKAGES = libnftables1 libcurl4 libisal2
TEST_PACKAGES = iproute2 libopenmpi-dev openmpi-bin python3 python3-jsonschema python3-mpi4py python3-numpy python3-venv python3-yaml mandoc
# lintian brings a hundred packages along: make deps LINT_PACKAGES=lintian
LINT_PACKAGES =
PACKAGES = $(BUILD_PACKAGES) $(RUN_PACKAGES) $(TEST_PACKAGES) $(LINT_PACKAGES)

# Debian's own tools, whatever else PATH holds: a cmake or python3 from elsewhere does not see Debian's libraries.
export PATH := /usr/bin:$(PATH)

.PHONY: all configure demo check check-build check-long package install clean deps completions

all: configure
	cmake --build build -j $(JOBS) --target ckpt

configure: deps
	@mkdir -p build
	@cmake --preset default >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }

demo: all
	CKPT_BIN=build/ckpt tests/support/demo.sh

# All that the tests run.
check-build: configure
	cmake --build build -j $(JOBS)

check: check-build
	@if ctest --test-dir build --output-on-failure -j $(TEST_JOBS) --timeout 600; \
	then echo "make check: passed"; \
	else echo "make check: FAILED (above; again with: ctest --test-dir build --rerun-failed --output-on-failure)"; exit 1; fi

check-long: check-build
	CKPT_INTEROP=1 CKPT_APPS=1 CKPT_LONG=1 ctest --test-dir build --output-on-failure -L 'apps|long|interop_env' --timeout 14400

package: configure
	cmake --build build -j $(JOBS) --target packages

# Installs no packages and configures nothing: it may run as root on what somebody else has built.
install:
	@[ -x build/ckpt ] || { echo "nothing is built: run make first"; exit 1; }
	DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(PREFIX)" --strip

clean:
	rm -rf build build-*

# The files in completions/ are what the binary prints; a test compares them.
completions: all
	build/ckpt completion bash >completions/ckpt.bash
	build/ckpt completion zsh >completions/_ckpt
	build/ckpt completion fish >completions/ckpt.fish

deps:
	@command -v dpkg-query >/dev/null || { echo "not a Debian system: needed are $(PACKAGES)"; exit 0; }; \
	missing=; for p in $(PACKAGES); do \
	  [ "$$(dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null)" = installed ] || missing="$$missing $$p"; \
	done; \
	[ -n "$$missing" ] || exit 0; \
	if [ "$$(id -u)" = 0 ]; then \
	  echo "installing:$$missing"; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get -qq update && apt-get -qq -y --no-install-recommends install $$missing >/dev/null; \
	else \
	  echo "missing Debian packages:$$missing"; \
	  echo "install them with: sudo apt-get install --no-install-recommends$$missing"; exit 1; \
	fi
