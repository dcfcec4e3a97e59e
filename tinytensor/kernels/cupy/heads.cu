// Attention's inputs and outputs, moved between two orders. A linear layer makes `packed`, (batch, length, parts, heads,
// width): all heads of a token side by side. cuBLAS needs `split`, (parts, batch, heads, length, width): evenly spaced matrices
// (length, width), which one call multiplies.
#include "common.cuh"

constexpr int move_threads = 256;  // the most in a block, as in heads.py
constexpr int tile = 64;           // tokens of a head that a block moves, as in heads.py

struct Sizes {
    long long batch, length, parts, heads, width;
};

// One head of one token.
struct Row {
    Sizes sizes;
    long long part, sequence, head, token;

    __device__ long long in_split() const {
        return (((part * sizes.batch + sequence) * sizes.heads + head) * sizes.length + token) * sizes.width;
    }

    // Its index in a packed array of so many parts, as part number `index`.
    __device__ long long in_packed(long long parts, long long index) const {
        return (((sequence * sizes.length + token) * parts + index) * sizes.heads + head) * sizes.width;
    }
};

// Calls body(row) for each row of this block's tile.
template <typename Body>
__device__ void for_each_row(const Sizes& sizes, Body body) {
    long long tiles = (sizes.length + tile - 1) / tile;
    long long matrix = blockIdx.x / tiles, first = blockIdx.x % tiles * tile;  // matrix: an index in (parts, batch, heads)
    Row row = {sizes, matrix / sizes.heads / sizes.batch, matrix / sizes.heads % sizes.batch, matrix % sizes.heads};
    for (row.token = first + threadIdx.y; row.token < min(first + tile, sizes.length); row.token += blockDim.y) body(row);
}

// Copies a row. The blockDim.x threads with the same threadIdx.y share it.
__device__ inline void copy_row(const Scalar* from, Scalar* to, long long width, bool in_packs) {
    for_each_pack(width, in_packs, threadIdx.x, blockDim.x, [=](auto number, long long i) {
        constexpr int n = decltype(number)::value;
        store(to, i, load<n>(from, i));
    });
}

// Launch of both kernels: a block of 256 threads for each tile of 64 tokens of each head, parts * batch * heads * tiles blocks
// in all. The threads with the same threadIdx.y copy a row together, 16 bytes each at a time. They are as many as the row has
// such pieces, rounded up to a power of two, and at most 32. With 8 of them a block copies 32 rows at a time.

// `last`, unless it is null, is a second packed array with a single part, the last one of `split`.
extern "C" __global__ void __launch_bounds__(move_threads, 1) split_heads(
    const Scalar* packed, const Scalar* last, Scalar* split, long long batch, long long length, long long parts,
    long long heads, long long width) {
    bool in_packs = width % widest == 0 && aligned(packed, last, split);
    long long from_packed = last ? parts - 1 : parts;
    for_each_row(Sizes{batch, length, parts, heads, width}, [=](const Row& row) {
        bool is_last = row.part == from_packed;
        const Scalar* from = is_last ? last + row.in_packed(1, 0) : packed + row.in_packed(from_packed, row.part);
        copy_row(from, split + row.in_split(), width, in_packs);
    });
}

extern "C" __global__ void __launch_bounds__(move_threads, 1) join_heads(
    const Scalar* split, Scalar* packed, long long batch, long long length, long long parts, long long heads, long long width) {
    bool in_packs = width % widest == 0 && aligned(packed, split);
    for_each_row(Sizes{batch, length, parts, heads, width}, [=](const Row& row) {
        copy_row(split + row.in_split(), packed + row.in_packed(parts, row.part), width, in_packs);
    });
}
