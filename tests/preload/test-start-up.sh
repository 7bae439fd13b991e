#!/bin/sh
# SPDX-License-Identifier: MIT
# constructor_makes_no_system_call: a program that reads no clock makes exactly the system calls
# that it makes with an empty library preloaded.
# usage: test-start-up.sh DROP-IN EMPTY-LIBRARY PROGRAM
set -eu

drop_in=$(realpath "$1") empty=$(realpath "$2") program=$(realpath "$3")
command -v strace >/dev/null || { echo "skipped: strace is not installed" >&2; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Names of the calls, in order; a library with more segments is mapped with more calls, so those
# that map the file itself are left out.
calls() {
        strace -f -o "$dir/trace" -E LD_PRELOAD="$1" "$program" nothing ||
                { echo "$program failed with $1 preloaded" >&2; exit 1; }
        sed -n 's/^[0-9]* *\([a-z0-9_]*\)(.*/\1/p' "$dir/trace" | grep -v '^mmap$\|^mprotect$'
}

calls "$empty" >"$dir/with-empty"
calls "$drop_in" >"$dir/with-drop-in"
grep -q execve "$dir/with-empty" || { echo "strace saw nothing" >&2; exit 1; }
diff "$dir/with-empty" "$dir/with-drop-in" >&2 ||
        { echo "the drop-in makes other system calls at start-up" >&2; exit 1; }
