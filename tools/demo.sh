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
echo "As user $($as id -un); CPU clocks of programs as they are; auto is with cputime."
echo

# As many calls as fit: a kernel, or a machine, that is slow gets fewer. 14 samples of the kernel
# (6, the warm-up, and the same again) at four N, together about 2.3 times the dearest, 128, in 12
# seconds. Few calls count against cputime: each thread's first reads are still the kernel's.
ns=$($as "$build/bench/pound_clock_gettime" 128 50000 | sed -n 's/^ns_per_call=\([0-9]*\).*/\1/p')
calls=$((12000000000 / (14 * 23 * (ns + 1) / 10) / 10000 * 10000))
[ $calls -ge 50000 ] || calls=50000
[ $calls -le 1000000 ] || calls=1000000

# On a machine that others keep busy even that may take too long. An interrupt then ends the bench,
# which prints what it has measured, fewer samples each; 124 is that interrupt.
bench() {
        seconds=$1
        shift
        timeout --foreground -s INT "$seconds" \
                $as "$cputime" bench "$@" --backend kernel,auto --repeat 6 || [ $? -eq 124 ]
        echo
}

bench 8 thread_read --threads 1 --calls 100000
bench 22 pound_clock_gettime --threads 2,8,32,128 --calls $calls
bench 22 pound_times --threads 2,8,32,128 --calls $calls

echo "Next, try your own: $build/cputime run -- YOUR PROGRAM, and $build/cputime doctor"
