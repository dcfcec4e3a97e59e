// Attention that never stores its scores (Dao et al. 2022; Dao 2023, "FlashAttention-2", here FA2). Each kernel computes the
// scores of a few rows at a time, in registers, and uses them immediately. Products are bfloat16, and sums float.
//
// The forward kernel saves log-sum-exp of each query's scores, from which the backward kernels recompute the weights. It is in
// base 2, with factor = scale * log2(e): then a weight, exp(score * scale) / sum = exp2(score * factor - log_sum), takes a
// multiply-add and one instruction for exp2.
//
// Queries, keys, values, the output and the gradients are heads of any array with even steps between rows, so they are read and
// written as linear layers store them. Compiled for each Width of a head, and with Masked 0 or 1: without a mask, only tiles at
// causality's edge and at the end of the keys are checked score by score.
#include "tiles.cuh"
#include "philox.cuh"

constexpr int warps = 4, threads = warps * warp_size;  // in a block, as in flash_attention.py
constexpr int warp_rows = 16;                          // the rows of a left operand
constexpr int block_rows = warps * warp_rows;          // queries or keys of a block, as in flash_attention.py
constexpr int tile_rows = Width <= 64 ? 64 : 32;       // rows of a tile: four tiles are at most 32 KiB

// Blocks that share a multiprocessor and its registers: while one waits, others work. tests/cuda checks that registers suffice
// and nothing is spilled to slow memory.
constexpr int blocks_at_once = Width <= 64 ? 3 : 1;

using HeadTile = Tile<tile_rows, Width>;

struct Shape {
    int heads, queries, keys;
    int seen;  // query i sees the keys before i + seen; seen = keys: attention is not causal

    __device__ Shape(long long heads, long long queries, long long keys, long long seen)
        : heads(static_cast<int>(heads)), queries(static_cast<int>(queries)), keys(static_cast<int>(keys)),
          seen(static_cast<int>(seen)) {}

    __device__ int end(int query) const { return min(keys, query + seen); }
    __device__ int padded_queries() const { return (queries + block_rows - 1) / block_rows * block_rows; }
    __device__ int padded_keys() const { return (keys + block_rows - 1) / block_rows * block_rows; }

    // The index of a query of that matrix in log_sums and deltas.
    __device__ long long position(long long matrix, int query) const { return matrix * padded_queries() + query; }
};

// ---------------------------------------------------------------------------------------------------- rows of a head

// The rows of one head of one sequence, number `matrix` of all. Element is Scalar, or const Scalar for rows that are only read.
template <typename Element>
struct Rows {
    Element* start;
    long long step;
    int count;

    __device__ Rows(Element* array, long long batch_step, long long head_step, long long row_step, int count,
                    const Shape& shape, int matrix)
        : start(array + matrix / shape.heads * batch_step + matrix % shape.heads * head_step), step(row_step), count(count) {}

    __device__ Element* at(int row, int column) const { return start + row * step + column; }
};

// Starts to copy rows, beginning at `first`, to a tile. The threads of the block share the work. Missing rows are zeros.
__device__ inline void start_copy(HeadTile& tile, const Rows<const Scalar>& rows, int first) {
    constexpr int rows_at_once = threads / HeadTile::chunks;
    int chunk = threadIdx.x % HeadTile::chunks;
    int left = rows.count - first;
    const Scalar* from = rows.at(first + threadIdx.x / HeadTile::chunks, chunk * chunk_elements);
    for (int row = threadIdx.x / HeadTile::chunks; row < tile_rows; row += rows_at_once, from += rows_at_once * rows.step)
        start_copy(tile.chunk(row, chunk), from, row < left);
}

// The 16 rows of a warp, as left operands.
struct LeftRows {
    Left parts[Width / 16];
};

