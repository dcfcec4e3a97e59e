// Code that all kernels share. `loader.py` inlines this file for #include "common.cuh". It compiles each .cu file once for each
// dtype and each value of the constants that the file needs. `Scalar` is the type of array elements (float, double or
// bfloat16), and `Accumulator` the type to compute in (float for float and bfloat16, double for double).
//
// To add a kernel: write  extern "C" __global__ void name(...)  in a .cu file of this folder, with pointers for arrays,
// `long long` for Python's integers and `Accumulator` for its floats. Then write a wrapper in Python that calls
// kernel("file.cu", "name", dtype)(grid, block, arguments...). None becomes a null pointer.
// - Read `Accumulator(x[i])`, write `Scalar(value)`, index with `long long`. No CUDA headers, no atomics on floats.
// - Shared memory is static. Every thread of a block must reach every __syncthreads(), and every lane of a warp every shuffle.
//   So skip work instead of returning early. tests/standin runs these sources on the CPU and rejects violations.
// - Declare the most threads of a block by __launch_bounds__(threads, 1). A launch fails if a block needs more registers than a
//   multiprocessor has, and the compiler then uses fewer. The 1 means that one block at a time is enough. Without it the
//   compiler may spill registers to slow memory to make room for more blocks. A kernel that needs several blocks at a time says
//   how many; tests/cuda checks that nothing is spilled.
// - CuPy compiles with -ftz=true: float numbers below 1.2e-38 count as zero.
//
// To read a kernel: a launch runs it once in each thread of a grid. The grid has gridDim.x by gridDim.y blocks, and each block
// has blockDim.x by blockDim.y threads. A thread finds its position in threadIdx and its block's in blockIdx. Threads are
// numbered along x first, and every 32 of them are a warp. The threads of a warp are its lanes, and they run together.
// - The lanes of a warp can read each other's variables by shuffles, __shfl_...
// - The threads of a block have shared memory, and wait for each other at __syncthreads().
// - Blocks run in any order, and none waits for another. Work that needs the results of all blocks needs another kernel.
//
// Above each kernel, "Launch" says how many blocks and threads there are, and which part of the work is whose. "A block of
// (32, 4) threads" has 32 along x and 4 along y: four warps, and threadIdx.y is the number of the warp.
#pragma once

#ifndef Scalar
#error "compile with -DScalar=float -DAccumulator=float, or the like: see loader.py"
#endif

// The upper half of a float: 8 bits of exponent and 7 bits of mantissa.
struct bfloat16 {
    unsigned short bits;

    bfloat16() = default;

