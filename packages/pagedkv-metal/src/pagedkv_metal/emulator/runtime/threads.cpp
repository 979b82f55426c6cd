// Threads of one threadgroup as fibers: who runs, who waits, and whether all wait together.
#include <sys/mman.h>

#include <cstdio>
#include <cstring>

#include "state.h"

extern "C" void pkv_switch(void** saved, void* next);
extern "C" void* pkv_new_stack(void* top, void (*entry)());

namespace pkv {

constexpr size_t GUARD = 256 * 1024;

Thread* current;
Thread threads[MAX_THREADS];
Simdgroup simdgroups[MAX_THREADS / SIMD];
uint32_t num_threads;

static void* scheduler;
static void (*kernel_body)();
static char* stacks;
static uint32_t ready[MAX_THREADS];
static uint32_t num_ready;
static uint32_t arrived_at_barrier;
static uint64_t random_state;

// xorshift64*: the order of threads is a function of the seed alone.
static uint32_t random_below(uint32_t end) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return static_cast<uint32_t>(((random_state * 0x2545f4914f6cdd1dull) >> 32) * end >> 32);
}

void make_stacks() {
    const size_t size = (STACK + GUARD) * num_threads + GUARD;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    stacks = static_cast<char*>(mmap(nullptr, size, PROT_NONE, flags, -1, 0));
    for (uint32_t i = 0; i < num_threads; i++) {
        threads[i].stack_low = stacks + GUARD + i * (STACK + GUARD);
        mprotect(threads[i].stack_low, STACK, PROT_READ | PROT_WRITE);
    }
}

bool in_stack_guard(const void* address) {
    const char* at = static_cast<const char*>(address);
    return current && at < current->stack_low && at >= current->stack_low - GUARD;
}

const Thread* owner_of_stack(const void* address) {
    const uint64_t at = uint64_t(static_cast<const char*>(address) - stacks);
    return at < num_threads * (STACK + GUARD) ? &threads[at / (STACK + GUARD)] : nullptr;
}

static void make_ready(uint32_t index) {
    threads[index].state = State::READY;
    ready[num_ready++] = index;
}

static void yield() { pkv_switch(&current->stack_pointer, scheduler); }

static void fiber() {
    kernel_body();
    current->state = State::FINISHED;
    yield();
    __builtin_unreachable();
}

void place_thread(Thread& thread, uint32_t index, uint64_t group) {
    const uint32_t *size = launch->threads, *groups = launch->groups;
    Position& at = thread.position;
    at.index_in_group = index;
    at.thread_in_group[0] = index % size[0];
    at.thread_in_group[1] = index / size[0] % size[1];
    at.thread_in_group[2] = index / size[0] / size[1];
    at.group_in_grid[0] = uint32_t(group % groups[0]);
    at.group_in_grid[1] = uint32_t(group / groups[0] % groups[1]);
    at.group_in_grid[2] = uint32_t(group / groups[0] / groups[1]);
    memcpy(at.threads_per_group, size, sizeof at.threads_per_group);
    memcpy(at.groups_per_grid, groups, sizeof at.groups_per_grid);
}

static void start_thread(uint32_t index, uint64_t group) {
    Thread& thread = threads[index];
    place_thread(thread, index, group);
    thread.num_steps = 0;
    thread.operation = nullptr;
    thread.stack_pointer = pkv_new_stack(thread.stack_low + STACK, fiber);
    make_ready(index);
}

static bool one_place(Place a, Place b) { return a.line == b.line && strcmp(a.file, b.file) == 0; }

static bool together(const Thread& a, const Thread& b) {
    if (strcmp(a.operation, b.operation) != 0 || !one_place(a.place, b.place) ||
        a.num_steps != b.num_steps) {
        return false;
    }
    for (uint32_t i = 0; i < a.num_steps; i++) {
        if (!one_place(a.steps[i].place, b.steps[i].place) ||
            a.steps[i].count != b.steps[i].count) {
            return false;
        }
    }
    return true;
}

static bool alike(const Thread& a, const Thread& b) {
    return a.state == b.state && (a.state != State::WAITS || together(a, b));
}

static int describe_wait(const Thread& thread, char* text, int room) {
    if (thread.state == State::FINISHED) {
        return snprintf(text, room, "ended");
    }
    if (thread.state == State::READY) {
        return snprintf(text, room, "still ran");
    }
    int used = snprintf(text, room, "waited in %s at %s", thread.operation, where(thread.place));
    for (uint32_t i = thread.num_steps; i-- > 0 && used < room;) {
        const Step& step = thread.steps[i];
        used += step.is_call
                    ? snprintf(text + used, room - used, ", called at %s", where(step.place))
                    : snprintf(text + used, room - used, ", iteration %u of the loop at %s",
                               step.count, where(step.place));
    }
    return used;
}