__device__ inline LeftRows load_rows(const Rows<const Scalar>& rows, int first) {
    LeftRows left;
#pragma unroll
    for (int k = 0; k < Width / 16; k++)
        for (int i = 0; i < 4; i++) {  // upper left, lower left, upper right, lower right
            int row = first + lane_row() + i % 2 * 8;
            int column = k * 16 + i / 2 * 8 + lane_column();
            left.parts[k].pairs[i] = row < rows.count ? *reinterpret_cast<const Pair*>(rows.at(row, column)) : 0;
        }
    return left;
}

// Writes 16 rows, beginning at `first`: sums, each row times its factor.
__device__ inline void store_rows(const Rows<Scalar>& rows, int first, const Sums (&sums)[Width / 8],
                                  const float (&factors)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + row_of(2 * half);
        if (row >= rows.count) continue;
#pragma unroll
        for (int n = 0; n < Width / 8; n++) {
            const float* two = sums[n].values + 2 * half;
            *reinterpret_cast<Pair*>(rows.at(row, n * 8 + lane_column())) =
                rounded_pair(two[0] * factors[half], two[1] * factors[half]);
        }
    }
}

// sums (16 x 16) += left (16 x Width) rowsᵀ, for the tile's 16 rows beginning at `first`.
__device__ inline void add_scores(Sums (&sums)[2], const LeftRows& left, HeadTile& tile, int first) {
    SharedAddress parts = transposed_parts(tile, first);
#pragma unroll
    for (int k = 0; k < Width / 16; k++) {
        Right right[2];
        load_part<true>(right, parts, k);
        add_product(sums[0], left.parts[k], right[0]);
        add_product(sums[1], left.parts[k], right[1]);
    }
}

// sums (16 x Width) += left (16 x 16) rows, for the tile's 16 rows beginning at `first`.
__device__ inline void add_mixture(Sums (&sums)[Width / 8], const Left& left, HeadTile& tile, int first) {
    SharedAddress parts = stored_parts(tile, first);
#pragma unroll
    for (int n = 0; n < Width / 16; n++) {
        Right right[2];
        load_part<false>(right, parts, n);
        add_product(sums[2 * n], left, right[0]);
        add_product(sums[2 * n + 1], left, right[1]);
    }
}

// Calls body(element, row, column, bit) for this lane's elements of a 16 x 16 matrix; bit counts them from 0 to 7.
template <typename Body>
__device__ void for_each_element(Sums (&halves)[2], Body body) {
#pragma unroll
    for (int bit = 0; bit < 8; bit++)
        body(halves[bit / 4].values[bit % 4], row_of(bit % 4), bit / 4 * 8 + column_of(bit % 4), bit);
}

__device__ inline float infinity() { return __uint_as_float(0x7f800000u); }

// ------------------------------------------------------------------------------------------------------------- masks

// A boolean mask of one head, true if the query may see the key; unused unless Masked. Missing queries and keys are like the
// last ones.
struct Mask {
    const bool* start;
    long long query_step, key_step;
    int last_query, last_key;

    __device__ Mask(const bool* mask, long long batch_step, long long head_step, long long query_step, long long key_step,
                    const Shape& shape, int matrix)
        : start(mask + matrix / shape.heads * batch_step + matrix % shape.heads * head_step), query_step(query_step),
          key_step(key_step), last_query(shape.queries - 1), last_key(shape.keys - 1) {}

    __device__ bool operator()(int query, int key) const {
        return !Masked || start[min(query, last_query) * query_step + min(key, last_key) * key_step];
    }
};

// ----------------------------------------------------------------------------------------------------------- dropout

// A bit for each weight that is set if dropout keeps it, see `keep_bits_of_tiles` in dropout.cu. A null pointer keeps
// everything. The words are padded to whole blocks of queries and keys. `of_...` gives the bits of this lane's elements of a 16
// x 16 matrix, in the order of `for_each_element`.
struct Kept {
    const unsigned int* words;
    int keys;  // of a row of words

    __device__ Kept(const unsigned int* bits, const Shape& shape, long long matrix)
        : words(bits ? bits + matrix * (shape.padded_queries() / bit_tile) * shape.padded_keys() : nullptr),
          keys(shape.padded_keys()) {}

