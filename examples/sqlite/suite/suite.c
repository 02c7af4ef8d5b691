/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The start of `testfixture`, SQLite's interpreter for its tests, with the VFS as the default. UEXT4_SUITE_IMAGE names
 * the volume; without it the tests run on files of the host, to tell what fails there too.
 *
 * A layer above the VFS has what SQLite's tests expect of the one they were written beside: it fails where a counter
 * says so, counts syncs and open files, and completes relative names with the directory that the tests work in.
 */
#include "suite.h"

#include "../uext4_vfs.h"
#include "../vfs_file.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tcl.h>

#define SYNC_KIND 0x0f

/* Of SQLite, compiled for tests. */
extern int sqlite3_io_error_hit, sqlite3_io_error_hardhit, sqlite3_io_error_pending, sqlite3_io_error_persist;
extern int sqlite3_io_error_benign, sqlite3_diskfull_pending, sqlite3_diskfull, sqlite3_open_file_count;
extern int sqlite3_sync_count, sqlite3_fullsync_count;
extern const char *sqlite3TestInit(Tcl_Interp *interp);
extern int __real_Sqliteconfig_Init(Tcl_Interp *interp);

/* Called by SQLite and by its interpreter, which are compiled with these names. */
const char *suite_init(Tcl_Interp *interp);
int suite_sqlite_init(const char *unused);
int __wrap_Sqliteconfig_Init(Tcl_Interp *interp);

struct uext4_volume *suite_volume;

static sqlite3_vfs below; /* as the VFS was registered */
static sqlite3_vfs *vfs;
static const sqlite3_io_methods *file_below;

static void failed(void)
{
    sqlite3_io_error_hit++;
    if (!sqlite3_io_error_benign)
        sqlite3_io_error_hardhit++;
}

/* Whether this call has to fail. */
static int fails(void)
{
    if (!(sqlite3_io_error_persist && sqlite3_io_error_hit) && sqlite3_io_error_pending-- != 1)
        return 0;
    failed();
    return 1;
}

/* Whether there has to be no room. */
static int full(void)
{
    if (!sqlite3_diskfull_pending || --sqlite3_diskfull_pending > 0)
        return 0;
    sqlite3_diskfull_pending = 1; /* and from now on */
    failed();
    sqlite3_diskfull = sqlite3_io_error_hit = 1;
    return 1;
}

static int layer_close(sqlite3_file *file)
{
    sqlite3_open_file_count--;
    return file_below->xClose(file);
}

static int layer_read(sqlite3_file *file, void *data, int length, sqlite3_int64 pos)
{
    return fails() ? SQLITE_IOERR_READ : file_below->xRead(file, data, length, pos);
}

static int layer_write(sqlite3_file *file, const void *data, int length, sqlite3_int64 pos)
{
    if (fails())
        return SQLITE_IOERR_WRITE;
    return full() ? SQLITE_FULL : file_below->xWrite(file, data, length, pos);
}

static int layer_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    return fails() ? SQLITE_IOERR_TRUNCATE : file_below->xTruncate(file, size);
}

/* SQLite's VFS syncs the directory with the first sync of a journal, and counts it. The VFS does both in one. */
static int syncs_name(const struct vfs_file *file)
{
    return file->name_pending && file->path && !file->node;
}

static int layer_sync(sqlite3_file *file, int flags)
{
    if (full())
        return SQLITE_FULL;
    sqlite3_sync_count += 1 + syncs_name((struct vfs_file *)file);
    sqlite3_fullsync_count += (flags & SYNC_KIND) == SQLITE_SYNC_FULL;
    return fails() ? SQLITE_IOERR_FSYNC : file_below->xSync(file, flags);
}

static int layer_size(sqlite3_file *file, sqlite3_int64 *size)
{
    return fails() ? SQLITE_IOERR_FSTAT : file_below->xFileSize(file, size);
}

static int layer_check_reserved(sqlite3_file *file, int *held)
{
    return fails() ? SQLITE_IOERR_CHECKRESERVEDLOCK : file_below->xCheckReservedLock(file, held);
}

