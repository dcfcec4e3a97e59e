// Attention's work between its products; kernels/numpy/attention.py has the formulas. The scores are (heads, queries, keys),
// and a warp takes a row of keys. Scores are Accumulators, as products sum them, and weights are Scalars. If both types are the
// same, they may share memory.
#include "common.cuh"
#include "philox.cuh"

constexpr int row_threads = 128;  // in a block, as in attention.py

struct Shape {
    long long rows, queries, keys;
    long long seen;  // query i sees the keys before i + seen; seen = keys: attention is not causal

    __device__ long long end(long long row) const { return max(0LL, min(keys, row % queries + seen)); }
};

// Calls body(Count<n>, i) for the n keys starting at i. The lanes of a warp together cover 0 to end - 1.
template <typename Body>
__device__ void for_each_key(long long end, bool in_packs, Body body) {
    if (in_packs)
        for (long long i = threadIdx.x * widest; i < end; i += warp_size * widest) body(Count<widest>(), i);
    else
        for (long long i = threadIdx.x; i < end; i += warp_size) body(Count<1>(), i);
}

__device__ inline Accumulator warp_max(Accumulator value) {
    for (int distance = warp_size / 2; distance > 0; distance /= 2)
        value = max(value, __shfl_xor_sync(all_lanes, value, distance));
    return value;
}

// ---------------------------------------------------------------------------------------------------------- dropout

// The words of a row, one for each key (see `keep_bits_of_tiles` in dropout.cu), and the position of the row's bit in them.
// Without dropout everything is kept.
struct Kept {
    const unsigned int* words;
    int position;

    __device__ Kept(const unsigned int* bits, const Shape& shape, long long row) {
        long long head = row / shape.queries, query = row % shape.queries, tiles = (shape.queries + bit_tile - 1) / bit_tile;
        words = bits ? bits + (head * tiles + query / bit_tile) * shape.keys : nullptr;
        position = query % bit_tile;
    }

    template <int count>
    __device__ unsigned int operator()(Count<count>, long long key) const {
        if (!words) return all_lanes;
        Pack<count, unsigned int> pack = load<count>(words, key);
        unsigned int kept = 0;
        for (int k = 0; k < count; k++) kept |= (pack[k] >> position & 1u) << k;
        return kept;
    }
};

// ---------------------------------------------------------------------------------------------------------- forward

// A mask or bias that broadcasts to the scores, or null. The steps, in elements, lead from a group of heads to the next, from a
// head of a group to the next, and so on.
template <typename Number>
struct Broadcast {
    const Number* start;
    long long heads_in_group, group_step, head_step, query_step, key_step;

    __device__ const Number* of_row(const Shape& shape, long long row) const {
        long long head = row / shape.queries;
        long long position = head / heads_in_group * group_step + head % heads_in_group * head_step;
        return start ? start + position + row % shape.queries * query_step : nullptr;
    }
};

