// What threads do together: simd operations and barriers.
#pragma once

#include "mathematics.h"
#include "runner.h"

// The last parameters of every function that waits: its call's place.
#define PKV_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace pkv {

// A loop that holds a synchronisation, from before its first iteration to its end.
struct Loop {
    PKV_PLAIN explicit Loop(PKV_HERE) { pkv_loop_enter({file, line}); }
    PKV_PLAIN ~Loop() { pkv_leave(); }
    PKV_PLAIN void next() { pkv_loop_next(); }
};

// A call of a function in which threads meet, until the end of the expression that it is in.
struct Call {
    PKV_PLAIN explicit Call(uint number, PKV_HERE) { pkv_call_enter(number, {file, line}); }
    PKV_PLAIN ~Call() { pkv_leave(); }
};

// As a butterfly reduces: lane i with lane i ^ distance, so that the order is the hardware's.
template <typename T, typename Combine>
PKV_PLAIN void reduce(const void* values, uint count, void* result) {
    T lanes[32];
    for (uint i = 0; i < count; i++) {
        lanes[i] = static_cast<const T*>(values)[i];
    }
    for (uint width = 1; width < count; width *= 2) {
        for (uint i = 0; i + width < count; i += 2 * width) {
            lanes[i] = Combine::of(lanes[i], lanes[i + width]);
        }
    }
    __builtin_memcpy(result, lanes, sizeof(T));
}

struct Sum {
    template <typename T>
    PKV_PLAIN static T of(T a, T b) {
        return T(a + b);
    }
};
struct Product {
    template <typename T>
    PKV_PLAIN static T of(T a, T b) {
        return T(a * b);
    }
};
struct Largest {
    template <typename T>
    PKV_PLAIN static T of(T a, T b) {
        return metal::max(a, b);
    }
};
struct Smallest {
    template <typename T>
    PKV_PLAIN static T of(T a, T b) {
        return metal::min(a, b);
    }
};
struct Both {
    template <typename T>
    PKV_PLAIN static T of(T a, T b) {
        return T(a & b);
    }
};
struct Either {
    template <typename T>
    PKV_PLAIN static T of(T a, T b) {
        return T(a | b);
    }
};
struct Differ {
    template <typename T>
    PKV_PLAIN static T of(T a, T b) {
        return T(a ^ b);
    }
};

template <typename Combine, typename T>
PKV_PLAIN T all_lanes(const char* operation, T value, Place place) {
    static_assert(sizeof(T) <= 64, "a lane's value has a slot of 64 bytes");
    T result;
    pkv_simd_meet(operation, place, &value, sizeof(T), &reduce<T, Combine>, &result);
    return result;
}

template <typename T>
PKV_PLAIN T from_lane(const char* operation, T value, uint lane, Place place) {
    static_assert(sizeof(T) <= 64, "a lane's value has a slot of 64 bytes");
    const void* values = pkv_simd_meet(operation, place, &value, sizeof(T), nullptr, nullptr);
    T result;
    __builtin_memcpy(&result, pkv_simd_value(values, lane, sizeof(T), operation, place), sizeof(T));
    return result;
}

// The combination of the lanes before this one, and of its own value where `inclusive`.
template <typename Combine, typename T>
PKV_PLAIN T lanes_before(const char* operation, T value, T start, bool inclusive, Place place) {
    const void* values = pkv_simd_meet(operation, place, &value, sizeof(T), nullptr, nullptr);
    T result = start;
    const uint end = pkv_simd_lane() + (inclusive ? 1 : 0);
    for (uint lane = 0; lane < end; lane++) {
        T other;
        __builtin_memcpy(&other, pkv_simd_value(values, lane, sizeof(T), operation, place),
                         sizeof(T));
        result = Combine::of(result, other);
    }
    return result;
}

}  // namespace pkv

