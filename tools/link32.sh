#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tools/link32.sh: the accounting rules must link on 32-bit targets without libgcc and libatomic.
#
# For each target: first what must not link (a 64-bit division, a 64-bit atomic where the target has
# none) is tried, so that the check is known to work here; then tests/link32.c, which must call every
# inline function of src/account and of the sequence count; then the unit tests of the same files
# run, natively or under qemu-user, on the word size and byte order of the target. sh4 is linked
# only: threads do not run there under qemu-user.
# Exit status: 0 all linked and passed, 1 not, 77 when a cross compiler is missing.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
        echo "link32: $*" >&2
        failed=1
}

link() {
        "$1-linux-gnu-gcc" -std=c17 -O2 -Wall -Wextra -Werror -ffreestanding -fno-stack-protector \
                -no-pie -static -nostdlib -Wl,-e,ct_link32 -I"$top/src" -o "$work/$1.elf" "$2" \
                2>"$work/log"
}

cat >"$work/division.c" <<'EOT'
#include <stdint.h>
void ct_link32(void);
volatile uint64_t value;
void ct_link32(void) { value = value / (value + 1); }
EOT
cat >"$work/atomic.c" <<'EOT'
#include <stdatomic.h>
#include <stdint.h>
void ct_link32(void);
_Atomic uint64_t value;
void ct_link32(void) { atomic_store(&value, atomic_load(&value) + 1); }
EOT

grep -ohP '^static inline .*?\b\Kct_\w+(?=\()' "$top"/src/account/*.h \
        "$top/src/base/seqcount.h" >"$work/names"
while read -r name; do
        grep -qw "$name" "$top/tests/link32.c" ||
                fail "$name() is not called in tests/link32.c; add it there"
done <"$work/names"

for target in i686 mips sh4; do
        command -v "$target-linux-gnu-gcc" >/dev/null || {
                echo "link32: no $target-linux-gnu-gcc; tools/deps check installs it" >&2
                exit 77
        }
        plants="division atomic"
        [ $target = i686 ] && plants=division   # i686 has a 64-bit compare-and-swap
        for plant in $plants; do
                link $target "$work/$plant.c" &&
                        fail "$target: a planted 64-bit $plant linked; the check finds nothing"
                grep -q 'undefined reference' "$work/log" ||
                        fail "$target: the planted $plant failed for another reason:" \
                             "$(cat "$work/log")"
        done
        link $target "$top/tests/link32.c" || {
                cat "$work/log" >&2
                fail "$target: src/account does not link without libgcc, see above"
                continue
        }
        # What the linker would accept and a board without a library does not have.
        [ -z "$("$target-linux-gnu-nm" -u "$work/$target.elf")" ] ||
                fail "$target: undefined symbols are left"
        echo "link32: $target links"
done

# Byte order and word size, for real: i686 runs on the CPU itself, mips is big-endian.
for target in i686 mips; do
        run=()
        [ $target = mips ] && run=(qemu-mips)
        for test in base/test-seqcount account/test-task account/test-group; do
                "$target-linux-gnu-gcc" -std=gnu17 -D_GNU_SOURCE -O2 -static -I"$top/src" -pthread \
                        -o "$work/test" "$top/src/$test.c" 2>"$work/log" || {
                        cat "$work/log" >&2
                        fail "$target: src/$test.c does not compile, see above"
                        continue
                }
                timeout 120 "${run[@]}" "$work/test" 2>"$work/log" || {
                        status=$?
                        cat "$work/log" >&2
                        fail "$target: src/$test.c failed with status $status, see above"
                        continue
                }
                echo "link32: $target passes $test"
        done
done
exit $failed
