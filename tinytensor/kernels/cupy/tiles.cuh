// Products of small matrices by the tensor cores, for bfloat16 and GPUs of compute capability 8.0 (Ampere) and later. A warp
// multiplies a 16 x 16 matrix by a 16 x 8 one and adds the product to a 16 x 8 one. Its 32 lanes hold the three matrices
// together, a few elements each: a fragment.
//
// Each function is one instruction of PTX, NVIDIA's assembly, documented in the section of the "PTX ISA" manual named above it.
// The same in C++ follows, which tests/standin runs on the CPU.
//
// All lanes of a warp must call the functions together, in blocks of one dimension. A lane's position in a fragment:
//
//     lane_row = lane / 4, lane_column = lane % 4 * 2
//
//       8 columns:   0 1   2 3   4 5   6 7
//     row 0         lane 0    1     2     3         Each lane holds two neighbours of an 8 x 8 matrix, in a row.
//     row 1         lane 4    5     6     7
//     ...                  ...
//     row 7         lane 28  29    30    31
#pragma once
#include "common.cuh"

__device__ inline int lane_row() { return threadIdx.x % warp_size / 4; }
__device__ inline int lane_column() { return threadIdx.x % 4 * 2; }

// Two neighbours, the first in the lower half of a register.
using Pair = unsigned int;

__device__ inline float first_of(Pair pair) { return __uint_as_float(pair << 16); }
__device__ inline float second_of(Pair pair) { return __uint_as_float(pair & 0xffff0000u); }

// Two floats, rounded to the nearest, ties to even. PTX ISA: "Data Movement and Conversion Instructions: cvt".
__device__ inline Pair rounded_pair(float first, float second) {
#ifdef __CUDACC__
    Pair pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return bfloat16(first).bits | static_cast<Pair>(bfloat16(second).bits) << 16;
#endif
}

// ---------------------------------------------------------------------------------------------------------- products

// The left operand, 16 x 16, as four 8 x 8 matrices: upper left, lower left, upper right, lower right.
struct Left {
    Pair pairs[4];
};

// The right operand, 16 x 8, as two 8 x 8 matrices, upper and lower. Here a lane's pair are neighbours in a column:
// rows lane_column and lane_column + 1 of column lane_row.
struct Right {
    Pair pairs[2];
};

// The sums, 16 x 8: two neighbours of the upper 8 x 8 matrix, and then two of the lower one.
struct Sums {
    float values[4];
};

// The row and the column of values[i].
__device__ inline int row_of(int i) { return lane_row() + i / 2 * 8; }
__device__ inline int column_of(int i) { return lane_column() + i % 2; }

// Two neighbouring sums, 16 x 16 together, rounded, as a left operand. No lane needs another's elements for it.
__device__ inline Left rounded_left(const Sums& left_half, const Sums& right_half) {
    const float *left = left_half.values, *right = right_half.values;
    return {{rounded_pair(left[0], left[1]), rounded_pair(left[2], left[3]),
             rounded_pair(right[0], right[1]), rounded_pair(right[2], right[3])}};
}

// sums += left right. PTX ISA: "Multiply-and-Accumulate Instruction: mma", "Matrix Fragments for mma.m16n8k16 with floating
// point type".
__device__ inline void add_product(Sums& sums, const Left& left, const Right& right) {
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums.values[0]), "+f"(sums.values[1]), "+f"(sums.values[2]), "+f"(sums.values[3])
        : "r"(left.pairs[0]), "r"(left.pairs[1]), "r"(left.pairs[2]), "r"(left.pairs[3]),
          "r"(right.pairs[0]), "r"(right.pairs[1]));
#else
    struct Registers {
        Sums& sums;
        const Left& left;
        const Right& right;
    } mine = {sums, left, right};
    cpu::together("add_product", mine, [](Registers** lanes) {
        float a[16][16], b[16][8];
        for (int lane = 0; lane < warp_size; lane++) {
            int row = lane / 4, column = lane % 4 * 2;
            for (int i = 0; i < 4; i++) {
                a[row + i % 2 * 8][column + i / 2 * 8] = first_of(lanes[lane]->left.pairs[i]);
                a[row + i % 2 * 8][column + i / 2 * 8 + 1] = second_of(lanes[lane]->left.pairs[i]);
            }
            for (int i = 0; i < 2; i++) {
                b[column + i * 8][row] = first_of(lanes[lane]->right.pairs[i]);
                b[column + i * 8 + 1][row] = second_of(lanes[lane]->right.pairs[i]);
            }
        }
        for (int lane = 0; lane < warp_size; lane++)
            for (int i = 0; i < 4; i++) {
                int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
                float sum = lanes[lane]->sums.values[i];
                for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
                lanes[lane]->sums.values[i] = sum;
            }
    });
#endif
}

// ----------------------------------------------------------------------------------------------------- shared memory

constexpr int chunk_elements = 8, chunk_bytes = 16;  // of a copy, and of a lane's read

