// The barest loop over librbd: random requests of one size, so many in flight, for so many seconds, in the first bytes
// of an image. Prints requests a second. The cache of librbd is off. Needs no headers of Ceph: what it calls is
// declared here as rbd/librbd.h of version 16.2 has it.
//
//   rbd-loop poll|callback CONF POOL IMAGE read|write SIZE DEPTH BYTES SECONDS
//
// poll: an eventfd tells of completions, and rbd_poll_io_events returns them. callback: librbd's threads call back, and
// the main thread takes what they leave behind.
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

typedef void *handle;
int rados_create(handle *, const char *);
int rados_conf_read_file(handle, const char *);
int rados_conf_set(handle, const char *, const char *);
int rados_connect(handle);
int rados_ioctx_create(handle, const char *, handle *);
int rbd_open(handle, const char *, handle *, const char *);
int rbd_close(handle);
int rbd_lock_acquire(handle, int);
int rbd_set_image_notification(handle, int, int);
int rbd_poll_io_events(handle, handle *, int);
int rbd_aio_create_completion(void *, void (*)(handle, void *), handle *);
void *rbd_aio_get_arg(handle);
ssize_t rbd_aio_get_return_value(handle);
void rbd_aio_release(handle);
int rbd_aio_read(handle, uint64_t, size_t, char *, handle);
int rbd_aio_write(handle, uint64_t, size_t, const char *, handle);

enum { EVENTFD = 2, DEPTH_MAX = 1024 };
static handle image;
static int writes, calls_back;
static size_t size;
static uint64_t blocks, state = 88172645463325252u;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static handle done[DEPTH_MAX];
static int count;

static void check(const char *what, int code) {
    if (code < 0) {
        fprintf(stderr, "rbd-loop: %s: %s\n", what, strerror(-code));
        exit(1);
    }
}

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void on_done(handle completion, void *argument) {
    (void)argument;
    pthread_mutex_lock(&lock);
    done[count++] = completion;
    pthread_cond_signal(&arrived);
    pthread_mutex_unlock(&lock);
}

static void start(char *buffer) {
    handle completion;
    check("completion", rbd_aio_create_completion(buffer, calls_back ? on_done : NULL, &completion));
    uint64_t pos = next() % blocks * size;
    check("request", writes ? rbd_aio_write(image, pos, size, buffer, completion)
                            : rbd_aio_read(image, pos, size, buffer, completion));
}

static int reap(int event, handle *out, int most) {
    if (calls_back) {
        pthread_mutex_lock(&lock);
        while (count == 0) pthread_cond_wait(&arrived, &lock);
        int taken = count;
        memcpy(out, done, taken * sizeof *out);
        count = 0;
        pthread_mutex_unlock(&lock);
        return taken;
    }
    uint64_t events;
    if (read(event, &events, sizeof events) < 0) check("eventfd", -errno);
    int taken = rbd_poll_io_events(image, out, most);
    check("poll", taken);
    return taken;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 10) return 2;
    handle cluster, pool, finished[DEPTH_MAX];
    calls_back = !strcmp(argv[1], "callback");
    writes = !strcmp(argv[5], "write");
    size = strtoull(argv[6], NULL, 10);
    int depth = atoi(argv[7]);
    blocks = strtoull(argv[8], NULL, 10) / size;
    double seconds = atof(argv[9]);
    if (depth < 1 || depth > DEPTH_MAX || blocks == 0) return 2;
    check("create", rados_create(&cluster, NULL));
    check("configuration", rados_conf_read_file(cluster, argv[2]));
    check("cache", rados_conf_set(cluster, "rbd_cache", "false"));
    check("connect", rados_connect(cluster));
    check("pool", rados_ioctx_create(cluster, argv[3], &pool));
    check("image", rbd_open(pool, argv[4], &image, NULL));
    check("lock", rbd_lock_acquire(image, 0));
    int event = eventfd(0, 0);
    if (!calls_back) check("notification", rbd_set_image_notification(image, event, EVENTFD));
    char *memory = malloc(size * depth);
    memset(memory, 0x5a, size * depth);
    for (int slot = 0; slot < depth; slot++) start(memory + slot * size);
    long requests = 0, in_flight = depth;
    double begun = now(), end = begun + seconds, ended = end;
    while (in_flight > 0) {
        int taken = reap(event, finished, DEPTH_MAX);
        ended = now();
        for (int index = 0; index < taken; index++) {
            char *buffer = rbd_aio_get_arg(finished[index]);
            check("result", (int)rbd_aio_get_return_value(finished[index]));
            rbd_aio_release(finished[index]);
            requests++;
            if (ended < end) start(buffer);
            else in_flight--;
        }
    }
    printf("%.0f\n", requests / (ended - begun));
    return rbd_close(image) < 0;
}
