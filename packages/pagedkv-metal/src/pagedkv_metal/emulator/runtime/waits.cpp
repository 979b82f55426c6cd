// Whether threads that wait do so together, and who waits where if they do not.
#include <cstdio>
#include <cstring>

#include "state.h"

namespace pkv {

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

void check_together(uint32_t first, uint32_t end, const char* kind) {
    for (uint32_t i = first + 1; i < end; i++) {
        if (!together(threads[first], threads[i])) {
            report(kind, "in %s, %s", name_of_group(first), describe_waits(first, end));
        }
    }
}

// Nobody can run: somebody waits for a thread that waits elsewhere or ended.
void report_deadlock() {
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

}  // namespace pkv
