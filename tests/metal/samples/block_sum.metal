// grid (n, 1, 1), threadgroup (SIZE, 1, 1): y[g] is the sum of the g-th SIZE of x.
const uint lane = thread_position_in_threadgroup.x;
threadgroup float parts[SIZE];

parts[lane] = float(x[thread_position_in_grid.x]);
threadgroup_barrier(mem_flags::mem_threadgroup);

// Halve until one is left.
for (uint half_size = SIZE / 2; half_size > 0; half_size /= 2) {
    if (lane < half_size) {
        parts[lane] += parts[lane + half_size];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (lane == 0) {
    y[threadgroup_position_in_grid.x] = T(parts[0]);
}