    // Rounds to nearest, ties to even. NaN is separate, as the carry of rounding could turn it into infinity.
    __device__ explicit bfloat16(float value) {
        unsigned int word = __float_as_uint(value);
        bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
        bits = static_cast<unsigned short>(is_nan ? (word >> 16) | 0x40u : (word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }

    __device__ operator float() const { return __uint_as_float(static_cast<unsigned int>(bits) << 16); }
};

constexpr int elementwise_threads = 256;  // in a block, as in loader.py

// ------------------------------------------------------------------------------------------- 128 bits at a time

// `count` neighbours in memory, loaded and stored as one, or 16 bytes at a time if they are longer.
template <int count, typename Number = Scalar>
struct alignas(count * sizeof(Number) < 16 ? count * sizeof(Number) : 16) Pack {
    Number values[count];

    __device__ Number& operator[](int i) { return values[i]; }
    __device__ const Number& operator[](int i) const { return values[i]; }
};

constexpr int widest = 16 / sizeof(Scalar);

template <int count, typename Number>
__device__ Pack<count, Number> load(const Number* array, long long i) {
    return *reinterpret_cast<const Pack<count, Number>*>(array + i);
}

template <int count, typename Number>
__device__ void store(Number* array, long long i, const Pack<count, Number>& pack) {
    *reinterpret_cast<Pack<count, Number>*>(array + i) = pack;
}

// True if all arrays start at a multiple of 16 bytes, as the widest packs must. Null pointers count as aligned.
template <typename... Pointers>
__device__ bool aligned(Pointers... arrays) {
    return ((reinterpret_cast<unsigned long long>(arrays) % 16 == 0) && ...);
}

// A loop over packs takes its body as a lambda. This one applies f to each element of x:
//
//     for_each_pack(size, aligned(x, out), [=](auto count, long long i) {
//         constexpr int n = decltype(count)::value;
//         Pack<n> values = load<n>(x, i);
//         for (int k = 0; k < n; k++) values[k] = f(values[k]);
//         store(out, i, values);
//     });
//
// It stands for the plain loop
//
//     for (long long i = thread; i < size; i += threads) out[i] = f(x[i]);
//
// The lambda is compiled twice. In one version n is `widest`: a thread moves 16 bytes at a time, which is fastest. In the other
// n is 1: it serves remaining elements, and arrays that are not aligned. n must be known to the compiler, and an
// argument's value is not, but its type is. So n is part of the type of `count`, Count<n>, and decltype reads it from there.
// A lambda begins with [=] if it only reads the variables around it, and with [&] if it changes some, such as a sum.
template <int number>
struct Count {
    static constexpr int value = number;
};

// Calls body(Count<n>, i) for the n elements starting at i. This is thread number `thread` of `threads`, which together cover 0
// to size - 1. Neighbouring threads take neighbouring packs, and each thread continues `threads` packs later.
template <typename Body>
__device__ void for_each_pack(long long size, bool are_aligned, long long thread, long long threads, Body body) {
    long long packs = are_aligned ? size / widest : 0;
    for (long long i = thread; i < packs; i += threads) body(Count<widest>(), i * widest);
#pragma unroll 1  // usually few elements are left, or none
    for (long long i = packs * widest + thread; i < size; i += threads) body(Count<1>(), i);
}

// The same for all threads of the grid.
//
// Launch of every kernel that calls it: a block of 256 threads for each 1,024 elements, but at most 65,536 blocks
// (elementwise_grid in loader.py). So a thread has about four elements, and more in larger arrays.
template <typename Body>
__device__ void for_each_pack(long long size, bool are_aligned, Body body) {
    long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for_each_pack(size, are_aligned, thread, static_cast<long long>(gridDim.x) * blockDim.x, body);
}

// ------------------------------------------------------------------------------------------------- sums and maxima

constexpr int warp_size = 32;  // CUDA's own warpSize is no constant
constexpr unsigned int all_lanes = 0xffffffffu;

// Combines the values of all lanes of the warp, or of each `group` neighbouring lanes (a power of two). All lanes get the same
// bits.
template <typename Number, typename Combine>
__device__ Number over_warp(Number value, Combine combine, int group = warp_size) {
    for (int distance = group / 2; distance > 0; distance /= 2)
        value = combine(value, Number(__shfl_xor_sync(all_lanes, value, distance)));
    return value;
}

constexpr int most_warps = 32;

// Combines the values of the blockDim.x threads with the same threadIdx.y, some lanes of a warp (a power of two) or the whole
// block. All threads of the block must call it. `neutral` changes no value that it is combined with.
template <typename Number, typename Combine>
__device__ Number over_row(Number value, Number neutral, Combine combine) {
    if (blockDim.x <= warp_size) return over_warp(value, combine, blockDim.x);
    value = over_warp(value, combine);
    __shared__ Number of_warps[most_warps];
    __syncthreads();  // all threads have read the values of the last call
    if (threadIdx.x % warp_size == 0) of_warps[threadIdx.x / warp_size] = value;
    __syncthreads();
    return over_warp(threadIdx.x % warp_size < blockDim.x / warp_size ? of_warps[threadIdx.x % warp_size] : neutral, combine);
}

// The lowest finite number, to start a maximum: exp(-inf - lowest) is 0, whereas exp(-inf - -inf) is NaN.
constexpr Accumulator lowest = sizeof(Accumulator) == 8 ? -1.7976931348623157e308 : -3.4028234663852886e38;

struct Sum {
    template <typename Number>
    __device__ Number operator()(Number a, Number b) const {
        return a + b;
    }
};

template <typename Number>
__device__ Number warp_sum(Number value, int group = warp_size) {
    return over_warp(value, Sum(), group);
}

template <typename Number>
__device__ Number row_sum(Number value) {
    return over_row(value, Number(0), Sum());
}

constexpr int most_groups = 32;

// The sum of the block's values with the same `lane`, below 32, over its `groups` of threads. Only group 0 gets it, but all
// threads of the block must call it.
template <typename Number>
__device__ Number column_sum(Number value, int lane, int group, int groups) {
    __shared__ Number values[most_groups][warp_size + 1];
    __syncthreads();
    values[group][lane] = value;
    __syncthreads();
    Number sum = 0;
    if (group == 0)
        for (int other = 0; other < groups; other++) sum += values[other][lane];
    return sum;
}

// The same for blocks of (32, groups) threads.
template <typename Number>
__device__ Number column_sum(Number value) {
    return column_sum(value, threadIdx.x, threadIdx.y, blockDim.y);
}
