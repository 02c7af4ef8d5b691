/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tests of the VFS: what its methods promise to SQLite, and connections of one process side by side. Argument: a volume
 * with a folder /dir and a symbolic link /link.db to dir/real.db. What a crash leaves is tested by scripts/examples.sh,
 * with programs that are killed.
 */
#include "uext4_vfs.h"

#include <sqlite3.h>
#include <uext4.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                                                 \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define IS(what, wanted)                                                                                               \
    do {                                                                                                               \
        long long found_ = (long long)(what), wanted_ = (long long)(wanted);                                           \
        if (found_ != wanted_) {                                                                                       \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld (%s)\n", __FILE__, __LINE__, #what, found_, wanted_,          \
                    uext4_last_error());                                                                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define DB_FLAGS (SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MAIN_DB)
#define JOURNAL_FLAGS (SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MAIN_JOURNAL)

static struct uext4_volume *volume;
static sqlite3_vfs *vfs;

static sqlite3_file *open_flags(const char *name, int flags, int wanted)
{
    sqlite3_file *file = calloc(1, (size_t)vfs->szOsFile);
    /* Names of databases have parameters behind them: none. */
    const char *path = name ? sqlite3_create_filename(name, "", "", 0, NULL) : NULL;

    CHECK(file && (!name || path));
    IS(vfs->xOpen(vfs, path, file, flags, NULL), wanted);
    if (wanted == SQLITE_OK)
        return file;
    CHECK(file->pMethods == NULL);
    sqlite3_free_filename(path);
    free(file);
    return NULL;
}

/* The name is SQLite's, and has to live as long as the file: tests leave it to the end of the process. */
static const char *names[64];
static unsigned names_count;

static sqlite3_file *open_named(const char *name, int flags)
{
    sqlite3_file *file = calloc(1, (size_t)vfs->szOsFile);
    int out = 0;

    CHECK(file && names_count < 64);
    names[names_count] = sqlite3_create_filename(name, "", "", 0, NULL);
    IS(vfs->xOpen(vfs, names[names_count++], file, flags, &out), SQLITE_OK);
    IS(out, flags);
    return file;
}

static void close_file(sqlite3_file *file)
{
    IS(file->pMethods->xClose(file), SQLITE_OK);
    free(file);
}

static int exists(const char *path)
{
    struct uext4_stat facts;

    return uext4_stat(volume, path, 0, &facts) == 0;
}

static int accessible(const char *path, int what)
{
    int answer = -1;

    IS(vfs->xAccess(vfs, path, what, &answer), SQLITE_OK);
    return answer;
}

static uint64_t counter(const char *name)
{
    struct uext4_counter counters[128];
    int64_t count = uext4_stats(volume, counters, 128);

    for (int64_t index = 0; index < count && index < 128; index++)
        if (strcmp(counters[index].name, name) == 0)
            return counters[index].value;
    CHECK(!"no such counter");
    return 0;
}

static void is_all(const char *data, size_t length, char byte)
{
    for (size_t at = 0; at < length; at++)
        IS(data[at], byte);
}

static void reads_and_writes(void)
{
    sqlite3_file *file = open_named("/bytes", JOURNAL_FLAGS);
    char data[300];
    sqlite3_int64 size;

    memset(data, 'a', sizeof data);
    IS(file->pMethods->xWrite(file, data, 100, 0), SQLITE_OK);
    IS(file->pMethods->xFileSize(file, &size), SQLITE_OK);
    IS(size, 100);
    IS(file->pMethods->xRead(file, data, 60, 40), SQLITE_OK);
    /* Short: what is there, then zeros. */
    memset(data, 'x', sizeof data);
    IS(file->pMethods->xRead(file, data, 200, 60), SQLITE_IOERR_SHORT_READ);
    is_all(data, 40, 'a');
    is_all(data + 40, 160, 0);
    is_all(data + 200, 100, 'x');
    /* Behind the end: nothing but zeros. */
    memset(data, 'x', sizeof data);
    IS(file->pMethods->xRead(file, data, 50, 100), SQLITE_IOERR_SHORT_READ);
    is_all(data, 50, 0);
    memset(data, 'x', sizeof data);
    IS(file->pMethods->xRead(file, data, 50, 1 << 30), SQLITE_IOERR_SHORT_READ);
    is_all(data, 50, 0);
    /* A hole reads as zeros, and odd places can be written. */
    IS(file->pMethods->xWrite(file, "end", 3, 70001), SQLITE_OK);
    IS(file->pMethods->xRead(file, data, 300, 50000), SQLITE_OK);
    is_all(data, 300, 0);
    IS(file->pMethods->xRead(file, data, 3, 70001), SQLITE_OK);
    CHECK(memcmp(data, "end", 3) == 0);
    IS(file->pMethods->xTruncate(file, 50), SQLITE_OK);
    IS(file->pMethods->xFileSize(file, &size), SQLITE_OK);
    IS(size, 50);
    /* What was cut off stays away. */
    IS(file->pMethods->xTruncate(file, 100), SQLITE_OK);
    IS(file->pMethods->xRead(file, data, 50, 50), SQLITE_OK);
    is_all(data, 50, 0);
    close_file(file);
    IS(vfs->xDelete(vfs, "/bytes", 0), SQLITE_OK);
    IS(vfs->xDelete(vfs, "/bytes", 1), SQLITE_IOERR_DELETE_NOENT);
}

/* A write that fails is told, and one that finds no room says which kind of failure it is. */
static void failures(void)
{
    sqlite3_file *file = open_named("/dir/failures", JOURNAL_FLAGS);
    struct uext4_statfs space;
    int number = 0;
    size_t length = 1 << 20;
    char *data = calloc(1, length);
    sqlite3_int64 pos = 0;
    int answer;

    IS(uext4_statfs(volume, &space), 0);
    do
        answer = file->pMethods->xWrite(file, data, (int)length, pos);
    while (answer == SQLITE_OK && (pos += (sqlite3_int64)length) <= (sqlite3_int64)(space.blocks * space.block_size));
    IS(answer, SQLITE_FULL);
    IS(file->pMethods->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &number), SQLITE_OK);
    CHECK(number != 0);
    close_file(file);
    IS(vfs->xDelete(vfs, "/dir/failures", 1), SQLITE_OK);
    open_flags("/nowhere/x", JOURNAL_FLAGS, SQLITE_CANTOPEN);
    open_flags("/missing", SQLITE_OPEN_READWRITE | SQLITE_OPEN_MAIN_DB, SQLITE_CANTOPEN);
    CHECK(!exists("/missing"));
    free(data);
    /* No memory is not the same as no file. */
    file = open_named("/memory", DB_FLAGS);
    close_file(file);
    sqlite3_hard_heap_limit64(1);
    answer = vfs->xOpen(vfs, names[names_count - 1], file = calloc(1, (size_t)vfs->szOsFile), DB_FLAGS, NULL);
    sqlite3_hard_heap_limit64(0);
    IS(answer, SQLITE_NOMEM);
    free(file);
}

static sqlite3_int64 size_of(sqlite3_file *file)
{
    sqlite3_int64 size = -1;

    IS(file->pMethods->xFileSize(file, &size), SQLITE_OK);
    return size;
}

/* A database grows and shrinks by whole chunks, if SQLite is told to. */
static void chunks(void)
{
    sqlite3_file *file = open_named("/chunks", DB_FLAGS);
    sqlite3_int64 hint = 5000;
    struct uext4_stat facts;
    int chunk = 32768;

    IS(file->pMethods->xFileControl(file, SQLITE_FCNTL_SIZE_HINT, &hint), SQLITE_OK);
    IS(size_of(file), 0);
    IS(file->pMethods->xFileControl(file, SQLITE_FCNTL_CHUNK_SIZE, &chunk), SQLITE_OK);
    IS(file->pMethods->xFileControl(file, SQLITE_FCNTL_SIZE_HINT, &hint), SQLITE_OK);
    IS(size_of(file), 32768);
    IS(uext4_stat(volume, "/chunks", 0, &facts), 0);
    CHECK(facts.blocks * 512 >= 32768);
    hint = 3000;
    IS(file->pMethods->xFileControl(file, SQLITE_FCNTL_SIZE_HINT, &hint), SQLITE_OK);
    IS(size_of(file), 32768);
    IS(file->pMethods->xTruncate(file, 32769), SQLITE_OK);
    IS(size_of(file), 65536);
    IS(file->pMethods->xTruncate(file, 32768), SQLITE_OK);
    IS(size_of(file), 32768);
    hint = (sqlite3_int64)1 << 40;
    IS(file->pMethods->xFileControl(file, SQLITE_FCNTL_SIZE_HINT, &hint), SQLITE_FULL);
    IS(size_of(file), 32768);
    IS(file->pMethods->xTruncate(file, 0), SQLITE_OK);
    IS(size_of(file), 0);
    close_file(file);
    IS(vfs->xDelete(vfs, "/chunks", 0), SQLITE_OK);
}

/* A sync commits a new size, and flushes after a mere overwrite as well. */
static void syncs(void)
{
    static const int flags[] = {SQLITE_SYNC_NORMAL, SQLITE_SYNC_FULL, SQLITE_SYNC_NORMAL | SQLITE_SYNC_DATAONLY};
    sqlite3_file *file = open_named("/synced", JOURNAL_FLAGS);
    char page[4096] = {1};
    uint64_t commits, flushes;

    for (unsigned index = 0; index < 3; index++) {
        IS(file->pMethods->xWrite(file, page, sizeof page, index * 4096), SQLITE_OK);
        commits = counter("commits");
        flushes = counter("flushes");
        IS(file->pMethods->xSync(file, flags[index]), SQLITE_OK);
        CHECK(counter("commits") > commits);
        CHECK(counter("flushes") > flushes);
        flushes = counter("flushes");
        IS(file->pMethods->xWrite(file, page, sizeof page, 0), SQLITE_OK);
        IS(file->pMethods->xSync(file, flags[index]), SQLITE_OK);
        CHECK(counter("flushes") > flushes);
    }
    close_file(file);
    commits = counter("commits");
    IS(vfs->xDelete(vfs, "/synced", 1), SQLITE_OK);
    CHECK(counter("commits") > commits);
}

static void characteristics(void)
{
    sqlite3_file *file = open_named("/db", DB_FLAGS);
    struct uext4_geometry geometry;
    sqlite3 *db;
    int number = -1, sector;

    IS(uext4_geometry(volume, &geometry), 0);
    sector = file->pMethods->xSectorSize(file);
    CHECK(sector >= 512 && (sector & (sector - 1)) == 0 && (uint32_t)sector % geometry.logical_block == 0);
    IS(file->pMethods->iVersion, 1);
    IS(file->pMethods->xDeviceCharacteristics(file), SQLITE_IOCAP_POWERSAFE_OVERWRITE);
    IS(file->pMethods->xFileControl(file, SQLITE_FCNTL_POWERSAFE_OVERWRITE, &number), SQLITE_OK);
    IS(number, 1);
    number = 0;
    IS(file->pMethods->xFileControl(file, SQLITE_FCNTL_POWERSAFE_OVERWRITE, &number), SQLITE_OK);
    IS(file->pMethods->xDeviceCharacteristics(file), 0);
    IS(file->pMethods->xFileControl(file, 12345, &number), SQLITE_NOTFOUND);
    IS(file->pMethods->xFileControl(file, SQLITE_FCNTL_HAS_MOVED, &number), SQLITE_OK);
    IS(number, 0);
    IS(vfs->xDelete(vfs, "/db", 0), SQLITE_OK);
    IS(file->pMethods->xFileControl(file, SQLITE_FCNTL_HAS_MOVED, &number), SQLITE_OK);
    IS(number, 1);
    close_file(file);

    for (int psow = 0; psow < 2; psow++) {
        char uri[64];

        snprintf(uri, sizeof uri, "file:/psow.db?psow=%d", psow);
        IS(sqlite3_open_v2(uri, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI, "uext4"), 0);
        number = -1;
        IS(sqlite3_file_control(db, "main", SQLITE_FCNTL_POWERSAFE_OVERWRITE, &number), SQLITE_OK);
        IS(number, psow);
        IS(sqlite3_close(db), SQLITE_OK);
    }
}

static int entries(const char *folder, const char *prefix)
{
    struct uext4_dirent entry;
    struct uext4_dir *dir;
    int count = 0;

    IS(uext4_opendir(volume, folder, &dir), 0);
    while (uext4_readdir(dir, &entry) == 1)
        count += strncmp(entry.name, prefix, strlen(prefix)) == 0;
    uext4_closedir(dir);
    return count;
}

static void temporary_files(void)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_EXCLUSIVE | SQLITE_OPEN_DELETEONCLOSE;
    sqlite3_file *named = open_named("/temporary", flags | SQLITE_OPEN_TEMP_DB), *unnamed, *other;
    char data[8];
    struct uext4_statfs before, after;

    CHECK(!exists("/temporary"));
    close_file(named);
    IS(uext4_sync(volume), 0);
    IS(uext4_statfs(volume, &before), 0);
    unnamed = open_flags(NULL, flags | SQLITE_OPEN_TEMP_JOURNAL, SQLITE_OK);
    other = open_flags(NULL, flags | SQLITE_OPEN_TEMP_JOURNAL, SQLITE_OK);
    IS(entries("/", ".sqlite-"), 0);
    IS(unnamed->pMethods->xWrite(unnamed, "one", 3, 100000), SQLITE_OK);
    IS(other->pMethods->xWrite(other, "two", 3, 100000), SQLITE_OK);
    IS(unnamed->pMethods->xRead(unnamed, data, 3, 100000), SQLITE_OK);
    CHECK(memcmp(data, "one", 3) == 0);
    close_file(unnamed);
    close_file(other);
    IS(uext4_sync(volume), 0);
    IS(uext4_statfs(volume, &after), 0);
    IS(after.free, before.free);
    IS(after.free_inodes, before.free_inodes);
    /* An exclusive file must not be there. */
    close_file(open_named("/taken", JOURNAL_FLAGS));
    open_flags("/taken", JOURNAL_FLAGS | SQLITE_OPEN_EXCLUSIVE, SQLITE_CANTOPEN);
    IS(vfs->xDelete(vfs, "/taken", 0), SQLITE_OK);
}

