/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The five lock levels, among connections of this process.
 *
 *   SHARED     any number of readers
 *   RESERVED   one that will write; readers come and go
 *   PENDING    it waits for the readers to leave; none may come
 *   EXCLUSIVE  they left
 *
 * Nothing waits here: SQLITE_BUSY goes to the connection's busy handler. PENDING is never asked for. It is what a
 * connection that asked for EXCLUSIVE in vain holds until it asks again or gives up.
 */
#include "vfs_file.h"

struct lock_node *vfs_lock_node(struct vfs_state *state, uint32_t ino)
{
    struct lock_node *node;

    pthread_mutex_lock(&state->mutex);
    for (node = state->nodes; node && node->ino != ino; node = node->next)
        ;
    if (!node && (node = sqlite3_malloc64(sizeof *node)) != NULL) {
        *node = (struct lock_node){.next = state->nodes, .ino = ino, .level = SQLITE_LOCK_NONE};
        state->nodes = node;
    }
    if (node)
        node->users++;
    pthread_mutex_unlock(&state->mutex);
    return node;
}

/* Gives the locks back down to `level`. */
static void lower(struct vfs_file *file, int level)
{
    struct lock_node *node = file->node;

    if (file->level <= level)
        return;
    if (node->writer == file) {
        node->writer = NULL;
        node->level = SQLITE_LOCK_NONE;
    }
    if (level == SQLITE_LOCK_NONE)
        node->shared--;
    file->level = level;
}

void vfs_lock_drop(struct vfs_file *file)
{
    struct vfs_state *state = file->state;
    struct lock_node **at = &state->nodes;

    if (!file->node)
        return;
    pthread_mutex_lock(&state->mutex);
    lower(file, SQLITE_LOCK_NONE);
    if (--file->node->users == 0) {
        while (*at != file->node)
            at = &(*at)->next;
        *at = file->node->next;
        sqlite3_free(file->node);
    }
    pthread_mutex_unlock(&state->mutex);
    file->node = NULL;
}

static int raise_lock(struct vfs_file *file, int level)
{
    struct lock_node *node = file->node;

    if (level == SQLITE_LOCK_SHARED) {
        if (node->level >= SQLITE_LOCK_PENDING)
            return SQLITE_BUSY;
        node->shared++;
        file->level = level;
        return SQLITE_OK;
    }
    if (node->writer && node->writer != file)
        return SQLITE_BUSY;
    node->writer = file;
    if (level == SQLITE_LOCK_EXCLUSIVE && node->shared > 1) {
        file->level = node->level = SQLITE_LOCK_PENDING;
        return SQLITE_BUSY;
    }
    file->level = node->level = level;
    return SQLITE_OK;
}

int vfs_lock(sqlite3_file *base, int level)
{
    struct vfs_file *file = (struct vfs_file *)base;
    int answer = SQLITE_OK;

    if (file->level >= level || !file->node)
        return SQLITE_OK;
    pthread_mutex_lock(&file->state->mutex);
    answer = raise_lock(file, level);
    pthread_mutex_unlock(&file->state->mutex);
    return answer;
}

int vfs_unlock(sqlite3_file *base, int level)
{
    struct vfs_file *file = (struct vfs_file *)base;

    if (!file->node)
        return SQLITE_OK;
    pthread_mutex_lock(&file->state->mutex);
    lower(file, level);
    pthread_mutex_unlock(&file->state->mutex);
    return SQLITE_OK;
}

int vfs_check_reserved(sqlite3_file *base, int *held)
{
    struct vfs_file *file = (struct vfs_file *)base;

    *held = 0;
    if (!file->node)
        return SQLITE_OK;
    pthread_mutex_lock(&file->state->mutex);
    *held = file->node->level >= SQLITE_LOCK_RESERVED;
    pthread_mutex_unlock(&file->state->mutex);
    return SQLITE_OK;
}
