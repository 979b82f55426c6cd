// grid (n, 1, 1): what the 32 lanes of each simdgroup make of x together, one row a word.
// out [6, n] float32
const uint i = thread_position_in_grid.x;
const uint n = threads_per_grid.x;
const float mine = float(x[i]);

out[i] = simd_sum(mine);
out[n + i] = simd_max(mine);
out[2 * n + i] = simd_min(mine);
out[3 * n + i] = simd_shuffle_xor(mine, 5);
out[4 * n + i] = simd_prefix_inclusive_sum(mine);
out[5 * n + i] = simd_broadcast(mine, 7);
