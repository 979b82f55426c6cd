// metal:: functions of numbers and vectors. Compiled from builtins, so that no system header
// brings a second exp2 or min.
#pragma once

#include "vectors.h"

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

namespace metal {

// One float to one float; the 16-bit floats go through float, vectors go lane by lane.
#define PKV_OF_ONE(NAME, VALUE)                        \
    inline float NAME(float x) { return VALUE; }       \
    template <typename Code>                           \
    inline pkv::Short<Code> NAME(pkv::Short<Code> x) { \
        return pkv::Short<Code>(NAME(float(x)));       \
    }                                                  \
    template <typename T, int N>                       \
    inline vec<T, N> NAME(vec<T, N> x) {               \
        for (int i = 0; i < N; i++) {                  \
            x[i] = NAME(x[i]);                         \
        }                                              \
        return x;                                      \
    }
PKV_OF_ONE(exp, __builtin_expf(x))
PKV_OF_ONE(exp2, __builtin_exp2f(x))
PKV_OF_ONE(exp10, __builtin_powf(10.0f, x))
PKV_OF_ONE(log, __builtin_logf(x))
PKV_OF_ONE(log2, __builtin_log2f(x))
PKV_OF_ONE(log10, __builtin_log10f(x))
PKV_OF_ONE(sqrt, __builtin_sqrtf(x))
PKV_OF_ONE(rsqrt, 1.0f / __builtin_sqrtf(x))
PKV_OF_ONE(sin, __builtin_sinf(x))
PKV_OF_ONE(cos, __builtin_cosf(x))
PKV_OF_ONE(tan, __builtin_tanf(x))
PKV_OF_ONE(sinh, __builtin_sinhf(x))
PKV_OF_ONE(cosh, __builtin_coshf(x))
PKV_OF_ONE(tanh, __builtin_tanhf(x))
PKV_OF_ONE(asin, __builtin_asinf(x))
PKV_OF_ONE(acos, __builtin_acosf(x))
PKV_OF_ONE(atan, __builtin_atanf(x))
PKV_OF_ONE(floor, __builtin_floorf(x))
PKV_OF_ONE(ceil, __builtin_ceilf(x))
PKV_OF_ONE(trunc, __builtin_truncf(x))
PKV_OF_ONE(rint, __builtin_rintf(x))
PKV_OF_ONE(round, __builtin_roundf(x))
PKV_OF_ONE(fabs, __builtin_fabsf(x))
PKV_OF_ONE(fract, x - __builtin_floorf(x))
PKV_OF_ONE(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))
PKV_OF_ONE(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f)
#undef PKV_OF_ONE

#define PKV_OF_TWO(NAME, VALUE)                                            \
    inline float NAME(float x, float y) { return VALUE; }                  \
    template <typename Code>                                               \
    inline pkv::Short<Code> NAME(pkv::Short<Code> x, pkv::Short<Code> y) { \
        return pkv::Short<Code>(NAME(float(x), float(y)));                 \
    }                                                                      \
    template <typename T, int N>                                           \
    inline vec<T, N> NAME(vec<T, N> x, vec<T, N> y) {                      \
        for (int i = 0; i < N; i++) {                                      \
            x[i] = NAME(x[i], y[i]);                                       \
        }                                                                  \
        return x;                                                          \
    }
PKV_OF_TWO(pow, __builtin_powf(x, y))
PKV_OF_TWO(atan2, __builtin_atan2f(x, y))
PKV_OF_TWO(fmod, __builtin_fmodf(x, y))
PKV_OF_TWO(fmin, __builtin_fminf(x, y))
PKV_OF_TWO(fmax, __builtin_fmaxf(x, y))
PKV_OF_TWO(copysign, __builtin_copysignf(x, y))
#undef PKV_OF_TWO

// Of two floats of which one is NaN, min and max give the other.
template <typename T>
inline T min(T a, T b) {
    if constexpr (pkv::is_integer<T>) {
        return b < a ? b : a;
    } else {
        return fmin(a, b);
    }
}
template <typename T>
inline T max(T a, T b) {
    if constexpr (pkv::is_integer<T>) {
        return a < b ? b : a;
    } else {
        return fmax(a, b);
    }
}
template <typename T>
inline T clamp(T x, T low, T high) {
    return min(max(x, low), high);
}

template <typename T>
inline T abs(T x) {
    if constexpr (pkv::is_integer<T>) {
        return x < T(0) ? T(-x) : x;
    } else {
        return fabs(x);
    }
}

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
template <typename Code>
inline pkv::Short<Code> fma(pkv::Short<Code> a, pkv::Short<Code> b, pkv::Short<Code> c) {
    return pkv::Short<Code>(fma(float(a), float(b), float(c)));
}
template <typename T, int N>
inline vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
    for (int i = 0; i < N; i++) {
        a[i] = fma(a[i], b[i], c[i]);
    }
    return a;
}

template <typename T>
inline T mix(T x, T y, T a) {
    return x + (y - x) * a;
}
template <typename T>
inline T select(T otherwise, T chosen, bool condition) {
    return condition ? chosen : otherwise;
}

template <typename T, int N>
inline T dot(vec<T, N> a, vec<T, N> b) {
    T sum = a[0] * b[0];
    for (int i = 1; i < N; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }

inline uint popcount(uint x) { return uint(__builtin_popcount(x)); }
inline uint clz(uint x) { return x ? uint(__builtin_clz(x)) : 32u; }
inline uint ctz(uint x) { return x ? uint(__builtin_ctz(x)) : 32u; }
inline int popcount(int x) { return int(popcount(uint(x))); }
inline int clz(int x) { return int(clz(uint(x))); }
inline int ctz(int x) { return int(ctz(uint(x))); }

template <typename T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
    static constexpr float infinity() { return __builtin_inff(); }
    static constexpr float quiet_NaN() { return __builtin_nanf(""); }
    static constexpr float max() { return __FLT_MAX__; }
    static constexpr float lowest() { return -__FLT_MAX__; }
    static constexpr float min() { return __FLT_MIN__; }
    static constexpr float epsilon() { return __FLT_EPSILON__; }
};
template <>
struct numeric_limits<int> {
    static constexpr int max() { return __INT_MAX__; }
    static constexpr int min() { return -__INT_MAX__ - 1; }
    static constexpr int lowest() { return min(); }
};
template <>
struct numeric_limits<uint> {
    static constexpr uint max() { return 2u * __INT_MAX__ + 1u; }
    static constexpr uint min() { return 0; }
    static constexpr uint lowest() { return 0; }
};

// One precision serves both names here.
namespace fast {
using namespace metal;
}
namespace precise {
using namespace metal;
}

}  // namespace metal

template <typename To, typename From>
inline To as_type(From from) {
    return pkv::bits_as<To>(from);
}
namespace metal {
using ::as_type;
}
