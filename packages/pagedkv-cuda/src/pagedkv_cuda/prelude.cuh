// The words of the kernels' dialect in CUDA. Included before a kernel's own header; the words
// that would break CUDA's own headers or declarations are for the body alone (body_words).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using uint = unsigned int;
using ushort = unsigned short;
using ulong = unsigned long;
using half = __half;
using bfloat16_t = __nv_bfloat16;

#define PAGEDKV_WORDS(TYPE) const TYPE*

enum class mem_flags { mem_threadgroup };

__device__ __forceinline__ void threadgroup_barrier(mem_flags) { __syncthreads(); }
__device__ __forceinline__ void simdgroup_barrier(mem_flags) { __syncwarp(); }

template <typename To, typename From>
__device__ __forceinline__ To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type needs two types of one size");
    union Bits {
        From from;
        To to;
        __device__ Bits() {}
    } bits;
    bits.from = from;
    return bits.to;
}

template <typename T>
__device__ __forceinline__ T simd_shuffle_xor(T value, ushort distance) {
    return __shfl_xor_sync(0xffffffffu, value, distance);
}

__device__ __forceinline__ float simd_sum(float value) {
    for (int distance = 1; distance < 32; distance *= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    return value;
}

__device__ __forceinline__ float simd_max(float value) {
    for (int distance = 1; distance < 32; distance *= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    return value;
}

namespace metal {
__device__ __forceinline__ uint min(uint a, uint b) { return a < b ? a : b; }
__device__ __forceinline__ uint max(uint a, uint b) { return a < b ? b : a; }
__device__ __forceinline__ int min(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int max(int a, int b) { return a < b ? b : a; }
__device__ __forceinline__ float min(float a, float b) { return fminf(a, b); }
__device__ __forceinline__ float max(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float fma(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ float exp2(float x) { return exp2f(x); }
__device__ __forceinline__ float tanh(float x) { return tanhf(x); }
}  // namespace metal

__device__ __forceinline__ uint pagedkv_thread_index() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ uint3 pagedkv_thread_in_grid() {
    return {blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,
            blockIdx.z * blockDim.z + threadIdx.z};
}