static sqlite3_io_methods file_methods;

static int layer_open(sqlite3_vfs *self, sqlite3_filename name, sqlite3_file *file, int flags, int *out_flags)
{
    int answer = below.xOpen(self, name, file, flags, out_flags);

    if (answer != SQLITE_OK)
        return answer;
    if (!file_below) {
        file_below = file->pMethods;
        file_methods = *file_below;
        file_methods.xClose = layer_close;
        file_methods.xRead = layer_read;
        file_methods.xWrite = layer_write;
        file_methods.xTruncate = layer_truncate;
        file_methods.xSync = layer_sync;
        file_methods.xFileSize = layer_size;
        file_methods.xCheckReservedLock = layer_check_reserved;
    }
    file->pMethods = &file_methods;
    sqlite3_open_file_count++;
    return SQLITE_OK;
}

static int layer_delete(sqlite3_vfs *self, const char *path, int sync_dir)
{
    if (fails())
        return SQLITE_IOERR_DELETE;
    sqlite3_sync_count += sync_dir != 0;
    return below.xDelete(self, path, sync_dir);
}

static int layer_access(sqlite3_vfs *self, const char *path, int what, int *answer)
{
    return fails() ? SQLITE_IOERR_ACCESS : below.xAccess(self, path, what, answer);
}

static int layer_full_path(sqlite3_vfs *self, const char *name, int size, char *out)
{
    char *whole;
    int answer;

    if (name[0] == '/')
        return below.xFullPathname(self, name, size, out);
    whole = sqlite3_mprintf("%s/%s", suite_tcl_directory(), name);
    if (!whole)
        return SQLITE_NOMEM;
    answer = below.xFullPathname(self, whole, size, out);
    sqlite3_free(whole);
    return answer;
}

static int register_layer(void)
{
    int answer = sqlite3_uext4_register("uext4", suite_volume, 1);

    if (answer != SQLITE_OK)
        return answer;
    vfs = sqlite3_vfs_find("uext4");
    below = *vfs;
    vfs->xOpen = layer_open;
    vfs->xDelete = layer_delete;
    vfs->xAccess = layer_access;
    vfs->xFullPathname = layer_full_path;
    return SQLITE_OK;
}

/* The end of sqlite3_initialize(), which has just made the VFS of the host the default one. */
int suite_sqlite_init(const char *unused)
{
    (void)unused;
    if (!suite_volume)
        return SQLITE_OK;
    return vfs ? sqlite3_vfs_register(vfs, 1) : register_layer();
}

static void at_exit(void)
{
    if (uext4_close(suite_volume) == 0)
        return;
    fprintf(stderr, "suite: closing the volume: %s\n", uext4_last_error());
    _Exit(3);
}

static void open_volume(const char *image)
{
    struct uext4_options options = {.size = sizeof options, .flags = UEXT4_OPEN_WRITE | UEXT4_OPEN_BACKGROUND};

    if (uext4_open(image, &options, &suite_volume) || suite_tcl_register() != 0) {
        fprintf(stderr, "suite: %s: %s\n", image, uext4_last_error());
        exit(3);
    }
    atexit(at_exit);
}

/*
 * Tests ask what SQLite was compiled with and leave out what is not there. There are no mapped pages, and without
 * shared memory no WAL for several connections. UEXT4_SUITE_WAL is set for tests that can do without.
 */
int __wrap_Sqliteconfig_Init(Tcl_Interp *interp)
{
    int answer = __real_Sqliteconfig_Init(interp);

    if (!suite_volume)
        return answer;
    Tcl_SetVar2(interp, "sqlite_options", "mmap", "0", TCL_GLOBAL_ONLY);
    if (!getenv("UEXT4_SUITE_WAL"))
        Tcl_SetVar2(interp, "sqlite_options", "wal", "0", TCL_GLOBAL_ONLY);
    return answer;
}

const char *suite_init(Tcl_Interp *interp)
{
    const char *image = getenv("UEXT4_SUITE_IMAGE");

    if (image && !suite_volume)
        open_volume(image);
    return sqlite3TestInit(interp);
}
