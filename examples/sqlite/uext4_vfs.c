/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The VFS: names, opening, and what the default VFS does for it. */
#include "uext4_vfs.h"
#include "vfs_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_MAX_BYTES 1024
#define LINKS_MAX 40

static struct vfs_state *state_of(sqlite3_vfs *vfs)
{
    return vfs->pAppData;
}

int vfs_fail(struct vfs_state *state, int code, int64_t error, const char *doing, const char *path)
{
    state->last_errno = (int)-error;
    sqlite3_log(code, "uext4: %s %s: %s", doing, path ? path : "(unnamed)", uext4_last_error());
    return code;
}

/* A name that nobody else has: for temporary files, which lose it at once. */
static void temporary_name(char *name, size_t size)
{
    uint64_t random;

    sqlite3_randomness(sizeof random, &random);
    snprintf(name, size, "/.sqlite-%016llx", (unsigned long long)random);
}

static uint32_t flags_for(const struct vfs_state *state, int flags)
{
    uint32_t how = UEXT4_READ;

    if (!(flags & SQLITE_OPEN_READWRITE) || !state->writable)
        return how;
    how |= UEXT4_WRITE;
    if (flags & SQLITE_OPEN_CREATE)
        how |= flags & SQLITE_OPEN_EXCLUSIVE ? UEXT4_CREATE_NEW : UEXT4_CREATE;
    return how;
}

static int open_file(struct vfs_state *state, struct vfs_file *file, const char *path, int flags)
{
    struct uext4_stat facts;
    uint32_t how = flags_for(state, flags);
    int error = uext4_file_open(state->volume, path, how, 0644, NULL, &file->file);

    if (error)
        return vfs_fail(state, SQLITE_CANTOPEN, error, "open", path);
    error = uext4_fstat(file->file, &facts);
    if (error == 0 && flags & SQLITE_OPEN_MAIN_DB && !(file->node = vfs_lock_node(state, facts.ino)))
        error = -ENOMEM;
    /* The file stays usable until it is closed. After a crash the next opening of the volume frees it. */
    if (error == 0 && flags & SQLITE_OPEN_DELETEONCLOSE)
        error = uext4_unlink(state->volume, path);
    if (error) {
        vfs_lock_drop(file);
        uext4_file_close(file->file);
        return vfs_fail(state, error == -ENOMEM ? SQLITE_NOMEM : SQLITE_CANTOPEN, error, "open", path);
    }
    file->ino = facts.ino;
    file->name_pending = (how & (UEXT4_CREATE | UEXT4_CREATE_NEW)) != 0;
    return SQLITE_OK;
}

static int vfs_open(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *base, int flags, int *out_flags)
{
    struct vfs_state *state = state_of(vfs);
    struct vfs_file *file = (struct vfs_file *)base;
    const char *path = name;
    char temporary[64];
    int answer;

    memset(file, 0, sizeof *file);
    file->state = state;
    if (!path) {
        temporary_name(temporary, sizeof temporary);
        path = temporary;
        flags |= SQLITE_OPEN_DELETEONCLOSE | SQLITE_OPEN_EXCLUSIVE | SQLITE_OPEN_CREATE | SQLITE_OPEN_READWRITE;
    }
    answer = open_file(state, file, path, flags);
    if (answer != SQLITE_OK)
        return answer;
    file->path = flags & SQLITE_OPEN_DELETEONCLOSE ? NULL : name;
    /* Only names of databases have parameters of a URI behind them. */
    file->powersafe = flags & SQLITE_OPEN_MAIN_DB ? sqlite3_uri_boolean(name, "psow", 1) : 1;
    file->base.pMethods = &vfs_file_methods;
    if (!state->writable)
        flags = (flags & ~(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)) | SQLITE_OPEN_READONLY;
    if (out_flags)
        *out_flags = flags;
    return SQLITE_OK;
}

