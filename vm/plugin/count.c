// Plugin of QEMU's translator: instructions of the guest between two marks (scripts/vm-count.sh). A mark is a long nop
// with a number in it: vm/count/src/main.rs. What is counted goes to the file of the argument `out=`:
//
//   traced=1   by address: at each end a line `TRACE number`, then the addresses with their counts;
//   otherwise  `TOTAL,instructions` at each end, and `PROGRAM` where a program of the guest begins.
//
// Unlike the guest's clock it sees no time that a halted processor skips. Processors that QEMU runs in one thread are
// counted together; by address one only.
// Debian packages no qemu-plugin.h: the few declarations that are needed stand here (interface 1, QEMU 4.2 and later).

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { CB_NO_REGS = 0 };
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t number);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
enum qemu_plugin_op { INLINE_ADD };
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *insn, enum qemu_plugin_op op, void *place,
                                                uint64_t number);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, void (*cb)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, void (*cb)(unsigned, void *), int flags,
                                            void *data);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

// An instruction, by its address. Open addressing; the table is never full.
enum { PLACES = 1 << 22 };
struct place { uint64_t address, count; };
static struct place *places;
static bool traced, counting;
static unsigned ends;
static FILE *out;

// All instructions, and how many there were when the last count began.
static uint64_t all, all_before;

static struct place *place_of(uint64_t address) {
    uint64_t at = (address * 0x9E3779B97F4A7C15u) >> 42;
    while (places[at].address != 0 && places[at].address != address) at = (at + 1) % PLACES;
    places[at].address = address;
    return &places[at];
}

static void executed(unsigned processor, void *data) {
    (void)processor;
    if (counting) ((struct place *)data)->count++;
}

static void program(unsigned processor, void *data) {
    (void)processor, (void)data;
    if (!traced) fprintf(out, "PROGRAM\n");
}

static void begin(unsigned processor, void *data) {
    (void)processor, (void)data;
    counting = true;
    all_before = all;
}

static void end(unsigned processor, void *data) {
    (void)processor, (void)data;
    counting = false;
    if (!traced) {
        fprintf(out, "TOTAL,%" PRIu64 "\n", all - all_before);
        fflush(out);
        return;
    }
    fprintf(out, "TRACE %u\n", ends++);
    for (size_t at = 0; at < PLACES; at++) {
        if (places[at].count != 0) fprintf(out, "%016" PRIx64 " %" PRIu64 "\n", places[at].address, places[at].count);
        places[at].count = 0;
    }
    fflush(out);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    static const unsigned char nop[] = {0x0f, 0x1f, 0x80}, number[] = {0x74, 0x78, 0x65};
    static void (*const marks[])(unsigned, void *) = {begin, end, program};
    for (size_t at = 0; at < qemu_plugin_tb_n_insns(tb); at++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, at);
        const unsigned char *bytes = qemu_plugin_insn_data(insn);
        // The number is 0x65787434 and what follows.
        if (qemu_plugin_insn_size(insn) == 7 && memcmp(bytes, nop, 3) == 0 && memcmp(bytes + 4, number, 3) == 0 &&
            bytes[3] - 0x34u < sizeof(marks) / sizeof(*marks)) {
            qemu_plugin_register_vcpu_insn_exec_cb(insn, marks[bytes[3] - 0x34u], CB_NO_REGS, NULL);
        }
        if (!traced) {
            qemu_plugin_register_vcpu_insn_exec_inline(insn, INLINE_ADD, &all, 1);
            continue;
        }
        uint64_t address = qemu_plugin_insn_vaddr(insn);
        qemu_plugin_register_vcpu_insn_exec_cb(insn, executed, CB_NO_REGS, place_of(address));
    }
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int count,
                                                               char **arguments) {
    (void)info;
    places = calloc(PLACES, sizeof(struct place));
    for (int at = 0; at < count; at++) {
        if (strncmp(arguments[at], "out=", 4) == 0) out = fopen(arguments[at] + 4, "w");
        if (strcmp(arguments[at], "traced=1") == 0) traced = true;
    }
    if (places == NULL || out == NULL) return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