    // Rows are queries beginning at `query`, and columns keys beginning at `key`.
    __device__ unsigned int of_queries(int query, int key) const {
        if (!words) return all_lanes;
        long long row = static_cast<long long>(query / bit_tile) * keys;
        int position = query % bit_tile + lane_row();
        unsigned int kept = 0;
        for (int n = 0; n < 2; n++) {
            Pack<2, unsigned int> two = load<2>(words, row + key + n * 8 + lane_column());
            for (int i = 0; i < 4; i++) kept |= (two[i % 2] >> (position + i / 2 * 8) & 1u) << (4 * n + i);
        }
        return kept;
    }

    // Rows are keys, and columns queries.
    __device__ unsigned int of_keys(int key, int query) const {
        if (!words) return all_lanes;
        long long row = static_cast<long long>(query / bit_tile) * keys;
        int position = query % bit_tile + lane_column();
        unsigned int kept = 0;
        for (int half = 0; half < 2; half++) {
            unsigned int word = words[row + key + half * 8 + lane_row()];
            for (int n = 0; n < 2; n++) kept |= (word >> (position + n * 8) & 3u) << (4 * n + 2 * half);
        }
        return kept;
    }
};

// ----------------------------------------------------------------------------------------------------------- forward

// The softmax of rows whose scores come a few at a time (Milakov and Gimelshein 2018, algorithm 3; FA2, section 3.1.1). A lane
// has two rows of its warp's 16, and shares each with three other lanes.
struct OnlineSoftmax {
    float largest[2] = {lowest, lowest};  // of the scores
    float sum[2] = {0, 0};  // of exp(score - largest), over this lane's keys only

    // Turns scores into weights, not yet divided by the sum, and rescales the sums and `out` to the new maximum.
    __device__ void take(Sums (&scores)[tile_rows / 16][2], Sums (&out)[Width / 8], float factor) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float before = largest[half];
            for_each_score(scores, half, [&](float& score) { largest[half] = max(largest[half], score); });
            largest[half] = over_warp(largest[half], [](float a, float b) { return max(a, b); }, 4);
            float shift = largest[half] > lowest ? largest[half] * factor : 0;  // 0: no key seen yet
            float correction = exp2f((before - largest[half]) * factor);
            sum[half] *= correction;
            for_each_score(scores, half, [&](float& score) { sum[half] += score = exp2f(fmaf(score, factor, -shift)); });
#pragma unroll
            for (int n = 0; n < Width / 8; n++)
                for (int i = 2 * half; i < 2 * half + 2; i++) out[n].values[i] *= correction;
        }
    }

    // Calls body(score) for the lane's scores of one of its two rows.
    template <typename Body>
    __device__ static void for_each_score(Sums (&scores)[tile_rows / 16][2], int half, Body body) {
#pragma unroll
        for (int n = 0; n < tile_rows / 8; n++)
            for (int i = 2 * half; i < 2 * half + 2; i++) body(scores[n / 2][n % 2].values[i]);
    }
};