namespace metal {

#define PKV_SIMD_REDUCTION(NAME, COMBINE)                                \
    template <typename T>                                                \
    PKV_PLAIN T NAME(T value, PKV_HERE) {                                \
        return pkv::all_lanes<pkv::COMBINE>(#NAME, value, {file, line}); \
    }
PKV_SIMD_REDUCTION(simd_sum, Sum)
PKV_SIMD_REDUCTION(simd_product, Product)
PKV_SIMD_REDUCTION(simd_max, Largest)
PKV_SIMD_REDUCTION(simd_min, Smallest)
PKV_SIMD_REDUCTION(simd_and, Both)
PKV_SIMD_REDUCTION(simd_or, Either)
PKV_SIMD_REDUCTION(simd_xor, Differ)
#undef PKV_SIMD_REDUCTION

PKV_PLAIN inline bool simd_all(bool value, PKV_HERE) {
    return pkv::all_lanes<pkv::Both>("simd_all", uint(value), {file, line}) != 0;
}
PKV_PLAIN inline bool simd_any(bool value, PKV_HERE) {
    return pkv::all_lanes<pkv::Either>("simd_any", uint(value), {file, line}) != 0;
}

#define PKV_SIMD_PREFIX(NAME, COMBINE, START, INCLUSIVE)                                         \
    template <typename T>                                                                        \
    PKV_PLAIN T NAME(T value, PKV_HERE) {                                                        \
        return pkv::lanes_before<pkv::COMBINE>(#NAME, value, T(START), INCLUSIVE, {file, line}); \
    }
PKV_SIMD_PREFIX(simd_prefix_exclusive_sum, Sum, 0, false)
PKV_SIMD_PREFIX(simd_prefix_inclusive_sum, Sum, 0, true)
PKV_SIMD_PREFIX(simd_prefix_exclusive_product, Product, 1, false)
PKV_SIMD_PREFIX(simd_prefix_inclusive_product, Product, 1, true)
#undef PKV_SIMD_PREFIX

// `LANE` is the lane whose value this one takes; `n` is the argument.
#define PKV_SIMD_SHUFFLE(NAME, LANE)                                   \
    template <typename T>                                              \
    PKV_PLAIN T NAME(T value, ushort n, PKV_HERE) {                    \
        return pkv::from_lane(#NAME, value, uint(LANE), {file, line}); \
    }
PKV_SIMD_SHUFFLE(simd_broadcast, n)
PKV_SIMD_SHUFFLE(simd_shuffle, n)
PKV_SIMD_SHUFFLE(simd_shuffle_xor, pkv_simd_lane() ^ n)
PKV_SIMD_SHUFFLE(simd_shuffle_rotate_down, (pkv_simd_lane() + n) % pkv_simd_count())
PKV_SIMD_SHUFFLE(simd_shuffle_rotate_up,
                 (pkv_simd_lane() + pkv_simd_count() - n) % pkv_simd_count())
// Past the end a lane keeps its own value, as the hardware does.
PKV_SIMD_SHUFFLE(simd_shuffle_down,
                 pkv_simd_lane() + n < pkv_simd_count() ? pkv_simd_lane() + n : pkv_simd_lane())
PKV_SIMD_SHUFFLE(simd_shuffle_up, pkv_simd_lane() >= n ? pkv_simd_lane() - n : pkv_simd_lane())
#undef PKV_SIMD_SHUFFLE

template <typename T>
PKV_PLAIN T simd_broadcast_first(T value, PKV_HERE) {
    return pkv::from_lane("simd_broadcast_first", value, 0u, {file, line});
}

enum class mem_flags : uint {
    mem_none = 0,
    mem_device = 1,
    mem_threadgroup = 2,
    mem_texture = 4,
};
inline constexpr mem_flags operator|(mem_flags a, mem_flags b) {
    return mem_flags(uint(a) | uint(b));
}

PKV_PLAIN inline void threadgroup_barrier(mem_flags flags, PKV_HERE) {
    pkv_threadgroup_barrier(uint(flags), {file, line});
}
PKV_PLAIN inline void simdgroup_barrier(mem_flags flags, PKV_HERE) {
    pkv_simdgroup_barrier(uint(flags), {file, line});
}

}  // namespace metal
