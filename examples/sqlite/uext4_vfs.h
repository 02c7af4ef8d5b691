/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A VFS for SQLite whose files live inside an ext4 volume.
 *
 *   uext4_open("disk.img", &options, &volume);
 *   sqlite3_uext4_register("uext4", volume, 0);
 *   sqlite3_open_v2("/app.db", &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, "uext4");
 *
 * - Names are paths of the volume, from its root.
 * - A volume is opened by one process, so locks are kept in memory: among the connections of this process.
 * - There is no shared memory. WAL needs `PRAGMA locking_mode=EXCLUSIVE` before the first use of the database.
 * - The end of the process is a power cut for what it did not sync, because the file system runs inside it. The kernel
 *   keeps more. So where every acknowledged commit has to be there afterwards, journal_mode=DELETE needs
 *   `PRAGMA synchronous=EXTRA`; FULL, the default, will do for TRUNCATE, PERSIST and WAL.
 * - On a volume that is open for reading, temporary files cannot be made: `PRAGMA temp_store=MEMORY`.
 * - A URI may say `psow=0` if a power cut can damage bytes beside those that are written. The default is 1, as in
 *   SQLite's own VFS.
 */
#ifndef UEXT4_VFS_H
#define UEXT4_VFS_H

struct uext4_volume;

/* Registers a VFS for a volume, which has to stay open until sqlite3_uext4_unregister(). Returns an SQLite code. */
int sqlite3_uext4_register(const char *name, struct uext4_volume *volume, int make_default);
/* All databases of the VFS have to be closed. */
int sqlite3_uext4_unregister(const char *name);

#endif
