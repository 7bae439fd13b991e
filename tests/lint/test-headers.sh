#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every header compiles alone: the public ones as C11, C17 and C++17 under every warning, with both
# compilers; those in src/ as the project's own C. src/arch headers of other CPUs are not tried.
# Usage: test-headers.sh SOURCE-ROOT BUILD-ROOT
set -u
cd "$1" || exit 1
build=$2
failed=0 tried=0

for tool in gcc g++ clang clang++; do
        command -v $tool >/dev/null || {
                echo "skipped: no $tool; tools/deps check installs it" >&2
                exit 77
        }
done

try() { # HEADER COMPILER...
        local header=$1
        shift
        tried=$((tried + 1))
        printf '#include "%s"\n' "$header" | "$@" -Wall -Wextra -Werror -fsyntax-only - || {
                echo "$header does not compile alone with: $*" >&2
                failed=1
        }
}

for header in include/cputime/*.h; do
        name=${header#include/}
        for standard in c11 c17; do
                try "$name" gcc -x c -std=$standard -pedantic -Wshadow -Wundef -Iinclude
                try "$name" clang -x c -std=$standard -pedantic -Wshadow -Wundef -Iinclude
        done
        try "$name" g++ -x c++ -std=c++17 -pedantic -Wshadow -Wundef -Iinclude
        try "$name" clang++ -x c++ -std=c++17 -pedantic -Wshadow -Wundef -Iinclude
done

machine=$(uname -m)
while read -r header; do
        case $header in
        src/arch/*-x86-64.h) [ "$machine" = x86_64 ] || continue ;;
        src/arch/*-aarch64.h) [ "$machine" = aarch64 ] || continue ;;
        esac
        try "${header#src/}" gcc -x c -std=gnu17 -D_GNU_SOURCE -Iinclude -Isrc -I"$build" \
                -I"$build/src"
done < <(find src -name '*.h' | sort)

[ $tried -gt 10 ] || { echo "only $tried headers found under $PWD" >&2; exit 1; }
exit $failed
