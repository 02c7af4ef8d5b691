/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The methods of open files. */
#include "vfs_file.h"

#include <errno.h>
#include <string.h>

static int file_close(sqlite3_file *base)
{
    struct vfs_file *file = (struct vfs_file *)base;
    int error;

    vfs_lock_drop(file);
    error = uext4_file_close(file->file);
    file->base.pMethods = NULL;
    return error ? vfs_fail(file->state, SQLITE_IOERR_CLOSE, error, "close", file->path) : SQLITE_OK;
}

/* SQLite wants the bytes that are not there as zeros, and to be told. */
static int file_read(sqlite3_file *base, void *data, int length, sqlite3_int64 pos)
{
    struct vfs_file *file = (struct vfs_file *)base;
    int64_t got = uext4_pread_any(file->file, data, (size_t)length, (uint64_t)pos);

    if (got == length)
        return SQLITE_OK;
    if (got < 0)
        return vfs_fail(file->state, SQLITE_IOERR_READ, got, "read", file->path);
    memset((char *)data + got, 0, (size_t)(length - got));
    return SQLITE_IOERR_SHORT_READ;
}

/* Pages lie anywhere in memory and journals write at any byte, so the calls are those that take any. A write fails as
 * a whole: there are no short ones to go on with. */
static int file_write(sqlite3_file *base, const void *data, int length, sqlite3_int64 pos)
{
    struct vfs_file *file = (struct vfs_file *)base;
    int64_t put = uext4_pwrite_any(file->file, data, (size_t)length, (uint64_t)pos, 0);

    if (put == length)
        return SQLITE_OK;
    return vfs_fail(file->state, put == -ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE, put, "write", file->path);
}

static sqlite3_int64 whole_chunks(const struct vfs_file *file, sqlite3_int64 size)
{
    return file->chunk > 0 ? (size + file->chunk - 1) / file->chunk * file->chunk : size;
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 size)
{
    struct vfs_file *file = (struct vfs_file *)base;
    int error = uext4_ftruncate(file->file, (uint64_t)whole_chunks(file, size));

    return error ? vfs_fail(file->state, SQLITE_IOERR_TRUNCATE, error, "truncate", file->path) : SQLITE_OK;
}

/*
 * FULL and NORMAL are the same here: both reach the medium. DATAONLY says that the size has not changed in a way that
 * matters; uext4_fdatasync() keeps what is needed to read the data back. A file that may be new takes uext4_fsync()
 * once, because that makes its name durable too: a journal without a name rolls nothing back.
 */
static int file_sync(sqlite3_file *base, int flags)
{
    struct vfs_file *file = (struct vfs_file *)base;
    int error;

    if ((flags & SQLITE_SYNC_DATAONLY) && !file->name_pending)
        error = uext4_fdatasync(file->file);
    else
        error = uext4_fsync(file->file);
    if (error)
        return vfs_fail(file->state, SQLITE_IOERR_FSYNC, error, "sync", file->path);
    file->name_pending = 0;
    return SQLITE_OK;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *size)
{
    struct vfs_file *file = (struct vfs_file *)base;

    *size = uext4_file_size(file->file);
    if (*size >= 0)
        return SQLITE_OK;
    return vfs_fail(file->state, SQLITE_IOERR_FSTAT, *size, "size", file->path);
}

/* The file will be that large. With chunks it gets the blocks now; without, as they are written. */
static int size_hint(struct vfs_file *file, sqlite3_int64 wanted)
{
    sqlite3_int64 size = uext4_file_size(file->file);
    int error;

    wanted = whole_chunks(file, wanted);
    if (file->chunk <= 0 || wanted <= size)
        return SQLITE_OK;
    error = uext4_fallocate(file->file, UEXT4_FALLOC_ALLOCATE, (uint64_t)size, (uint64_t)(wanted - size));
    if (error == 0)
        return SQLITE_OK;
    return vfs_fail(file->state, error == -ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE, error, "grow", file->path);
}

/* Whether the name leads to another file by now, or to none. */
static int has_moved(const struct vfs_file *file)
{
    struct uext4_stat facts;

    if (!file->path)
        return 0;
    return uext4_stat(file->state->volume, file->path, 1, &facts) != 0 || facts.ino != file->ino;
}

static int file_control(sqlite3_file *base, int op, void *argument)
{
    struct vfs_file *file = (struct vfs_file *)base;
    int *number = argument;

    switch (op) {
    case SQLITE_FCNTL_LOCKSTATE:
        *number = file->level;
        return SQLITE_OK;
    case SQLITE_FCNTL_LAST_ERRNO:
        *number = file->state->last_errno;
        return SQLITE_OK;
    case SQLITE_FCNTL_POWERSAFE_OVERWRITE:
        if (*number < 0)
            *number = file->powersafe;
        else
            file->powersafe = *number != 0;
        return SQLITE_OK;
    case SQLITE_FCNTL_VFSNAME:
        *(char **)argument = sqlite3_mprintf("%s", file->state->vfs.zName);
        return SQLITE_OK;
    case SQLITE_FCNTL_HAS_MOVED:
        *number = has_moved(file);
        return SQLITE_OK;
    case SQLITE_FCNTL_CHUNK_SIZE:
        file->chunk = *number;
        return SQLITE_OK;
    case SQLITE_FCNTL_SIZE_HINT:
        return size_hint(file, *(sqlite3_int64 *)argument);
    default:
        return SQLITE_NOTFOUND;
    }
}

static int sector_size(sqlite3_file *base)
{
    return (int)((struct vfs_file *)base)->state->sector;
}

/*
 * What can be promised on every volume and device, and no more. Overwrites of a page may be torn by a power cut, so
 * there is no ATOMIC; writes reach the device in any order, so no SEQUENTIAL. An open file can be unlinked, so no
 * UNDELETABLE_WHEN_OPEN.
 */
static int characteristics(sqlite3_file *base)
{
    return ((struct vfs_file *)base)->powersafe ? SQLITE_IOCAP_POWERSAFE_OVERWRITE : 0;
}

/* Version 1: no shared memory, and no pages mapped. */
const sqlite3_io_methods vfs_file_methods = {
    .iVersion = 1,
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = vfs_lock,
    .xUnlock = vfs_unlock,
    .xCheckReservedLock = vfs_check_reserved,
    .xFileControl = file_control,
    .xSectorSize = sector_size,
    .xDeviceCharacteristics = characteristics,
};
