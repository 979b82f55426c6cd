// Attention of one query per head over scattered blocks, the context split among threadgroups.
//
// grid         (64, heads, partitions), threadgroup (64, 1, 1): two simdgroups
// queries      [heads, D] T           keys, values  [slots, BLOCK, heads, D] T
// table        [blocks] uint32        length        [8] uint32, the first counts
// partial      [heads, partitions, D] float32, not yet divided
// sums         [heads, partitions, 2] float32: the largest score and the sum of exponentials

// Find this threadgroup's positions.
const uint head = threadgroup_position_in_grid.y;
const uint partition = threadgroup_position_in_grid.z;
const uint heads = threadgroups_per_grid.y;
const uint partitions = threadgroups_per_grid.z;
const uint lane = thread_index_in_simdgroup;
const uint simdgroup = simdgroup_index_in_threadgroup;
const uint thread_index = thread_index_in_threadgroup;
const uint start = partition * PARTITION;
const uint end = metal::min(length[0], start + PARTITION);

threadgroup float query[D];
threadgroup float scores[PARTITION];
threadgroup float largest[2], total[2];

// Keep the query where every thread sees it.
for (uint d = thread_index; d < D; d += 64) {
    query[d] = float(queries[head * D + d]);
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// Score the positions, one simdgroup each.
for (uint i = simdgroup; i < PARTITION; i += 2) {
    const uint position = start + i;
    const uint seen = metal::min(position, end - 1);
    const ulong row = address(table[seen / BLOCK], seen % BLOCK, BLOCK, heads, head, D);
    float score = 0.0f;
    for (uint d = lane; d < D; d += 32) {
        score = metal::fma(query[d], float(keys[row + d]), score);
    }
    score = simd_sum(score);
    if (lane == 0) {
        scores[i] = position < end ? score : -INFINITY;
    }
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// Find the largest score.
float mine = scores[thread_index];
const float highest = simd_max(mine);
if (lane == 0) {
    largest[simdgroup] = highest;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
const float top = metal::max(largest[0], largest[1]);

// Turn scores into weights and sum them.
mine = metal::exp2(mine - top);
scores[thread_index] = mine;
const float sum = across_lanes(mine);
if (lane == 0) {
    total[simdgroup] = sum;
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// Weigh the values.
for (uint d = thread_index; d < D; d += 64) {
    float weighed = 0.0f;
    for (uint i = 0; i < end - start; i++) {
        const uint position = start + i;
        const ulong row = address(table[position / BLOCK], position % BLOCK, BLOCK, heads, head, D);
        weighed = metal::fma(scores[i], float(values[row + d]), weighed);
    }
    partial[(head * partitions + partition) * D + d] = weighed;
}
if (thread_index == 0) {
    sums[(head * partitions + partition) * 2] = top;
    sums[(head * partitions + partition) * 2 + 1] = total[0] + total[1];
}