static void is_path(const char *name, const char *wanted)
{
    char path[1024];
    int answer = vfs->xFullPathname(vfs, name, sizeof path, path);

    CHECK(answer == SQLITE_OK || answer == SQLITE_OK_SYMLINK);
    if (strcmp(path, wanted) != 0) {
        fprintf(stderr, "%s is %s, not %s\n", name, path, wanted);
        exit(1);
    }
}

static void names_and_access(void)
{
    char path[1024], longest[2048];
    sqlite3_file *file;

    is_path("x.db", "/x.db");
    is_path("/dir/x.db", "/dir/x.db");
    is_path("/link.db", "/dir/real.db");
    is_path("link.db", "/dir/real.db");
    /* However it is written. */
    is_path("./dir//../dir/./x.db//", "/dir/x.db");
    is_path("/dir/.././../link.db", "/dir/real.db");
    IS(vfs->xFullPathname(vfs, "dir/..", sizeof path, path), SQLITE_CANTOPEN);
    memset(longest, 'n', sizeof longest);
    longest[sizeof longest - 1] = 0;
    IS(vfs->xFullPathname(vfs, longest, sizeof path, path), SQLITE_CANTOPEN);
    IS(vfs->xFullPathname(vfs, "/loop.db", sizeof path, path), SQLITE_CANTOPEN);

    IS(accessible("/empty", SQLITE_ACCESS_EXISTS), 0);
    file = open_named("/empty", JOURNAL_FLAGS);
    IS(accessible("/empty", SQLITE_ACCESS_EXISTS), 0);
    IS(accessible("/empty", SQLITE_ACCESS_READWRITE), 1);
    IS(file->pMethods->xWrite(file, "x", 1, 0), SQLITE_OK);
    IS(accessible("/empty", SQLITE_ACCESS_EXISTS), 1);
    close_file(file);
    IS(vfs->xDelete(vfs, "/empty", 0), SQLITE_OK);
    IS(accessible("/no/such/folder", SQLITE_ACCESS_EXISTS), 0);
}

