/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Records: what a commit writes into the log, and what a checkpoint writes into a data file.
 *
 *   record   magic u32, crc u32, generation u64, length u32, entries u32, then the entries
 *   entry    key length u16, flags u16, value length u32, crc of the value u32, then key and value
 *
 * All numbers are little-endian. `crc` is CRC32C of what follows it, and goes on from the crc of the record before: a
 * record is valid behind that record only. So neither an old record that a torn one laid bare, nor one of an earlier
 * round of the log (which has another generation, too), is ever taken for the next.
 */
#ifndef KV_RECORD_H
#define KV_RECORD_H

#include <stddef.h>
#include <stdint.h>

#define RECORD_HEADER 24u
#define ENTRY_HEADER 12u
#define ENTRY_DELETED 1u

struct record {
    uint32_t length; /* with its header, without padding */
    uint32_t entries;
    uint32_t crc;
};

struct entry {
    const uint8_t *key;
    uint32_t key_length;
    uint32_t flags;
    uint32_t value_length;
    uint32_t value_crc;
    uint32_t value_at; /* from the beginning of the record */
};

uint32_t crc32c(uint32_t before, const void *data, size_t length);

void put16(uint8_t *at, uint16_t value);
void put32(uint8_t *at, uint32_t value);
void put64(uint8_t *at, uint64_t value);
uint32_t get32(const uint8_t *at);
uint64_t get64(const uint8_t *at);

/* Writes an entry without its value; returns where the value goes. */
uint8_t *entry_put(uint8_t *at, const struct entry *entry);
/* Fills the header in. Returns the crc, which the next record begins with. */
uint32_t record_seal(uint8_t *record, uint32_t length, uint32_t entries, uint64_t generation, uint32_t before);

/* Looks at a record of which `available` bytes are in memory. Returns 1 if it is whole and the next one; 0 if not; and
 * -1 if more bytes are needed to tell, as `record->length` says. */
int record_check(const uint8_t *data, size_t available, uint64_t generation, uint32_t before, struct record *record);
/* The generation that a header names, 0 if it is none. Says nothing about the record behind it. */
uint64_t record_generation(const uint8_t *data);
/* The entry at `*at`, an offset in the record, which moves on. 0 at the end or if the entry is none. */
int entry_next(const uint8_t *data, const struct record *record, uint32_t *at, struct entry *entry);

#endif
