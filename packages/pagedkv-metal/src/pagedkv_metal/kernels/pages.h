// How the bytes of a page become numbers, for every page format that a kernel reads in place.
//
// FORMAT           a row's bytes                                     elements of a chunk
// 0, 1, 2          bfloat16, float16, float32 as they are            8
// 102, 104, 108    affine codes of 2, 4, 8 bits in uint32 words,     16
//                  lowest bits first, as mx.quantize packs them
//
// A chunk is what one lane takes of a row at a time. A code c of b bits arrives as the float
// 2^b + c, which needs no conversion: the code is moved into the mantissa. Whoever sums such
// floats takes 2^b away with the group's bias.
#ifndef PAGEDKV_WORDS
#define PAGEDKV_WORDS(TYPE) const device TYPE*
#endif

// The bits of a code, 0 where a row is not coded.
constexpr inline int code_bits(int format) {
    return format > 100 ? format - 100 : 0;
}

constexpr inline int chunk_elements(int format) {
    return code_bits(format) > 0 ? 16 : 8;
}

// 32-bit words of a chunk: 4 and 8, or 1, 2 and 4.
constexpr inline int chunk_words(int format) {
    return code_bits(format) > 0 ? chunk_elements(format) * code_bits(format) / 32
                                 : (format == 2 ? 8 : 4);
}

// The smallest power of two of lanes that hold `chunks` chunks.
constexpr inline int lanes_for(int chunks) {
    return chunks <= 1 ? 1 : 2 * lanes_for((chunks + 1) / 2);
}

constexpr inline int least(int a, int b) {
    return a < b ? a : b;
}

constexpr inline int most(int a, int b) {
    return a < b ? b : a;
}

// Where a head begins in a plane [heads, rows, width], and a flat row from there, in 64 bits.
inline ulong head_address(uint head, uint rows, uint width) {
    return ulong(head) * rows * width;
}

inline ulong row_address(ulong head_begins, uint row, uint width) {
    return head_begins + ulong(row) * width;
}

// Read WORDS words from word `at` on, 16 bytes at a time where there are as many.
template <int WORDS, typename Pages, typename Words>
inline void load_words(Pages pages, ulong at, Words words) {
    const auto here = (PAGEDKV_WORDS(uint))pages + at;
    if (WORDS % 4 == 0) {
        for (int i = 0; i < WORDS / 4; i++) {
            const uint4 four = ((PAGEDKV_WORDS(uint4))here)[i];
            words[4 * i] = four.x;
            words[4 * i + 1] = four.y;
            words[4 * i + 2] = four.z;
            words[4 * i + 3] = four.w;
        }
    } else if (WORDS == 2) {
        const uint2 two = ((PAGEDKV_WORDS(uint2))here)[0];
        words[0] = two.x;
        words[WORDS - 1] = two.y;
    } else {
        words[0] = here[0];
    }
}

// Element i of a chunk: itself, or 2^b plus its code.
template <int FORMAT, typename Words>
inline float chunk_element(Words words, int i) {
    if (FORMAT == 0) {
        return as_type<float>(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    }
    if (FORMAT == 1) {
        return float(as_type<half>(ushort(i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffffu)));
    }
    if (FORMAT == 2) {
        return as_type<float>(words[i]);
    }
    const int bits = most(code_bits(FORMAT), 1);
    const int from = i * bits % 32;
    const int to = 23 - bits;
    const uint word = words[i * bits / 32];
    const uint moved = from <= to ? word << ((to - from) & 31) : word >> ((from - to) & 31);
    const uint mask = ((1u << bits) - 1u) << to;
    return as_type<float>((moved & mask) | uint(127 + bits) << 23);
}
