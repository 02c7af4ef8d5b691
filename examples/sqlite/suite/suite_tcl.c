/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The volume as a file system of Tcl. SQLite's tests look at sizes of databases, copy, damage and delete them with
 * Tcl's own commands, and need no change this way. The C library makes no directories and gives no names; where a
 * test needs that, it fails.
 */
#include "suite.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tcl.h>

/* What a test has open: a channel of Tcl, or a FILE of C. */
struct opened {
    struct uext4_file *file;
    uint64_t pos;
    int append;
};

/* The linker leads fopen() of SQLite's C files, by both of its names, to the first two (--wrap). */
FILE *__wrap_fopen(const char *name, const char *mode);
FILE *__wrap_fopen64(const char *name, const char *mode);
FILE *__real_fopen(const char *name, const char *mode);

static const char *path_of(Tcl_Obj *path)
{
    Tcl_Obj *whole = Tcl_FSGetNormalizedPath(NULL, path);

    return whole ? Tcl_GetString(whole) : "";
}

static int is_inside(const char *path)
{
    size_t length = strlen(SUITE_ROOT);

    return strncmp(path, SUITE_ROOT, length) == 0 && (path[length] == 0 || path[length] == '/');
}

/* Tcl wants -1, and the reason in errno. */
static int answer_of(int64_t error)
{
    if (error >= 0)
        return 0;
    errno = (int)-error;
    return -1;
}

static int in_volume(Tcl_Obj *path, ClientData *data)
{
    (void)data;
    return is_inside(path_of(path)) ? TCL_OK : -1;
}

static Tcl_Obj *separator(Tcl_Obj *path)
{
    (void)path;
    return Tcl_NewStringObj("/", 1);
}

static int look(Tcl_Obj *path, int follow, Tcl_StatBuf *out)
{
    struct uext4_stat facts;
    int error = uext4_stat(suite_volume, path_of(path), follow, &facts);

    if (error)
        return answer_of(error);
    memset(out, 0, sizeof *out);
    out->st_ino = facts.ino;
    out->st_mode = facts.mode;
    out->st_nlink = facts.links;
    out->st_size = (off_t)facts.size;
    out->st_blocks = (blkcnt_t)facts.blocks;
    out->st_blksize = facts.block_size;
    out->st_mtime = facts.modified.seconds;
    out->st_atime = facts.accessed.seconds;
    out->st_ctime = facts.changed.seconds;
    return 0;
}

static int volume_stat(Tcl_Obj *path, Tcl_StatBuf *out)
{
    return look(path, 1, out);
}

static int volume_lstat(Tcl_Obj *path, Tcl_StatBuf *out)
{
    return look(path, 0, out);
}

static int volume_access(Tcl_Obj *path, int mode)
{
    Tcl_StatBuf facts;

    (void)mode; /* the tests run as root */
    return volume_stat(path, &facts);
}

static int volume_delete(Tcl_Obj *path)
{
    return answer_of(uext4_unlink(suite_volume, path_of(path)));
}

static int no_directory(Tcl_Obj *path)
{
    (void)path;
    errno = EPERM;
    return -1;
}

/* Takes all files away that are in a directory and in those below. */
static int empty(const char *path)
{
    struct uext4_dirent entry;
    struct uext4_dir *dir;
    int error = uext4_opendir(suite_volume, path, &dir);

    if (error)
        return answer_of(error);
    while (error == 0 && uext4_readdir(dir, &entry) == 1) {
        char inner[PATH_MAX];

        if (strcmp(entry.name, ".") == 0 || strcmp(entry.name, "..") == 0)
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry.name);
        error = S_ISDIR(entry.kind) ? empty(inner) : answer_of(uext4_unlink(suite_volume, inner));
    }
    uext4_closedir(dir);
    return error;
}

/* `file delete -force`. The directories stay: the tests make them again, which is no error. */
static int remove_directory(Tcl_Obj *path, int recursive, Tcl_Obj **error)
{
    int answer = recursive ? empty(path_of(path)) : no_directory(path);

    if (answer) {
        *error = path;
        Tcl_IncrRefCount(path);
    }
    return answer;
}

/* Channels. */

static int channel_close(ClientData data, Tcl_Interp *interp)
{
    struct opened *opened = data;
    int error = uext4_file_close(opened->file);

    (void)interp;
    free(opened);
    return -error;
}

static ssize_t take(struct opened *opened, char *data, size_t length)
{
    int64_t got = uext4_pread_any(opened->file, data, length, opened->pos);

    if (got > 0)
        opened->pos += (uint64_t)got;
    return got;
}

