// Attention of a row's newest queries over one partition of its context, read from the pages.
//
// A threadgroup takes one row of the batch, one KV head, one partition of PARTITION positions, and
// ROWS of that head's query rows (all, where they fit): keys and values are read once for all.
//
// grid         (256 * row blocks * partitions, KV heads, batch), threadgroup (256, 1, 1)
// queries      [batch, KV heads * ratio, L, DK]  QUERY_FORMAT: a KV head's rows are r = g * L + l
// keys         [1, KV heads, N, DK] or the codes of it   KEY_FORMAT    (pages.h)
// key_scales   [1, KV heads, N, DK / GROUP], key_biases alike; anything where keys are not coded
// values       [1, KV heads, N, DV] or the codes of it   VALUE_FORMAT
// value_scales [1, KV heads, N, DV / GROUP], value_biases alike; anything where not coded
// table        [batch, columns] uint32: slots, the first holding position starts[b] onwards;
//              padded with the row's last slot; at least 8 elements
// starts       [batch] uint32: the first position held, padded to 8 elements
// lengths      [batch] uint32: one past the last position held, padded to 8 elements
// counts       [8] uint32: L, query rows of a KV head, N, columns, first partition, window
//              (0: none), 1 if causal, row blocks
// factors      [8] float32: what queries are multiplied with, what scores then are; where the
//              second is not 0, scores are factors[1] * tanh(score). In base 2.
// partial      [batch, KV heads, rows, partitions, DV] float32: weighted values, not divided
// sums         [batch, KV heads, rows, partitions, 2] float32: largest score, sum of weights

// Where this threadgroup stands.
const uint thread_index = thread_index_in_threadgroup;
const uint lane = thread_index_in_simdgroup;
const uint simdgroup = simdgroup_index_in_threadgroup;
const uint num_queries = counts[0];
const uint num_rows = counts[1];
const uint plane_rows = counts[2];
const uint row_blocks = counts[7];
const uint head = threadgroup_position_in_grid.y;
const uint sequence = threadgroup_position_in_grid.z;
const uint partition = threadgroup_position_in_grid.x / row_blocks;
const uint partitions = threadgroups_per_grid.x / row_blocks;
const uint first_row = threadgroup_position_in_grid.x % row_blocks * ROWS;
const ulong first_query = (ulong(sequence) * threadgroups_per_grid.y + head) * num_rows;

// The geometry of keys and values: lanes that share a token, tokens of a simdgroup at once.
constexpr int KEY_CHUNK = chunk_elements(KEY_FORMAT);
constexpr int KEY_CHUNKS = DK / KEY_CHUNK;
constexpr int KEY_LANES = lanes_for(KEY_CHUNKS);
constexpr int KEY_TOKENS = 32 / KEY_LANES;
constexpr int KEY_STEP = KEY_TOKENS * KEYS_IN_FLIGHT;
constexpr int SCORES = ROWS * KEYS_IN_FLIGHT;
constexpr int KEY_WORDS = chunk_words(KEY_FORMAT);
constexpr int KEY_BITS = code_bits(KEY_FORMAT);
constexpr int VALUE_CHUNK = chunk_elements(VALUE_FORMAT);
constexpr int VALUE_CHUNKS = DV / VALUE_CHUNK;
constexpr int VALUE_LANES = lanes_for(VALUE_CHUNKS);
constexpr int VALUE_TOKENS = 32 / VALUE_LANES;
constexpr int VALUE_STEP = VALUE_TOKENS * VALUES_IN_FLIGHT;
constexpr int VALUE_WORDS = chunk_words(VALUE_FORMAT);
constexpr int VALUE_BITS = code_bits(VALUE_FORMAT);
constexpr int QUERY_WORDS = QUERY_FORMAT == 2 ? 8 : 4;
// Weights lie [token][row]; the stride spreads a row's tokens over the banks.
constexpr int STRIDE = ROWS < 4 ? ROWS : (ROWS + 3) / 4 % 2 ? (ROWS + 3) / 4 * 4 : ROWS / 4 * 4 + 4;
constexpr int MERGED_ROWS = least(ROWS, most(1, 512 / DV));
constexpr int LANE_TOKENS = PARTITION / 32;
constexpr float MASKED = -1e38f;
threadgroup float shared[most(PARTITION * STRIDE, 8 * MERGED_ROWS * DV)];
threadgroup uint places[PARTITION];

