// Dropout and the addition of a residual, in one pass. A warp takes 1024 elements. Each lane makes one block of the random
// stream, which gives one bit for each of 32 elements. Then it gets the bits of the elements it loads from the lanes that made
// them. So loads are coalesced, and each block is made only once. With four elements a load, as for float:
//
//     lane                       0           1           ...   31
//     makes the bits of          0 - 31      32 - 63     ...   992 - 1023
//     loads in the first pass    0 - 3       4 - 7       ...   124 - 127       with the bits of lanes 0 to 3
//     in the second pass         128 - 131   132 - 135   ...   252 - 255       with the bits of lanes 4 to 7
//
// Launch of `keep_mask` and `dropout`: a block of 64 threads, which is two warps, for each 2,048 elements.
#include "common.cuh"
#include "philox.cuh"

constexpr int threads = 64;  // in a block, as in dropout.py

// Calls body(Count<n>, i, bits) for the n elements starting at i. Bit 0 says whether to keep the first of them, and so on. All
// warps of the grid together cover 0 to size - 1.
template <int count, typename Body>
__device__ void for_each_kept(const Keep& keep, long long size, Body body) {
    long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    long long lane = thread % warp_size, first = (thread - lane) * block_elements;
    unsigned int bits = keep_bits(keep, thread);
#pragma unroll
    for (int pass = 0; pass < block_elements / count; pass++) {
        int position = (pass * warp_size + lane) * count;  // of this lane's elements among the warp's
        unsigned int mine = __shfl_sync(all_lanes, bits, position / block_elements) >> (position % block_elements);
        if (first + position + count <= size)
            body(Count<count>(), first + position, mine);
        else
            for (long long i = first + position; i < size; i++, mine >>= 1) body(Count<1>(), i, mine);
    }
}

extern "C" __global__ void __launch_bounds__(threads, 1) keep_mask(
    bool* out, const Word* words, Word first, Word second, Word part, long long limit, long long size) {
    Keep keep = {key_of(words, first, second), part, static_cast<unsigned int>(limit)};
    for_each_kept<1>(keep, size, [=](auto, long long i, unsigned int bits) { out[i] = bits & 1u; });
}

__device__ inline float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double rounded_product(double a, double b) { return __dmul_rn(a, b); }

// x scaled if it is kept, else 0, plus the residual if there is one.
template <int count>
__device__ void drop(const Scalar* x, const Scalar* residual, Scalar* out, Accumulator scale, const Keep& keep, long long size) {
    for_each_kept<count>(keep, size, [=](auto number, long long i, unsigned int bits) {
        constexpr int n = decltype(number)::value;
        Pack<n> values = load<n>(x, i), others;
        if (residual) others = load<n>(residual, i);
        for (int k = 0; k < n; k++) {
            // For float and double the product is rounded before the sum, so that the bits are those of two separate passes.
            Accumulator value = bits >> k & 1u ? rounded_product(Accumulator(values[k]), scale) : Accumulator(0);
            values[k] = Scalar(residual ? value + Accumulator(others[k]) : value);
        }
        store(out, i, values);
    });
}

extern "C" __global__ void __launch_bounds__(threads, 1) dropout(
    const Scalar* x, const Scalar* residual, Scalar* out, Accumulator scale, const Word* words, Word first, Word second,
    Word part, long long limit, long long size) {
    Keep keep = {key_of(words, first, second), part, static_cast<unsigned int>(limit)};
    if (aligned(x, residual, out))
        drop<widest>(x, residual, out, scale, keep, size);
    else
        drop<1>(x, residual, out, scale, keep, size);
}

// The dropout mask of attention's weights in bits: (heads, tiles of queries, keys), words of a bit for each query of a tile.
//
// The mask has the order (heads, keys, queries), so a block of its stream is 32 neighbouring queries of one key. The words are
// in the order in which rows of scores are read. Unless it is null, heads[i] is the mask's head for head i of the scores. These
// are the words of one tile of one head, each a column:
//
//                  key 0    key 1    key 2    ...
//     query  0     bit 0    bit 0    bit 0             (queries are counted within the tile)
//     query  1     bit 1    bit 1    bit 1
//       ...
//     query 31     bit 31   bit 31   bit 31
//
// A warp that reads the row of query 5 loads neighbouring words and takes bit 5 of each.
//
// Launch: blocks of 64 threads, along x one for each tile of each head, and along y one for each 64 keys. A thread makes the
// word of one key. If the number of queries is no multiple of 32, this word may span two blocks of the stream, and the thread
// makes both.
extern "C" __global__ void __launch_bounds__(threads, 1) keep_bits_of_tiles(
    unsigned int* bits, const long long* heads, const Word* words, Word first, Word second, Word part, long long limit,
    long long tiles, long long keys, long long seen, long long first_head, long long first_query, long long all_queries,
    long long all_keys) {
    Keep keep = {key_of(words, first, second), part, static_cast<unsigned int>(limit)};
    long long key = static_cast<long long>(blockIdx.y) * blockDim.x + threadIdx.x;
    long long head = first_head + blockIdx.x / tiles, query = blockIdx.x % tiles * bit_tile;
    if (heads) head = heads[head];
    if (key < keys) {
        unsigned int word = 0;
        if (key < query + bit_tile - 1 + seen) {  // at least one of the queries sees it
            Word element = (head * all_keys + key) * all_queries + first_query + query;
            int shift = element % block_elements;
            word = keep_bits(keep, element / block_elements) >> shift;
            if (shift) word |= keep_bits(keep, element / block_elements + 1) << (block_elements - shift);
        }
        bits[blockIdx.x * keys + key] = word;
    }
}
