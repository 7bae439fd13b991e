#!/bin/sh
# SPDX-License-Identifier: MIT
#
# in-guest.sh CASE BUILD: what tools/vm/check-* run inside the guest, as root, one TAP-like line a
# point (no numbers: the host numbers the points of all guests through).
# check-header:
#   tsc       the kernel trusts the time-stamp counter: the header backend must be usable, and keep
#             its promises, as root and as nobody
#   notsc     it has none: the page cannot give the time, only tell of switches, and the clock that
#             the vDSO gives is a slow one; both backends must serve all the same
# check-page:
#   page      a kernel as it comes: the program must load and tell what the kernel tells
#   tickless  one where the second CPU has no tick: the page must know that it does not know
#
# shellcheck shell=dash disable=SC2086  # $as and $nobody are several words
set -u
case=$1
build=$2
contract=$build/tests/contract/contract
out=/tmp/out

point() {                               # STATUS NAME: the line, and on failure what was printed
        if [ "$1" = 0 ]; then
                echo "ok - $2"
        else
                echo "not ok - $2"
                sed 's/^/#   /' $out
        fi
}

expect() {                              # NAME REGEX COMMAND...: succeeds and prints a match
        local name=$1 regex=$2
        shift 2

        "$@" >$out 2>&1 && grep -qE "$regex" $out
        point $? "$name"
}

expect_status() {                       # STATUS NAME REGEX COMMAND...
        local status=$1 name=$2 regex=$3 got
        shift 3

        "$@" >$out 2>&1
        got=$?
        echo "exit status $got, $status was wanted" >>$out
        [ $got = "$status" ] && grep -qE "$regex" $out
        point $? "$name"
}

promises() {                            # USER READER TEST...: a point for each test
        local user=$1 reader=$2 test
        shift 2

        for test; do
                expect "as $user, $reader: $test" "^ok 1 - $test\$" \
                        $as "$contract" --reader "$reader" "$test"
        done
}

paranoid() {
        echo "$1" >/proc/sys/kernel/perf_event_paranoid
}

agrees() {                              # ARGUMENT...: of tests/page_agrees, which prints points itself
        "$build/tests/page_agrees" "$@" 2>$out
        point $? "page_agrees${*:+ $*} ran to its end"
}

nobody="/vm/setpriv --reuid=65534 --regid=65534 --clear-groups --"

if [ "$case" = notsc ]; then
        as=
        expect "the event's page has cap_user_time=0" '^cap_user_time=0 ' "$build/tests/perf_page"
        expect "doctor: header is usable" '^ *header +yes' "$build/cputime" doctor
        expect "doctor: ring is usable" '^ *ring +yes' "$build/cputime" doctor
        # The scheduler's clock is the tick's here, so the kernel's answers jump by 4 ms: no bounds.
        promises root header idle_costs_nothing
        promises root ring idle_costs_nothing
        exit 0
fi

if [ "$case" = page ]; then
        agrees
        exit 0
fi
if [ "$case" = tickless ]; then
        agrees --tickless 1
        CPUTIME_SOCKET=/tmp/cputimed
        export CPUTIME_SOCKET
        "$build/cputimed" --socket $CPUTIME_SOCKET 2>/tmp/cputimed.log &
        server=$!
        agrees --library 1
        kill $server
        wait $server
        cat /tmp/cputimed.log >$out
        point $? "cputimed stops when it is told to"
        exit 0
fi

paranoid 2
for user in root nobody; do
        as=
        [ $user = root ] || as=$nobody

        expect "as $user: the event's page has cap_user_time=1" '^cap_user_time=1 ' \
                $as "$build/tests/perf_page"
        expect "as $user: doctor: header is usable" '^ *header +yes' $as "$build/cputime" doctor
done

# Each promise once, where it is the harder to keep: without privilege. Emulated system calls are
# slow, so those promises that take tens of millions of them are left to the host's ring.
as=$nobody
promises nobody header thread_clock_never_goes_backwards error_is_bounded_and_does_not_grow \
        reading_changes_nothing sleep_until_is_not_early child_starts_at_zero idle_costs_nothing
promises nobody ring error_is_bounded_and_does_not_grow child_starts_at_zero
promises nobody syscall error_is_bounded_and_does_not_grow
as=
promises root header error_is_bounded_and_does_not_grow child_starts_at_zero
promises root ring error_is_bounded_and_does_not_grow

# Debian's own level, which Linux does not have: nothing for users.
paranoid 3
expect_status 1 "as nobody, perf_event_paranoid=3: doctor finds nothing usable" '^ *header +no' \
        $nobody "$build/cputime" doctor
expect_status 77 "as nobody, perf_event_paranoid=3: the contract suite skips header" 'SKIP header' \
        $nobody "$contract" --reader header