static ssize_t put(struct opened *opened, const char *data, size_t length)
{
    int64_t done;

    if (opened->append)
        opened->pos = (uint64_t)uext4_file_size(opened->file);
    done = uext4_pwrite_any(opened->file, data, length, opened->pos, 0);
    if (done > 0)
        opened->pos += (uint64_t)done;
    return done;
}

static int channel_input(ClientData data, char *out, int room, int *error)
{
    ssize_t got = take(data, out, (size_t)room);

    *error = got < 0 ? (int)-got : 0;
    return got < 0 ? -1 : (int)got;
}

static int channel_output(ClientData data, const char *from, int length, int *error)
{
    ssize_t done = put(data, from, (size_t)length);

    *error = done < 0 ? (int)-done : 0;
    return done < 0 ? -1 : (int)done;
}

static int64_t move(struct opened *opened, int64_t offset, int from)
{
    int64_t base = 0;

    if (from == SEEK_CUR)
        base = (int64_t)opened->pos;
    else if (from == SEEK_END)
        base = uext4_file_size(opened->file);
    if (base + offset < 0)
        return -EINVAL;
    opened->pos = (uint64_t)(base + offset);
    return base + offset;
}

static Tcl_WideInt channel_wide_seek(ClientData data, Tcl_WideInt offset, int from, int *error)
{
    int64_t pos = move(data, offset, from);

    *error = pos < 0 ? (int)-pos : 0;
    return pos < 0 ? -1 : pos;
}

static int channel_seek(ClientData data, long offset, int from, int *error)
{
    return (int)channel_wide_seek(data, offset, from, error);
}

static int channel_truncate(ClientData data, Tcl_WideInt length)
{
    return -uext4_ftruncate(((struct opened *)data)->file, (uint64_t)length);
}

static void channel_watch(ClientData data, int mask)
{
    (void)data;
    (void)mask;
}

static int channel_handle(ClientData data, int direction, ClientData *handle)
{
    (void)data;
    (void)direction;
    (void)handle;
    return TCL_ERROR;
}

static const Tcl_ChannelType channel_type = {
    .typeName = "uext4",
    .version = TCL_CHANNEL_VERSION_5,
    .closeProc = channel_close,
    .inputProc = channel_input,
    .outputProc = channel_output,
    .seekProc = channel_seek,
    .watchProc = channel_watch,
    .getHandleProc = channel_handle,
    .wideSeekProc = channel_wide_seek,
    .truncateProc = channel_truncate,
};

static struct opened *open_path(const char *path, int mode)
{
    struct opened *opened = calloc(1, sizeof *opened);
    uint32_t how = (mode & O_ACCMODE) == O_WRONLY ? 0 : UEXT4_READ;
    int error;

    if (!opened)
        return NULL;
    if ((mode & O_ACCMODE) != O_RDONLY)
        how |= UEXT4_WRITE;
    if (mode & O_CREAT)
        how |= mode & O_EXCL ? UEXT4_CREATE_NEW : UEXT4_CREATE;
    if (mode & O_TRUNC)
        how |= UEXT4_TRUNCATE;
    opened->append = (mode & O_APPEND) != 0;
    error = uext4_file_open(suite_volume, path, how, 0644, NULL, &opened->file);
    if (error == 0)
        return opened;
    free(opened);
    errno = -error;
    return NULL;
}

static Tcl_Channel volume_open(Tcl_Interp *interp, Tcl_Obj *path, int mode, int permissions)
{
    static unsigned long count;
    struct opened *opened = open_path(path_of(path), mode);
    int mask = (mode & O_ACCMODE) == O_RDWR ? TCL_READABLE | TCL_WRITABLE : TCL_READABLE;
    char name[40];

    (void)permissions;
    if (!opened) {
        if (interp)
            Tcl_SetObjResult(interp, Tcl_ObjPrintf("couldn't open \"%s\": %s", Tcl_GetString(path),
                                                   Tcl_PosixError(interp)));
        return NULL;
    }
    if ((mode & O_ACCMODE) == O_WRONLY)
        mask = TCL_WRITABLE;
    snprintf(name, sizeof name, "uext4-%lu", count++);
    return Tcl_CreateChannel(&channel_type, name, opened, mask);
}

/* Directories, for `glob`. */