static int lock(sqlite3_file *file, int level)
{
    return file->pMethods->xLock(file, level);
}

static void unlock(sqlite3_file *file, int level)
{
    IS(file->pMethods->xUnlock(file, level), SQLITE_OK);
}

static int reserved(sqlite3_file *file)
{
    int held = -1;

    IS(file->pMethods->xCheckReservedLock(file, &held), SQLITE_OK);
    return held;
}

static void locks(void)
{
    sqlite3_file *a = open_named("/locks", DB_FLAGS), *b = open_named("/locks", DB_FLAGS);
    sqlite3_file *c = open_named("/locks", DB_FLAGS), *other = open_named("/locks2", DB_FLAGS);
    int level;

    IS(lock(a, SQLITE_LOCK_SHARED), SQLITE_OK);
    IS(lock(b, SQLITE_LOCK_SHARED), SQLITE_OK);
    IS(lock(a, SQLITE_LOCK_RESERVED), SQLITE_OK);
    IS(lock(b, SQLITE_LOCK_RESERVED), SQLITE_BUSY);
    IS(reserved(c), 1);
    IS(reserved(other), 0);
    IS(lock(c, SQLITE_LOCK_SHARED), SQLITE_OK);
    unlock(c, SQLITE_LOCK_NONE);
    /* A reader is there: PENDING, which lets nobody in. */
    IS(lock(a, SQLITE_LOCK_EXCLUSIVE), SQLITE_BUSY);
    IS(a->pMethods->xFileControl(a, SQLITE_FCNTL_LOCKSTATE, &level), SQLITE_OK);
    IS(level, SQLITE_LOCK_PENDING);
    IS(lock(c, SQLITE_LOCK_SHARED), SQLITE_BUSY);
    IS(lock(b, SQLITE_LOCK_EXCLUSIVE), SQLITE_BUSY);
    unlock(b, SQLITE_LOCK_NONE);
    IS(lock(a, SQLITE_LOCK_EXCLUSIVE), SQLITE_OK);
    IS(lock(b, SQLITE_LOCK_SHARED), SQLITE_BUSY);
    IS(lock(other, SQLITE_LOCK_SHARED), SQLITE_OK);
    IS(lock(other, SQLITE_LOCK_EXCLUSIVE), SQLITE_OK);
    unlock(a, SQLITE_LOCK_SHARED);
    IS(reserved(b), 0);
    IS(lock(b, SQLITE_LOCK_SHARED), SQLITE_OK);
    IS(lock(b, SQLITE_LOCK_RESERVED), SQLITE_OK);
    /* From SHARED at once, as for rolling a hot journal back. */
    unlock(b, SQLITE_LOCK_NONE);
    IS(lock(a, SQLITE_LOCK_EXCLUSIVE), SQLITE_OK);
    /* Closing gives the lock back. */
    close_file(a);
    IS(lock(c, SQLITE_LOCK_SHARED), SQLITE_OK);
    IS(lock(c, SQLITE_LOCK_EXCLUSIVE), SQLITE_OK);
    close_file(c);
    close_file(b);
    close_file(other);
    IS(vfs->xDelete(vfs, "/locks", 0), SQLITE_OK);
    IS(vfs->xDelete(vfs, "/locks2", 0), SQLITE_OK);
}