// Writes the weights, softmax(scores * scale + bias), and the weights after dropout, each unless it is null. A first pass
// computes both the maximum and the sum of exponentials (Milakov and Gimelshein 2018). A row that sees no key has weights of 0.
//
// Launch: a block of (32, 4) threads for each four rows. Each of its warps takes a row, a query of a head, and its lanes take
// neighbouring packs of keys.
extern "C" __global__ void __launch_bounds__(row_threads, 1) softmax(
    const Accumulator* scores, Scalar* weights, Scalar* dropped, const unsigned int* bits, const Scalar* bias,
    long long bias_heads, long long bias_group_step, long long bias_head_step, long long bias_query_step,
    long long bias_key_step, const bool* mask, long long mask_heads, long long mask_group_step, long long mask_head_step,
    long long mask_query_step, long long mask_key_step, Accumulator scale, Accumulator keep_scale, long long rows,
    long long queries, long long keys, long long seen) {
    Shape shape = {rows, queries, keys, seen};
    bool in_packs = keys % widest == 0 && aligned(scores, weights, dropped, bits);
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row < rows) {
        long long end = shape.end(row);
        Broadcast<Scalar> biases = {bias, bias_heads, bias_group_step, bias_head_step, bias_query_step, bias_key_step};
        Broadcast<bool> masks = {mask, mask_heads, mask_group_step, mask_head_step, mask_query_step, mask_key_step};
        const Scalar* added = biases.of_row(shape, row);
        const bool* allowed = masks.of_row(shape, row);
        Kept kept(bits, shape, row);
        auto sees = [=](long long key) { return key < end && (!allowed || allowed[key * mask_key_step]); };
        // By fma, so that it rounds alike everywhere: the compiler would fuse a product with what follows.
        auto biased = [=](Accumulator score, long long key) {
            return fma(score, scale, added ? Accumulator(added[key * bias_key_step]) : Accumulator(0));
        };
        scores += row * keys;
        Accumulator largest = lowest, sum = 0;
        for_each_key(end, in_packs, [&](auto count, long long i) {
            constexpr int n = decltype(count)::value;
            Pack<n, Accumulator> values = load<n>(scores, i);
            Accumulator before = largest;
            unsigned int seen_ones = 0;
            for (int k = 0; k < n; k++) {
                if (!sees(i + k)) continue;
                seen_ones |= 1u << k;
                values[k] = biased(values[k], i + k);
                largest = max(largest, values[k]);
            }
            sum *= exp(before - largest);
            for (int k = 0; k < n; k++)
                if (seen_ones >> k & 1u) sum += exp(values[k] - largest);
        });
        Accumulator of_row = warp_max(largest);
        sum = warp_sum(sum * exp(largest - of_row));
        // 0 if no key is seen. If nothing hides keys and yet all scores are -inf, the weights are NaN.
        bool sees_none = sum == 0 && (added || allowed || end <= 0);
        Accumulator inverse = sees_none ? Accumulator(0) : Accumulator(1) / sum;
        for_each_key(keys, in_packs, [&](auto count, long long i) {
            constexpr int n = decltype(count)::value;
            Pack<n, Accumulator> values;
            Pack<n> undropped, left;
            if (i < end) values = load<n>(scores, i);
            unsigned int keeps = i < end && dropped ? kept(count, i) : 0;
            for (int k = 0; k < n; k++) {
                Accumulator weight = sees(i + k) ? exp(biased(values[k], i + k) - of_row) * inverse : Accumulator(0);
                undropped[k] = Scalar(weight);
                left[k] = Scalar(keeps >> k & 1u ? weight * keep_scale : Accumulator(0));
            }
            if (weights) store(weights, row * keys + i, undropped);
            if (dropped) store(dropped, row * keys + i, left);
        });
    }
}

// --------------------------------------------------------------------------------------------------------- backward

// Writes the gradient of the scores times `scale`, from the weights and the gradient of the weights after dropout. Also writes
// the weights after dropout to `dropped`, unless it is null.
//
// Launch: as for `softmax`, a warp for each row.
extern "C" __global__ void __launch_bounds__(row_threads, 1) softmax_backward(
    const Scalar* weights, const Accumulator* d_dropped, Scalar* d_scores, Scalar* dropped, const unsigned int* bits,
    Accumulator scale, Accumulator keep_scale, long long rows, long long queries, long long keys, long long seen) {
    Shape shape = {rows, queries, keys, seen};
    bool in_packs = keys % widest == 0 && aligned(weights, d_dropped, d_scores, dropped, bits);
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row < rows) {
        long long end = shape.end(row);
        Kept kept(bits, shape, row);
        weights += row * keys;
        d_dropped += row * keys;
        Accumulator total = 0;
        for_each_key(end, in_packs, [&](auto count, long long i) {
            constexpr int n = decltype(count)::value;
            Pack<n> undropped = load<n>(weights, i);
            Pack<n, Accumulator> gradients = load<n>(d_dropped, i);
            unsigned int keeps = kept(count, i);
            for (int k = 0; k < n; k++)
                if (keeps >> k & 1u && i + k < end) total += Accumulator(undropped[k]) * gradients[k] * keep_scale;
        });
        total = warp_sum(total);
        for_each_key(keys, in_packs, [&](auto count, long long i) {
            constexpr int n = decltype(count)::value;
            Pack<n> undropped, left, out;
            Pack<n, Accumulator> gradients;
            unsigned int keeps = 0;
            if (i < end) {
                undropped = load<n>(weights, i);
                gradients = load<n>(d_dropped, i);
                keeps = kept(count, i);
            }
            for (int k = 0; k < n; k++) {
                Accumulator weight = i + k < end ? Accumulator(undropped[k]) : Accumulator(0);
                Accumulator gradient = i + k < end && keeps >> k & 1u ? gradients[k] * keep_scale : Accumulator(0);
                out[k] = Scalar(weight * (gradient - total) * scale);
                left[k] = Scalar(keeps >> k & 1u ? weight * keep_scale : Accumulator(0));
            }
            store(d_scores, row * keys + i, out);
            if (dropped) store(dropped, row * keys + i, left);
        });
    }
}
