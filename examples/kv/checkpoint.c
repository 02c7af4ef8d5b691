/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Checkpoints: all pairs go to the data file of the next generation, that becomes durable, and then one write of a head
 * puts it in force. Until then the old data file and the log are untouched, so a crash at any point leaves one of the
 * two states whole. Afterwards the log is empty: its records are of an older generation.
 */
#include "store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_BYTES (256u << 10)
#define RECORD_ITEMS 1024u

struct job {
    struct item **items;
    struct place *places; /* where the values will be */
    size_t count;
    struct uext4_file *data;
    uint32_t slot;
    uint64_t generation;
    uint64_t bytes;
    struct kv_get gets[RECORD_ITEMS];
};

/* In the order in which the values lie, so that they are read in runs. */
static int by_place(const void *left, const void *right)
{
    const struct place *a = &(*(struct item *const *)left)->place, *b = &(*(struct item *const *)right)->place;

    if (a->home != b->home)
        return a->home < b->home ? -1 : 1;
    return a->pos < b->pos ? -1 : a->pos > b->pos;
}

/* How many items from `first` on go into one record, and its length. */
static size_t pack(const struct job *job, size_t first, uint32_t *length)
{
    size_t count = 0;

    *length = RECORD_HEADER;
    for (; first + count < job->count && count < RECORD_ITEMS; count++) {
        const struct item *item = job->items[first + count];
        uint32_t more = ENTRY_HEADER + item->key_length + item->place.length;

        if (count > 0 && *length + more > RECORD_BYTES)
            break;
        *length += more;
    }
    return count;
}

/* The data file of the next generation, empty but with room for all of it. */
static int make_file(struct kv *kv, struct job *job)
{
    uint32_t length;
    int error;

    for (size_t first = 0; first < job->count; job->bytes += up(kv, length))
        first += pack(job, first, &length);
    error = uext4_file_open(kv->volume, data_path(job->generation), UEXT4_READ | UEXT4_WRITE | UEXT4_CREATE |
                            UEXT4_TRUNCATE, 0644, NULL, &job->data);
    if (error == 0 && job->bytes > 0)
        error = uext4_fallocate(job->data, UEXT4_FALLOC_ALLOCATE, 0, job->bytes);
    if (error)
        return kv_fail_io(error, "making a data file");
    error = transfer_attach_data(kv, job->data);
    job->slot = error < 0 ? 0 : (uint32_t)error;
    return error < 0 ? error : 0;
}

static int write_record(struct kv *kv, struct job *job, size_t first, size_t count, uint64_t pos, uint32_t *crc)
{
    uint8_t *record = transfer_take(kv), *at;
    int error;

    if (!record)
        return -EIO; /* reap() kept the reason */
    at = record + RECORD_HEADER;
    for (size_t index = 0; index < count; index++) {
        const struct item *item = job->items[first + index];
        struct place *place = &job->places[first + index];
        struct entry entry = {item->key, item->key_length, 0, item->place.length, item->place.crc, 0};

        at = entry_put(at, &entry);
        *place = item->place;
        place->home = HOME_DATA;
        place->pos = pos + (uint64_t)(at - record);
        job->gets[index] = (struct kv_get){.value = at, .room = place->length};
        at += place->length;
    }
    error = transfer_read(kv, (const struct item *const *)job->items + first, job->gets, count);
    for (size_t index = 0; error == 0 && index < count; index++)
        if (job->gets[index].result < 0)
            error = kv_fail((int)job->gets[index].result, "a value cannot be read: %s",
                            strerror((int)-job->gets[index].result));
    if (error)
        return error;
    *crc = record_seal(record, (uint32_t)(at - record), (uint32_t)count, job->generation, *crc);
    return transfer_write(kv, job->slot, record, (uint32_t)(at - record), pos);
}

static int write_all(struct kv *kv, struct job *job)
{
    uint64_t pos = 0;
    uint32_t crc = 0, length;
    int error = 0, drained;

    for (size_t first = 0, count; error == 0 && first < job->count; first += count, pos += up(kv, length)) {
        count = pack(job, first, &length);
        error = write_record(kv, job, first, count, pos, &crc);
    }
    /* Whatever happened: no request may be left with memory that is used again. */
    drained = transfer_drain(kv);
    if (error == 0)
        error = drained;
    /* Of the whole volume: the name may be new, too. */
    if (error == 0 && (error = uext4_sync(kv->volume)) != 0)
        error = kv_fail_io(error, "syncing a data file");
    return error;
}

/* The next generation is in force: its data file, and an empty log. */
static void switch_over(struct kv *kv, struct job *job)
{
    struct uext4_file *old = kv->data;

    for (size_t index = 0; index < job->count; index++)
        job->items[index]->place = job->places[index];
    if (old) {
        uext4_queue_detach(kv->queue, kv->data_slot);
        uext4_file_close(old);
    }
    kv->data = job->data;
    kv->data_slot = job->slot;
    kv->data_bytes = job->bytes;
    kv->generation = job->generation;
    kv->log_end = 2 * kv->unit;
    kv->crc = 0;
    job->data = NULL;
}

static int run(struct kv *kv, struct job *job)
{
    int error = make_file(kv, job);

    if (error == 0)
        error = write_all(kv, job);
    if (error) {
        if (job->slot)
            uext4_queue_detach(kv->queue, job->slot);
        return error;
    }
    error = log_write_head(kv, job->generation, job->bytes);
    if (error)
        kv->failed = error; /* nobody knows which head is on the device */
    else
        switch_over(kv, job);
    return error;
}

int kv_checkpoint(struct kv *kv)
{
    struct job *job;
    int error;

    if (!kv->writable || kv->failed)
        return kv_fail(kv->failed ? kv->failed : -EROFS, "nothing can be written");
    error = transfer_open(kv);
    if (error)
        return error;
    job = calloc(1, sizeof *job);
    if (!job)
        return kv_fail(-ENOMEM, "no memory");
    job->generation = kv->generation + 1;
    job->count = kv->index.count;
    job->items = index_all(&kv->index);
    job->places = calloc(job->count + 1, sizeof *job->places);
    if (job->items && job->places) {
        qsort(job->items, job->count, sizeof *job->items, by_place);
        error = run(kv, job);
    } else {
        error = kv_fail(-ENOMEM, "no memory");
    }
    if (job->data)
        uext4_file_close(job->data);
    free(job->items);
    free(job->places);
    free(job);
    return error;
}
