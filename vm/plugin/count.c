// Plugin of QEMU's translator: instructions of the guest by the address of their block, between two marks
// (scripts/vm-count.sh --trace). A mark is a long nop with a number in it: vm/count/src/main.rs. At each end a line
// `TRACE number` goes to the file of the argument `out=`, then the addresses with their counts. One processor only.
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
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, void (*cb)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, void (*cb)(unsigned, void *), int flags,
                                            void *data);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

// An instruction, by its address. Open addressing; the table is never full.
enum { PLACES = 1 << 22 };
struct place { uint64_t address, count; };
static struct place *places;
static bool counting;
static unsigned ends;
static FILE *out;

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

static void begin(unsigned processor, void *data) {
    (void)processor, (void)data;
    counting = true;
}

static void end(unsigned processor, void *data) {
    (void)processor, (void)data;
    counting = false;
    fprintf(out, "TRACE %u\n", ends++);
    for (size_t at = 0; at < PLACES; at++) {
        if (places[at].count != 0) fprintf(out, "%016" PRIx64 " %" PRIu64 "\n", places[at].address, places[at].count);
        places[at].count = 0;
    }
    fflush(out);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    static const unsigned char nop[] = {0x0f, 0x1f, 0x80}, number[] = {0x34, 0x74, 0x78, 0x65};
    for (size_t at = 0; at < qemu_plugin_tb_n_insns(tb); at++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, at);
        const unsigned char *bytes = qemu_plugin_insn_data(insn);
        // The number is 0x65787434, or one more at the end.
        if (qemu_plugin_insn_size(insn) == 7 && memcmp(bytes, nop, 3) == 0 && memcmp(bytes + 4, number + 1, 3) == 0 &&
            (bytes[3] & ~1) == number[0]) {
            qemu_plugin_register_vcpu_insn_exec_cb(insn, bytes[3] & 1 ? end : begin, CB_NO_REGS, NULL);
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
    }
    if (places == NULL || out == NULL) return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
