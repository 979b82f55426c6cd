// What the parts of the runner know of each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "launch.h"
#include "runner.h"

namespace pkv {

constexpr uint32_t SIMD = 32;
constexpr uint32_t MAX_THREADS = 1024;
constexpr uint32_t MAX_LOOPS = 16;

enum class State : uint8_t { READY, WAITS, FINISHED };

struct LoopAt {
    Place place;
    uint32_t iteration;
};

// A thread of the kernel: a fiber with a stack of its own.
struct Thread {
    void* stack_pointer;
    char* stack_low;
    State state;
    Position position;
    // Where it waits, and in which iteration of every enclosing loop.
    const char* operation;
    Place place;
    uint32_t flags;
    uint32_t num_loops;
    LoopAt loops[MAX_LOOPS];
};

// What 32 threads wait for together. Two rounds of values: a lane may leave its next value while
// a slower one has not yet taken the last.
struct Simdgroup {
    uint32_t count;
    uint32_t arrived;
    uint32_t round;
    uint32_t memory_epoch;
    alignas(16) unsigned char values[2][SIMD * 64];
    alignas(16) unsigned char result[2][64];
};

// threads.cpp
extern Thread* current;
extern Thread threads[MAX_THREADS];
extern Simdgroup simdgroups[MAX_THREADS / SIMD];
extern uint32_t num_threads;
void make_stacks();
void run_all_groups(void (*kernel)());
bool in_stack_guard(const void* address);

// memory.cpp
extern Launch* launch;
void map_buffers(int file);

// report.cpp: ends the process.
[[noreturn]] void report(const char* kind, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
// The thread that runs, in words.
const char* who(const Thread* thread);
// Where a return address lies in the kernel, to be made a line by whoever reads the report.
const char* where(const void* code);
const char* where(Place place);
void find_image(const void* inside);
bool in_image(const void* address);

}  // namespace pkv
