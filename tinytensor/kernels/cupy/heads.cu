// Attention's inputs and outputs, moved between two orders. A linear layer makes `packed`, (batch, length, parts, heads, width):
// all heads of a token lie side by side. cuBLAS needs `split`, (parts, batch, heads, length, width): there the matrices
// (length, width) follow one another evenly, so that one call multiplies them all.
#include "common.cuh"

constexpr int move_threads = 256;  // the most in a block, as in heads.py
constexpr int tile = 64;           // tokens of a head that a block moves, as in heads.py

struct Sizes {
    long long batch, length, parts, heads, width;
};

// Calls body(place in packed, place in split) for each row (one head of one token) of this block's tile.
template <typename Body>
__device__ void for_each_row(const Sizes& sizes, Body body) {
    long long tiles = (sizes.length + tile - 1) / tile;
    long long matrix = blockIdx.x / tiles, first = blockIdx.x % tiles * tile;  // matrix: a place in (parts, batch, heads)
    long long head = matrix % sizes.heads, sequence = matrix / sizes.heads % sizes.batch;
    long long part = matrix / sizes.heads / sizes.batch;
    for (long long token = first + threadIdx.y; token < min(first + tile, sizes.length); token += blockDim.y) {
        long long packed_row = ((sequence * sizes.length + token) * sizes.parts + part) * sizes.heads + head;
        body(packed_row * sizes.width, (matrix * sizes.length + token) * sizes.width);
    }
}

// Copies a row. The blockDim.x threads with the same threadIdx.y share it.
__device__ inline void copy_row(const Scalar* from, Scalar* to, long long width, bool in_packs) {
    for_each_pack(width, in_packs, threadIdx.x, blockDim.x, [=](auto number, long long i) {
        constexpr int n = decltype(number)::value;
        store(to, i, load<n>(from, i));
    });
}

// Launch of both kernels: a block for each tile of 64 tokens of each head, parts * batch * heads * tiles in all. In a block,
// threadIdx.y picks the token and threadIdx.x the elements of its row.
extern "C" __global__ void __launch_bounds__(move_threads, 1) split_heads(
    const Scalar* packed, Scalar* split, long long batch, long long length, long long parts, long long heads, long long width) {
    bool in_packs = width % widest == 0 && aligned(packed, split);
    for_each_row(Sizes{batch, length, parts, heads, width}, [=](long long in_packed, long long in_split) {
        copy_row(packed + in_packed, split + in_split, width, in_packs);
    });
}

extern "C" __global__ void __launch_bounds__(move_threads, 1) join_heads(
    const Scalar* split, Scalar* packed, long long batch, long long length, long long parts, long long heads, long long width) {
    bool in_packs = width % widest == 0 && aligned(packed, split);
    for_each_row(Sizes{batch, length, parts, heads, width}, [=](long long in_packed, long long in_split) {
        copy_row(split + in_split, packed + in_packed, width, in_packs);
    });
}