/* `sync_dir`: the deletion has to survive a crash. It is what commits a transaction, if the file is a journal. */
static int vfs_delete(sqlite3_vfs *vfs, const char *path, int sync_dir)
{
    struct vfs_state *state = state_of(vfs);
    int error = uext4_unlink(state->volume, path);

    if (error == -ENOENT)
        return SQLITE_IOERR_DELETE_NOENT;
    if (error)
        return vfs_fail(state, SQLITE_IOERR_DELETE, error, "delete", path);
    if (sync_dir && (error = uext4_sync(state->volume)) != 0)
        return vfs_fail(state, SQLITE_IOERR_DIR_FSYNC, error, "sync after deleting", path);
    return SQLITE_OK;
}

/* An empty file does not count as there, as in SQLite's own VFS: an empty journal rolls nothing back. */
static int vfs_access(sqlite3_vfs *vfs, const char *path, int what, int *answer)
{
    struct vfs_state *state = state_of(vfs);
    struct uext4_stat facts;
    int error = uext4_stat(state->volume, path, 1, &facts);

    *answer = error == 0;
    if (error && error != -ENOENT && error != -ENOTDIR)
        return vfs_fail(state, SQLITE_IOERR_ACCESS, error, "look for", path);
    if (error == 0 && what == SQLITE_ACCESS_EXISTS && S_ISREG(facts.mode) && facts.size == 0)
        *answer = 0;
    if (what == SQLITE_ACCESS_READWRITE && !state->writable)
        *answer = 0;
    return SQLITE_OK;
}

/* A path that is being put together. */
struct walk {
    struct vfs_state *state;
    char *out;
    size_t size;
    size_t used;
    int links;
    int failed; /* too long, or too many links */
};

static void add_parts(struct walk *walk, const char *path);

/* Puts one part of a name behind those before it. Of a symbolic link, what it says. */
static void add_part(struct walk *walk, const char *part, size_t length)
{
    char target[PATH_MAX_BYTES];
    size_t before = walk->used;
    int64_t got;

    if (length == 1 && part[0] == '.')
        return;
    if (length == 2 && part[0] == '.' && part[1] == '.') {
        while (walk->used > 0 && walk->out[--walk->used] != '/')
            ;
        return;
    }
    if (before + length + 2 > walk->size) {
        walk->failed = 1;
        return;
    }
    walk->out[before] = '/';
    memcpy(walk->out + before + 1, part, length);
    walk->used = before + 1 + length;
    walk->out[walk->used] = 0;
    got = uext4_readlink(walk->state->volume, walk->out, target, sizeof target - 1);
    if (got < 0)
        return; /* no link, or not there yet */
    if ((size_t)got >= sizeof target || ++walk->links > LINKS_MAX) {
        walk->failed = 1;
        return;
    }
    target[got] = 0;
    walk->used = target[0] == '/' ? 0 : before;
    add_parts(walk, target);
}

static void add_parts(struct walk *walk, const char *path)
{
    while (*path && !walk->failed) {
        size_t length = strcspn(path, "/");

        if (length > 0)
            add_part(walk, path, length);
        path += length + (path[length] == '/');
    }
}

/* One name for a database, however it is written: its journal is beside it by that name. Links are followed. */
static int vfs_full_path(sqlite3_vfs *vfs, const char *name, int size, char *out)
{
    struct walk walk = {.state = state_of(vfs), .out = out, .size = (size_t)size};

    add_parts(&walk, name);
    out[walk.used] = 0;
    if (walk.failed || walk.used == 0)
        return SQLITE_CANTOPEN;
    return walk.links > 0 ? SQLITE_OK_SYMLINK : SQLITE_OK;
}

/* What has nothing to do with files is left to the default VFS. */

static void *vfs_dl_open(sqlite3_vfs *vfs, const char *name)
{
    return state_of(vfs)->host->xDlOpen(state_of(vfs)->host, name);
}

