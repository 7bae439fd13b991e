# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# guests.sh: what the checks in virtual machines, check-header and check-page, have in common. They
# source it, and call
#
#   need FILE...                        of the build, which the guests get
#   prepare "$@"                        [BUILD]: a Meson build directory that is up to date; without
#                                       it `make` brings build/ there. Afterwards $run is the runner
#                                       and $scratch a directory
#   point STATUS NAME                   a TAP point, passed if STATUS is 0
#   attended COMMAND...                 runs it, with traps in force
#   guest CASE [OPTION OF run...]       boots a guest for tests/vm/in-guest.sh CASE; the points that
#                                       come out of it are numbered through, and named after CASE
#   finish                              exits: 0 all points passed, 1 not
#
# prepare exits with 2 for bad usage, 77 where something that is needed cannot be had here; the last
# line names it.
set -u
cd -- "$(dirname -- "$0")/../.." || exit 1
name=${0##*/}
run=tools/vm/run
points=0
failed=0
running=
files=()

need() {                                # FILE...
        files+=("$@")
}

point() {                               # STATUS NAME
        points=$((points + 1))
        if [ "$1" = 0 ]; then
                echo "ok $points - $2"
        else
                echo "not ok $points - $2"
                failed=$((failed + 1))
        fi
}

# As in the foreground, but bash runs no trap before a foreground command has ended.
attended() {
        local status

        "$@" &
        running=$!
        wait "$running"
        status=$?
        running=
        return $status
}

prepare() {                             # the arguments of the check
        local file

        [ $# -le 1 ] || { echo "$name: one build directory at most, but '$2' too" >&2; exit 2; }
        build=${1:-build}
        if [ $# -eq 0 ]; then
                make >&2 || { echo "$name: make failed, see above" >&2; exit 1; }
        fi
        for file in "${files[@]}"; do
                [ -f "$build/$file" ] || {
                        echo "$name: $build/$file is missing: run meson compile -C $build" >&2
                        exit 1
                }
        done
        scratch=$(mktemp -d "${TMPDIR:-/tmp}/cputime-$name.XXXXXX") || exit 1
        mkfifo "$scratch/points" || exit 1
        trap '[ -z "$running" ] || kill "$running" 2>/dev/null; wait; rm -rf -- "$scratch"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
        attended $run --fetch || exit
}

guest() {                               # CASE [OPTION OF run...]
        local case=$1 status line file
        shift
        set -- "$@" --timeout 600 --file tests/vm/in-guest.sh
        for file in "${files[@]}"; do
                set -- "$@" --file "$build/$file"
        done

        echo "# guest: $case"
        $run "$@" -- sh tests/vm/in-guest.sh "$case" "$build" >"$scratch/points" &
        running=$!
        while IFS= read -r line; do
                case $line in
                'ok - '*) point 0 "$case: ${line#ok - }" ;;
                'not ok - '*) point 1 "$case: ${line#not ok - }" ;;
                *) printf '%s\n' "$line" ;;
                esac
        done <"$scratch/points"
        wait "$running"
        status=$?
        running=
        [ $status = 0 ]
        point $? "$case: the guest ran to its end"
}

finish() {
        echo "1..$points"
        [ $failed = 0 ] || echo "# $failed of $points failed"
        [ $failed = 0 ]
        exit
}