// The output, by algorithm 1 of FA2. Launch: 128 threads; a block for each 64 queries of each head of each sequence. With
// causality, late queries see most, so blocks with the last queries come first.
//
//                        keys 0 to 63 | 64 to 127 | ...
//     warp 0: queries 0 to 15    --->      --->            A warp owns 16 queries, holds them in registers, and makes their
//     warp 1: queries 16 to 31   --->      --->            rows of the output (FA2, section 3.3). All warps go through the keys
//     warp 2: queries 32 to 47   --->      --->            and values together, tile by tile. While they work on a tile, the
//     warp 3: queries 48 to 63   --->      --->            next one is being copied.
//
// log_sums is (heads of all sequences, queries padded to whole blocks): L of the paper, but in base 2. Missing queries
// are zeros, and their rows of the output are computed but not written.
extern "C" __global__ void __launch_bounds__(threads, blocks_at_once) flash_forward(
    const Scalar* query, long long query_batch, long long query_head, long long query_row,
    const Scalar* key, long long key_batch, long long key_head, long long key_row,
    const Scalar* value, long long value_batch, long long value_head, long long value_row,
    Scalar* out, long long out_batch, long long out_head, long long out_row,
    float* log_sums, const unsigned int* bits,
    const bool* mask, long long mask_batch, long long mask_head, long long mask_query, long long mask_key,
    Accumulator factor, Accumulator keep_scale,
    long long heads, long long queries, long long keys, long long seen) {
    Shape shape(heads, queries, keys, seen);
    int blocks = shape.padded_queries() / block_rows, matrices = gridDim.x / blocks, matrix = blockIdx.x % matrices;
    int first_query = (blocks - 1 - blockIdx.x / matrices) * block_rows;
    int own_query = first_query + threadIdx.x / warp_size * warp_rows;  // the first of this warp
    Rows query_rows(query, query_batch, query_head, query_row, shape.queries, shape, matrix);
    Rows key_rows(key, key_batch, key_head, key_row, shape.keys, shape, matrix);
    Rows value_rows(value, value_batch, value_head, value_row, shape.keys, shape, matrix);
    Kept kept(bits, shape, matrix);
    Mask sees(mask, mask_batch, mask_head, mask_query, mask_key, shape, matrix);
    int end = shape.end(first_query + block_rows - 1);  // of the keys that any query of the block sees

    __shared__ HeadTile key_tiles[2], value_tiles[2];
    auto start_copies = [&](int stage, int first) {
        start_copy(key_tiles[stage], key_rows, first);
        start_copy(value_tiles[stage], value_rows, first);
    };
    if (end > 0) start_copies(0, 0);
    LeftRows own_queries = load_rows(query_rows, own_query);
    OnlineSoftmax softmax;
    Sums mixture[Width / 8] = {};
    for (int first_key = 0; first_key < end; first_key += tile_rows) {
        int stage = first_key / tile_rows % 2;
        wait_for_own_copies();
        __syncthreads();  // this tile is complete, and nobody reads the last one any more
        if (first_key + tile_rows < end) start_copies(1 - stage, first_key + tile_rows);
        Sums scores[tile_rows / 16][2] = {};  // S = Q Kᵀ, not scaled
#pragma unroll
        for (int part = 0; part < tile_rows / 16; part++) add_scores(scores[part], own_queries, key_tiles[stage], 16 * part);
        if (Masked || first_key + tile_rows > shape.end(own_query)) {  // some query of the warp may not see all of it
            int ends[2] = {shape.end(own_query + row_of(0)) - first_key, shape.end(own_query + row_of(2)) - first_key};
#pragma unroll
            for (int part = 0; part < tile_rows / 16; part++)
                for_each_element(scores[part], [&](float& score, int row, int column, int bit) {
                    int key = 16 * part + column;
                    if (key >= ends[bit % 4 / 2] || !sees(own_query + row, first_key + key)) score = -infinity();
                });
        }
        softmax.take(scores, mixture, factor);  // P, not yet divided by its sums
#pragma unroll
        for (int part = 0; part < tile_rows / 16; part++) {
            if (bits) {
                unsigned int keeps = kept.of_queries(own_query, first_key + 16 * part);
                for_each_element(scores[part], [&](float& weight, int, int, int bit) {
                    if (!(keeps >> bit & 1u)) weight = 0;
                });
            }
            add_mixture(mixture, rounded_left(scores[part][0], scores[part][1]), value_tiles[stage], 16 * part);  // O += P V
        }
    }
    float factors[2];
    for (int half = 0; half < 2; half++) {
        float sum = warp_sum(softmax.sum[half], 4);
        factors[half] = sum == 0 ? 0 : keep_scale / sum;  // 0 if no key is seen
        if (lane_column() == 0)
            log_sums[shape.position(matrix, own_query) + row_of(2 * half)] = fmaf(softmax.largest[half], factor, log2f(sum));
    }
    store_rows(Rows(out, out_batch, out_head, out_row, shape.queries, shape, matrix), own_query, mixture, factors);
}

