// `a * b` of the text arrives as `a * pkv::times * b` where both are unsigned and of 32 bits:
// the same number, or a report where its upper bits are lost.
#pragma once

#include "runner.h"

namespace pkv {

struct Times {};
inline constexpr Times times = {};

template <typename T>
struct Factor {
    T value;
};

template <typename T>
PKV_INSIDE constexpr Factor<T> operator*(T a, Times) {
    return {a};
}

// A macro's product may be of other numbers elsewhere: those are left as they are.
template <typename T, typename U>
PKV_INSIDE constexpr auto operator*(Factor<T> a, U b) {
    typedef decltype(a.value * b) Product;
    if constexpr (same<Product, uint>) {
        const ulong whole = ulong(uint(a.value)) * uint(b);
        if (whole >> 32) {
            pkv_wrapped(uint(a.value), uint(b));
        }
        return uint(whole);
    } else {
        return a.value * b;
    }
}

}  // namespace pkv
