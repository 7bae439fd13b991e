#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The model of the page's protocol: it keeps its promises, searched exhaustively, and each variant
# that is broken on purpose breaks one. Takes half a minute of two idle CPUs, and 1 GiB.
# usage: spin.sh [page.pml]
set -u

model=$(realpath "${1:-$(dirname "$0")/../../src/source/page/page.pml}")
[ -r "$model" ] || { echo "cannot read $model" >&2; exit 1; }
for tool in spin "${CC:=cc}"; do
        command -v "$tool" >/dev/null || { echo "1..0 # SKIP $tool is not installed"; exit 0; }
done
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

# What must come out, its name, the model's options. The longest first.
holds=(
        'P covers all T read before it|-DEVENTS=2'
        'P covers all T read before it, and threads end|-DENDS -DONE -DEVENTS=2 -DHORIZON=3'
        'T never goes back, access by access|-DTHREAD -DFINE -DEVENTS=3 -DHORIZON=3'
        'P never goes back, and threads end|-DPROCESS -DENDS -DONE -DEVENTS=2 -DHORIZON=3'
        'P never goes back|-DPROCESS -DEVENTS=2'
        'P covers all T read before it, access by access|-DFINE -DEVENTS=1'
        'P never goes back, access by access|-DPROCESS -DFINE -DEVENTS=1'
        'no reader that stops holds up a writer|-DSTOP -DTHREAD -DFINE -DEVENTS=2 -DHORIZON=3'
)
fails=(
        'stamp taken before the counts are odd: T|-DBROKEN_STAMP -DTHREAD -DFINE -DEVENTS=1'
        'stamp taken before the counts are odd: P|-DBROKEN_STAMP -DPROCESS -DFINE -DEVENTS=1'
        'slot made odd after the stamp: T|-DBROKEN_SLOT -DTHREAD -DFINE -DEVENTS=1'
        'slot made odd after the stamp: P and T|-DBROKEN_SLOT -DEVENTS=1'
        'no second look at the count: T|-DBROKEN_SEQ -DTHREAD -DFINE -DEVENTS=1'
        'no second look at the count: P|-DBROKEN_SEQ -DPROCESS -DFINE -DEVENTS=1'
        'a publication starts below what was told|-DBROKEN_TOLD -DTHREAD -DFINE -DEVENTS=1'
        'P is not held when a thread ends|-DBROKEN_HOLD -DPROCESS -DENDS -DONE -DEVENTS=2 -DHORIZON=3'
        'cells sum up what the kernel charged, not T|-DBROKEN_COVER -DEVENTS=1'
        'the slot of a thread that leaves is not told|-DBROKEN_LEAVE -DEVENTS=1'
        'no allowance for looks before the time: T|-DBROKEN_SKEW -DTHREAD -DFINE -DEVENTS=1'
        'no allowance for looks before the time: P|-DBROKEN_SKEW -DPROCESS -DFINE -DEVENTS=1'
        'old publications are built upon|-DBROKEN_AGE -DTHREAD -DFINE -DEVENTS=1'
        'writers wait for readers|-DBROKEN_BLOCK -DSTOP -DTHREAD -DFINE -DEVENTS=1'
        'P covers ended threads to the last microsecond|-DSTRICT -DENDS -DONE -DEVENTS=2 -DHORIZON=3'
)

# Searches in a directory of its own, $1; the other arguments are the model's options.
search() {
        local pan=(-m10000) flags=(-O1 -DSAFETY -DCOLLAPSE -DMEMLIM=900)

        # What fails does so soon: compiling takes longer.
        [ "$1" -le ${#holds[@]} ] || flags[0]=-O0
        mkdir "$1" && cd "$1" || return 1
        shift
        # Where a reader has stopped, its end is none: what counts is where the writers are.
        [[ " $* " != *' -DSTOP '* ]] || { pan+=(-E); flags+=(-DNOREDUCE); }
        spin -a "$@" "$model" && "$CC" -w "${flags[@]}" -o pan pan.c && ./pan "${pan[@]}"
}

# Two searches at a time.
n=0
for point in "${holds[@]}" "${fails[@]}"; do
        n=$((n + 1))
        [ $n -le 2 ] || wait -n
        # shellcheck disable=SC2086 # a list of options
        (search $n ${point#*|} >$n.log 2>&1) &
done
wait

echo "1..$n"
failed=0
for ((i = 1; i <= n; i++)); do
        good=no
        if [ $i -le ${#holds[@]} ]; then
                name=${holds[i - 1]%%|*}
                grep -q 'errors: 0$' $i.log && ! grep -qi 'not completed\|too small\|truncated' $i.log && good=yes
        else
                name="fails: ${fails[i - 1 - ${#holds[@]}]%%|*}"
                grep -q 'assertion violated' $i.log && good=yes
        fi
        [ $good = yes ] || { failed=1; echo -n "not "; }
        echo "ok $i - $name"
        sed -n 's/^pan:1: \(assertion violated .*\) (at depth.*/# \1/p; s/^ *\([0-9.e+]* states, stored\).*/# \1/p' $i.log
        [ $good = yes ] || sed 's/^/# /' $i.log
done
exit $failed
