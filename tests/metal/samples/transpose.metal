// grid (32 * COLUMNS / 32, ROWS / 4, 1), threadgroup (32, 4, 1): y[c][r] = x[r][c], four rows at
// a time through threadgroup memory, read back by the lanes of one simdgroup alone.
threadgroup float tile[4][32];
const uint column = thread_position_in_grid.x;
const uint row = thread_position_in_grid.y;
const uint lane = thread_index_in_simdgroup;
const uint simdgroup = simdgroup_index_in_threadgroup;

tile[simdgroup][31 - lane] = x[row * COLUMNS + column];
simdgroup_barrier(mem_flags::mem_threadgroup);
const uint first = threadgroup_position_in_grid.x * 32;
y[(first + 31 - lane) * ROWS + row] = tile[simdgroup][lane];
