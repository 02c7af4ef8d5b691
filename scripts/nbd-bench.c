// Random requests of 4 KiB with 64 in flight, of a file in a volume on an NBD server (libuext4) and of the bare export
// of another server of the same kind (libnbd), in turns. Prints for each kind of request both rates and the median of
// the ratios of neighbouring turns.
//
//   nbd-bench DEVICE SOCKET SECONDS TURNS
//
// DEVICE: the volume, as uext4 names devices. SOCKET: where the other server listens. SECONDS: of a turn.

#include <errno.h>
#include <libnbd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uext4.h>

enum { DEPTH = 64, BLOCK = 4096, FILE_SIZE = 256 << 20, TURNS_MAX = 1000 };

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "nbd-bench: %s: %s\n", what, why);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static uint64_t state = 88172645463325252;

static uint64_t place(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % (FILE_SIZE / BLOCK) * BLOCK;
}

// The bare export.

struct slot {
    bool idle;
    int error;
    char *memory;
};

static struct nbd_handle *bare;
static struct slot slots[DEPTH];
static unsigned idle[DEPTH], idle_count;

static int completed(void *data, int *error)
{
    struct slot *slot = data;
    slot->error = *error;
    idle[idle_count++] = slot - slots;
    return 1;
}

static void bare_open(const char *socket)
{
    bare = nbd_create();
    // As libuext4 has them: replies without chunks, and memory that is not cleared first.
    if (bare == NULL || nbd_set_request_structured_replies(bare, false) == -1 ||
        nbd_set_pread_initialize(bare, false) == -1 || nbd_connect_unix(bare, socket) == -1)
        fail(socket, nbd_get_error());
    for (unsigned i = 0; i < DEPTH; i++)
        if (posix_memalign((void **)&slots[i].memory, BLOCK, BLOCK) != 0)
            fail("memory", strerror(ENOMEM));
        else
            memset(slots[i].memory, 0x5a, BLOCK);
}

static void bare_send(unsigned index, bool write)
{
    struct slot *slot = &slots[index];
    nbd_completion_callback callback = {.callback = completed, .user_data = slot};
    int64_t cookie = write
        ? nbd_aio_pwrite(bare, slot->memory, BLOCK, place(), callback, LIBNBD_CMD_FLAG_FUA)
        : nbd_aio_pread(bare, slot->memory, BLOCK, place(), callback, 0);
    if (cookie == -1 || slot->error != 0)
        fail("a request of libnbd", cookie == -1 ? nbd_get_error() : strerror(slot->error));
}

// Requests in a second.
static double bare_turn(double seconds, bool write)
{
    uint64_t done = 0;
    double begin = now(), end = begin + seconds, last = begin;
    for (unsigned i = 0; i < DEPTH; i++)
        bare_send(i, write);
    while (last < end) {
        for (unsigned i = 0; i < 64; i++) {
            if (nbd_poll(bare, -1) == -1)
                fail("nbd_poll", nbd_get_error());
            while (idle_count > 0) {
                done++;
                bare_send(idle[--idle_count], write);
            }
        }
        last = now();
    }
    double rate = done / (last - begin);
    while (idle_count < DEPTH)
        if (nbd_poll(bare, -1) == -1)
            fail("nbd_poll", nbd_get_error());
    idle_count = 0;
    return rate;
}

// The volume.

static struct uext4_volume *volume;
static struct uext4_queue *queue;
static uint32_t file;
static char *memory[DEPTH];

static void check(const char *what, int64_t result)
{
    if (result < 0)
        fail(what, uext4_last_error());
}

static void volume_open(const char *device)
{
    struct uext4_file *handle;
    struct uext4_options options = {.size = sizeof options, .flags = UEXT4_OPEN_WRITE};
    check("open the volume", uext4_open(device, &options, &volume));
    uint32_t flags = UEXT4_READ | UEXT4_WRITE | UEXT4_CREATE | UEXT4_DIRECT;
    check("make a file", uext4_file_open(volume, "/file", flags, 0644, NULL, &handle));
    check("allocate and write it", uext4_prepare(handle, FILE_SIZE));
    check("open a queue", uext4_queue_open(volume, DEPTH, 1 << 20, 0, &queue));
    int32_t number = uext4_queue_attach(queue, handle);
    check("attach the file", number);
    file = number;
    for (unsigned i = 0; i < DEPTH; i++) {
        memory[i] = uext4_queue_alloc(queue, BLOCK);
        memset(memory[i], 0x5a, BLOCK);
    }
    check("sync the file", uext4_fsync(handle));
}

static void volume_reap(struct uext4_completion *completions, uint32_t least, int32_t *count)
{
    *count = uext4_queue_reap(queue, completions, least, DEPTH, -1);
    check("reap", *count);
    for (int32_t i = 0; i < *count; i++)
        if (completions[i].result != BLOCK)
            fail("a request of the volume", strerror(-completions[i].result));
}

static void volume_send(const uint64_t *tags, uint32_t count, bool write)
{
    struct uext4_request requests[DEPTH];
    for (uint32_t i = 0; i < count; i++)
        requests[i] = (struct uext4_request){
            .tag = tags[i],
            .pos = place(),
            .length = BLOCK,
            .data = memory[tags[i]],
            .file = file,
            .op = write ? UEXT4_OP_WRITE : UEXT4_OP_READ,
            .flags = write ? UEXT4_DSYNC : 0,
        };
    if (uext4_queue_submit(queue, requests, count) != (int32_t)count)
        fail("submit", uext4_last_error());
}

static double volume_turn(double seconds, bool write)
{
    struct uext4_completion completions[DEPTH];
    uint64_t done = 0, tags[DEPTH];
    int32_t count;
    double begin = now(), end = begin + seconds, last = begin;
    for (unsigned i = 0; i < DEPTH; i++)
        tags[i] = i;
    volume_send(tags, DEPTH, write);
    while (last < end) {
        for (unsigned i = 0; i < 64; i++) {
            volume_reap(completions, 1, &count);
            for (int32_t k = 0; k < count; k++)
                tags[k] = completions[k].tag;
            done += count;
            volume_send(tags, count, write);
        }
        last = now();
    }
    double rate = done / (last - begin);
    for (int32_t left = DEPTH; left > 0; left -= count)
        volume_reap(completions, left, &count);
    return rate;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, unsigned count)
{
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    static double bares[TURNS_MAX], volumes[TURNS_MAX], ratios[TURNS_MAX];
    double seconds = argc == 5 ? atof(argv[3]) : 0;
    unsigned turns = argc == 5 ? atoi(argv[4]) : 0;
    if (!(seconds > 0) || turns == 0 || turns > TURNS_MAX)
        fail("usage", "nbd-bench DEVICE SOCKET SECONDS TURNS");
    volume_open(argv[1]);
    bare_open(argv[2]);
    for (int write = 0; write <= 1; write++) {
        // The first turns fill the server's memory.
        for (unsigned i = 0; i < turns + 2; i++) {
            unsigned turn = i < 2 ? 0 : i - 2;
            bares[turn] = bare_turn(seconds, write);
            volumes[turn] = volume_turn(seconds, write);
            ratios[turn] = volumes[turn] / bares[turn];
        }
        printf("%s %.0f %.0f %.3f\n", write ? "write" : "read", median(bares, turns), median(volumes, turns),
               median(ratios, turns));
    }
    check("close the queue", uext4_queue_close(queue));
    check("close the volume", uext4_close(volume));
    nbd_close(bare);
    return 0;
}
