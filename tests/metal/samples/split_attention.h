// The first element of a position's row, in 64 bits.
inline ulong address(uint slot, uint row, uint block, uint heads, uint head, uint dim) {
    return ((ulong(slot) * block + row) * heads + head) * dim;
}

// The sum over the lanes of a simdgroup, given to each.
inline float across_lanes(float value) {
    for (ushort distance = 1; distance < 32; distance *= 2) {
        value += simd_shuffle_xor(value, distance);
    }
    return value;
}
