/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the files of the store share. kv.h is the face. */
#ifndef KV_STORE_H
#define KV_STORE_H

#include "index.h"
#include "kv.h"
#include "record.h"

#include <uext4.h>

/* Values whose reads, and records whose writes, are in flight together. */
#define READS 32u
#define WRITES 4u

/* A value read: a piece of memory, and what is to become of it. */
struct reading {
    uint8_t *memory;
    const struct item *item;
    struct kv_get *get;
    uint32_t skip;   /* bytes in front of the value, because reads begin at whole units */
    uint32_t length; /* of the request */
};

struct kv {
    struct uext4_volume *volume;
    struct uext4_file *log;
    struct uext4_file *data; /* NULL: no checkpoint yet */
    uint32_t unit;           /* positions and lengths of all requests are multiples of it */
    uint32_t align;          /* and addresses of this */
    uint64_t log_bytes;
    uint64_t log_end; /* where the next record goes */
    uint64_t data_bytes;
    uint64_t generation;
    uint64_t recovered;
    uint32_t crc; /* of the last record in the log */
    int writable;
    int failed; /* the errno of a commit that failed: nothing is written any more */
    struct index index;
    struct kv_batch *single; /* the batch of kv_put() and kv_delete() */

    struct uext4_queue *queue;
    uint32_t log_slot, data_slot; /* the numbers that requests name the files by */
    struct reading reads[READS];
    uint8_t *writes[WRITES]; /* memory for records of a checkpoint */
    unsigned reads_busy, writes_busy; /* bits */
    int write_error;
};

/* Keeps the reason for kv_error() and returns `code`. */
int kv_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, with what uext4_last_error() says. */
int kv_fail_io(int code, const char *doing);

/* log.c: the log, its head, and reading files of records. */
int log_open(struct kv *kv, uint64_t log_bytes);
int log_write_head(struct kv *kv, uint64_t generation, uint64_t data_bytes);
int log_recover(struct kv *kv);
int log_append(struct kv *kv, uint8_t *record, uint32_t length, uint32_t entries);
/* The data file of a generation. There are two, and the generations take turns. */
const char *data_path(uint64_t generation);
void *aligned_memory(const struct kv *kv, size_t length);

/* transfer.c: requests in flight. */
int transfer_open(struct kv *kv);
void transfer_close(struct kv *kv);
int transfer_attach_data(struct kv *kv, struct uext4_file *data);
/* Reads the values of `items`, into `gets`, which have room and take the results. */
int transfer_read(struct kv *kv, const struct item *const *items, struct kv_get *gets, size_t count);
/* Memory for a record of a checkpoint: waits until some is free. NULL on failure. */
uint8_t *transfer_take(struct kv *kv);
int transfer_write(struct kv *kv, uint32_t file, uint8_t *record, uint32_t length, uint64_t pos);
/* Waits for all writes. */
int transfer_drain(struct kv *kv);

static inline uint64_t up(const struct kv *kv, uint64_t bytes)
{
    return (bytes + kv->unit - 1) / kv->unit * kv->unit;
}

#endif
