// What all kernels share. `loader.py` inlines this file where a .cu file says #include "common.cuh". It compiles each .cu file
// once for each dtype, and once for each value of the constants that a file needs. `Scalar` is the type that arrays hold (float,
// double or bfloat16). `Accumulator` is the type to compute in (float for float and bfloat16, double for double).
//
// To add a kernel: write  extern "C" __global__ void name(...)  in a .cu file of this folder, with pointers for arrays,
// `long long` for Python's integers and `Accumulator` for its floats. Then write a wrapper in Python that calls
// kernel("file.cu", "name", dtype)(grid, block, arguments...). Where the wrapper passes None, the pointer is null.
// - Read `Accumulator(x[i])`, write `Scalar(value)`, index with `long long`. No CUDA headers, no atomics on floats.
// - Shared memory is static. Every thread of a block must reach every __syncthreads(), and every lane of a warp every shuffle.
//   So do not return early, but skip the work. tests/standin runs these sources on the CPU and refuses what breaks this rule.
// - Say in __launch_bounds__(threads, 1) how many threads a block has at most: a launch fails where a block's threads together
//   need more registers than a multiprocessor has, and this keeps the compiler below that. The 1 says that one block at a time
//   is enough. Without it the compiler may move values from registers to slow memory, to make room for more blocks. A kernel
//   that needs several blocks at a time says how many; tests/cuda shows that nothing is moved.
// - CuPy compiles with -ftz=true: float numbers below 1.2e-38 count as zero.
#pragma once

#ifndef Scalar
#error "compile with -DScalar=float -DAccumulator=float, or the like: see loader.py"
#endif

// The upper half of a float: 8 bits of exponent and 7 bits of mantissa.
struct bfloat16 {
    unsigned short bits;

    bfloat16() = default;

    // Rounds to nearest, ties to even. NaN is treated apart, as the carry of rounding could turn it into infinity.
    __device__ explicit bfloat16(float value) {
        unsigned int whole = __float_as_uint(value);
        bool is_nan = (whole & 0x7fffffffu) > 0x7f800000u;
        bits = static_cast<unsigned short>(is_nan ? (whole >> 16) | 0x40u : (whole + 0x7fffu + ((whole >> 16) & 1u)) >> 16);
    }

    __device__ operator float() const { return __uint_as_float(static_cast<unsigned int>(bits) << 16); }
};

constexpr int elementwise_threads = 256;  // in a block, as in loader.py

// ------------------------------------------------------------------------------------------- 128 bits at a time

// Neighbours in memory, `count` of them, that are loaded and stored as one, or 16 bytes at a time if they are longer.
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

// Whether all arrays start at a multiple of 16 bytes, as the widest packs must. Null pointers count as aligned.
template <typename... Pointers>
__device__ bool aligned(Pointers... arrays) {
    return ((reinterpret_cast<unsigned long long>(arrays) % 16 == 0) && ...);
}

// A number that is known to the compiler and passed as an argument: read it as `decltype(count)::value`.
template <int number>
struct Count {
    static constexpr int value = number;
};

// Calls body(Count<n>, i) for the n elements from i on. This is thread number `thread` of `threads`, which together cover 0 to
// size - 1.
template <typename Body>
__device__ void for_each_pack(long long size, bool are_aligned, long long thread, long long threads, Body body) {
    long long packs = are_aligned ? size / widest : 0;
    for (long long i = thread; i < packs; i += threads) body(Count<widest>(), i * widest);
#pragma unroll 1  // there are mostly few elements left, or none
    for (long long i = packs * widest + thread; i < size; i += threads) body(Count<1>(), i);
}

// The same for all threads of the grid.
template <typename Body>
__device__ void for_each_pack(long long size, bool are_aligned, Body body) {
    long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for_each_pack(size, are_aligned, thread, static_cast<long long>(gridDim.x) * blockDim.x, body);
}

// ------------------------------------------------------------------------------------------------- sums and maxima

constexpr int warp_size = 32;  // CUDA's own warpSize is no constant
constexpr unsigned int all_lanes = 0xffffffffu;

// Combines the values of all lanes of the warp, or of each group of neighbouring lanes (`group` of them, a power of two). Each
// lane combines in an order that gives all of them the same bits.
template <typename Combine>
__device__ Accumulator over_warp(Accumulator value, Combine combine, int group = warp_size) {
    for (int distance = group / 2; distance > 0; distance /= 2)
        value = combine(value, Accumulator(__shfl_xor_sync(all_lanes, value, distance)));
    return value;
}

constexpr int most_warps = 32;

// Combines the values of the blockDim.x threads with the same threadIdx.y, which are some lanes of a warp (a power of two) or
// the whole block. All threads of the block must call it. `neutral` changes no value that it is combined with.
template <typename Combine>
__device__ Accumulator over_row(Accumulator value, Accumulator neutral, Combine combine) {
    if (blockDim.x <= warp_size) return over_warp(value, combine, blockDim.x);
    value = over_warp(value, combine);
    __shared__ Accumulator of_warps[most_warps];
    __syncthreads();  // by now all threads have read the values of the last call
    if (threadIdx.x % warp_size == 0) of_warps[threadIdx.x / warp_size] = value;
    __syncthreads();
    return over_warp(threadIdx.x % warp_size < blockDim.x / warp_size ? of_warps[threadIdx.x % warp_size] : neutral, combine);
}

// The lowest finite number, to start a maximum from: exp(-inf - lowest) is 0, where exp(-inf - -inf) would be NaN.
constexpr Accumulator lowest = sizeof(Accumulator) == 8 ? -1.7976931348623157e308 : -3.4028234663852886e38;

struct Sum {
    __device__ Accumulator operator()(Accumulator a, Accumulator b) const { return a + b; }
};

__device__ inline Accumulator warp_sum(Accumulator value, int group = warp_size) { return over_warp(value, Sum(), group); }
__device__ inline Accumulator row_sum(Accumulator value) { return over_row(value, 0, Sum()); }

constexpr int most_groups = 32;

// The sum of the block's values with the same `lane`, below 32, over its `groups` of threads. Only group 0 gets it, but all
// threads of the block must call it.
__device__ inline Accumulator column_sum(Accumulator value, int lane, int group, int groups) {
    __shared__ Accumulator values[most_groups][warp_size + 1];
    __syncthreads();
    values[group][lane] = value;
    __syncthreads();
    Accumulator sum = 0;
    if (group == 0)
        for (int other = 0; other < groups; other++) sum += values[other][lane];
    return sum;
}

// The same for blocks of (32, groups) threads.
__device__ inline Accumulator column_sum(Accumulator value) {
    return column_sum(value, threadIdx.x, threadIdx.y, blockDim.y);
}
