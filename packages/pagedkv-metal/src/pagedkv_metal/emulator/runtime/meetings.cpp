// Where threads meet: simd operations and barriers, and the loops and calls that lead there.
#include <cstring>

#include "state.h"

using namespace pkv;

extern "C" uint pkv_simd_lane() { return current->position.index_in_group % SIMD; }

extern "C" uint pkv_simd_count() {
    return simdgroups[current->position.index_in_group / SIMD].count;
}

static void wait_here(const char* operation, Place place) {
    current->state = State::WAITS;
    current->operation = operation;
    current->place = place;
}

static void make_others_ready(uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; i++) {
        if (&threads[i] != current) {
            make_ready(i);
        }
    }
    current->state = State::READY;
}

// Whoever comes last to a simdgroup's meeting does `last` and lets the others go on.
template <typename Last>
static void meet_in_simdgroup(const char* operation, Place place, Last last) {
    const uint32_t first = current->position.index_in_group / SIMD * SIMD;
    Simdgroup& group = simdgroups[first / SIMD];
    wait_here(operation, place);
    if (++group.arrived < group.count) {
        yield();
        return;
    }
    check_together(first, first + group.count, "simd operation that lanes reach differently");
    group.arrived = 0;
    last(group);
    make_others_ready(first, first + group.count);
}

extern "C" const void* pkv_simd_meet(const char* operation, Place place, const void* value,
                                     uint size, Reduce reduce, void* result) {
    Simdgroup& group = simdgroups[current->position.index_in_group / SIMD];
    const uint32_t side = group.round % 2;
    unsigned char* values = group.values[side];
    memcpy(values + pkv_simd_lane() * size, value, size);
    meet_in_simdgroup(operation, place, [&](Simdgroup& all) {
        all.round++;
        if (reduce) {
            reduce(values, all.count, all.result[side]);
        }
    });
    if (result) {
        memcpy(result, group.result[side], size);
    }
    return values;
}

extern "C" const void* pkv_simd_value(const void* values, uint lane, uint size,
                                      const char* operation, Place place) {
    if (lane >= pkv_simd_count()) {
        report("simd operation beyond the simdgroup", "%s in %s at %s asks for lane %u of %u",
               who(current), operation, where(place), lane, pkv_simd_count());
    }
    return static_cast<const unsigned char*>(values) + lane * size;
}

constexpr uint32_t MEM_THREADGROUP = 2;

// A threadgroup begins only when the last one has ended, with nobody at a barrier.
static uint32_t num_at_barrier;

extern "C" void pkv_simdgroup_barrier(uint flags, Place place) {
    meet_in_simdgroup("simdgroup_barrier", place, [&](Simdgroup& group) {
        group.memory_epoch += (flags & MEM_THREADGROUP) != 0;
    });
}

extern "C" void pkv_threadgroup_barrier(uint flags, Place place) {
    wait_here("threadgroup_barrier", place);
    if (++num_at_barrier < num_threads) {
        yield();
        return;
    }
    check_together(0, num_threads, "barrier that threads reach differently");
    num_at_barrier = 0;
    if (flags & MEM_THREADGROUP) {
        order_threadgroup_memory();
    }
    make_others_ready(0, num_threads);
}

static void enter(Step step) {
    if (current->num_steps == MAX_STEPS) {
        report("too many loops", "%s at %s is inside more than %u loops and calls", who(current),
               where(step.place), MAX_STEPS);
    }
    current->steps[current->num_steps++] = step;
}

extern "C" void pkv_loop_enter(Place place) { enter({place, 0, false}); }

extern "C" void pkv_call_enter(uint number, Place place) { enter({place, number, true}); }

extern "C" void pkv_loop_next() { current->steps[current->num_steps - 1].count++; }

extern "C" void pkv_leave() { current->num_steps--; }
