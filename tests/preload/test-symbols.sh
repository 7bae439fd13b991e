#!/bin/sh
# SPDX-License-Identifier: MIT
# Every symbol that the drop-in exports replaces one that libc exports, under no version of its
# own; and it needs libc alone.
# usage: test-symbols.sh DROP-IN
set -eu

drop_in=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
libc=$(ldd "$drop_in" | sed -n 's/.*libc\.so[^ ]* => \([^ ]*\).*/\1/p')
[ -n "$libc" ] || { echo "$drop_in is not linked with libc" >&2; exit 1; }

nm -D --defined-only "$drop_in" | sed 's/.* //' | sort >"$dir/ours"
nm -D --defined-only "$libc" | sed 's/.* //; s/@.*//' | sort -u >"$dir/libcs"
[ -s "$dir/ours" ] || { echo "$drop_in exports nothing" >&2; exit 1; }
if grep @ "$dir/ours" >&2; then
        echo "the drop-in has a version node: the loader passes over these" >&2
        exit 1
fi
comm -23 "$dir/ours" "$dir/libcs" >"$dir/extra"
[ ! -s "$dir/extra" ] || { cat "$dir/extra"; echo "not libc's, but exported"; exit 1; } >&2
needed=$(readelf -d "$drop_in" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -v '^ld-linux')
[ "$needed" = libc.so.6 ] || { echo "needs more than libc: $needed" >&2; exit 1; }
