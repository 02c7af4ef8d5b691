/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The command line of the store. Exit status: 0 done, 1 failed (a line says why), 2 wrong usage. */
#include "kv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GROUP 64u

static const char usage[] =
    "usage: kv [-v] [-l LOG_BYTES] VOLUME COMMAND\n"
    "  put KEY VALUE      a VALUE of - is read from standard input\n"
    "  get KEY...         the values, a line each\n"
    "  del KEY\n"
    "  list               length of the value and key, a line each, in order\n"
    "  load N [BATCH]     puts N more keys, BATCH in a commit (1), and prints each when it is durable\n"
    "  check              reads every value, and prints what there is\n"
    "  checkpoint         writes all pairs to a data file and empties the log\n"
    "VOLUME is an image or a device with an ext4 volume, such as disk.img. The first command that writes makes the\n"
    "store, with a log of LOG_BYTES (16 MiB). -v says at the end how the volume was written.\n";

static int failed(const char *what)
{
    fprintf(stderr, "kv: %s: %s\n", what, kv_error());
    return 1;
}

static int command_put(struct kv *kv, const char *key, const char *value)
{
    static char input[KV_VALUE_MAX + 1];
    size_t length = strlen(value);

    if (strcmp(value, "-") == 0) {
        length = fread(input, 1, sizeof input, stdin);
        value = input;
    }
    return kv_put(kv, key, strlen(key), value, length) ? failed(key) : 0;
}

static int command_get(struct kv *kv, char **keys, int count)
{
    static char value[KV_VALUE_MAX];
    int status = 0;

    for (int index = 0; index < count; index++) {
        int64_t length = kv_get(kv, keys[index], strlen(keys[index]), value, sizeof value);

        if (length < 0) {
            status = failed(keys[index]);
            continue;
        }
        fwrite(value, 1, (size_t)length, stdout);
        putchar('\n');
    }
    return status;
}

static int print_key(void *context, const void *key, size_t key_length, size_t value_length)
{
    (void)context;
    printf("%zu ", value_length);
    fwrite(key, 1, key_length, stdout);
    putchar('\n');
    return 0;
}

/* The value that `load` gives to a number: most are small, some are as large as can be. */
static size_t value_of(unsigned number, uint8_t *value)
{
    size_t length = number % 50 == 7 ? KV_VALUE_MAX - number % 5 : number * 7919u % 3000;
    uint32_t state = number * 2654435761u + 1;

    for (size_t at = 0; at < length; at++) {
        state = state * 1664525u + 1013904223u;
        value[at] = (uint8_t)(state >> 24);
    }
    return length;
}

static size_t key_of(unsigned number, char *key, size_t size)
{
    return (size_t)snprintf(key, size, "load-%08u", number);
}

/* Commits, and only then prints the keys: who reads them can rely on them. */
static int acknowledge(struct kv_batch *batch, unsigned first, unsigned next)
{
    char key[32];

    if (kv_batch_commit(batch))
        return failed("load");
    for (; first < next; first++) {
        key_of(first, key, sizeof key);
        puts(key);
    }
    return fflush(stdout) ? 1 : 0;
}

static int load(struct kv *kv, struct kv_batch *batch, unsigned count, unsigned each)
{
    static uint8_t value[KV_VALUE_MAX];
    unsigned number = 0, first, end;
    char key[32];

    while (kv_get(kv, key, key_of(number, key, sizeof key), value, sizeof value) != -ENOENT)
        number++;
    first = number;
    for (end = number + count; number < end;) {
        size_t length = value_of(number, value);
        int error = kv_batch_put(batch, key, key_of(number, key, sizeof key), value, length);

        if (error && error != -ENOSPC)
            return failed(key);
        number += error == 0;
        if (error || number - first == each) {
            if (acknowledge(batch, first, number))
                return 1;
            first = number;
        }
    }
    return acknowledge(batch, first, number);
}

static int command_load(struct kv *kv, const char *count, const char *each)
{
    struct kv_batch *batch;
    unsigned group = each ? (unsigned)atoi(each) : 1;
    int status;

    if (kv_batch_new(kv, &batch))
        return failed("load");
    status = load(kv, batch, (unsigned)atoi(count), group ? group : 1);
    kv_batch_free(batch);
    return status;
}

/* What `check` has collected, and has not read yet. */
struct checking {
    struct kv *kv;
    struct kv_get gets[GROUP];
    char keys[GROUP][KV_KEY_MAX + 1];
    uint8_t *values;
    unsigned count;
    int status;
};