static sqlite3 *connect(const char *path)
{
    sqlite3 *db;

    IS(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, "uext4"), 0);
    return db;
}

static int run(sqlite3 *db, const char *sql)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

static sqlite3_int64 value(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *statement;
    sqlite3_int64 found;

    IS(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), SQLITE_OK);
    IS(sqlite3_step(statement), SQLITE_ROW);
    found = sqlite3_column_int64(statement, 0);
    IS(sqlite3_finalize(statement), SQLITE_OK);
    return found;
}

static void contention(void)
{
    /* The same file by two names. */
    sqlite3 *writer = connect("/link.db"), *other = connect("/dir/real.db"), *third = connect("/link.db");
    sqlite3_stmt *reader;

    IS(run(writer, "CREATE TABLE t(n); INSERT INTO t VALUES (1), (2)"), SQLITE_OK);
    CHECK(exists("/dir/real.db") && value(other, "SELECT count(*) FROM t") == 2);
    IS(run(writer, "BEGIN IMMEDIATE; INSERT INTO t VALUES (3)"), SQLITE_OK);
    IS(run(other, "INSERT INTO t VALUES (4)"), SQLITE_BUSY);
    CHECK(exists("/dir/real.db-journal"));
    /* A reader keeps the writer from committing, and the writer keeps new readers out meanwhile. */
    IS(sqlite3_prepare_v2(other, "SELECT n FROM t", -1, &reader, NULL), SQLITE_OK);
    IS(sqlite3_step(reader), SQLITE_ROW);
    IS(run(writer, "COMMIT"), SQLITE_BUSY);
    IS(run(third, "SELECT n FROM t"), SQLITE_BUSY);
    IS(sqlite3_step(reader), SQLITE_ROW);
    IS(sqlite3_step(reader), SQLITE_DONE);
    IS(sqlite3_finalize(reader), SQLITE_OK);
    IS(run(writer, "COMMIT"), SQLITE_OK);
    IS(run(other, "INSERT INTO t VALUES (4)"), SQLITE_OK);
    IS(value(third, "SELECT sum(n) FROM t"), 10);
    /* Without shared memory WAL is refused to connections that share. */
    IS(run(writer, "PRAGMA journal_mode=WAL"), SQLITE_OK);
    IS(value(writer, "SELECT journal_mode = 'delete' FROM pragma_journal_mode"), 1);
    sqlite3_close(writer);
    sqlite3_close(other);
    sqlite3_close(third);
}

