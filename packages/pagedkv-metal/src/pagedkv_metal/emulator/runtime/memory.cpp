// The buffers of a launch, and the hooks through which every load and store of a kernel passes.
//
// The kernel is compiled with -fsanitize=thread and linked without that sanitizer's library: the
// calls that the compiler puts before each access arrive here.
#include <sys/mman.h>

#include <cstring>

#include "state.h"

namespace pkv {

Launch* launch;

// Each buffer lies in the middle of 512 GiB of addresses, so that a wrong address falls beside it
// and not into another.
constexpr uint64_t ROOM_BITS = 39;
constexpr uint64_t ROOM = 1ull << ROOM_BITS;

static char* arena;
static uint64_t arena_size;

// For each byte of an output, one more than the number of the thread that wrote it.
static uint32_t* writers[MAX_BUFFERS];

static void* reserve(uint64_t size, int protection) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* memory = mmap(nullptr, size, protection, flags, -1, 0);
    if (memory == MAP_FAILED) {
        report("too little address space", "%llu bytes of addresses were wanted",
               static_cast<unsigned long long>(size));
    }
    return memory;
}

void map_buffers(int file) {
    launch = static_cast<Launch*>(
        mmap(nullptr, sizeof(Launch), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    arena_size = ROOM * launch->num_buffers;
    arena = static_cast<char*>(reserve(arena_size, PROT_NONE));
    for (uint64_t i = 0; i < launch->num_buffers; i++) {
        const Buffer& buffer = launch->buffers[i];
        if (buffer.size == 0) {
            continue;
        }
        mmap(arena + i * ROOM + ROOM / 2, buffer.size, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(buffer.offset));
        if (buffer.is_output) {
            writers[i] = static_cast<uint32_t*>(
                reserve(buffer.size * sizeof(uint32_t), PROT_READ | PROT_WRITE));
        }
    }
}

static const char* kind_of(const Buffer& buffer) { return buffer.is_output ? "output" : "input"; }

// The number of a thread among all of the grid, from 1.
static uint32_t grid_number(const Thread* thread) {
    const Position& at = thread->position;
    const uint32_t* group = at.group_in_grid;
    const uint32_t* groups = at.groups_per_grid;
    return ((group[2] * groups[1] + group[1]) * groups[0] + group[0]) * num_threads +
           at.index_in_group + 1;
}

// grid_number, read backwards.
static const char* who_has_number(uint32_t number) {
    Thread thread;
    const uint32_t index = (number - 1) % num_threads, group = (number - 1) / num_threads;
    place_thread(thread, index, group);
    return who(&thread);
}

static void report_outside(const Buffer& buffer, int64_t offset, const Access& access) {
    report("access out of bounds",
           "%s %s %u bytes at offset %lld of %s %s, which has %llu bytes, at %s", who(current),
           access.writes ? "writes" : "reads", access.size, static_cast<long long>(offset),
           kind_of(buffer), buffer.name, static_cast<unsigned long long>(buffer.size),
           where(access.code));
}

static void check_output(const Buffer& buffer, uint32_t* writer, uint64_t offset,
                         const Access& access) {
    const uint32_t me = grid_number(current);
    for (uint32_t i = 0; i < access.size; i++) {
        if (writer[i] == me || (access.writes && writer[i] == 0)) {
            writer[i] = me;
            continue;
        }
        const unsigned long long at = offset + i;
        if (writer[i] == 0) {
            report("output read before it is written", "%s reads offset %llu of output %s at %s",
                   who(current), at, buffer.name, where(access.code));
        }
        report(access.writes ? "output written twice" : "output read by another thread",
               "%s %s offset %llu of output %s at %s, which %s wrote", who(current),
               access.writes ? "writes" : "reads", at, buffer.name, where(access.code),
               who_has_number(writer[i]));
    }
}

static inline void check_buffer(uint64_t at, const Access& access) {
    const uint64_t number = at >> ROOM_BITS;
    const Buffer& buffer = launch->buffers[number];
    const int64_t offset = int64_t(at & (ROOM - 1)) - int64_t(ROOM / 2);
    if (offset < 0 || uint64_t(offset) + access.size > buffer.size) {
        report_outside(buffer, offset, access);
    }
    if (buffer.is_output) {
        check_output(buffer, writers[number] + offset, uint64_t(offset), access);
    } else if (access.writes) {
        report("input written", "%s writes offset %lld of input %s at %s", who(current),
               static_cast<long long>(offset), buffer.name, where(access.code));
    }
}

// The rarer places. What a thread may touch besides buffers and threadgroup memory is its own
// stack, and the constants of the kernel's text.
static void check_elsewhere(const Access& access) {
    if (in_image(access.address) && !access.writes) {
        return;
    }
    const Thread* owner = owner_of_stack(access.address);
    if (owner) {
        report("access to another thread's memory",
               "%s %s %u bytes of the private memory of %s at %s", who(current),
               access.writes ? "writes" : "reads", access.size, who(owner), where(access.code));
    }
    report("access to no buffer", "%s %s %u bytes at address %p, which is no buffer's, at %s",
           who(current), access.writes ? "writes" : "reads", access.size, access.address,
           where(access.code));
}

const void* last_access;

static inline void check(const Access& access) {
    last_access = access.code;
    const uint64_t at = uint64_t(static_cast<const char*>(access.address) - arena);
    if (at < arena_size) {
        check_buffer(at, access);
    } else if (in_own_stack(access.address)) {
        return;
    } else if (!check_threadgroup(access)) {
        check_elsewhere(access);
    }
}

void check_all_written() {
    for (uint64_t i = 0; i < launch->num_buffers; i++) {
        const Buffer& buffer = launch->buffers[i];
        unsigned long long missing = 0, first = 0;
        for (uint64_t at = buffer.is_output ? buffer.size : 0; at-- > 0;) {
            if (writers[i][at] == 0) {
                missing++, first = at;
            }
        }
        if (missing) {
            report("output never written",
                   "%llu of %llu bytes of output %s, the first at offset %llu", missing,
                   static_cast<unsigned long long>(buffer.size), buffer.name, first);
        }
    }
}

}  // namespace pkv

using namespace pkv;

extern "C" void* pkv_buffer(uint number) { return arena + number * ROOM + ROOM / 2; }

#define PKV_HOOK(NAME, SIZE, WRITES)                                 \
    extern "C" void NAME(void* address) {                            \
        check({address, SIZE, WRITES, __builtin_return_address(0)}); \
    }
#define PKV_HOOKS(SIZE)                                \
    PKV_HOOK(__tsan_read##SIZE, SIZE, false)           \
    PKV_HOOK(__tsan_write##SIZE, SIZE, true)           \
    PKV_HOOK(__tsan_unaligned_read##SIZE, SIZE, false) \
    PKV_HOOK(__tsan_unaligned_write##SIZE, SIZE, true) \
    PKV_HOOK(__tsan_volatile_read##SIZE, SIZE, false)  \
    PKV_HOOK(__tsan_volatile_write##SIZE, SIZE, true)
PKV_HOOKS(1)
PKV_HOOKS(2)
PKV_HOOKS(4)
PKV_HOOKS(8)
PKV_HOOKS(16)

extern "C" void __tsan_read_range(void* address, size_t size) {
    check({address, uint32_t(size), false, __builtin_return_address(0)});
}
extern "C" void __tsan_write_range(void* address, size_t size) {
    check({address, uint32_t(size), true, __builtin_return_address(0)});
}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}

// Copies of whole objects: the compiler's own calls, sent here by the linker (--wrap), or by
// clang under the sanitizer's names.
static void* checked_copy(void* to, const void* from, size_t size, const void* code) {
    if (size > 0) {
        check({from, uint32_t(size), false, code});
        check({to, uint32_t(size), true, code});
        memmove(to, from, size);
    }
    return to;
}
static void* checked_fill(void* to, int value, size_t size, const void* code) {
    if (size > 0) {
        check({to, uint32_t(size), true, code});
        memset(to, value, size);
    }
    return to;
}
#define PKV_COPY(NAME)                                                    \
    extern "C" void* NAME(void* to, const void* from, size_t size) {      \
        return checked_copy(to, from, size, __builtin_return_address(0)); \
    }
#define PKV_FILL(NAME)                                                     \
    extern "C" void* NAME(void* to, int value, size_t size) {              \
        return checked_fill(to, value, size, __builtin_return_address(0)); \
    }
PKV_COPY(__wrap_memcpy)
PKV_COPY(__wrap_memmove)
PKV_COPY(__tsan_memcpy)
PKV_COPY(__tsan_memmove)
PKV_FILL(__wrap_memset)
PKV_FILL(__tsan_memset)
