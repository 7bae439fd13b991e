/* SPDX-License-Identifier: MIT */
/*
 * The machine record: what somebody needs to know to judge, years later, whether a figure measured
 * here says anything about a machine there.
 *
 * Every value is one file of /proc or /sys, or one call; what cannot be read (no /proc in a
 * sandbox, another architecture) is null, since a guess is worse. Nothing here identifies the
 * machine or its owner, since such records are meant to be shown: no host name, no serial number,
 * no address, and of the kernel's command line only the parameters that bear on timing.
 */
#if defined(__i386__) || defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/nsec.h"
#include "cli-config.h"
#include "cli/cli.h"
#include "cli/machine.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

#define VULNERABILITIES "/sys/devices/system/cpu/vulnerabilities"

bool cli_read_line(const char *path, char *ret_line, size_t size) {
        FILE *f = fopen(path, "re");
        bool done;

        if (!f)
                return false;
        done = fgets(ret_line, (int)size, f);
        (void)fclose(f);
        if (!done)
                return false;

        ret_line[strcspn(ret_line, "\n")] = '\0';
        for (size_t end = strlen(ret_line); end > 0 && ret_line[end - 1] == ' '; end--)
                ret_line[end - 1] = '\0';
        return true;
}

bool cli_read_field(const char *path, const char *key, char *ret_value, size_t size) {
        char line[8192];
        size_t length = strlen(key);
        FILE *f = fopen(path, "re");
        bool found = false;

        if (!f)
                return false;

        while (!found && fgets(line, sizeof(line), f)) {
                const char *value = line + length;

                if (strncmp(line, key, length) != 0)
                        continue;
                value += strspn(value, " \t");
                if (*value++ != ':')
                        continue;
                value += strspn(value, " \t");
                (void)snprintf(ret_value, size, "%.*s", (int)strcspn(value, "\n"), value);
                found = true;
        }
        (void)fclose(f);
        return found;
}

/* json_string() is NULL for what is not UTF-8, and _set_new() then drops the key: keep it, null. */
static json_t *text_or_null(const char *text) {
        json_t *value = text && *text ? json_string(text) : NULL;

        return value ? value : json_null();
}

static json_t *line_or_null(const char *path) {
        char line[4096];

        return cli_read_line(path, line, sizeof(line)) ? text_or_null(line) : json_null();
}

json_t *cli_read_integer(const char *path) {
        char line[64], *end;
        long long value;

        if (!cli_read_line(path, line, sizeof(line)))
                return json_null();
        errno = 0;
        value = strtoll(line, &end, 10);
        return end != line && !*end && errno == 0 ? json_integer(value) : json_null();
}

static json_t *cpu_model(void) {
        /* x86 and many others, then what arm64, s390x and others call it. */
        static const char *const keys[] = {
                "model name", "cpu", "Processor", "cpu model", "uarch",
        };
        char value[256];

        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
                if (cli_read_field("/proc/cpuinfo", keys[i], value, sizeof(value)))
                        return text_or_null(value);
        return json_null();
}

/* Twelve characters by which a hypervisor names itself to its guests: "KVMKVMKVM", ... */
static bool hypervisor_signature(char ret_text[13]) {
#if defined(__i386__) || defined(__x86_64__)
        unsigned int leaf, words[3];

        __cpuid(0x40000000, leaf, words[0], words[1], words[2]);
        memcpy(ret_text, words, sizeof(words));
        ret_text[sizeof(words)] = '\0';
        return *ret_text;
#else
        return false;
#endif
}

/* x86 tells every guest that it is one, by a CPU flag; who the host is stands elsewhere. */
static json_t *hypervisor(void) {
        char flags[8192], vendor[128] = "", product[128] = "", text[300], signature[13];

        if (cli_read_line("/sys/hypervisor/type", text, sizeof(text)))
                return text_or_null(text);

        if (!cli_read_field("/proc/cpuinfo", "flags", flags, sizeof(flags)))
                return line_or_null("/proc/device-tree/hypervisor/compatible");
        if (!strstr(flags, " hypervisor"))
                return json_string("none");

        (void)cli_read_line("/sys/class/dmi/id/sys_vendor", vendor, sizeof(vendor));
        (void)cli_read_line("/sys/class/dmi/id/product_name", product, sizeof(product));
        (void)snprintf(text, sizeof(text), "%s%s%s", vendor, *vendor && *product ? " " : "",
                       product);
        if (!*text && hypervisor_signature(signature))
                return text_or_null(signature);
        return json_string(*text ? text : "unnamed");
}

