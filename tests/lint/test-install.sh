#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A user's view: the project is installed under DESTDIR, and the examples, copied elsewhere, are
# compiled through pkg-config in C and C++ and run against the installed copy.
# Usage: test-install.sh SOURCE-ROOT BUILD-ROOT
set -eu
source=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
        echo "$*" >&2
        exit 1
}

for tool in pkg-config c++; do
        command -v $tool >/dev/null || {
                echo "skipped: no $tool; tools/deps build check installs it" >&2
                exit 77
        }
done

DESTDIR="$work/root" meson install -C "$build" --no-rebuild >"$work/log" 2>&1 ||
        fail "meson install failed: $(cat "$work/log")"

pc=$(find "$work/root" -name libcputime.pc)
[ -n "$pc" ] || fail "no libcputime.pc was installed"
export PKG_CONFIG_LIBDIR=${pc%/*} PKG_CONFIG_SYSROOT_DIR="$work/root"
read -ra flags < <(pkg-config --cflags --libs libcputime)
libdir=$(pkg-config --variable=libdir libcputime)
case $libdir in "$work"/*) ;; *) libdir=$work/root$libdir ;; esac

cp "$source"/examples/measure.c "$source"/examples/budget.cpp "$work"
cd "$work"
cc -std=c17 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -pedantic -o measure measure.c \
        "${flags[@]}"
c++ -std=c++17 -Wall -Wextra -Werror -pedantic -o budget budget.cpp "${flags[@]}"
export LD_LIBRARY_PATH=$libdir
for program in measure budget; do
        ldd ./$program | grep -q "=> $libdir/libcputime.so.0" ||
                fail "$program does not load the installed library: $(ldd ./$program)"
done
output=$(./measure)
grep -Eq '^work: [1-9][0-9]* us of CPU time$' <<<"$output" || fail "measure printed: $output"
output=$(./budget)
grep -Eq '^[1-9][0-9]* primes below [1-9]' <<<"$output" || fail "budget printed: $output"

[ -e "$libdir/libcputime-preload.so" ] || fail "no $libdir/libcputime-preload.so was installed"
program=$(find "$work/root" -path '*/bin/cputime')
[ -x "$program" ] || fail "no program cputime was installed"
env -u LD_LIBRARY_PATH "$program" --version >version 2>&1 ||
        fail "the installed cputime --version failed: $(cat version)"
grep -q "$(pkg-config --modversion libcputime)" version ||
        fail "cputime --version and libcputime.pc disagree: $(cat version)"

# Each verb has its page, and each page of ours that a page points to is there.
mandir=$(find "$work/root" -type d -path '*/man')
for verb in "$source"/src/cli/cmd-*.c; do
        verb=${verb##*/cmd-}
        find "$mandir/man1" -name "cputime-${verb%.c}.1*" | grep -q . ||
                fail "cputime ${verb%.c} has no manual page cputime-${verb%.c}(1)"
done
for page in "$source"/man/*.[13]; do
        # groff writes a hyphen within a name as \-.
        sed -n '/^\.SH SEE ALSO/,$s/^\.BR \(.*\) (\([13]\)).*/\1.\2/p' "$page" | sed 's/\\-/-/g' |
        { grep cputime || true; } | while read -r other; do
                find "$mandir/man${other##*.}" -name "$other*" | grep -q . ||
                        fail "$page points to $other, which is not installed"
        done
done
