// A report is a kind, a line break and a sentence. A code address in it reads <@offset>.
#include <link.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

#include "state.h"

namespace pkv {

static uintptr_t image_base, image_low, image_high;

static int visit(dl_phdr_info* info, size_t, void* inside) {
    uintptr_t low = UINTPTR_MAX, high = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_LOAD) {
            const uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            const uintptr_t end = start + info->dlpi_phdr[i].p_memsz;
            low = start < low ? start : low;
            high = end > high ? end : high;
        }
    }
    const uintptr_t address = reinterpret_cast<uintptr_t>(inside);
    if (address < low || address >= high) {
        return 0;
    }
    image_base = info->dlpi_addr, image_low = low, image_high = high;
    return 1;
}

void find_image(const void* inside) { dl_iterate_phdr(visit, const_cast<void*>(inside)); }

bool in_image(const void* address) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    return at >= image_low && at < image_high;
}

// A few sentences are built at once, so each of these keeps several buffers.
static char* next_buffer() {
    static char buffers[8][256];
    static unsigned next;
    return buffers[next++ % 8];
}

const char* who(const Thread* thread) {
    char* text = next_buffer();
    const Position& at = thread->position;
    const uint32_t* t = at.thread_in_group;
    const uint32_t* g = at.group_in_grid;
    snprintf(text, 256, "thread (%u, %u, %u) of threadgroup (%u, %u, %u)", t[0], t[1], t[2], g[0],
             g[1], g[2]);
    return text;
}

const char* where(const void* code) {
    char* text = next_buffer();
    if (in_image(code)) {
        // One byte back, a return address lies inside the call.
        snprintf(
            text, 256, "<@%llx>",
            static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(code) - image_base - 1));
    } else {
        snprintf(text, 256, "an unknown line");
    }
    return text;
}

const char* where(Place place) {
    char* text = next_buffer();
    snprintf(text, 256, "%s:%d", place.file, place.line);
    return text;
}

void report(const char* kind, const char* format, ...) {
    int used = snprintf(launch->report, MAX_REPORT, "%s\n", kind);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(launch->report + used, MAX_REPORT - used, format, arguments);
    va_end(arguments);
    // Destructors of a process whose kernel went wrong are not worth running.
    _exit(3);
}

}  // namespace pkv