// "threads 0-15 waited in ...; threads 16-31 ended", a run of threads alike being one part.
static const char* describe_waits(uint32_t first, uint32_t end) {
    static char text[8192];
    const int room = sizeof text - 256;
    int used = 0;
    for (uint32_t i = first; i < end && used < room;) {
        uint32_t next = i + 1;
        while (next < end && alike(threads[i], threads[next])) {
            next++;
        }
        const char* comma = used ? "; " : "";
        used += next - i == 1
                    ? snprintf(text + used, room - used, "%sthread %u ", comma, i)
                    : snprintf(text + used, room - used, "%sthreads %u-%u ", comma, i, next - 1);
        if (used < room) {
            used += describe_wait(threads[i], text + used, room - used);
        }
        i = next;
    }
    return text;
}

static const char* name_of_group(uint32_t index) {
    static char text[64];
    const uint32_t* at = threads[index].position.group_in_grid;
    snprintf(text, sizeof text, "threadgroup (%u, %u, %u)", at[0], at[1], at[2]);
    return text;
}

static void wait_here(const char* operation, Place place, uint32_t flags) {
    current->state = State::WAITS;
    current->operation = operation;
    current->place = place;
    current->flags = flags;
}

static void check_together(uint32_t first, uint32_t end, const char* kind) {
    for (uint32_t i = first + 1; i < end; i++) {
        if (!together(threads[first], threads[i])) {
            report(kind, "in %s, %s", name_of_group(first), describe_waits(first, end));
        }
    }
}

// Nobody can run: somebody waits for a thread that waits elsewhere or ended.
[[noreturn]] static void report_deadlock() {
    for (uint32_t i = 0; i < num_threads; i++) {
        const Simdgroup& group = simdgroups[i / SIMD];
        if (threads[i].state == State::WAITS && group.arrived > 0 && group.arrived < group.count) {
            const uint32_t first = i / SIMD * SIMD;
            report("simd operation that only some lanes reach", "in %s, %s", name_of_group(0),
                   describe_waits(first, first + group.count));
        }
    }
    report("barrier that only some threads reach", "in %s, %s", name_of_group(0),
           describe_waits(0, num_threads));
}

static void run_group(uint64_t group) {
    begin_group();
    num_ready = 0;
    arrived_at_barrier = 0;
    for (uint32_t i = 0; i < num_threads; i++) {
        start_thread(i, group);
    }
    for (uint32_t i = 0; i < (num_threads + SIMD - 1) / SIMD; i++) {
        const uint32_t left = num_threads - i * SIMD;
        simdgroups[i].count = left < SIMD ? left : SIMD;
        simdgroups[i].arrived = 0;
    }
    uint32_t num_finished = 0;
    while (num_ready > 0) {
        const uint32_t pick = random_below(num_ready);
        current = &threads[ready[pick]];
        ready[pick] = ready[--num_ready];
        pkv_switch(&scheduler, current->stack_pointer);
        num_finished += current->state == State::FINISHED;
    }
    if (num_finished < num_threads) {
        report_deadlock();
    }
}

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        const uint64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

void run_all_groups(void (*kernel)()) {
    kernel_body = kernel;
    random_state = launch->seed * 0x9e3779b97f4a7c15ull + 0x1234567ull;
    const uint32_t* groups = launch->groups;
    const uint64_t count = uint64_t(groups[0]) * groups[1] * groups[2];
    const uint32_t some = count < UINT32_MAX ? uint32_t(count) : UINT32_MAX;
    // A stride that shares no factor with the count visits every threadgroup once.
    uint64_t stride = random_below(some) + 1;
    while (greatest_common_divisor(stride, count) != 1) {
        stride++;
    }
    uint64_t group = random_below(some);
    for (uint64_t i = 0; i < count; i++, group = (group + stride) % count) {
        run_group(group);
    }
}

}  // namespace pkv

using namespace pkv;

extern "C" const Position* pkv_position() { return &current->position; }

extern "C" uint pkv_simd_lane() { return current->position.index_in_group % SIMD; }

extern "C" uint pkv_simd_count() {
    return simdgroups[current->position.index_in_group / SIMD].count;
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
static void meet_in_simdgroup(const char* operation, Place place, uint32_t flags, Last last) {
    const uint32_t first = current->position.index_in_group / SIMD * SIMD;
    Simdgroup& group = simdgroups[first / SIMD];
    wait_here(operation, place, flags);
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
    meet_in_simdgroup(operation, place, 0, [&](Simdgroup& all) {
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

extern "C" void pkv_simdgroup_barrier(uint flags, Place place) {
    meet_in_simdgroup("simdgroup_barrier", place, flags, [&](Simdgroup& group) {
        group.memory_epoch += (flags & MEM_THREADGROUP) != 0;
    });
}

extern "C" void pkv_threadgroup_barrier(uint flags, Place place) {
    wait_here("threadgroup_barrier", place, flags);
    if (++arrived_at_barrier < num_threads) {
        yield();
        return;
    }
    check_together(0, num_threads, "barrier that threads reach differently");
    arrived_at_barrier = 0;
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
