// The memory that a launch shares with the process that asked for it. Python writes it with
// `struct`: keep the two in step (process.py), and raise LAYOUT with every change.
#pragma once

#include <cstdint>

namespace pkv {

constexpr uint64_t LAYOUT = 1;
constexpr uint32_t MAX_BUFFERS = 96;
constexpr uint32_t MAX_NAME = 64;
constexpr uint32_t MAX_REPORT = 16384;

struct Buffer {
    char name[MAX_NAME];
    uint64_t offset;  // in the shared memory, a multiple of the page size
    uint64_t size;    // in bytes
    uint64_t is_output;
};

struct Launch {
    uint64_t layout;
    uint64_t seed;
    uint64_t cpu_seconds;  // a kernel that runs longer is reported as endless
    uint64_t num_buffers;
    uint32_t groups[3];
    uint32_t threads[3];
    uint64_t finished;  // set when the kernel ran to its end without a report
    char report[MAX_REPORT];
    Buffer buffers[MAX_BUFFERS];
};

}  // namespace pkv
