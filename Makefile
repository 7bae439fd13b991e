# SPDX-License-Identifier: MIT
# A thin front door to Meson. Every target does its own set-up on Debian 12 as root or with sudo.
.PHONY: all check check-vm demo install clean

# Always asked: ninja knows what is out of date, make does not.
all:
	tools/deps build
	test -f build/build.ninja || meson setup build
	meson compile -C build

# Builds with both compilers and under the sanitizers, and tests them; under 25 minutes on 2 CPUs.
check:
	tools/check

# The header backend and the page on other kernels, in virtual machines; the former is part of `check`.
check-vm:
	tools/deps build check
	tools/vm/check-header
	tools/vm/check-page

demo: all
	tools/demo.sh

# Honours DESTDIR; another prefix: meson configure build --prefix=/usr
install: all
	meson install -C build --no-rebuild

clean:
	rm -rf build build-check
