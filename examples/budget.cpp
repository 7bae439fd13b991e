// SPDX-License-Identifier: MIT
//
// A search that stops when its CPU budget is used up. It asks its clock at every step, thousands
// of times a millisecond, which is affordable because the answer needs no system call.
//
//      c++ budget.cpp $(pkg-config --cflags --libs libcputime)
#include <cputime/cputime.h>

#include <cstdint>
#include <cstdio>

namespace {

class Budget {
public:
        explicit Budget(std::uint64_t ns) : end_ns_(cputime_thread_ns() + ns) {}

        bool left() const { return cputime_thread_ns() < end_ns_; }

private:
        std::uint64_t end_ns_;
};

bool is_prime(unsigned n) {
        for (unsigned d = 2; d * d <= n; d++)
                if (n % d == 0)
                        return false;
        return n > 1;
}

}  // namespace

int main() {
        Budget budget(20 * 1000 * 1000);
        unsigned n = 0, primes = 0;

        for (; budget.left(); n++)
                primes += is_prime(n);
        std::printf("%u primes below %u in 20 ms of CPU time, the clock read %u times\n",
                    primes, n, n + 1);
        return primes > 0 ? 0 : 1;
}
