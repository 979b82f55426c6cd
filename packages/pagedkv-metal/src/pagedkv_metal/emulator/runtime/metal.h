// The Metal language for a C++17 compiler, as far as this package's kernels and most small ones
// use it. Included before the text that MLX makes of a kernel.
#pragma once

#include "lanes.h"
#include "mathematics.h"
#include "positions.h"
#include "vectors.h"

using namespace metal;

// Address spaces mean nothing to this compiler: the syntax pass checks them, the run checks
// every access.
#define device
#define constant
#define threadgroup PKV_THREADGROUP_STORAGE
#define thread
#define PKV_THREADGROUP
// One threadgroup runs at a time, so its memory may be static.
#if defined(__clang__)
#define PKV_THREADGROUP_STORAGE static
#else
#define PKV_THREADGROUP_STORAGE static __constinit
#endif
#define MLX_MTL_CONST static constant constexpr const
#define MLX_MTL_LOOP_UNROLL
#define MLX_MTL_PRAGMA_UNROLL