static void *increments(void *rounds)
{
    sqlite3 *db = connect("/dir/real.db");

    sqlite3_busy_timeout(db, 60000);
    for (int round = *(int *)rounds; round > 0; round--)
        IS(run(db, "BEGIN IMMEDIATE; UPDATE t SET n = n + 1 WHERE rowid = 1; COMMIT"), SQLITE_OK);
    sqlite3_close(db);
    return NULL;
}

static void threads(int rounds)
{
    sqlite3 *db = connect("/dir/real.db");
    sqlite3_int64 before = value(db, "SELECT n FROM t WHERE rowid = 1");
    pthread_t thread[3];

    for (int index = 0; index < 3; index++)
        IS(pthread_create(&thread[index], NULL, increments, &rounds), 0);
    for (int index = 0; index < 3; index++)
        IS(pthread_join(thread[index], NULL), 0);
    IS(value(db, "SELECT n FROM t WHERE rowid = 1"), before + 3 * rounds);
    IS(value(db, "SELECT integrity_check = 'ok' FROM pragma_integrity_check"), 1);
    sqlite3_close(db);
}

/* A transaction of two databases has a journal of journals, and large sorts take temporary files. */
static void several_databases(void)
{
    sqlite3 *db = connect("/one.db");

    IS(run(db, "ATTACH '/dir/two.db' AS two; CREATE TABLE main.t(n); CREATE TABLE two.t(n);"), SQLITE_OK);
    IS(run(db, "BEGIN; INSERT INTO main.t VALUES (1); INSERT INTO two.t VALUES (2); COMMIT"), SQLITE_OK);
    IS(value(db, "SELECT main.t.n + two.t.n FROM main.t, two.t"), 3);
    IS(entries("/", "one.db-"), 0);
    IS(entries("/dir", "two.db-"), 0);
    IS(run(db, "PRAGMA temp_store=FILE; PRAGMA cache_size=10; PRAGMA temp.cache_size=10; CREATE TEMP TABLE s(b)"), 0);
    IS(run(db, "WITH RECURSIVE n(x) AS (VALUES(1) UNION ALL SELECT x+1 FROM n WHERE x<500)"
               "INSERT INTO s SELECT randomblob(900) FROM n"), SQLITE_OK);
    IS(value(db, "SELECT count(*) FROM (SELECT b FROM s ORDER BY b LIMIT 400)"), 400);
    IS(sqlite3_close(db), SQLITE_OK);
}

int main(int count, char **words)
{
    struct uext4_options options = {.size = sizeof options, .flags = UEXT4_OPEN_WRITE};
    int rounds = count > 2 ? atoi(words[2]) : 10;

    CHECK(count > 1);
    IS(uext4_open(words[1], &options, &volume), 0);
    IS(sqlite3_uext4_register("uext4", volume, 0), SQLITE_OK);
    vfs = sqlite3_vfs_find("uext4");
    CHECK(vfs && sqlite3_vfs_find(NULL) != vfs);
    reads_and_writes();
    syncs();
    characteristics();
    chunks();
    temporary_files();
    names_and_access();
    locks();
    contention();
    threads(rounds);
    several_databases();
    failures();
    while (names_count > 0)
        sqlite3_free_filename(names[--names_count]);
    IS(sqlite3_uext4_unregister("uext4"), SQLITE_OK);
    IS(uext4_close(volume), 0);
    puts("ok");
    return 0;
}
