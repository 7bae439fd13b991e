#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The main job, shown on this machine in under a minute: programs that know nothing of cputime read
# their CPU clocks, with the kernel and with cputime, side by side. `make demo` builds, then calls
# this with the build directory.
#
# No privilege is needed, and to show it root becomes nobody first, unless nobody cannot reach the
# build tree (a home directory that is closed, say).
set -eu

build=${1:-build}
cputime=$build/cputime

if [ ! -x "$cputime" ]; then
        echo "demo: $cputime is not there; run \`make\` first" >&2
        exit 1
fi

as=
if [ "$(id -u)" -eq 0 ]; then
        nobody="setpriv --reuid=nobody --regid=nogroup --clear-groups"
        reachable=yes
        for f in "$cputime" "$build/libcputime-preload.so" "$build/bench/pound_times"; do
                $nobody test -r "$f" 2>/dev/null || reachable=
        done
        if [ -n "$reachable" ]; then
                as=$nobody
        else
                echo "(The user nobody cannot read $build: measuring as root.)"
        fi
fi
echo "As user $($as id -un); CPU clocks of unmodified programs; kernel: without cputime, auto: with."
echo

# Few calls, so that it stays under a minute where the kernel takes 2,000 ns for one. The
# documentation's tables come from ten times as many.
bench() {
        $as "$cputime" bench "$@" --backend kernel,auto
        echo
}

bench thread_read --threads 1 --calls 300000 --repeat 6
bench pound_clock_gettime --threads 2,8,32,128 --calls 400000 --repeat 6
bench pound_times --threads 2,8,32,128 --calls 400000 --repeat 6

echo "Next, try your own: $build/cputime run -- YOUR PROGRAM, and $build/cputime doctor"
