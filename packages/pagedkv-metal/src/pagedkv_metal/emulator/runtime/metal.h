// The Metal language for a C++17 compiler, as far as this package's kernels and most small ones
// use it. Included before the text that MLX makes of a kernel.
#pragma once

#include "lanes.h"
#include "mathematics.h"
#include "positions.h"
#include "products.h"
#include "vectors.h"

using namespace metal;

// MLX puts this before every kernel: where an element lies in an array with strides.
template <typename Index>
inline Index elem_to_loc(Index element, const int* shape, const int64_t* strides, int ndim) {
    Index at = 0;
    for (int axis = ndim - 1; axis >= 0; axis--) {
        at += Index(element % shape[axis]) * Index(strides[axis]);
        element /= shape[axis];
    }
    return at;
}
#define METAL_FUNC inline __attribute__((always_inline))

// Address spaces mean nothing to this compiler: the syntax pass checks them, the run checks
// every access.
#define device
#define constant
#define threadgroup PKV_THREADGROUP_STORAGE
#define thread
// The text's `threadgroup TYPE NAME[N];` arrives as `auto& NAME = ...("NAME", TYPE[N]);`.
namespace pkv {
template <typename T>
using as_written = T;
}
#define PKV_THREADGROUP_VARIABLE(NAME, ...) \
    *static_cast<pkv::as_written<__VA_ARGS__>*>(pkv_threadgroup_variable(NAME, sizeof(__VA_ARGS__)))
#define MLX_MTL_CONST static constant constexpr const
#define MLX_MTL_LOOP_UNROLL
#define MLX_MTL_PRAGMA_UNROLL