static void vfs_dl_error(sqlite3_vfs *vfs, int size, char *message)
{
    state_of(vfs)->host->xDlError(state_of(vfs)->host, size, message);
}

static void (*vfs_dl_sym(sqlite3_vfs *vfs, void *library, const char *symbol))(void)
{
    return state_of(vfs)->host->xDlSym(state_of(vfs)->host, library, symbol);
}

static void vfs_dl_close(sqlite3_vfs *vfs, void *library)
{
    state_of(vfs)->host->xDlClose(state_of(vfs)->host, library);
}

static int vfs_randomness(sqlite3_vfs *vfs, int size, char *out)
{
    return state_of(vfs)->host->xRandomness(state_of(vfs)->host, size, out);
}

static int vfs_sleep(sqlite3_vfs *vfs, int microseconds)
{
    return state_of(vfs)->host->xSleep(state_of(vfs)->host, microseconds);
}

static int vfs_current_time(sqlite3_vfs *vfs, double *now)
{
    return state_of(vfs)->host->xCurrentTime(state_of(vfs)->host, now);
}

static int vfs_current_time_64(sqlite3_vfs *vfs, sqlite3_int64 *now)
{
    return state_of(vfs)->host->xCurrentTimeInt64(state_of(vfs)->host, now);
}

static int vfs_last_error(sqlite3_vfs *vfs, int size, char *message)
{
    if (size > 0 && message)
        sqlite3_snprintf(size, message, "%s", uext4_last_error());
    return state_of(vfs)->last_errno;
}

int sqlite3_uext4_register(const char *name, struct uext4_volume *volume, int make_default)
{
    struct uext4_geometry geometry;
    struct vfs_state *state;
    int answer;

    if (uext4_geometry(volume, &geometry) != 0)
        return SQLITE_MISUSE;
    /* Not of SQLite's allocator: sqlite3_shutdown() leaves the VFS registered, and another one may be set up then. */
    state = malloc(sizeof *state + strlen(name) + 1);
    if (!state)
        return SQLITE_NOMEM;
    *state = (struct vfs_state){.host = sqlite3_vfs_find(NULL), .volume = volume, .writable = geometry.writable};
    strcpy(state->name, name);
    /* Devices say which positions they take, not how much they write at a time inside. 4096 is what SQLite assumes. */
    state->sector = geometry.logical_block > 4096 ? geometry.logical_block : 4096;
    pthread_mutex_init(&state->mutex, NULL);
    state->vfs = (sqlite3_vfs){
        .iVersion = 2,
        .szOsFile = sizeof(struct vfs_file),
        .mxPathname = PATH_MAX_BYTES,
        .zName = state->name,
        .pAppData = state,
        .xOpen = vfs_open,
        .xDelete = vfs_delete,
        .xAccess = vfs_access,
        .xFullPathname = vfs_full_path,
        .xDlOpen = vfs_dl_open,
        .xDlError = vfs_dl_error,
        .xDlSym = vfs_dl_sym,
        .xDlClose = vfs_dl_close,
        .xRandomness = vfs_randomness,
        .xSleep = vfs_sleep,
        .xCurrentTime = vfs_current_time,
        .xGetLastError = vfs_last_error,
        .xCurrentTimeInt64 = vfs_current_time_64,
    };
    answer = sqlite3_vfs_register(&state->vfs, make_default);
    if (answer != SQLITE_OK) {
        pthread_mutex_destroy(&state->mutex);
        free(state);
    }
    return answer;
}

int sqlite3_uext4_unregister(const char *name)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find(name);
    struct vfs_state *state;

    if (!vfs || vfs->xOpen != vfs_open)
        return SQLITE_NOTFOUND;
    state = state_of(vfs);
    if (state->nodes)
        return SQLITE_BUSY;
    sqlite3_vfs_unregister(vfs);
    pthread_mutex_destroy(&state->mutex);
    free(state);
    return SQLITE_OK;
}
