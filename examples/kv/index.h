/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The keys, in memory: a hash table that says where the value of each lies. */
#ifndef KV_INDEX_H
#define KV_INDEX_H

#include <stddef.h>
#include <stdint.h>

enum home { HOME_DATA, HOME_LOG };

struct place {
    uint64_t pos; /* byte of the file */
    uint32_t length;
    uint32_t crc;
    enum home home;
};

struct item {
    struct item *next;
    struct place place;
    uint32_t hash;
    uint32_t key_length;
    uint8_t key[];
};

struct index {
    struct item **heads;
    size_t heads_count; /* a power of two */
    size_t count;
};

struct item *index_find(const struct index *index, const void *key, size_t length);
/* 0 or -ENOMEM. */
int index_put(struct index *index, const void *key, size_t length, const struct place *place);
/* 1 if the key was there. */
int index_delete(struct index *index, const void *key, size_t length);
/* All items, in no order; NULL without memory. The caller frees the array. */
struct item **index_all(const struct index *index);
void index_free(struct index *index);

#endif
