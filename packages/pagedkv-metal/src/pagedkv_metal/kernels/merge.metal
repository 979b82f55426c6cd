// The partitions of paged_read.metal put together, in ascending order.
//
// Simdgroup s sums the partitions that are s modulo 16, counted from position 0, and the 16 sums
// are added in ascending order: a partition that a query does not see adds nothing, so that its
// bits depend on no other row, nor on where the grid of partitions begins and ends.
//
// grid         (512 * rows, ceil(DV / 32), 1), threadgroup (512, 1, 1); rows = batch * heads * L
// partial      [rows, partitions, DV] float32
// sums         [rows, partitions, 2] float32: largest score in base 2, sum of weights
// sinks        [heads] float32, padded to 8 elements
// counts       [8] uint32: L, heads, partitions, first partition, 1 if there are sinks
// out          [rows, DV] T

const uint lane = thread_index_in_simdgroup;
const uint simdgroup = simdgroup_index_in_threadgroup;
const uint row = threadgroup_position_in_grid.x;
const uint dim = threadgroup_position_in_grid.y * 32 + lane;
const uint seen_dim = metal::min(dim, uint(DV - 1));
const uint partitions = counts[2];
const ulong first = ulong(row) * partitions;

threadgroup float largest[16];
threadgroup float weights[16];
threadgroup float weighed[16 * 32];

// Find the largest score of all, a sink among them.
const float sink =
    counts[4] > 0 ? sinks[row / counts[0] % counts[1]] * 1.44269504088896340736f : -1e38f;
float mine = sink;
for (uint p = thread_index_in_threadgroup; p < partitions; p += 512) {
    mine = metal::max(mine, sums[(first + p) * 2]);
}
mine = simd_max(mine);
if (lane == 0) {
    largest[simdgroup] = mine;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
float top = largest[0];
for (int s = 1; s < 16; s++) {
    top = metal::max(top, largest[s]);
}

// Sum this simdgroup's partitions, scaled to it, IN_FLIGHT read at once; those past the last
// repeat it with no weight.
constexpr uint IN_FLIGHT = 8;
float sum = 0.0f;
float total = 0.0f;
for (uint p = (simdgroup - counts[3]) % 16; p < partitions; p += 16 * IN_FLIGHT) {
    float score[IN_FLIGHT];
    float part_sum[IN_FLIGHT];
    float part[IN_FLIGHT];
    for (uint i = 0; i < IN_FLIGHT; i++) {
        const ulong at = first + metal::min(p + 16 * i, partitions - 1);
        score[i] = sums[at * 2];
        part_sum[i] = sums[at * 2 + 1];
        part[i] = partial[at * DV + seen_dim];
    }
    for (uint i = 0; i < IN_FLIGHT; i++) {
        const float scale = p + 16 * i < partitions ? metal::exp2(score[i] - top) : 0.0f;
        sum = metal::fma(scale, part_sum[i], sum);
        total = metal::fma(scale, part[i], total);
    }
}
weighed[simdgroup * 32 + lane] = total;
if (lane == 0) {
    weights[simdgroup] = sum;
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// Add the sums, and divide. A row that sees nothing is 0.
if (simdgroup == 0) {
    float all = counts[4] > 0 ? metal::exp2(sink - top) : 0.0f;
    float out_value = 0.0f;
    for (int s = 0; s < 16; s++) {
        all += weights[s];
        out_value += weighed[s * 32 + lane];
    }
    if (dim < DV) {
        out[ulong(row) * DV + dim] = T(all == 0.0f ? 0.0f : out_value / all);
    }
}
