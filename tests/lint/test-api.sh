#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One API: the functions that the public headers declare, that the symbol map exports, that the
# library has and that section 3 of the manual names are the same. And the library needs libc only.
# Usage: test-api.sh SOURCE-ROOT LIBCPUTIME.SO
set -u
cd "$1" || exit 1
library=$2
failed=0

declared() {
        for header in include/cputime/*.h; do
                cpp -fpreprocessed -P "$header" | grep -oP '\bcputime_\w+(?=\()'
        done | sort -u
}

mapped() {
        sed -n '/global:/,/local:/s/^ *\(cputime_[a-z0-9_]*\);.*/\1/p' src/clock/libcputime.map | sort
}

exported() {
        nm -D --defined-only "$library" | awk '$2 == "T" { sub(/@.*/, "", $3); print $3 }' | sort
}

# What the NAME sections say, of pages that do not only name another.
documented() {
        sed -n '/^\.SH NAME/,/^\.SH SYNOPSIS/p' man/*.3 | grep -o '\bcputime_[a-z0-9_]*' | sort -u
}

# Names with a page to open: man NAME works for each.
paged() {
        basename -s .3 -a man/cputime_*.3 | sort
}

same() {
        local difference
        difference=$(diff <(declared) <("$1")) || {
                echo "the headers declare (<) and $2 (>) differ:" >&2
                echo "$difference" >&2
                failed=1
        }
}

[ "$(declared | wc -l)" -gt 0 ] || { echo "no function found in include/cputime/*.h" >&2; exit 1; }
same mapped "src/clock/libcputime.map"
same exported "what $library exports"
same documented "the NAME sections of man/*.3"
same paged "the files man/cputime_*.3"

for page in man/*.3; do
        target=$(sed -n 's|^\.so man3/||p' "$page")
        name=$(basename -s .3 "$page")
        if [ -n "$target" ] && ! grep -qw "$name" "man/$target"; then
                echo "$page sends the reader to $target, which does not name $name" >&2
                failed=1
        fi
done

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
         grep -v -e '^libc\.so' -e '^ld-linux' -e '^libpthread\.so')
[ -z "$needed" ] || { echo "$library needs more than libc:" "$needed" >&2; failed=1; }
exit $failed
