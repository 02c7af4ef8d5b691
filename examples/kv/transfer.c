/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Requests in flight, through a queue of libuext4.
 *
 * Reads of values and writes of a checkpoint share the queue: tags below READS are reads, those above are writes. The
 * memory comes from the queue (registered with the kernel where that is possible), in pieces that are used again. A
 * piece belongs to the library from submission until its completion was reaped: the bits in `reads_busy` and
 * `writes_busy` say so.
 */
#include "store.h"

#include <errno.h>
#include <string.h>

#define DEPTH (READS + WRITES)
/* A value that begins and ends inside a unit. */
#define READ_BYTES (KV_VALUE_MAX + 2 * 4096u)

int transfer_open(struct kv *kv)
{
    int slot;
    int error;

    if (kv->queue)
        return 0;
    /* The library hands out powers of two: room for the reads is twice what they need. */
    error = uext4_queue_open(kv->volume, DEPTH, READS * 2 * KV_VALUE_MAX + WRITES * KV_BATCH_MAX, 0, &kv->queue);
    if (error)
        return kv_fail_io(error, "opening a queue");
    for (unsigned read = 0; read < READS; read++)
        if (!(kv->reads[read].memory = uext4_queue_alloc(kv->queue, READ_BYTES)))
            return kv_fail_io(-ENOMEM, "memory of the queue");
    for (unsigned write = 0; write < WRITES; write++)
        if (!(kv->writes[write] = uext4_queue_alloc(kv->queue, KV_BATCH_MAX)))
            return kv_fail_io(-ENOMEM, "memory of the queue");
    slot = uext4_queue_attach(kv->queue, kv->log);
    if (slot < 0)
        return kv_fail_io(slot, "attaching the log");
    kv->log_slot = (uint32_t)slot;
    slot = kv->data ? transfer_attach_data(kv, kv->data) : 0;
    kv->data_slot = slot < 0 ? 0 : (uint32_t)slot;
    return slot < 0 ? slot : 0;
}

void transfer_close(struct kv *kv)
{
    /* Waits for what is in flight: nothing reaches the pieces later. */
    if (kv->queue)
        uext4_queue_close(kv->queue);
    kv->queue = NULL;
    kv->reads_busy = kv->writes_busy = 0;
}

int transfer_attach_data(struct kv *kv, struct uext4_file *data)
{
    int slot = uext4_queue_attach(kv->queue, data);

    return slot < 0 ? kv_fail_io(slot, "attaching a data file") : slot;
}

static void read_done(struct kv *kv, unsigned index, int64_t result)
{
    const struct reading *read = &kv->reads[index];
    const struct place *place = &read->item->place;
    const uint8_t *value = read->memory + read->skip;

    kv->reads_busy &= ~(1u << index);
    if (result < 0)
        read->get->result = result;
    else if (result < read->skip + (int64_t)place->length || crc32c(0, value, place->length) != place->crc)
        read->get->result = -EILSEQ;
    else
        read->get->result = place->length;
    if (read->get->result > 0)
        memcpy(read->get->value, value, place->length);
}

static void done(struct kv *kv, uint64_t tag, int64_t result)
{
    if (tag < READS) {
        read_done(kv, (unsigned)tag, result);
        return;
    }
    kv->writes_busy &= ~(1u << (tag - READS));
    if (result < 0 && kv->write_error == 0)
        kv->write_error = (int)result;
}

/* Waits for at least one completion and takes all that are there. */
static int reap(struct kv *kv)
{
    struct uext4_completion completions[DEPTH];
    int count = uext4_queue_reap(kv->queue, completions, 1, DEPTH, -1);

    if (count < 0) {
        kv->failed = count;
        return kv_fail_io(count, "reaping a queue");
    }
    for (int index = 0; index < count; index++)
        done(kv, completions[index].tag, completions[index].result);
    return 0;
}

/* Sends requests. What is refused completes with its error, so that nobody needs to look at two places. */
static void submit(struct kv *kv, const struct uext4_request *requests, uint32_t count)
{
    while (count > 0) {
        int taken = uext4_queue_submit(kv->queue, requests, count);

        if (taken <= 0) {
            done(kv, requests->tag, taken < 0 ? taken : -EIO);
            taken = 1;
        }
        requests += taken;
        count -= (uint32_t)taken;
    }
}

/* Fills a request for a value in. 0 if there is nothing to read. */
static int prepare_read(struct kv *kv, unsigned index, const struct item *item, struct kv_get *get,
                        struct uext4_request *request)
{
    const struct place *place = &item->place;
    struct reading *read = &kv->reads[index];

    if (place->length == 0 || place->length > get->room) {
        get->result = place->length == 0 ? 0 : -ERANGE;
        return 0;
    }
    if (place->length > KV_VALUE_MAX) {
        get->result = -EILSEQ;
        return 0;
    }
    read->item = item;
    read->get = get;
    read->skip = (uint32_t)(place->pos % kv->unit);
    read->length = (uint32_t)up(kv, read->skip + place->length);
    *request = (struct uext4_request){
        .tag = index,
        .pos = place->pos - read->skip,
        .length = read->length,
        .data = read->memory,
        .file = place->home == HOME_LOG ? kv->log_slot : kv->data_slot,
        .op = UEXT4_OP_READ,
    };
    kv->reads_busy |= 1u << index;
    return 1;
}

int transfer_read(struct kv *kv, const struct item *const *items, struct kv_get *gets, size_t count)
{
    size_t next = 0;

    while (next < count || kv->reads_busy) {
        struct uext4_request requests[READS];
        uint32_t ready = 0;
        int error;

        for (unsigned index = 0; index < READS && next < count; index++)
            if (!(kv->reads_busy & 1u << index)) {
                if (items[next])
                    ready += (uint32_t)prepare_read(kv, index, items[next], &gets[next], &requests[ready]);
                else
                    gets[next].result = -ENOENT;
                next++;
            }
        submit(kv, requests, ready);
        if (kv->reads_busy && (error = reap(kv)) != 0) {
            /* What is in flight must not be taken for that of the next read, whose results lie elsewhere. */
            transfer_close(kv);
            return error;
        }
    }
    return 0;
}

uint8_t *transfer_take(struct kv *kv)
{
    while (kv->writes_busy == (1u << WRITES) - 1)
        if (reap(kv) != 0)
            return NULL;
    for (unsigned index = 0; index < WRITES; index++)
        if (!(kv->writes_busy & 1u << index))
            return kv->writes[index];
    return NULL;
}

int transfer_write(struct kv *kv, uint32_t file, uint8_t *record, uint32_t length, uint64_t pos)
{
    struct uext4_request request = {.pos = pos, .length = up(kv, length), .data = record, .file = file};
    unsigned index = 0;

    while (kv->writes[index] != record)
        index++;
    memset(record + length, 0, request.length - length);
    request.tag = READS + index;
    request.op = UEXT4_OP_WRITE;
    kv->writes_busy |= 1u << index;
    submit(kv, &request, 1);
    return kv->write_error;
}

int transfer_drain(struct kv *kv)
{
    int error = 0;

    while (error == 0 && kv->writes_busy)
        error = reap(kv);
    if (error == 0 && kv->write_error)
        error = kv_fail(kv->write_error, "writing a data file: %s", strerror(-kv->write_error));
    kv->write_error = 0;
    return error;
}