// Which positions of the partition any query sees, relative to its first.
const uint origin = (counts[4] + partition) * PARTITION;
const uint held = starts[sequence];
const uint length = lengths[sequence];
const uint oldest = length - metal::min(length, num_queries);
const uint window = counts[5];
const uint behind = window > 0 ? oldest + 1 - metal::min(oldest + 1, window) : 0;
const uint low = metal::min(uint(PARTITION), metal::max(metal::max(held, behind), origin) - origin);
const uint high = metal::max(low, metal::min(uint(PARTITION), metal::max(length, origin) - origin));

// Find every position's flat row; what nobody sees repeats one that is seen.
if (low < high) {
    for (uint token = thread_index; token < PARTITION; token += 256) {
        const uint seen = metal::max(low, metal::min(token, high - 1));
        const uint position = origin + seen - held;
        const uint slot = table[ulong(sequence) * counts[3] + position / BLOCK];
        places[token] = slot * BLOCK + position % BLOCK;
    }
}

// Load the queries, a lane its chunk of each row.
const uint key_lane = lane % KEY_LANES;
const bool has_keys = key_lane < KEY_CHUNKS;
const uint key_chunk = has_keys ? key_lane : 0;
float query[ROWS][KEY_CHUNK];
float query_sum[ROWS];
for (int r = 0; r < ROWS; r++) {
    const ulong row = first_query + metal::min(first_row + r, num_rows - 1);
    const float factor = has_keys ? factors[0] : 0.0f;
    query_sum[r] = 0.0f;
    for (int half_chunk = 0; half_chunk < KEY_CHUNK / 8; half_chunk++) {
        uint words[QUERY_WORDS];
        const ulong at = row * (DK / 8) + key_chunk * (KEY_CHUNK / 8) + half_chunk;
        load_words<QUERY_WORDS>(queries, at * QUERY_WORDS, words);
        for (int i = 0; i < 8; i++) {
            const float number = metal::fma(chunk_element<QUERY_FORMAT>(words, i), factor, 0.0f);
            query[r][half_chunk * 8 + i] = number;
            query_sum[r] += number;
        }
    }
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// Score the positions, KEYS_IN_FLIGHT a lane at once.
const ulong keys_begin = head_address(head, plane_rows, KEY_CHUNKS) + key_chunk;
const ulong key_groups_begin = head_address(head, plane_rows, DK / KEY_GROUP) +
                               key_chunk * KEY_CHUNK / KEY_GROUP;
const uint key_begin = low / (8 * KEY_STEP);
const uint key_end = (high + 8 * KEY_STEP - 1) / (8 * KEY_STEP);
for (uint step = low < high ? key_begin : key_end; step < key_end; step++) {
    const uint first = (step * 8 + simdgroup) * KEY_STEP + lane / KEY_LANES;
    uint words[KEYS_IN_FLIGHT][KEY_WORDS];
    float scale[KEYS_IN_FLIGHT];
    float bias[KEYS_IN_FLIGHT];
    for (int j = 0; j < KEYS_IN_FLIGHT; j++) {
        const uint place = places[first + j * KEY_TOKENS];
        load_words<KEY_WORDS>(keys, row_address(keys_begin, place, KEY_CHUNKS) * KEY_WORDS,
                              words[j]);
        if (KEY_BITS > 0) {
            const ulong group = row_address(key_groups_begin, place, DK / KEY_GROUP);
            scale[j] = float(key_scales[group]);
            bias[j] = float(key_biases[group]);
        }
    }
    float score[SCORES];
    for (int j = 0; j < KEYS_IN_FLIGHT; j++) {
        float key[KEY_CHUNK];
        for (int i = 0; i < KEY_CHUNK; i++) {
            key[i] = chunk_element<KEY_FORMAT>(words[j], i);
        }
        const float offset = KEY_BITS > 0 ? metal::fma(scale[j], -float(1 << KEY_BITS), bias[j])
                                          : 0.0f;
        for (int r = 0; r < ROWS; r++) {
            float dot = 0.0f;
            for (int i = 0; i < KEY_CHUNK; i++) {
                dot = metal::fma(query[r][i], key[i], dot);
            }
            score[j * ROWS + r] =
                KEY_BITS > 0 ? metal::fma(scale[j], dot, offset * query_sum[r]) : dot;
        }
    }
    const uint mine = Fold<SCORES, KEY_LANES / 2>::sum(score, lane);
    if ((lane & fold_repeats(SCORES, KEY_LANES / 2)) == 0) {
        for (int i = 0; i < fold_left(SCORES, KEY_LANES / 2); i++) {
            const uint value = mine + i;
            shared[(first + value / ROWS * KEY_TOKENS) * STRIDE + value % ROWS] = score[i];
        }
    }
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// Turn scores into weights under each query's own mask; a simdgroup takes every eighth row.
for (uint r = simdgroup; r < ROWS; r += 8) {
    const uint row = metal::min(first_row + r, num_rows - 1);
    const uint at = counts[6] > 0 ? oldest + row % num_queries : length - metal::min(length, 1u);
    const uint from = window > 0 ? at + 1 - metal::min(at + 1, window) : 0;
    const uint first = metal::max(low, metal::max(from, origin) - origin);
    const uint end = metal::min(high, metal::max(at + 1, origin) - origin);
    const uint count = metal::max(first, end) - first;
    float score[LANE_TOKENS];
    for (int i = 0; i < LANE_TOKENS; i++) {
        const uint token = lane + 32 * i;
        score[i] = MASKED;
        if (token - first < count) {
            score[i] = shared[token * STRIDE + r];
        }
    }
    if (factors[1] != 0.0f) {
        for (int i = 0; i < LANE_TOKENS; i++) {
            const float capped = metal::fma(factors[1], metal::tanh(score[i]), 0.0f);
            score[i] = score[i] == MASKED ? MASKED : capped;
        }
    }
    float largest = MASKED;
    for (int i = 0; i < LANE_TOKENS; i++) {
        largest = metal::max(largest, score[i]);
    }
    largest = simd_max(largest);
    float sum = 0.0f;
    for (int i = 0; i < LANE_TOKENS; i++) {
        const float weight = score[i] == MASKED ? 0.0f : metal::exp2(score[i] - largest);
        shared[(lane + 32 * i) * STRIDE + r] = weight;
        sum += weight;
    }
    sum = simd_sum(sum);
    if (lane == 0 && first_row + r < num_rows) {
        const ulong out = ((first_query + row) * partitions + partition) * 2;
        sums[out] = largest;
        sums[out + 1] = sum;
    }
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// Weigh the values: a lane sums its chunk over the tokens of its own stream, in their order.
const uint value_lane = lane % VALUE_LANES;
const uint value_chunk = value_lane < VALUE_CHUNKS ? value_lane : 0;
const ulong values_begin = head_address(head, plane_rows, VALUE_CHUNKS) + value_chunk;
const ulong value_groups_begin = head_address(head, plane_rows, DV / VALUE_GROUP) +
                                 value_chunk * VALUE_CHUNK / VALUE_GROUP;
float weighed[ROWS][VALUE_CHUNK];
float weighed_bias[ROWS];
for (int r = 0; r < ROWS; r++) {
    weighed_bias[r] = 0.0f;
    for (int i = 0; i < VALUE_CHUNK; i++) {
        weighed[r][i] = 0.0f;
    }
}
const uint value_begin = low / (8 * VALUE_STEP);
const uint value_end = low < high ? (high + 8 * VALUE_STEP - 1) / (8 * VALUE_STEP) : value_begin;
for (uint step = value_begin; step < value_end; step++) {
    // Token i of stream (simdgroup, lane / VALUE_LANES) is the i-th of every 8 * VALUE_TOKENS.
    const uint first =
        (step * VALUES_IN_FLIGHT * 8 + simdgroup) * VALUE_TOKENS + lane / VALUE_LANES;
    uint words[VALUES_IN_FLIGHT][VALUE_WORDS];
    float scale[VALUES_IN_FLIGHT];
    float bias[VALUES_IN_FLIGHT];
    for (int j = 0; j < VALUES_IN_FLIGHT; j++) {
        const uint place = places[first + j * 8 * VALUE_TOKENS];
        load_words<VALUE_WORDS>(
            values, row_address(values_begin, place, VALUE_CHUNKS) * VALUE_WORDS, words[j]);
        if (VALUE_BITS > 0) {
            const ulong group = row_address(value_groups_begin, place, DV / VALUE_GROUP);
            scale[j] = float(value_scales[group]);
            bias[j] = float(value_biases[group]);
        }
    }
    for (int j = 0; j < VALUES_IN_FLIGHT; j++) {
        float value[VALUE_CHUNK];
        for (int i = 0; i < VALUE_CHUNK; i++) {
            value[i] = chunk_element<VALUE_FORMAT>(words[j], i);
        }
        const float offset =
            VALUE_BITS > 0 ? metal::fma(scale[j], -float(1 << VALUE_BITS), bias[j]) : 0.0f;
        for (int r = 0; r < ROWS; r++) {
            const float weight = shared[(first + j * 8 * VALUE_TOKENS) * STRIDE + r];
            const float scaled = VALUE_BITS > 0 ? weight * scale[j] : weight;
            if (VALUE_BITS > 0) {
                weighed_bias[r] = metal::fma(weight, offset, weighed_bias[r]);
            }
            for (int i = 0; i < VALUE_CHUNK; i++) {
                weighed[r][i] = metal::fma(scaled, value[i], weighed[r][i]);
            }
        }
    }
}

// Add up the streams of each simdgroup.
for (int r = 0; r < ROWS; r++) {
    for (int i = 0; i < VALUE_CHUNK; i++) {
        if (VALUE_BITS > 0) {
            weighed[r][i] += weighed_bias[r];
        }
        for (int distance = VALUE_LANES; distance < 32; distance *= 2) {
            weighed[r][i] += simd_shuffle_xor(weighed[r][i], ushort(distance));
        }
    }
}

// Add up the simdgroups, MERGED_ROWS rows at a time, in ascending order.
for (int batch = 0; batch < ROWS; batch += MERGED_ROWS) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane < VALUE_CHUNKS) {
        for (int r = batch; r < least(ROWS, batch + MERGED_ROWS); r++) {
            for (int i = 0; i < VALUE_CHUNK; i++) {
                shared[(simdgroup * MERGED_ROWS + r - batch) * DV + value_chunk * VALUE_CHUNK + i] =
                    weighed[r][i];
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint at = thread_index; at < MERGED_ROWS * DV; at += 256) {
        const uint r = first_row + batch + at / DV;
        float total = 0.0f;
        for (int s = 0; s < 8; s++) {
            if (batch + at / DV < ROWS) {
                total += shared[s * MERGED_ROWS * DV + at];
            }
        }
        if (batch + at / DV < ROWS && r < num_rows) {
            partial[((first_query + r) * partitions + partition) * DV + at % DV] = total;
        }
    }
}
