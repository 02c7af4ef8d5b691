/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "record.h"
#include "kv.h"

#include <string.h>

#define RECORD_MAGIC 0x3152564bu /* KVR1 */

static uint32_t table[8][256];

/* Eight bytes a step ("slicing by eight"). Programs of one thread; others make the table under pthread_once(). */
static void make_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;

        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        table[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = table[slice - 1][byte];

            table[slice][byte] = crc >> 8 ^ table[0][crc & 255];
        }
}

uint32_t crc32c(uint32_t before, const void *data, size_t length)
{
    const uint8_t *at = data;
    uint32_t crc = ~before;

    if (!table[0][1])
        make_table();
    for (; length >= 8; length -= 8, at += 8) {
        uint32_t low = crc ^ get32(at), high = get32(at + 4);

        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; length > 0; length--)
        crc = crc >> 8 ^ table[0][(crc ^ *at++) & 255];
    return ~crc;
}

void put16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

void put32(uint8_t *at, uint32_t value)
{
    put16(at, (uint16_t)value);
    put16(at + 2, (uint16_t)(value >> 16));
}

void put64(uint8_t *at, uint64_t value)
{
    put32(at, (uint32_t)value);
    put32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t get16(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

uint32_t get32(const uint8_t *at)
{
    return get16(at) | get16(at + 2) << 16;
}

uint64_t get64(const uint8_t *at)
{
    return get32(at) | (uint64_t)get32(at + 4) << 32;
}

uint8_t *entry_put(uint8_t *at, const struct entry *entry)
{
    put16(at, (uint16_t)entry->key_length);
    put16(at + 2, (uint16_t)entry->flags);
    put32(at + 4, entry->value_length);
    put32(at + 8, entry->value_crc);
    memcpy(at + ENTRY_HEADER, entry->key, entry->key_length);
    return at + ENTRY_HEADER + entry->key_length;
}

uint32_t record_seal(uint8_t *record, uint32_t length, uint32_t entries, uint64_t generation, uint32_t before)
{
    uint32_t crc;

    put32(record, RECORD_MAGIC);
    put64(record + 8, generation);
    put32(record + 16, length);
    put32(record + 20, entries);
    crc = crc32c(before, record + 8, length - 8);
    put32(record + 4, crc);
    return crc;
}

int record_check(const uint8_t *data, size_t available, uint64_t generation, uint32_t before, struct record *record)
{
    record->length = RECORD_HEADER;
    if (available < RECORD_HEADER)
        return -1;
    if (get32(data) != RECORD_MAGIC || get64(data + 8) != generation)
        return 0;
    /* The length is believed only as far as it is harmless, because the crc is yet to be checked. */
    record->length = get32(data + 16);
    if (record->length < RECORD_HEADER || record->length > KV_BATCH_MAX)
        return 0;
    if (record->length > available)
        return -1;
    record->crc = get32(data + 4);
    record->entries = get32(data + 20);
    return crc32c(before, data + 8, record->length - 8) == record->crc;
}

uint64_t record_generation(const uint8_t *data)
{
    return get32(data) == RECORD_MAGIC ? get64(data + 8) : 0;
}

int entry_next(const uint8_t *data, const struct record *record, uint32_t *at, struct entry *entry)
{
    uint32_t left = record->length - *at;

    if (left < ENTRY_HEADER)
        return 0;
    entry->key = data + *at + ENTRY_HEADER;
    entry->key_length = get16(data + *at);
    entry->flags = get16(data + *at + 2);
    entry->value_length = get32(data + *at + 4);
    entry->value_crc = get32(data + *at + 8);
    left -= ENTRY_HEADER;
    if (entry->key_length > left || entry->value_length > left - entry->key_length)
        return 0;
    entry->value_at = *at + ENTRY_HEADER + entry->key_length;
    *at = entry->value_at + entry->value_length;
    return 1;
}
