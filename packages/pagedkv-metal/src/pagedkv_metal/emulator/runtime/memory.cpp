// Where the buffers of a launch lie.
#include <sys/mman.h>
#include <sys/stat.h>

#include "state.h"

namespace pkv {

Launch* launch;

// Each buffer lies in the middle of 16 GiB of its own, so that a wrong address falls beside it
// and not into another.
constexpr uint64_t ROOM_BITS = 34;
constexpr uint64_t ROOM = 1ull << ROOM_BITS;

static char* arena;

void map_buffers(int file) {
    launch = static_cast<Launch*>(
        mmap(nullptr, sizeof(Launch), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    arena = static_cast<char*>(
        mmap(nullptr, ROOM * launch->num_buffers, PROT_NONE, flags, -1, 0));
    if (arena == MAP_FAILED) {
        report("no address space", "%llu buffers take 16 GiB of addresses each",
               static_cast<unsigned long long>(launch->num_buffers));
    }
    for (uint64_t i = 0; i < launch->num_buffers; i++) {
        const Buffer& buffer = launch->buffers[i];
        if (buffer.size > 0) {
            mmap(arena + i * ROOM + ROOM / 2, buffer.size, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(buffer.offset));
        }
    }
}

}  // namespace pkv

using namespace pkv;

extern "C" void* pkv_buffer(uint number) { return arena + number * ROOM + ROOM / 2; }

extern "C" void pkv_threadgroup_variable(const char*, const void*, size_t) {}
