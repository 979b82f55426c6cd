// Where a thread stands, under the names of Metal's attributes. MLX makes each of them a
// parameter of the kernel; the value here becomes whatever type that parameter has.
#pragma once

#include "runner.h"
#include "vectors.h"

namespace pkv {

inline PKV_PLAIN uint3 three(const uint* at) { return uint3(at[0], at[1], at[2]); }
inline PKV_PLAIN uint product(const uint* at) { return at[0] * at[1] * at[2]; }

inline PKV_PLAIN uint3 thread_position_in_threadgroup() {
    return three(pkv_position()->thread_in_group);
}
inline PKV_PLAIN uint3 threadgroup_position_in_grid() {
    return three(pkv_position()->group_in_grid);
}
inline PKV_PLAIN uint3 threads_per_threadgroup() {
    return three(pkv_position()->threads_per_group);
}
inline PKV_PLAIN uint3 dispatch_threads_per_threadgroup() { return threads_per_threadgroup(); }
inline PKV_PLAIN uint3 threadgroups_per_grid() { return three(pkv_position()->groups_per_grid); }
inline PKV_PLAIN uint3 threads_per_grid() {
    return threads_per_threadgroup() * threadgroups_per_grid();
}
inline PKV_PLAIN uint3 grid_size() { return threads_per_grid(); }
inline PKV_PLAIN uint3 grid_origin() { return uint3(0u); }
inline PKV_PLAIN uint3 thread_position_in_grid() {
    return threadgroup_position_in_grid() * threads_per_threadgroup() +
           thread_position_in_threadgroup();
}
inline PKV_PLAIN uint thread_index_in_threadgroup() { return pkv_position()->index_in_group; }
inline PKV_PLAIN uint thread_index_in_simdgroup() { return thread_index_in_threadgroup() % 32; }
inline PKV_PLAIN uint simdgroup_index_in_threadgroup() {
    return thread_index_in_threadgroup() / 32;
}
inline PKV_PLAIN uint simdgroups_per_threadgroup() {
    return (product(pkv_position()->threads_per_group) + 31) / 32;
}
inline PKV_PLAIN uint dispatch_simdgroups_per_threadgroup() { return simdgroups_per_threadgroup(); }
inline PKV_PLAIN uint thread_index_in_quadgroup() { return thread_index_in_threadgroup() % 4; }
inline PKV_PLAIN uint quadgroup_index_in_threadgroup() { return thread_index_in_threadgroup() / 4; }
inline PKV_PLAIN uint quadgroups_per_threadgroup() {
    return (product(pkv_position()->threads_per_group) + 3) / 4;
}
inline PKV_PLAIN uint dispatch_quadgroups_per_threadgroup() { return quadgroups_per_threadgroup(); }
inline PKV_PLAIN uint threads_per_simdgroup() { return 32; }
inline PKV_PLAIN uint thread_execution_width() { return 32; }

}  // namespace pkv