static int is_wanted(const char *path, const Tcl_GlobTypeData *types)
{
    struct uext4_stat facts;

    if (uext4_stat(suite_volume, path, 1, &facts) != 0)
        return 0;
    if (!types || !(types->type & (TCL_GLOB_TYPE_DIR | TCL_GLOB_TYPE_FILE)))
        return 1;
    return types->type & (S_ISDIR(facts.mode) ? TCL_GLOB_TYPE_DIR : TCL_GLOB_TYPE_FILE);
}

static int volume_match(Tcl_Interp *interp, Tcl_Obj *result, Tcl_Obj *directory, const char *pattern,
                        Tcl_GlobTypeData *types)
{
    struct uext4_dirent entry;
    struct uext4_dir *dir;

    if (types && types->type & TCL_GLOB_TYPE_MOUNT)
        return TCL_OK;
    if (!pattern) {
        if (is_wanted(path_of(directory), types))
            Tcl_ListObjAppendElement(interp, result, directory);
        return TCL_OK;
    }
    if (uext4_opendir(suite_volume, path_of(directory), &dir) != 0)
        return TCL_OK;
    while (uext4_readdir(dir, &entry) == 1) {
        Tcl_Obj *path;

        if (!Tcl_StringMatch(entry.name, pattern) || (entry.name[0] == '.' && pattern[0] != '.'))
            continue;
        path = Tcl_ObjPrintf("%s/%s", Tcl_GetString(directory), entry.name);
        Tcl_IncrRefCount(path);
        if (is_wanted(path_of(path), types))
            Tcl_ListObjAppendElement(interp, result, path);
        Tcl_DecrRefCount(path);
    }
    uext4_closedir(dir);
    return TCL_OK;
}

static const Tcl_Filesystem volume_system = {
    .typeName = "uext4",
    .structureLength = sizeof(Tcl_Filesystem),
    .version = TCL_FILESYSTEM_VERSION_1,
    .pathInFilesystemProc = in_volume,
    .filesystemSeparatorProc = separator,
    .statProc = volume_stat,
    .accessProc = volume_access,
    .openFileChannelProc = volume_open,
    .matchInDirectoryProc = volume_match,
    .createDirectoryProc = no_directory,
    .removeDirectoryProc = remove_directory,
    .deleteFileProc = volume_delete,
    .lstatProc = volume_lstat,
};

int suite_tcl_register(void)
{
    return Tcl_FSRegister(NULL, &volume_system) == TCL_OK ? 0 : -1;
}

const char *suite_tcl_directory(void)
{
    static char path[PATH_MAX];
    Tcl_Obj *directory = Tcl_FSGetCwd(NULL);

    snprintf(path, sizeof path, "%s", directory ? Tcl_GetString(directory) : "");
    if (directory)
        Tcl_DecrRefCount(directory);
    return is_inside(path) ? path : SUITE_ROOT;
}

/* The same for C. */

static ssize_t cookie_read(void *cookie, char *data, size_t length)
{
    ssize_t got = take(cookie, data, length);

    return got < 0 ? -1 : got;
}

static ssize_t cookie_write(void *cookie, const char *data, size_t length)
{
    return put(cookie, data, length) < 0 ? 0 : (ssize_t)length;
}

static int cookie_seek(void *cookie, off64_t *offset, int from)
{
    int64_t pos = move(cookie, *offset, from);

    if (pos < 0)
        return -1;
    *offset = pos;
    return 0;
}

static int cookie_close(void *cookie)
{
    return channel_close(cookie, NULL) ? -1 : 0;
}

static int mode_of(const char *mode)
{
    int way = strchr(mode, '+') ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;

    if (mode[0] == 'w')
        way |= O_CREAT | O_TRUNC;
    if (mode[0] == 'a')
        way |= O_CREAT | O_APPEND;
    return way;
}

FILE *__wrap_fopen(const char *name, const char *mode)
{
    cookie_io_functions_t calls = {cookie_read, cookie_write, cookie_seek, cookie_close};
    Tcl_Obj *path = Tcl_NewStringObj(name, -1);
    struct opened *opened;
    FILE *stream = NULL;

    Tcl_IncrRefCount(path);
    if (!suite_volume || !is_inside(path_of(path)))
        stream = __real_fopen(name, mode);
    else if ((opened = open_path(path_of(path), mode_of(mode))) != NULL)
        stream = fopencookie(opened, mode, calls);
    Tcl_DecrRefCount(path);
    return stream;
}

FILE *__wrap_fopen64(const char *name, const char *mode)
{
    return __wrap_fopen(name, mode);
}
