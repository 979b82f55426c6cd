// What a compiled kernel asks of the process that runs it. Nothing here is inlined into a
// kernel, so that none of it is taken for the kernel's own work.
#pragma once

#include "scalars.h"

#define PKV_PLAIN __attribute__((noinline, no_sanitize_thread))

namespace pkv {

// Where in the kernel's text a call stands: filled in by the compiler at the call.
struct Place {
    const char* file;
    int line;
};

struct Position {
    uint thread_in_group[3];
    uint group_in_grid[3];
    uint threads_per_group[3];
    uint groups_per_grid[3];
    uint index_in_group;
};

typedef void (*Reduce)(const void* values, uint count, void* result);

}  // namespace pkv

extern "C" {

// Where the thread that runs now stands in the grid.
const pkv::Position* pkv_position();

// The address of the launch's buffer of that number.
void* pkv_buffer(uint number);

// Leaves a value and waits until every lane of the simdgroup has left one at this place; the
// last to come reduces them. Gives the address of the lanes' values, `stride` bytes apart.
const void* pkv_simd_meet(const char* operation, pkv::Place place, const void* value, uint size,
                          pkv::Reduce reduce, void* result);

// The value that `lane` left; a report where the simdgroup has no such lane.
const void* pkv_simd_value(const void* values, uint lane, uint size, const char* operation,
                           pkv::Place place);

uint pkv_simd_lane();
uint pkv_simd_count();

// Waits for the simdgroup, or for the threadgroup.
void pkv_simdgroup_barrier(uint flags, pkv::Place place);
void pkv_threadgroup_barrier(uint flags, pkv::Place place);

// A loop or a call in which threads meet begins; a loop begins its next iteration; either ends.
void pkv_loop_enter(pkv::Place place);
void pkv_loop_next();
void pkv_call_enter(uint number, pkv::Place place);
void pkv_leave();

// A product of unsigned numbers that 32 bits do not hold.
void pkv_wrapped(uint a, uint b);

// The address of a variable in threadgroup memory, one for all threads of a threadgroup.
void* pkv_threadgroup_variable(const char* name, size_t size);
}
