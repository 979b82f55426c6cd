// The partitions of split_attention.metal put together, in ascending order.
//
// grid         (D, heads, 1), threadgroup (D, 1, 1)
// partial      [heads, partitions, D] float32
// sums         [heads, partitions, 2] float32
// partitions   [8] uint32, the first counts
// out          [heads, D] T

const uint d = thread_position_in_threadgroup.x;
const uint head = threadgroup_position_in_grid.y;

// Scale every partition to the largest score of all.
float top = -INFINITY;
for (uint p = 0; p < partitions[0]; p++) {
    top = metal::max(top, sums[(head * partitions[0] + p) * 2]);
}
float total = 0.0f;
float weighed = 0.0f;
for (uint p = 0; p < partitions[0]; p++) {
    const uint at = head * partitions[0] + p;
    const float scale = metal::exp2(sums[at * 2] - top);
    total = metal::fma(scale, sums[at * 2 + 1], total);
    weighed = metal::fma(scale, partial[at * D + d], weighed);
}
out[head * D + d] = T(weighed / total);