// ---------------------------------------------------------------------------------------------------------- backward

// Algorithm 2 of FA2 is two kernels here, so that no gradient is added up by several blocks: one warp computes each row, in the
// same order every time. Both recompute the weights, P = exp2(score * factor - log_sum), and with dP = g valueᵀ the gradient of
// the scores, dS = P (dP - delta), where delta = rowsum(g out) (FA2, section 3.1.2: D).
//
// With dropout, dP is masked and multiplied by keep_scale. The output includes dropout, so delta does, too.

struct OfQuery {
    float log_sum, delta;
};

// Turns scores and the gradient of their weights, of one 16 x 16 matrix, into weights after dropout (without keep_scale) and dS
// (without the scale). find(column, bit) gives the values of an element's query, and is_seen(row, column, bit) tells whether
// the query sees the key.
template <typename Find, typename IsSeen>
__device__ void to_weights_and_gradients(Sums (&scores)[2], Sums (&gradients)[2], unsigned int keeps, float factor,
                                         float keep_scale, Find find, IsSeen is_seen) {
    for_each_element(scores, [&](float& score, int row, int column, int bit) {
        float& gradient = gradients[bit / 4].values[bit % 4];
        OfQuery of_query = find(column, bit);
        float weight = is_seen(row, column, bit) ? exp2f(fmaf(score, factor, -of_query.log_sum)) : 0;
        bool is_kept = keeps >> bit & 1u;
        gradient = weight * ((is_kept ? gradient * keep_scale : 0) - of_query.delta);
        score = is_kept ? weight : 0;
    });
}

