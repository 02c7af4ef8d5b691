/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A small key-value store with a write-ahead log, in files of an ext4 volume.
 *
 * - A commit is durable when it returns: one record in the log, written by one request with UEXT4_DSYNC over blocks
 *   that uext4_prepare() made. Such a write changes no metadata, so it is one FUA write of the device and nothing else.
 * - A checkpoint writes all pairs to a data file and then starts the log anew, under the next generation.
 * - Opening reads the data file and then the log, up to the first record that is not whole.
 *
 * The keys are in memory; values are read from the volume. A store is for one thread at a time.
 *
 * Calls return 0 or a count, or the negative errno of their failure; kv_error() has the reason as a line of text.
 */
#ifndef KV_H
#define KV_H

#include <stddef.h>
#include <stdint.h>

#define KV_KEY_MAX 1024u
#define KV_VALUE_MAX 65536u
/* What a batch may take in the log. */
#define KV_BATCH_MAX (1u << 20)

struct kv;
struct kv_batch;

struct kv_options {
    /* 0: for reading. Then the store must be there, and nothing is written to the volume. */
    int writable;
    /* Bytes of the log, when the store is made; 0: 16 MiB. At least 2 MiB. */
    uint64_t log_bytes;
};

struct kv_stats {
    uint64_t keys;
    uint64_t generation;
    uint64_t data_bytes; /* of the data file */
    uint64_t log_used;   /* bytes of records in the log */
    uint64_t log_bytes;  /* of the log */
    uint64_t recovered;  /* records that opening found in the log */
};

/* One of many values to get. */
struct kv_get {
    const void *key;
    size_t key_length;
    void *value; /* room for KV_VALUE_MAX bytes, or for as many as the value is known to have */
    size_t room;
    int64_t result; /* out: length of the value, -ENOENT, -ERANGE, -EILSEQ or another failure */
};

/* The reason of the last failure of this thread. */
const char *kv_error(void);

/* `device` is text in the device grammar of uext4: `disk.img`, `/dev/nvme0n1p3`. */
int kv_open(const char *device, const struct kv_options *options, struct kv **kv);
int kv_close(struct kv *kv);

/* Durable when they return. Deleting what is not there is -ENOENT. */
int kv_put(struct kv *kv, const void *key, size_t key_length, const void *value, size_t value_length);
int kv_delete(struct kv *kv, const void *key, size_t key_length);

/* Many changes with one write: after a crash all of them are there or none. A batch that is full says -ENOSPC: commit
 * it and go on. kv_batch_commit() empties it for the next changes. */
int kv_batch_new(struct kv *kv, struct kv_batch **batch);
int kv_batch_put(struct kv_batch *batch, const void *key, size_t key_length, const void *value, size_t value_length);
int kv_batch_delete(struct kv_batch *batch, const void *key, size_t key_length);
int kv_batch_commit(struct kv_batch *batch);
void kv_batch_free(struct kv_batch *batch);

/* Returns the length of the value. */
int64_t kv_get(struct kv *kv, const void *key, size_t key_length, void *value, size_t room);
/* Gets many values, whose reads are in flight together. Fails only if nothing could be done; see each result. */
int kv_get_many(struct kv *kv, struct kv_get *gets, size_t count);

/* Calls `each` for every key, in the order of the keys, until it returns other than 0, and returns that. */
int kv_list(struct kv *kv, int (*each)(void *context, const void *key, size_t key_length, size_t value_length),
            void *context);

/* Writes all pairs to a data file and empties the log. A commit that finds the log full does so by itself. */
int kv_checkpoint(struct kv *kv);

void kv_stats(const struct kv *kv, struct kv_stats *stats);
/* Counters of the volume (uext4_stats) by their names; -ENOENT if it has none of a name. */
int kv_counters(struct kv *kv, const char *const *names, uint64_t *values, size_t count);

#endif
