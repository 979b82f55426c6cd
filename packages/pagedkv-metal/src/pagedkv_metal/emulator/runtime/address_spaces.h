// The Metal language for a syntax pass of clang: no body, but every address space kept apart.
//
// Vectors and 16-bit floats are the compiler's own here, because a class could not be read
// through a pointer into another address space.
#pragma once

#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define PKV_THREADGROUP __attribute__((address_space(3)))
#define PKV_THREADGROUP_STORAGE static __attribute__((address_space(3)))
#define thread
#define MLX_MTL_CONST static constant constexpr const
#define MLX_MTL_LOOP_UNROLL
#define MLX_MTL_PRAGMA_UNROLL

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uchar, uint8_t;
typedef unsigned short ushort, uint16_t;
typedef unsigned int uint, uint32_t;
typedef unsigned long ulong, uint64_t;
typedef _Float16 half, float16_t;
typedef __bf16 bfloat, bfloat16_t;

namespace metal {

template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));

template <typename T, typename U>
inline constexpr bool is_same_v = __is_same(T, U);
template <bool Condition, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
    typedef T type;
};
template <bool Condition, typename T = void>
using enable_if_t = typename enable_if<Condition, T>::type;
template <bool Condition, typename Then, typename Else>
struct conditional {
    typedef Then type;
};
template <typename Then, typename Else>
struct conditional<false, Then, Else> {
    typedef Else type;
};
template <bool Condition, typename Then, typename Else>
using conditional_t = typename conditional<Condition, Then, Else>::type;

#define PKV_OF_ONE(NAME)  \
    template <typename T> \
    T NAME(T)
PKV_OF_ONE(exp);
PKV_OF_ONE(exp2);
PKV_OF_ONE(exp10);
PKV_OF_ONE(log);
PKV_OF_ONE(log2);
PKV_OF_ONE(log10);
PKV_OF_ONE(sqrt);
PKV_OF_ONE(rsqrt);
PKV_OF_ONE(sin);
PKV_OF_ONE(cos);
PKV_OF_ONE(tan);
PKV_OF_ONE(sinh);
PKV_OF_ONE(cosh);
PKV_OF_ONE(tanh);
PKV_OF_ONE(asin);
PKV_OF_ONE(acos);
PKV_OF_ONE(atan);
PKV_OF_ONE(floor);
PKV_OF_ONE(ceil);
PKV_OF_ONE(trunc);
PKV_OF_ONE(rint);
PKV_OF_ONE(round);
PKV_OF_ONE(fabs);
PKV_OF_ONE(fract);
PKV_OF_ONE(saturate);
PKV_OF_ONE(sign);
PKV_OF_ONE(abs);
PKV_OF_ONE(popcount);
PKV_OF_ONE(clz);
PKV_OF_ONE(ctz);
PKV_OF_ONE(simd_sum);
PKV_OF_ONE(simd_product);
PKV_OF_ONE(simd_max);
PKV_OF_ONE(simd_min);
PKV_OF_ONE(simd_and);
PKV_OF_ONE(simd_or);
PKV_OF_ONE(simd_xor);
PKV_OF_ONE(simd_prefix_exclusive_sum);
PKV_OF_ONE(simd_prefix_inclusive_sum);
PKV_OF_ONE(simd_prefix_exclusive_product);
PKV_OF_ONE(simd_prefix_inclusive_product);
PKV_OF_ONE(simd_broadcast_first);
#undef PKV_OF_ONE

#define PKV_OF_TWO(NAME)  \
    template <typename T> \
    T NAME(T, T)
PKV_OF_TWO(pow);
PKV_OF_TWO(atan2);
PKV_OF_TWO(fmod);
PKV_OF_TWO(fmin);
PKV_OF_TWO(fmax);
PKV_OF_TWO(copysign);
PKV_OF_TWO(min);
PKV_OF_TWO(max);
#undef PKV_OF_TWO

#define PKV_OF_THREE(NAME) \
    template <typename T>  \
    T NAME(T, T, T)
PKV_OF_THREE(clamp);
PKV_OF_THREE(fma);
PKV_OF_THREE(mix);
#undef PKV_OF_THREE

template <typename T>
T select(T, T, bool);
template <typename T, int N>
T dot(vec<T, N>, vec<T, N>);
bool isnan(float);
bool isinf(float);
bool isfinite(float);
bool simd_all(bool);
bool simd_any(bool);

#define PKV_SHUFFLE(NAME) \
    template <typename T> \
    T NAME(T, ushort)
PKV_SHUFFLE(simd_broadcast);
PKV_SHUFFLE(simd_shuffle);
PKV_SHUFFLE(simd_shuffle_xor);
PKV_SHUFFLE(simd_shuffle_down);
PKV_SHUFFLE(simd_shuffle_up);
PKV_SHUFFLE(simd_shuffle_rotate_down);
PKV_SHUFFLE(simd_shuffle_rotate_up);
#undef PKV_SHUFFLE

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

template <typename T>
struct numeric_limits {
    static constexpr T infinity();
    static constexpr T quiet_NaN();
    static constexpr T max();
    static constexpr T min();
    static constexpr T lowest();
    static constexpr T epsilon();
};

template <typename To, typename From>
To as_type(From);

namespace fast {
using namespace metal;
}
namespace precise {
using namespace metal;
}

}  // namespace metal

using namespace metal;

#define PKV_VECTORS(TYPE, NAME)   \
    using NAME##2 = vec<TYPE, 2>; \
    using NAME##3 = vec<TYPE, 3>; \
    using NAME##4 = vec<TYPE, 4>
PKV_VECTORS(bool, bool);
PKV_VECTORS(int8_t, char);
PKV_VECTORS(uchar, uchar);
PKV_VECTORS(short, short);
PKV_VECTORS(ushort, ushort);
PKV_VECTORS(int, int);
PKV_VECTORS(uint, uint);
PKV_VECTORS(long, long);
PKV_VECTORS(ulong, ulong);
PKV_VECTORS(half, half);
PKV_VECTORS(bfloat, bfloat);
PKV_VECTORS(float, float);
#undef PKV_VECTORS

// `float4(a, b, c, d)` arrives as `pkv_make<float4>(a, b, c, d)`.
template <typename V, typename... Parts>
V pkv_make(Parts...);

template <typename Index>
Index elem_to_loc(Index, constant const int*, constant const int64_t*, int);
#define METAL_FUNC inline

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_huge_valf()
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define INT_MAX __INT_MAX__
#define INT_MIN (-__INT_MAX__ - 1)
#define UINT_MAX (2u * __INT_MAX__ + 1u)
#define M_PI_F 3.14159265358979323846f
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
