// vec<T, N>: two to four numbers, elementwise. Swizzles are not offered.
#pragma once

#include "scalars.h"

namespace pkv {

template <typename T, int N>
struct Lanes;

template <typename T>
struct alignas(2 * sizeof(T)) Lanes<T, 2> {
    union {
        struct {
            T x, y;
        };
        struct {
            T r, g;
        };
        T at[2];
    };
};

// As in Metal, three take the room of four.
template <typename T>
struct alignas(4 * sizeof(T)) Lanes<T, 3> {
    union {
        struct {
            T x, y, z;
        };
        struct {
            T r, g, b;
        };
        T at[3];
    };
};

template <typename T>
struct alignas(4 * sizeof(T)) Lanes<T, 4> {
    union {
        struct {
            T x, y, z, w;
        };
        struct {
            T r, g, b, a;
        };
        T at[4];
    };
};

}  // namespace pkv

namespace metal {

template <typename T, int N>
struct vec : pkv::Lanes<T, N> {
    vec() = default;

    template <typename U,
              typename = typename pkv::only_if<pkv::is_integer<U> || pkv::is_float<U>>::type>
    vec(U value) {
        for (int i = 0; i < N; i++) {
            this->at[i] = T(value);
        }
    }

    template <typename U>
    explicit vec(vec<U, N> other) {
        for (int i = 0; i < N; i++) {
            this->at[i] = T(other[i]);
        }
    }

    // Numbers and shorter vectors, in order, until N are there.
    template <typename A, typename B, typename... More>
    vec(A a, B b, More... more) {
        int count = 0;
        append(count, a);
        append(count, b);
        (append(count, more), ...);
    }

    PKV_INSIDE T& operator[](int i) { return this->at[i]; }
    PKV_INSIDE const T& operator[](int i) const { return this->at[i]; }

  private:
    template <typename U>
    void append(int& count, U value) {
        this->at[count++] = T(value);
    }
    template <typename U, int M>
    void append(int& count, vec<U, M> value) {
        for (int i = 0; i < M; i++) {
            this->at[count++] = T(value[i]);
        }
    }
};

#define PKV_ELEMENTWISE(OP)                                      \
    template <typename T, int N>                                 \
    PKV_INSIDE vec<T, N> operator OP(vec<T, N> a, vec<T, N> b) { \
        vec<T, N> result;                                        \
        for (int i = 0; i < N; i++) {                            \
            result[i] = T(a[i] OP b[i]);                         \
        }                                                        \
        return result;                                           \
    }                                                            \
    template <typename T, int N, typename U>                     \
    PKV_INSIDE vec<T, N> operator OP(vec<T, N> a, U b) {         \
        return a OP vec<T, N>(b);                                \
    }                                                            \
    template <typename T, int N, typename U>                     \
    PKV_INSIDE vec<T, N> operator OP(U a, vec<T, N> b) {         \
        return vec<T, N>(a) OP b;                                \
    }                                                            \
    template <typename T, int N, typename U>                     \
    inline vec<T, N>& operator OP## = (vec<T, N> & a, U b) {     \
        return a = a OP vec<T, N>(b);                            \
    }
PKV_ELEMENTWISE(+)
PKV_ELEMENTWISE(-)
PKV_ELEMENTWISE(*)
PKV_ELEMENTWISE(/)
PKV_ELEMENTWISE(%)
PKV_ELEMENTWISE(&)
PKV_ELEMENTWISE(|)
PKV_ELEMENTWISE(^)
PKV_ELEMENTWISE(<<)
PKV_ELEMENTWISE(>>)
#undef PKV_ELEMENTWISE

#define PKV_COMPARISON(OP)                                          \
    template <typename T, int N>                                    \
    PKV_INSIDE vec<bool, N> operator OP(vec<T, N> a, vec<T, N> b) { \
        vec<bool, N> result;                                        \
        for (int i = 0; i < N; i++) {                               \
            result[i] = a[i] OP b[i];                               \
        }                                                           \
        return result;                                              \
    }
PKV_COMPARISON(==)
PKV_COMPARISON(!=)
PKV_COMPARISON(<)
PKV_COMPARISON(<=)
PKV_COMPARISON(>)
PKV_COMPARISON(>=)
#undef PKV_COMPARISON

template <typename T, int N>
PKV_INSIDE vec<T, N> operator-(vec<T, N> a) {
    for (int i = 0; i < N; i++) {
        a[i] = T(-a[i]);
    }
    return a;
}

}  // namespace metal

#define PKV_VECTORS(TYPE, NAME)          \
    using NAME##2 = metal::vec<TYPE, 2>; \
    using NAME##3 = metal::vec<TYPE, 3>; \
    using NAME##4 = metal::vec<TYPE, 4>
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
