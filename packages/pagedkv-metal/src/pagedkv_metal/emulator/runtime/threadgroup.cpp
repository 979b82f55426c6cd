// Threadgroup memory, and for each of its bytes who wrote and who read it since which barrier.
//
// Two threads race where one of them writes and no barrier lies between. A threadgroup_barrier
// with mem_threadgroup orders all threads; a simdgroup_barrier with it orders the lanes of one
// simdgroup. Simd operations order no memory.
#include <sys/mman.h>

#include <cstring>

#include "state.h"

namespace pkv {

constexpr uint32_t MAX_VARIABLES = 32;
constexpr uint32_t LIMIT = 32 * 1024;
// Each variable has a room of its own, with as much free on both sides of it.
constexpr uint64_t ROOM = 4 * LIMIT;

struct Byte {
    uint32_t write_epoch;  // 0: never
    uint32_t write_simd_epoch;
    uint32_t read_epoch;
    uint32_t read_simd_epoch;
    uint32_t reading_simdgroups;  // since read_epoch, a bit each
    uint32_t reading_lanes;       // of reading_simdgroup, since read_simd_epoch
    uint16_t reading_simdgroup;
    uint16_t writer;
    const void* write_code;
    const void* read_code;
};

struct Variable {
    const char* name;
    uint32_t size;
};

static Variable variables[MAX_VARIABLES];
static uint32_t num_variables;
static uint32_t total;
static char* memory;
static Byte* bytes;

// Counts barriers over the whole run, so that nothing needs clearing between threadgroups.
static uint32_t epoch;
static uint32_t first_epoch_of_group;

void make_threadgroup_memory() {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    const int both = PROT_READ | PROT_WRITE;
    memory = static_cast<char*>(mmap(nullptr, ROOM * MAX_VARIABLES, both, flags, -1, 0));
    bytes =
        static_cast<Byte*>(mmap(nullptr, ROOM * MAX_VARIABLES * sizeof(Byte), both, flags, -1, 0));
}

void begin_group() { first_epoch_of_group = ++epoch; }

void order_threadgroup_memory() { epoch++; }

static uint32_t simdgroup_of(uint32_t thread) { return thread / SIMD; }

// Whether the last write is ordered before what the thread that runs does now.
static bool after_write(const Byte& byte, uint32_t me) {
    return byte.write_epoch != epoch || byte.writer == me ||
           (simdgroup_of(byte.writer) == simdgroup_of(me) &&
            byte.write_simd_epoch != simdgroups[simdgroup_of(me)].memory_epoch);
}

// A thread that read in this epoch and is not ordered before `me`, or MAX_THREADS.
static uint32_t unordered_reader(const Byte& byte, uint32_t me) {
    if (byte.read_epoch != epoch) {
        return MAX_THREADS;
    }
    const uint32_t mine = simdgroup_of(me);
    const uint32_t others = byte.reading_simdgroups & ~(1u << mine);
    if (others) {
        const uint32_t group = uint32_t(__builtin_ctz(others));
        const bool known = group == byte.reading_simdgroup;
        return group * SIMD + (known ? uint32_t(__builtin_ctz(byte.reading_lanes)) : 0);
    }
    const uint32_t lanes = byte.reading_lanes & ~(1u << me % SIMD);
    if (lanes && byte.read_simd_epoch == simdgroups[mine].memory_epoch) {
        return mine * SIMD + uint32_t(__builtin_ctz(lanes));
    }
    return MAX_THREADS;
}

[[noreturn]] static void report_race(const Variable& variable, uint32_t offset, uint32_t other,
                                     const char* did, const void* code, const Access& access) {
    report("race in threadgroup memory",
           "%s %s offset %u of %s at %s, which thread %u of its threadgroup %s at %s, with no "
           "barrier between",
           who(current), access.writes ? "writes" : "reads", offset, variable.name,
           where(access.code), other, did, where(code));
}

static void read_byte(Byte& byte, const Variable& variable, uint32_t offset, const Access& access) {
    const uint32_t me = current->position.index_in_group, mine = simdgroup_of(me);
    if (byte.write_epoch < first_epoch_of_group) {
        report("uninitialised threadgroup memory",
               "%s reads offset %u of %s at %s, which no thread of its threadgroup wrote",
               who(current), offset, variable.name, where(access.code));
    }
    if (!after_write(byte, me)) {
        report_race(variable, offset, byte.writer, "wrote", byte.write_code, access);
    }
    if (byte.read_epoch != epoch) {
        byte.read_epoch = epoch;
        byte.reading_simdgroups = 0;
        byte.reading_lanes = 0;
    }
    const uint32_t simd_epoch = simdgroups[mine].memory_epoch;
    if (byte.reading_simdgroup != mine || byte.read_simd_epoch != simd_epoch) {
        byte.reading_lanes = 0;
        byte.reading_simdgroup = uint16_t(mine);
        byte.read_simd_epoch = simd_epoch;
    }
    byte.reading_simdgroups |= 1u << mine;
    byte.reading_lanes |= 1u << me % SIMD;
    byte.read_code = access.code;
}

static void write_byte(Byte& byte, const Variable& variable, uint32_t offset,
                       const Access& access) {
    const uint32_t me = current->position.index_in_group;
    if (!after_write(byte, me)) {
        report_race(variable, offset, byte.writer, "wrote", byte.write_code, access);
    }
    const uint32_t reader = unordered_reader(byte, me);
    if (reader != MAX_THREADS) {
        report_race(variable, offset, reader, "read", byte.read_code, access);
    }
    byte.write_epoch = epoch;
    byte.write_simd_epoch = simdgroups[simdgroup_of(me)].memory_epoch;
    byte.writer = uint16_t(me);
    byte.write_code = access.code;
}

bool check_threadgroup(const Access& access) {
    const uint64_t at = uint64_t(static_cast<const char*>(access.address) - memory);
    if (at >= ROOM * num_variables) {
        return false;
    }
    const Variable& variable = variables[at / ROOM];
    const int64_t offset = int64_t(at % ROOM) - int64_t(ROOM / 2);
    if (offset < 0 || uint64_t(offset) + access.size > variable.size) {
        report("access out of bounds",
               "%s %s %u bytes at offset %lld of threadgroup memory %s, which has %u bytes, at %s",
               who(current), access.writes ? "writes" : "reads", access.size,
               static_cast<long long>(offset), variable.name, variable.size, where(access.code));
    }
    for (uint32_t i = 0; i < access.size; i++) {
        if (access.writes) {
            write_byte(bytes[at + i], variable, uint32_t(offset) + i, access);
        } else {
            read_byte(bytes[at + i], variable, uint32_t(offset) + i, access);
        }
    }
    return true;
}

}  // namespace pkv

using namespace pkv;

extern "C" void* pkv_threadgroup_variable(const char* name, size_t size) {
    for (uint32_t i = 0; i < num_variables; i++) {
        if (variables[i].name == name) {
            return memory + i * ROOM + ROOM / 2;
        }
    }
    total += uint32_t(size);
    if (total > LIMIT || num_variables == MAX_VARIABLES) {
        report("too much threadgroup memory",
               "with %s of %zu bytes it takes %u bytes in %u variables, and %u bytes in %u "
               "variables are offered",
               name, size, total, num_variables + 1, LIMIT, MAX_VARIABLES);
    }
    variables[num_variables] = {name, uint32_t(size)};
    return memory + num_variables++ * ROOM + ROOM / 2;
}