// An address in shared memory as PTX takes it.
#ifdef __CUDACC__
using SharedAddress = unsigned int;

__device__ inline SharedAddress shared_address(const void* pointer) {
    return static_cast<SharedAddress>(__cvta_generic_to_shared(pointer));
}
#else
using SharedAddress = unsigned long long;

inline SharedAddress shared_address(const void* pointer) { return reinterpret_cast<SharedAddress>(pointer); }
#endif

// Rows of a matrix in shared memory. Eight lanes that read the same chunk of eight rows are served together if the chunks lie
// in different banks. There are 32 banks of 4 bytes, so chunks 128 bytes apart share banks, and rows of 64 elements stored in
// order would all begin in the same banks. So the chunks of row r are stored in the order 0 ^ r, 1 ^ r, 2 ^ r, ..., with the
// last three bits of r. If several short rows share 128 bytes, r counts these groups of rows.
//
// As rows begin at multiples of their length, chunk a ^ b of a row is at the address of chunk a ^ chunk_bytes * b.
template <int rows, int width>
struct alignas(256) Tile {
    static constexpr int chunks = width / chunk_elements;    // of a row: a power of two, at most 16
    static constexpr int in_line = chunks < 8 ? chunks : 8;  // of these, in 128 bytes

    bfloat16 elements[rows * width];

    __device__ SharedAddress chunk(int row, int number) {
        return shared_address(&elements[(row * chunks + (number ^ (row * in_line / 8 % in_line))) * chunk_elements]);
    }
};

// Starts to copy a chunk from global to shared memory, asynchronously; with `exists` false, sets it to zeros and reads nothing.
// PTX ISA: "Data Movement and Conversion Instructions: cp.async".
__device__ inline void start_copy(SharedAddress shared, const void* global, bool exists = true) {
    int size = exists ? chunk_bytes : 0;
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;"
                 :: "r"(shared), "l"(global), "n"(chunk_bytes), "r"(size) : "memory");
#else
    cpu::copy_beside(reinterpret_cast<void*>(shared), global, size, chunk_bytes);
#endif
}

// Waits for this thread's copies. To read those of other threads, __syncthreads() must follow. PTX ISA: "Data Movement and
// Conversion Instructions: cp.async.wait_group / cp.async.wait_all".
__device__ inline void wait_for_own_copies() {
#ifdef __CUDACC__
    asm volatile("cp.async.wait_all;" ::: "memory");
#else
    cpu::wait_for_own_copies();
#endif
}

// Reads four 8 x 8 matrices. Lane i gives the address of row i % 8 of matrix i / 8, which are 16 bytes, and gets a pair of each
// matrix, or of the transposed matrix: the elements at its position in a fragment. PTX ISA: "Warp-Level Matrix Load
// Instruction: ldmatrix".
template <bool is_transposed>
__device__ void load_matrices(Pair (&pairs)[4], SharedAddress row) {
#ifdef __CUDACC__
    if constexpr (is_transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3]) : "r"(row));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3]) : "r"(row));
#else
    struct Registers {
        Pair (&pairs)[4];
        SharedAddress row;
    } mine = {pairs, row};
    cpu::together("load_matrices", mine, [](Registers** lanes) {
        for (int matrix = 0; matrix < 4; matrix++) {
            Pack<8, unsigned short> rows[8];
            for (int row = 0; row < 8; row++)
                rows[row] = load<8>(reinterpret_cast<const unsigned short*>(lanes[8 * matrix + row]->row), 0);
            for (int lane = 0; lane < warp_size; lane++) {
                int row = lane / 4, column = lane % 4 * 2;
                Pair first = is_transposed ? rows[column][row] : rows[row][column];
                Pair second = is_transposed ? rows[column + 1][row] : rows[row][column + 1];
                lanes[lane]->pairs[matrix] = first | second << 16;
            }
        }
    });
#endif
}

// -------------------------------------------------------------------------------------- operands from shared memory

// Sixteen rows of a tile, cut into 16 x 16 parts: where this lane begins to read the first part.

// For parts whose columns are the tile's rows.
template <int rows, int width>
__device__ SharedAddress transposed_parts(Tile<rows, width>& tile, int first_row) {
    int lane = threadIdx.x % warp_size;
    return tile.chunk(first_row + lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// For parts as they are stored.
template <int rows, int width>
__device__ SharedAddress stored_parts(Tile<rows, width>& tile, int first_row) {
    int lane = threadIdx.x % warp_size;
    return tile.chunk(first_row + lane % 16, lane / 16);
}

// A part as two right operands. ldmatrix gives neighbours of a row, and a right operand has neighbours of a column, so ldmatrix
// transposes the parts as stored.
template <bool is_transposed>
__device__ void load_part(Right (&right)[2], SharedAddress parts, int part) {
    Pair pairs[4];
    load_matrices<!is_transposed>(pairs, parts ^ (2 * chunk_bytes * part));
    right[0] = {{pairs[0], pairs[1]}};
    right[1] = {{pairs[2], pairs[3]}};
}