// The gradient of the queries: dQ = scale dS K. Launch: as flash_forward. Also writes delta, in the layout of log_sums. If
// d_query is null, it writes only delta.
extern "C" __global__ void __launch_bounds__(threads, blocks_at_once) flash_backward_queries(
    const Scalar* query, long long query_batch, long long query_head, long long query_row,
    const Scalar* key, long long key_batch, long long key_head, long long key_row,
    const Scalar* value, long long value_batch, long long value_head, long long value_row,
    const Scalar* out, long long out_batch, long long out_head, long long out_row,
    const Scalar* g, long long g_batch, long long g_head, long long g_row,
    Scalar* d_query, long long d_query_batch, long long d_query_head, long long d_query_row,
    const float* log_sums, float* deltas, const unsigned int* bits,
    const bool* mask, long long mask_batch, long long mask_head, long long mask_query, long long mask_key,
    Accumulator factor, Accumulator scale, Accumulator keep_scale,
    long long heads, long long queries, long long keys, long long seen) {
    Shape shape(heads, queries, keys, seen);
    int blocks = shape.padded_queries() / block_rows, matrices = gridDim.x / blocks, matrix = blockIdx.x % matrices;
    int first_query = (blocks - 1 - blockIdx.x / matrices) * block_rows;
    int own_query = first_query + threadIdx.x / warp_size * warp_rows;
    Rows key_rows(key, key_batch, key_head, key_row, shape.keys, shape, matrix);
    Rows value_rows(value, value_batch, value_head, value_row, shape.keys, shape, matrix);
    Kept kept(bits, shape, matrix);
    Mask sees(mask, mask_batch, mask_head, mask_query, mask_key, shape, matrix);

    LeftRows own_g = load_rows(Rows(g, g_batch, g_head, g_row, shape.queries, shape, matrix), own_query);
    OfQuery of_own[2];  // of this lane's two queries
    {
        LeftRows own_out = load_rows(Rows(out, out_batch, out_head, out_row, shape.queries, shape, matrix), own_query);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = 0;
#pragma unroll
            for (int n = 0; n < Width / 8; n++) {
                Pair of_g = own_g.parts[n / 2].pairs[n % 2 * 2 + half], of_out = own_out.parts[n / 2].pairs[n % 2 * 2 + half];
                sum += first_of(of_g) * first_of(of_out) + second_of(of_g) * second_of(of_out);
            }
            long long position = shape.position(matrix, own_query) + row_of(2 * half);
            of_own[half] = {log_sums[position], warp_sum(sum, 4)};
            if (lane_column() == 0) deltas[position] = of_own[half].delta;
        }
    }
    if (d_query) {
        int end = shape.end(first_query + block_rows - 1);
        __shared__ HeadTile key_tiles[2], value_tiles[2];
        auto start_copies = [&](int stage, int first) {
            start_copy(key_tiles[stage], key_rows, first);
            start_copy(value_tiles[stage], value_rows, first);
        };
        if (end > 0) start_copies(0, 0);
        Rows query_rows(query, query_batch, query_head, query_row, shape.queries, shape, matrix);
        LeftRows own_queries = load_rows(query_rows, own_query);
        Sums gradient[Width / 8] = {};
        for (int first_key = 0; first_key < end; first_key += tile_rows) {
            int stage = first_key / tile_rows % 2;
            wait_for_own_copies();
            __syncthreads();
            if (first_key + tile_rows < end) start_copies(1 - stage, first_key + tile_rows);
            int ends[2] = {shape.end(own_query + row_of(0)) - first_key, shape.end(own_query + row_of(2)) - first_key};
            int last_end = shape.end(own_query + warp_rows - 1) - first_key;
#pragma unroll 1
            for (int part = 0; part < tile_rows / 16 && 16 * part < last_end; part++) {
                unsigned int keeps = kept.of_queries(own_query, first_key + 16 * part);
                Sums scores[2] = {}, gradients[2] = {};
                add_scores(scores, own_queries, key_tiles[stage], 16 * part);
                add_scores(gradients, own_g, value_tiles[stage], 16 * part);
                to_weights_and_gradients(
                    scores, gradients, keeps, factor, keep_scale, [&](int, int bit) { return of_own[bit % 4 / 2]; },
                    [&](int row, int column, int bit) {
                        int key = 16 * part + column;
                        return key < ends[bit % 4 / 2] && sees(own_query + row, first_key + key);
                    });
                add_mixture(gradient, rounded_left(gradients[0], gradients[1]), key_tiles[stage], 16 * part);  // dQ += dS K
            }
        }
        Rows rows(d_query, d_query_batch, d_query_head, d_query_row, shape.queries, shape, matrix);
        store_rows(rows, own_query, gradient, {scale, scale});
    }
}

