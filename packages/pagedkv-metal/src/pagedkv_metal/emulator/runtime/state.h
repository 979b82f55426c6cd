// What the parts of the runner know of each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "launch.h"
#include "runner.h"

namespace pkv {

constexpr uint32_t SIMD = 32;
constexpr uint32_t MAX_THREADS = 1024;
constexpr uint32_t MAX_STEPS = 24;

enum class State : uint8_t { READY, WAITS, FINISHED };

// How a thread got to where it waits: a loop and its iteration, or a call and its number.
struct Step {
    Place place;
    uint32_t count;
    bool is_call;
};

// A thread of the kernel: a fiber with a stack of its own.
struct Thread {
    void* stack_pointer;
    char* stack_low;
    State state;
    Position position;
    // Where it waits, and by which loops and calls it got there.
    const char* operation;
    Place place;
    uint32_t num_steps;
    Step steps[MAX_STEPS];
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

// One load or store of the kernel.
struct Access {
    const void* address;
    uint32_t size;
    bool writes;
    const void* code;
};

constexpr size_t STACK = 256 * 1024;

// threads.cpp
extern Thread* current;
extern Thread threads[MAX_THREADS];
extern Simdgroup simdgroups[MAX_THREADS / SIMD];
extern uint32_t num_threads;
void make_stacks();
void make_ready(uint32_t index);
void yield();
void run_all_groups(void (*kernel)());
void place_thread(Thread& thread, uint32_t index, uint64_t group);
const Thread* owner_of_stack(const void* address);
bool in_stack_guard(const void* address);
inline bool in_own_stack(const void* address) {
    return uint64_t(static_cast<const char*>(address) - current->stack_low) < STACK;
}

// waits.cpp
void check_together(uint32_t first, uint32_t end, const char* kind);
[[noreturn]] void report_deadlock();

// memory.cpp
extern Launch* launch;
extern const void* last_access;
void map_buffers(int file);
void check_all_written();

// threadgroup.cpp
void make_threadgroup_memory();
void begin_group();
void order_threadgroup_memory();
// False where the address is not in threadgroup memory.
bool check_threadgroup(const Access& access);

// signals.cpp
void watch();

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
