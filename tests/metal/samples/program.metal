// grid (64, 1, 1), threadgroup (64, 1, 1): every thread does what `codes` says, byte by byte.
//
// codes     [PHASES, STEPS, 64] uint8: 0 nothing, 1 to 4 reads that byte, 5 to 8 writes it
// barriers  [8] uint8, after each phase: 0 none, 1 the threadgroup's, 2 the simdgroup's
// y         [64] uint32
threadgroup uchar shared[4];
const uint me = thread_index_in_threadgroup;
uint sum = 0;
for (uint phase = 0; phase < PHASES; phase++) {
    for (uint step = 0; step < STEPS; step++) {
        const uint code = codes[(phase * STEPS + step) * 64 + me];
        if (code > 4) {
            shared[code - 5] = uchar(step);
        } else if (code > 0) {
            sum += shared[code - 1];
        }
    }
    if (barriers[phase] == 1) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    } else if (barriers[phase] == 2) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}
y[me] = sum;