// The gradients of the keys and values: dK = scale dSᵀ Q and dV = Pᵀ g. Launch: 128 threads; a block for each 64 keys of each
// head of each sequence. Most queries see the first keys, so their blocks come first. A warp owns 16 keys, and holds them and
// their values in registers. It computes the scores transposed, a row for each key: Pᵀ and dSᵀ are then the left operands of
// the next products. All warps go through the queries and the gradients of the output together. A null d_key or d_value is left
// out.
extern "C" __global__ void __launch_bounds__(threads, blocks_at_once) flash_backward_keys(
    const Scalar* query, long long query_batch, long long query_head, long long query_row,
    const Scalar* key, long long key_batch, long long key_head, long long key_row,
    const Scalar* value, long long value_batch, long long value_head, long long value_row,
    const Scalar* g, long long g_batch, long long g_head, long long g_row,
    Scalar* d_key, long long d_key_batch, long long d_key_head, long long d_key_row,
    Scalar* d_value, long long d_value_batch, long long d_value_head, long long d_value_row,
    const float* log_sums, const float* deltas, const unsigned int* bits,
    const bool* mask, long long mask_batch, long long mask_head, long long mask_query, long long mask_key,
    Accumulator factor, Accumulator scale, Accumulator keep_scale,
    long long heads, long long queries, long long keys, long long seen) {
    Shape shape(heads, queries, keys, seen);
    int matrices = gridDim.x / (shape.padded_keys() / block_rows), matrix = blockIdx.x % matrices;
    int first_key = blockIdx.x / matrices * block_rows;
    int own_key = first_key + threadIdx.x / warp_size * warp_rows;  // the first of this warp
    Rows query_rows(query, query_batch, query_head, query_row, shape.queries, shape, matrix);
    Rows g_rows(g, g_batch, g_head, g_row, shape.queries, shape, matrix);
    Kept kept(bits, shape, matrix);
    Mask sees(mask, mask_batch, mask_head, mask_query, mask_key, shape, matrix);
    log_sums += shape.position(matrix, 0);
    deltas += shape.position(matrix, 0);

    __shared__ HeadTile query_tiles[2], g_tiles[2];
    alignas(16) __shared__ float tile_log_sums[2][tile_rows], tile_deltas[2][tile_rows];
    auto start_copies = [&](int stage, int first) {
        start_copy(query_tiles[stage], query_rows, first);
        start_copy(g_tiles[stage], g_rows, first);
        int four = 4 * threadIdx.x;  // floats in 16 bytes
        if (four < tile_rows) {
            start_copy(shared_address(tile_log_sums[stage] + four), log_sums + first + four);
            start_copy(shared_address(tile_deltas[stage] + four), deltas + first + four);
        }
    };
    LeftRows own_keys = load_rows(Rows(key, key_batch, key_head, key_row, shape.keys, shape, matrix), own_key);
    LeftRows own_values = load_rows(Rows(value, value_batch, value_head, value_row, shape.keys, shape, matrix), own_key);
    Sums of_keys[Width / 8] = {}, of_values[Width / 8] = {};
    // The first query that sees the block's first key, rounded down to a tile.
    int start = max(0, first_key + 1 - shape.seen) / tile_rows * tile_rows;
    if (start < shape.queries) start_copies(start / tile_rows % 2, start);
    for (int first_query = start; first_query < shape.queries; first_query += tile_rows) {
        int stage = first_query / tile_rows % 2;
        wait_for_own_copies();
        __syncthreads();
        if (first_query + tile_rows < shape.queries) start_copies(1 - stage, first_query + tile_rows);
        int behind = own_key - first_query - shape.seen;  // query j of the tile sees key i of the warp if behind + i < j
#pragma unroll 1
        for (int part = max(0, behind + 1) / 16; part < tile_rows / 16; part++) {  // from the first that sees any key
            unsigned int keeps = kept.of_keys(own_key, first_query + 16 * part);
            Sums scores[2] = {}, gradients[2] = {};
            add_scores(scores, own_keys, query_tiles[stage], 16 * part);
            add_scores(gradients, own_values, g_tiles[stage], 16 * part);
            to_weights_and_gradients(
                scores, gradients, keeps, factor, keep_scale,
                [&](int column, int) {
                    return OfQuery{tile_log_sums[stage][16 * part + column], tile_deltas[stage][16 * part + column]};
                },
                [&](int row, int column, int) {
                    int query = 16 * part + column;
                    return behind + row < query && sees(first_query + query, own_key + row);
                });
            add_mixture(of_values, rounded_left(scores[0], scores[1]), g_tiles[stage], 16 * part);  // dV += Pᵀ g
            add_mixture(of_keys, rounded_left(gradients[0], gradients[1]), query_tiles[stage], 16 * part);  // dK += dSᵀ Q
        }
    }
    if (d_key) {
        Rows rows(d_key, d_key_batch, d_key_head, d_key_row, shape.keys, shape, matrix);
        store_rows(rows, own_key, of_keys, {scale, scale});
    }
    if (d_value) {
        Rows rows(d_value, d_value_batch, d_value_head, d_value_row, shape.keys, shape, matrix);
        store_rows(rows, own_key, of_values, {keep_scale, keep_scale});
    }
}
