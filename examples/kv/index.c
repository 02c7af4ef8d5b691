/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* FNV-1a. Where keys come from strangers, take a hash with a secret. */
static uint32_t hash_of(const void *key, size_t length)
{
    const uint8_t *at = key;
    uint32_t hash = 2166136261u;

    while (length-- > 0)
        hash = (hash ^ *at++) * 16777619u;
    return hash;
}

/* The pointer to the item, or the end of the list where it would be. */
static struct item **slot_of(const struct index *index, const void *key, size_t length, uint32_t hash)
{
    struct item **at = &index->heads[hash & (index->heads_count - 1)];

    while (*at && ((*at)->hash != hash || (*at)->key_length != length || memcmp((*at)->key, key, length) != 0))
        at = &(*at)->next;
    return at;
}

static int grow(struct index *index)
{
    size_t wanted = index->heads_count ? index->heads_count * 2 : 1024;
    struct item **heads = calloc(wanted, sizeof *heads);

    if (!heads)
        return -ENOMEM;
    for (size_t head = 0; head < index->heads_count; head++)
        for (struct item *item = index->heads[head], *next; item; item = next) {
            struct item **to = &heads[item->hash & (wanted - 1)];

            next = item->next;
            item->next = *to;
            *to = item;
        }
    free(index->heads);
    index->heads = heads;
    index->heads_count = wanted;
    return 0;
}

struct item *index_find(const struct index *index, const void *key, size_t length)
{
    return index->count ? *slot_of(index, key, length, hash_of(key, length)) : NULL;
}

int index_put(struct index *index, const void *key, size_t length, const struct place *place)
{
    uint32_t hash = hash_of(key, length);
    struct item **at, *item;
    int error;

    if (index->count >= index->heads_count && (error = grow(index)) != 0)
        return error;
    at = slot_of(index, key, length, hash);
    if (!*at) {
        item = calloc(1, sizeof *item + length);
        if (!item)
            return -ENOMEM;
        item->hash = hash;
        item->key_length = (uint32_t)length;
        memcpy(item->key, key, length);
        *at = item;
        index->count++;
    }
    (*at)->place = *place;
    return 0;
}

int index_delete(struct index *index, const void *key, size_t length)
{
    struct item **at, *item;

    if (!index->count)
        return 0;
    at = slot_of(index, key, length, hash_of(key, length));
    item = *at;
    if (!item)
        return 0;
    *at = item->next;
    free(item);
    index->count--;
    return 1;
}

struct item **index_all(const struct index *index)
{
    struct item **all = calloc(index->count + 1, sizeof *all);
    size_t count = 0;

    if (!all)
        return NULL;
    for (size_t head = 0; head < index->heads_count; head++)
        for (struct item *item = index->heads[head]; item; item = item->next)
            all[count++] = item;
    return all;
}

void index_free(struct index *index)
{
    for (size_t head = 0; head < index->heads_count; head++)
        for (struct item *item = index->heads[head], *next; item; item = next) {
            next = item->next;
            free(item);
        }
    free(index->heads);
}
