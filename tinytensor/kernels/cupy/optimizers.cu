// Optimizer steps and gradient norms over lists of arrays; kernels/numpy/optimizers.py has the formulas.
//
// `addresses` (lists, arrays) holds the address of each array of each list, null for an empty list. `chunks` (count, 3) cuts
// the arrays into chunks of about equal size; each row is a chunk's array, first element and size. A block takes one chunk at a
// time, so blocks have equal work for arrays of any size.
//
// Launch of all kernels but `root_of_sum`: a block of 256 threads for each chunk of up to 4,096 elements. There are at most
// 65,536 blocks, and 1,024 in `sum_squares`. With more chunks, block b continues with chunks b + gridDim.x, b + 2 gridDim.x and
// so on. The threads of a block share its chunk: each takes every 256th pack.
#include "common.cuh"

constexpr int threads = 256;

struct Chunk {
    long long array, first, size;

    // The chunk's array of one of the lists. The compiler assumes global memory only for the kernel's arguments, so it is told
    // here. This holds for null, too.
    template <typename Element>
    __device__ Element* of(const unsigned long long* addresses, long long arrays, int list) const {
        Element* start = reinterpret_cast<Element*>(addresses[list * arrays + array]);
        __builtin_assume(__isGlobal(start));
        return start;
    }

    // Calls body(Count<n>, i) for the n elements of the array starting at i. The block's threads together cover the chunk.
    template <typename Body>
    __device__ void for_each_pack(bool are_aligned, Body body) const {
        ::for_each_pack(size, are_aligned, threadIdx.x, threads, [=](auto number, long long i) { body(number, first + i); });
    }
};

// Calls body(chunk) for each chunk of this block.
template <typename Body>
__device__ void for_each_chunk(const long long* chunks, long long count, Body body) {
    for (long long i = blockIdx.x; i < count; i += gridDim.x) body(Chunk{chunks[3 * i], chunks[3 * i + 1], chunks[3 * i + 2]});
}

__device__ Scalar scaled(Scalar value, double factor) { return Scalar(Accumulator(Accumulator(value) * factor)); }

// ------------------------------------------------------------------------------------------------------------ steps

// The values that a step changes: the masters' where they still round to the parameters, else the parameters'.
template <int n>
__device__ Pack<n, Accumulator> current(const Pack<n>& parameters, const Accumulator* master, long long i) {
    Pack<n, Accumulator> values;
    for (int k = 0; k < n; k++) values[k] = Accumulator(parameters[k]);
    if (master) {
        Pack<n, Accumulator> masters = load<n>(master, i);
        for (int k = 0; k < n; k++)
            if (Accumulator(Scalar(masters[k])) == values[k]) values[k] = masters[k];
    }
    return values;
}

template <int n>
__device__ void keep(const Pack<n, Accumulator>& values, Scalar* parameter, Accumulator* master, long long i) {
    Pack<n> rounded;
    for (int k = 0; k < n; k++) rounded[k] = Scalar(values[k]);
    store(parameter, i, rounded);
    if (master) store(master, i, values);
}

// The lists are parameters, gradients, first moments, second moments and masters. The gradients are multiplied by
// `gradient_scale`, a number on the GPU, or null for 1. `shrink` is the factor of the decoupled decay. `decay` times the
// parameter is added to the gradient. `rest1` and `rest2` are 1 - beta. `widening` and `rate` include the bias corrections. For
// a captured step these nine numbers are in memory at `factors`, which is null otherwise.
extern "C" __global__ void __launch_bounds__(threads, 1) adam_step(
    const unsigned long long* addresses, const long long* chunks, long long arrays, long long count,
    const double* gradient_scale, const Accumulator* factors, Accumulator shrink, Accumulator decay, Accumulator beta1,
    Accumulator rest1, Accumulator beta2, Accumulator rest2, Accumulator widening, Accumulator eps, Accumulator rate) {
    double scale = gradient_scale ? *gradient_scale : 1.0;  // a float may be too small for it
    if (factors) {
        shrink = factors[0], decay = factors[1], beta1 = factors[2], rest1 = factors[3], beta2 = factors[4];
        rest2 = factors[5], widening = factors[6], eps = factors[7], rate = factors[8];
    }
    for_each_chunk(chunks, count, [=](const Chunk& chunk) {
        Scalar* parameter = chunk.of<Scalar>(addresses, arrays, 0);
        const Scalar* gradient = chunk.of<Scalar>(addresses, arrays, 1);
        Accumulator* first = chunk.of<Accumulator>(addresses, arrays, 2);
        Accumulator* second = chunk.of<Accumulator>(addresses, arrays, 3);
        Accumulator* master = chunk.of<Accumulator>(addresses, arrays, 4);
        bool in_packs = aligned(parameter, gradient, first, second, master);
        chunk.for_each_pack(in_packs, [=](auto number, long long i) {
            constexpr int n = decltype(number)::value;
            Pack<n> gradients = load<n>(gradient, i);
            Pack<n, Accumulator> firsts = load<n>(first, i), seconds = load<n>(second, i);
            Pack<n, Accumulator> values = current(load<n>(parameter, i), master, i);
            for (int k = 0; k < n; k++) {
                // Rounded to the gradient's type, as if scale_all had written it.
                Accumulator g = Accumulator(scaled(gradients[k], scale)), p = values[k] * shrink;
                if (decay != 0) g += p * decay;
                firsts[k] = firsts[k] * beta1 + g * rest1;
                seconds[k] = seconds[k] * beta2 + g * g * rest2;
                values[k] = p - firsts[k] / (sqrt(seconds[k]) * widening + eps) * rate;
            }
            store(first, i, firsts);
            store(second, i, seconds);
            keep(values, parameter, master, i);
        });
    });
}

