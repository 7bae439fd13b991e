#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every file of the project names its licence; manual pages and shell scripts have no mistakes that
# their tools can see.
# Usage: test-files.sh SOURCE-ROOT
set -u
cd "$1" || exit 1
failed=0

for tool in shellcheck man; do
        command -v $tool >/dev/null || {
                echo "skipped: no $tool; tools/deps check installs it" >&2
                exit 77
        }
done

# Sources of every kind; texts that are read as pages, lists and data need no line of their own.
unlicensed=$(find src include tests bench examples man tools .ci -type f \
        ! -name '*.json' ! -name '*.list' ! -name '*.md' ! -name '*.pyc' ! -name expected-skips \
        ! -path 'tests/page/corpus/*' \
        -exec grep -L 'SPDX-License-Identifier: MIT' {} +)
[ -z "$unlicensed" ] || {
        echo "no SPDX-License-Identifier: MIT line in:" "$unlicensed" >&2
        failed=1
}

scripts=$(grep -rlE '^#!.*\b(ba)?sh\b' tools tests .ci)
# shellcheck disable=SC2086 # a list; our names have no spaces
shellcheck -x -S warning $scripts || failed=1

for page in man/*.[1-9]; do
        grep -q '^\.so ' "$page" && continue
        complaints=$(LC_ALL=C.UTF-8 MANWIDTH=100 man --warnings -E UTF-8 -l "$page" 2>&1 >/dev/null)
        [ -z "$complaints" ] || { echo "$page: $complaints" >&2; failed=1; }
done
exit $failed