/* Values of `load` are known; all others have a checksum, which the store has looked at. */
static void check_one(struct checking *check, const struct kv_get *get, const char *key)
{
    static uint8_t wanted[KV_VALUE_MAX];
    unsigned number;
    char extra;

    if (get->result < 0) {
        fprintf(stderr, "kv: %s: %s\n", key, strerror((int)-get->result));
        check->status = 1;
    } else if (sscanf(key, "load-%8u%c", &number, &extra) == 1) {
        size_t length = value_of(number, wanted);

        if ((size_t)get->result != length || memcmp(get->value, wanted, length) != 0) {
            fprintf(stderr, "kv: %s: the value is another one\n", key);
            check->status = 1;
        }
    }
}

static int check_group(struct checking *check)
{
    if (kv_get_many(check->kv, check->gets, check->count))
        return failed("check");
    for (unsigned index = 0; index < check->count; index++)
        check_one(check, &check->gets[index], check->keys[index]);
    check->count = 0;
    return 0;
}

static int collect(void *context, const void *key, size_t key_length, size_t value_length)
{
    struct checking *check = context;
    unsigned at = check->count++;

    (void)value_length;
    memcpy(check->keys[at], key, key_length);
    check->keys[at][key_length] = 0;
    check->gets[at] = (struct kv_get){check->keys[at], key_length, check->values + (size_t)at * KV_VALUE_MAX,
                                      KV_VALUE_MAX, 0};
    return check->count == GROUP ? check_group(check) : 0;
}

static int command_check(struct kv *kv)
{
    struct checking *check = calloc(1, sizeof *check);
    struct kv_stats stats;
    int status = 1;

    kv_stats(kv, &stats);
    if (check && (check->values = malloc((size_t)GROUP * KV_VALUE_MAX))) {
        check->kv = kv;
        status = kv_list(kv, collect, check) || check_group(check) || check->status;
    }
    if (check)
        free(check->values);
    free(check);
    printf("%llu keys, generation %llu, data %llu bytes, log %llu of %llu bytes in %llu records\n",
           (unsigned long long)stats.keys, (unsigned long long)stats.generation, (unsigned long long)stats.data_bytes,
           (unsigned long long)stats.log_used, (unsigned long long)stats.log_bytes,
           (unsigned long long)stats.recovered);
    return status ? 1 : 0;
}

static void print_counters(struct kv *kv)
{
    static const char *const names[] = {"fua_writes", "handles_started", "commits", "flushes"};
    uint64_t values[4];

    if (kv_counters(kv, names, values, 4) == 0)
        for (int index = 0; index < 4; index++)
            fprintf(stderr, "%s %llu\n", names[index], (unsigned long long)values[index]);
}

/* Returns -1 for wrong usage. */
static int run(struct kv *kv, int count, char **words)
{
    const char *command = words[0];

    if (strcmp(command, "put") == 0 && count == 3)
        return command_put(kv, words[1], words[2]);
    if (strcmp(command, "get") == 0 && count >= 2)
        return command_get(kv, words + 1, count - 1);
    if (strcmp(command, "del") == 0 && count == 2)
        return kv_delete(kv, words[1], strlen(words[1])) ? failed(words[1]) : 0;
    if (strcmp(command, "list") == 0 && count == 1)
        return kv_list(kv, print_key, NULL) ? failed("list") : 0;
    if (strcmp(command, "load") == 0 && (count == 2 || count == 3))
        return command_load(kv, words[1], count == 3 ? words[2] : NULL);
    if (strcmp(command, "check") == 0 && count == 1)
        return command_check(kv);
    if (strcmp(command, "checkpoint") == 0 && count == 1)
        return kv_checkpoint(kv) ? failed(command) : 0;
    return -1;
}

int main(int count, char **words)
{
    struct kv_options options = {0};
    struct kv *kv;
    int option, status, verbose = 0;

    while ((option = getopt(count, words, "+l:v")) != -1) {
        if (option == 'l') {
            options.log_bytes = strtoull(optarg, NULL, 0);
        } else if (option == 'v') {
            verbose = 1;
        } else {
            fputs(usage, stderr);
            return 2;
        }
    }
    if (count - optind < 2) {
        fputs(usage, stderr);
        return 2;
    }
    words += optind;
    options.writable = strcmp(words[1], "get") != 0 && strcmp(words[1], "list") != 0 && strcmp(words[1], "check") != 0;
    if (kv_open(words[0], &options, &kv))
        return failed(words[0]);
    status = run(kv, count - optind - 1, words + 1);
    if (verbose)
        print_counters(kv);
    if (kv_close(kv) && status == 0)
        status = failed(words[0]);
    if (status < 0) {
        fputs(usage, stderr);
        return 2;
    }
    return fflush(stdout) ? 1 : status;
}