/* The coarse clock moves once a tick, hence its resolution is the tick. */
static json_t *tick_hz(void) {
        struct timespec resolution;

        if (clock_getres(CLOCK_MONOTONIC_COARSE, &resolution) < 0 || resolution.tv_sec != 0 ||
            resolution.tv_nsec == 0)
                return json_null();
        return json_integer(((long)CT_NSEC_PER_SEC + resolution.tv_nsec / 2) / resolution.tv_nsec);
}

static json_t *cmdline(void) {
        /* What decides about ticks, idle states, the time stamp counter, mitigations, isolation. */
        static const char *const prefixes[] = {
                "clocksource=", "cpuidle.", "hpet=", "idle=", "intel_idle.", "intel_pstate=",
                "irqaffinity=", "isolcpus=", "kpti=", "l1tf=", "maxcpus=", "mds=", "mitigations=",
                "no-kvmclock", "no-steal-acc", "nohz", "nopti", "nosmt", "nospec", "notsc",
                "nr_cpus=", "preempt=", "processor.", "pti=", "rcu_nocbs", "retbleed=",
                "skew_tick=", "spec_", "spectre_", "threadirqs", "tsc=", "tsx=",
        };
        char line[4096], kept[4096] = "", *state;
        size_t length = 0;

        if (!cli_read_line("/proc/cmdline", line, sizeof(line)))
                return json_null();

        for (char *word = strtok_r(line, " ", &state); word; word = strtok_r(NULL, " ", &state))
                for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
                        if (strncmp(word, prefixes[i], strlen(prefixes[i])) == 0)
                                length += (size_t)snprintf(kept + length, sizeof(kept) - length,
                                                           "%s%s", length ? " " : "", word);
        return json_string(kept);
}

static int is_file(const struct dirent *entry) {
        return entry->d_name[0] != '.';
}

/* They decide most of what a system call costs. */
static json_t *mitigations(void) {
        json_t *object;
        struct dirent **entries;
        int n = scandir(VULNERABILITIES, &entries, is_file, alphasort);

        if (n < 0)
                return json_null();

        object = json_object();
        for (int i = 0; i < n; i++) {
                char path[sizeof(VULNERABILITIES) + NAME_MAX + 2];

                (void)snprintf(path, sizeof(path), VULNERABILITIES "/%s", entries[i]->d_name);
                (void)json_object_set_new(object, entries[i]->d_name, line_or_null(path));
                free(entries[i]);
        }
        free(entries);
        return object;
}

static json_t *load_1m(void) {
        double load;

        return getloadavg(&load, 1) == 1 ? json_real(load) : json_null();
}

/* The eighth number of the first line, in units of 1/sysconf(_SC_CLK_TCK) s, all CPUs together. */
static json_t *steal_ticks(void) {
        char line[512];
        uint64_t steal;

        if (!cli_read_line("/proc/stat", line, sizeof(line)) ||
            sscanf(line, "cpu %*u %*u %*u %*u %*u %*u %*u %" SCNu64, &steal) != 1)
                return json_null();
        return json_integer((json_int_t)steal);
}

json_t *cli_machine_record(void) {
        json_t *record = json_object();
        struct utsname uts = {};
        long cpus = sysconf(_SC_NPROCESSORS_ONLN);

        (void)uname(&uts);
        (void)json_object_set_new(record, "kernel", text_or_null(uts.release));
        (void)json_object_set_new(record, "machine", text_or_null(uts.machine));
        (void)json_object_set_new(record, "cpus", cpus > 0 ? json_integer(cpus) : json_null());
        (void)json_object_set_new(record, "cpu_model", cpu_model());
        (void)json_object_set_new(record, "clocksource",
                line_or_null("/sys/devices/system/clocksource/clocksource0/current_clocksource"));
        (void)json_object_set_new(record, "hypervisor", hypervisor());
        (void)json_object_set_new(record, "tick_hz", tick_hz());
        (void)json_object_set_new(record, "perf_event_paranoid",
                                  cli_read_integer("/proc/sys/kernel/perf_event_paranoid"));
        (void)json_object_set_new(record, "compiler", text_or_null(COMPILER));
        (void)json_object_set_new(record, "version", json_string(CLI_VERSION));
        (void)json_object_set_new(record, "cmdline", cmdline());
        (void)json_object_set_new(record, "mitigations", mitigations());
        (void)json_object_set_new(record, "uid", json_integer((json_int_t)getuid()));
        (void)json_object_set_new(record, "load_1m", load_1m());
        (void)json_object_set_new(record, "steal_ticks", steal_ticks());
        return record;
}
