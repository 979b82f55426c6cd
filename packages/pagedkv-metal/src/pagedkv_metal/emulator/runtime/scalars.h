// The scalar types of the Metal language that C++ does not have, without any system header.
#pragma once

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INT8_TYPE__ int8_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __INT16_TYPE__ int16_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __INT32_TYPE__ int32_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// What may touch a buffer's bytes becomes part of its caller, whose line a report names.
#define PKV_INSIDE __attribute__((always_inline)) inline

namespace pkv {

template <typename To, typename From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type needs two types of one size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}

template <typename T, typename U>
inline constexpr bool same = false;
template <typename T>
inline constexpr bool same<T, T> = true;

// Round to nearest, ties to even; NaN stays NaN.
inline uint16_t bfloat_bits(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return static_cast<uint16_t>((bits >> 16) | 0x40u);
    }
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float bfloat_value(uint16_t bits) { return bits_as<float>(uint32_t(bits) << 16); }

// Round to nearest, ties to even. Below the normal range the sum with a power of two rounds:
// its last bit is half's smallest step.
inline uint16_t half_bits(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return static_cast<uint16_t>(sign | 0x7e00u);
    }
    if (size >= 0x477ff000u) {
        return static_cast<uint16_t>(sign | 0x7c00u);
    }
    if (size < 0x38800000u) {
        const float sum = bits_as<float>(size) + 0.5f;
        return static_cast<uint16_t>(sign | (bits_as<uint32_t>(sum) - 0x3f000000u));
    }
    size += 0xfffu + ((size >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((size - 0x38000000u) >> 13));
}

inline float half_value(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
    const uint32_t size = uint32_t(bits & 0x7fffu) << 13;
    if (size >= 0x0f800000u) {
        return bits_as<float>(sign | (size + 0x70000000u));
    }
    if (size < 0x00800000u) {
        const float value = bits_as<float>(size + 0x38800000u) - bits_as<float>(0x38800000u);
        return bits_as<float>(sign | bits_as<uint32_t>(value));
    }
    return bits_as<float>(sign | (size + 0x38000000u));
}

template <typename T>
inline constexpr bool is_integer = false;
#define PKV_INTEGER(TYPE) \
    template <>           \
    inline constexpr bool is_integer<TYPE> = true
PKV_INTEGER(bool);
PKV_INTEGER(char);
PKV_INTEGER(signed char);
PKV_INTEGER(unsigned char);
PKV_INTEGER(short);
PKV_INTEGER(unsigned short);
PKV_INTEGER(int);
PKV_INTEGER(unsigned int);
PKV_INTEGER(long);
PKV_INTEGER(unsigned long);
#undef PKV_INTEGER

template <bool Wanted, typename T = void>
struct only_if {};
template <typename T>
struct only_if<true, T> {
    typedef T type;
};

struct HalfCode {
    static uint16_t encode(float value) { return half_bits(value); }
    static float decode(uint16_t bits) { return half_value(bits); }
};

struct BfloatCode {
    static uint16_t encode(float value) { return bfloat_bits(value); }
    static float decode(uint16_t bits) { return bfloat_value(bits); }
};

// A 16-bit float. It becomes a float by itself, and is made from one only where the source says
// so. Computing in float and rounding once is exact: float has more than twice the digits.
template <typename Code>
struct Short {
    uint16_t bits;

    Short() = default;
    explicit Short(float value) : bits(Code::encode(value)) {}
    explicit Short(double value) : Short(float(value)) {}
    template <typename N, typename = typename only_if<is_integer<N>>::type>
    explicit Short(N value) : Short(float(value)) {}
    template <typename Other>
    explicit Short(Short<Other> value) : Short(float(value)) {}

    PKV_INSIDE operator float() const { return Code::decode(bits); }
    Short operator-() const { return Short(-float(*this)); }

    template <typename N>
    PKV_INSIDE Short& operator+=(N other) {
        return *this = Short(float(*this) + float(other));
    }
    template <typename N>
    PKV_INSIDE Short& operator-=(N other) {
        return *this = Short(float(*this) - float(other));
    }
    template <typename N>
    PKV_INSIDE Short& operator*=(N other) {
        return *this = Short(float(*this) * float(other));
    }
    template <typename N>
    PKV_INSIDE Short& operator/=(N other) {
        return *this = Short(float(*this) / float(other));
    }
};

template <typename Code>
inline Short<Code> operator+(Short<Code> a, Short<Code> b) {
    return Short<Code>(float(a) + float(b));
}
template <typename Code>
inline Short<Code> operator-(Short<Code> a, Short<Code> b) {
    return Short<Code>(float(a) - float(b));
}
template <typename Code>
inline Short<Code> operator*(Short<Code> a, Short<Code> b) {
    return Short<Code>(float(a) * float(b));
}
template <typename Code>
inline Short<Code> operator/(Short<Code> a, Short<Code> b) {
    return Short<Code>(float(a) / float(b));
}

template <typename T>
inline constexpr bool is_float = false;
template <>
inline constexpr bool is_float<float> = true;
template <typename Code>
inline constexpr bool is_float<Short<Code>> = true;

}  // namespace pkv

using half = pkv::Short<pkv::HalfCode>;
using float16_t = half;
using bfloat = pkv::Short<pkv::BfloatCode>;
using bfloat16_t = bfloat;

namespace metal {

template <typename T, typename U>
inline constexpr bool is_same_v = pkv::same<T, U>;
template <bool Condition, typename T = void>
using enable_if_t = typename pkv::only_if<Condition, T>::type;

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

}  // namespace metal
