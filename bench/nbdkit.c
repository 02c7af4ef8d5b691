/*
 * A plug-in of nbdkit over libuext4, to measure `uext4 serve` against: a file inside a volume, with threads=parallel.
 *
 *   make capi
 *   cc -shared -fPIC -O2 -Itarget/capi bench/nbdkit.c -o target/nbdkit.so target/capi/libuext4.a -lpthread -ldl -lm
 *   SERVE_PLUGIN=$PWD/target/nbdkit.so scripts/serve-bench.sh
 */
#define NBDKIT_API_VERSION 2
#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL
#include <errno.h>
#include <nbdkit-plugin.h>
#include <stdlib.h>
#include <string.h>
#include <uext4.h>

static const char *device, *path;
static struct uext4_volume *volume;
static struct uext4_file *file;

static int config(const char *key, const char *value) {
    if (strcmp(key, "volume") == 0) device = value;
    else if (strcmp(key, "file") == 0) path = value;
    else return nbdkit_error("unknown parameter %s", key), -1;
    return 0;
}

static int failed(int64_t result) {
    if (result >= 0) return 0;
    nbdkit_set_error(-(int)result);
    return -1;
}

/* Not before: threads of the volume would not survive the fork. */
static int after_fork(void) {
    const struct uext4_options options = { .size = sizeof options, .flags = UEXT4_OPEN_WRITE | UEXT4_OPEN_BACKGROUND };
    if (failed(uext4_open(device, &options, &volume)) != 0) return -1;
    return failed(uext4_file_open(volume, path, UEXT4_READ | UEXT4_WRITE | UEXT4_DIRECT, 0, NULL, &file));
}

static void cleanup(void) {
    if (file) uext4_file_close(file);
    if (volume) uext4_close(volume);
}

static void *plugin_open(int read_only) { (void)read_only; return NBDKIT_HANDLE_NOT_NEEDED; }
static int64_t get_size(void *handle) { (void)handle; return uext4_file_size(file); }
static int multi_conn(void *handle) { (void)handle; return 1; }
static int can_fua(void *handle) { (void)handle; return NBDKIT_FUA_NATIVE; }

/* Aligned memory of this thread: that of nbdkit is not, and direct requests need it. */
static void *aligned(uint32_t count) {
    static __thread void *memory;
    static __thread uint32_t size;
    if (count <= size) return memory;
    free(memory);
    size = 0;
    if (posix_memalign(&memory, 4096, count) != 0) return memory = NULL;
    size = count;
    return memory;
}

static int plugin_pread(void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags) {
    (void)handle, (void)flags;
    void *memory = aligned(count);
    if ((offset | count) % 512 != 0 || !memory) return failed(uext4_pread_any(file, buf, count, offset));
    if (failed(uext4_pread(file, memory, count, offset, 0)) != 0) return -1;
    memcpy(buf, memory, count);
    return 0;
}

static int plugin_pwrite(void *handle, const void *buf, uint32_t count, uint64_t offset, uint32_t flags) {
    (void)handle;
    uint32_t durable = flags & NBDKIT_FLAG_FUA ? UEXT4_DSYNC : 0;
    void *memory = aligned(count);
    if ((offset | count) % 512 != 0 || !memory) return failed(uext4_pwrite_any(file, buf, count, offset, durable));
    memcpy(memory, buf, count);
    return failed(uext4_pwrite(file, memory, count, offset, durable));
}

static int plugin_flush(void *handle, uint32_t flags) {
    (void)handle, (void)flags;
    return failed(uext4_fdatasync(file));
}

static struct nbdkit_plugin plugin = {
    .name = "uext4", .config = config, .after_fork = after_fork, .cleanup = cleanup, .open = plugin_open,
    .get_size = get_size, .can_multi_conn = multi_conn, .can_fua = can_fua, .pread = plugin_pread,
    .pwrite = plugin_pwrite, .flush = plugin_flush, .errno_is_preserved = 1,
};
NBDKIT_REGISTER_PLUGIN(plugin)
