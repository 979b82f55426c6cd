// Sums over the lanes of one token, many at once.
//
// Each step halves the values a lane holds: it keeps one half and sends the other to the lane
// DISTANCE away, so that n values over n lanes cost n - 1 exchanges. Once a count is odd, every
// lane of the pair keeps all of it. A value's sum is the same tree either way, and so are its
// bits.

// How many values Fold leaves to a lane.
constexpr inline int fold_left(int count, int distance) {
    return distance == 0 ? count : fold_left(count % 2 ? count : count / 2, distance / 2);
}

// The bits of a lane's number that do not say which values it has: all but one such lane repeat.
constexpr inline int fold_repeats(int count, int distance) {
    return distance == 0 ? 0
                         : (count % 2 ? distance : 0) |
                               fold_repeats(count % 2 ? count : count / 2, distance / 2);
}

// Fold COUNT values, from DISTANCE down; gives the index of the first value that is left.
template <int COUNT, int DISTANCE>
struct Fold {
    template <typename Values>
    static inline uint sum(Values values, uint lane) {
        if (COUNT % 2) {
            for (int i = 0; i < COUNT; i++) {
                values[i] += simd_shuffle_xor(values[i], ushort(DISTANCE));
            }
            return Fold<COUNT % 2 ? COUNT : COUNT / 2, DISTANCE / 2>::sum(values, lane);
        }
        const bool upper = (lane & DISTANCE) != 0;
        for (int i = 0; i < COUNT / 2; i++) {
            const float low = values[i];
            const float high = values[i + COUNT / 2];
            values[i] = (upper ? high : low) +
                        simd_shuffle_xor(upper ? low : high, ushort(DISTANCE));
        }
        return Fold<COUNT % 2 ? COUNT : COUNT / 2, DISTANCE / 2>::sum(values, lane) +
               (upper ? COUNT / 2 : 0);
    }
};

template <int COUNT>
struct Fold<COUNT, 0> {
    template <typename Values>
    static inline uint sum(Values values, uint lane) {
        return 0u;
    }
};
