// Threads of one threadgroup as fibers: who runs, and when.
#include <sys/mman.h>

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

void make_ready(uint32_t index) {
    threads[index].state = State::READY;
    ready[num_ready++] = index;
}

void yield() { pkv_switch(&current->stack_pointer, scheduler); }

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

static void run_group(uint64_t group) {
    begin_group();
    num_ready = 0;
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