// The lists are parameters, gradients, velocities and masters. Without momentum there are no velocities. The first step writes
// them without reading. `fresh` is 1 - dampening.
extern "C" __global__ void __launch_bounds__(threads, 1) sgd_step(
    const unsigned long long* addresses, const long long* chunks, long long arrays, long long count, long long is_first,
    Accumulator rate, Accumulator momentum, Accumulator fresh, long long nesterov, Accumulator decay) {
    for_each_chunk(chunks, count, [=](const Chunk& chunk) {
        Scalar* parameter = chunk.of<Scalar>(addresses, arrays, 0);
        const Scalar* gradient = chunk.of<Scalar>(addresses, arrays, 1);
        Accumulator* velocity = chunk.of<Accumulator>(addresses, arrays, 2);
        Accumulator* master = chunk.of<Accumulator>(addresses, arrays, 3);
        bool in_packs = aligned(parameter, gradient, velocity, master);
        chunk.for_each_pack(in_packs, [=](auto number, long long i) {
            constexpr int n = decltype(number)::value;
            Pack<n> gradients = load<n>(gradient, i);
            Pack<n, Accumulator> values = current(load<n>(parameter, i), master, i), steps, velocities;
            for (int k = 0; k < n; k++) {
                steps[k] = Accumulator(gradients[k]);
                if (decay != 0) steps[k] += values[k] * decay;
            }
            if (velocity) {
                if (!is_first) velocities = load<n>(velocity, i);
                for (int k = 0; k < n; k++) {
                    velocities[k] = is_first ? steps[k] : velocities[k] * momentum + steps[k] * fresh;
                    steps[k] = nesterov ? steps[k] + velocities[k] * momentum : velocities[k];
                }
                store(velocity, i, velocities);
            }
            for (int k = 0; k < n; k++) values[k] -= steps[k] * rate;
            keep(values, parameter, master, i);
        });
    });
}

// ---------------------------------------------------------------------------------------------------- norm and scale
// The norm in two stages, always in the same order: each block sums the squares of its chunks, then one block adds up the sums.
// In double neither squares of floats nor their sums overflow or vanish.

// The sum over the block, with the same bits in each thread. All threads must call it, and only once in a kernel.
__device__ double block_sum(double value) {
    __shared__ double of_warps[threads / warp_size];
    value = warp_sum(value);
    if (threadIdx.x % warp_size == 0) of_warps[threadIdx.x / warp_size] = value;
    __syncthreads();
    return warp_sum(threadIdx.x % warp_size < threads / warp_size ? of_warps[threadIdx.x % warp_size] : 0.0);
}

extern "C" __global__ void __launch_bounds__(threads, 1) sum_squares(
    const unsigned long long* addresses, const long long* chunks, long long arrays, long long count, double* sums) {
    double sum = 0;
    for_each_chunk(chunks, count, [&](const Chunk& chunk) {
        const Scalar* array = chunk.of<Scalar>(addresses, arrays, 0);
        chunk.for_each_pack(aligned(array), [&](auto number, long long i) {
            constexpr int n = decltype(number)::value;
            Pack<n> values = load<n>(array, i);
            for (int k = 0; k < n; k++) sum += double(values[k]) * double(values[k]);
        });
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Writes the norm, and the factor that limits it to `max_norm`, as in clip_grad_norm. The factor is at most 1, and NaN if the
// norm is.
//
// Launch: a single block of 256 threads, each of which adds up every 256th sum.
extern "C" __global__ void __launch_bounds__(threads, 1) root_of_sum(
    const double* sums, Accumulator* norm, double* scale, Accumulator max_norm, long long count) {
    double sum = 0;
    for (long long i = threadIdx.x; i < count; i += threads) sum += sums[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        double root = sqrt(sum), factor = max_norm / (root + 1e-6);
        *norm = Accumulator(root);
        *scale = factor >= 1 ? 1 : factor;
    }
}

extern "C" __global__ void __launch_bounds__(threads, 1) scale_all(
    const unsigned long long* addresses, const long long* chunks, long long arrays, long long count,
    const double* factor) {
    double scale = *factor;
    if (scale == 1) return;  // nothing would change; the host would have to wait to know
    for_each_chunk(chunks, count, [=](const Chunk& chunk) {
        Scalar* array = chunk.of<Scalar>(addresses, arrays, 0);
        chunk.for_each_pack(aligned(array), [=](auto number, long long i) {
            constexpr int n = decltype(number)::value;
            Pack<n> values = load<n>(array, i);
            for (int k = 0; k < n; k++) values[k] = scaled(values[k], scale);
            store(array, i, values);
        });
    });
}
