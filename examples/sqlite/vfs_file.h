/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the two halves of the VFS share. */
#ifndef VFS_FILE_H
#define VFS_FILE_H

#include <pthread.h>
#include <sqlite3.h>
#include <uext4.h>

/* The locks of one file, for all connections that have it open. */
struct lock_node {
    struct lock_node *next;
    uint32_t ino;
    unsigned users;
    unsigned shared;               /* connections that hold SHARED or more */
    const struct vfs_file *writer; /* the one that holds RESERVED or more */
    int level;                     /* of the writer; NONE without one */
};

struct vfs_state {
    sqlite3_vfs vfs;
    sqlite3_vfs *host; /* the default VFS: time, sleep, randomness, extensions */
    struct uext4_volume *volume;
    uint32_t sector;
    int writable;
    pthread_mutex_t mutex; /* of the locks */
    struct lock_node *nodes;
    int last_errno;
    char name[]; /* as it was registered */
};

struct vfs_file {
    sqlite3_file base; /* has to be the first */
    struct vfs_state *state;
    struct uext4_file *file;
    const char *path; /* SQLite's, as long as the file is open; NULL: it has no name */
    struct lock_node *node;
    uint32_t ino;
    int level;
    int powersafe;
    sqlite3_int64 chunk; /* the size is a multiple of it; 0: any size */
    int name_pending; /* the file may be new: its name becomes durable with the first sync */
};

/* Remembers and logs what libuext4 says of a failure; returns `code`. */
int vfs_fail(struct vfs_state *state, int code, int64_t error, const char *doing, const char *path);

/* vfs_file.c */
extern const sqlite3_io_methods vfs_file_methods;

/* vfs_lock.c */
struct lock_node *vfs_lock_node(struct vfs_state *state, uint32_t ino);
void vfs_lock_drop(struct vfs_file *file);
int vfs_lock(sqlite3_file *base, int level);
int vfs_unlock(sqlite3_file *base, int level);
int vfs_check_reserved(sqlite3_file *base, int *held);

#endif
