// The gradient of an embedding: the sum of all rows with the same id, added to row `id` of `out`. `order` lists the rows sorted
// by id, so that equal ids are neighbours. It is cut into pieces of 32 rows. A warp takes a piece, and its lanes neighbouring
// columns. If all rows of an id are in one piece, its sum is done. If an id continues in the next piece, each of its pieces
// leaves a partial sum, and a second kernel adds these. So the work is even for ids of any frequency, and in a fixed order.
//
// An example, with pieces of 4 rows instead of 32. The ids of rows 0 to 9 are 5 2 5 2 5 5 9 5 5 5.
//
//     piece          0          |     1      |   2
//     order    1   3   0   2    |  4  5  7  8 |  9  6
//     id       2   2   5   5    |  5  5  5  5 |  5  9
//
//     sum_pieces   piece 0   out[2] += rows 1 + 3,   and rows 0 + 2 of id 5, which continues, to parts[0][1]
//                  piece 1   rows 4 + 5 + 7 + 8 of id 5, which began before, to parts[1][0]
//                  piece 2   row 9 of id 5, which began before, to parts[2][0],   and out[9] += row 6
//     add_parts    piece 0   out[5] += parts[0][1] + parts[1][0] + parts[2][0],   as id 5 begins in piece 0
#include "common.cuh"

constexpr int piece_threads = 128, part_threads = 256;  // in a block, as in embedding.py
constexpr int piece_size = warp_size;
constexpr int at_once = 8;  // rows that are loaded before the first of them is added

// The id at a position of the order. It is -1 for an id outside the table, and for a position outside the order.
__device__ int id_at(long long position, const long long* ids, const long long* order, long long count, long long num_rows) {
    if (position < 0 || position >= count) return -1;
    long long id = ids[order[position]];
    return id >= 0 && id < num_rows ? static_cast<int>(id) : -1;
}

// `parts` (pieces, 2, width) holds partial sums: first of an id that continues from the previous piece, then of an id that
// begins in this piece and continues in the next.
template <int n>
__device__ void sum_piece(const Scalar* rows, const long long* ids, const long long* order, Scalar* out, Accumulator* parts,
                          long long count, long long width, long long num_rows) {
    long long piece = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    long long first = piece * piece_size, past = first + piece_size, position = first + threadIdx.x;
    // Each lane looks up one position of the piece: its row, its id, and whether the id ends there. Bit i of `ends` is of
    // position i.
    int row = position < count ? static_cast<int>(order[position]) : -1;
    int id = id_at(position, ids, order, count, num_rows);
    int id_before = id_at(first - 1, ids, order, count, num_rows), id_after = id_at(past, ids, order, count, num_rows);
    int next = __shfl_down_sync(all_lanes, id, 1), last = __shfl_sync(all_lanes, id, piece_size - 1);
    unsigned int ends = __ballot_sync(all_lanes, id != (threadIdx.x == piece_size - 1 ? id_after : next));
    parts += piece * 2 * width;
    long long packs = width / n;  // columns are counted in packs, so that the compiler sees that they are aligned
    for (long long start = static_cast<long long>(blockIdx.y) * warp_size; start < packs;
         start += static_cast<long long>(gridDim.y) * warp_size) {
        long long pack = start + threadIdx.x;
        bool inside = pack < packs;
        Accumulator sums[n] = {};  // of the current id's rows so far
        for (int i = 0; i < piece_size; i += at_once) {
            Pack<n> values[at_once];
#pragma unroll
            for (int k = 0; k < at_once; k++) {
                int from = __shfl_sync(all_lanes, row, i + k);
                if (inside && from >= 0) values[k] = load<n>(rows, (from * packs + pack) * n);
            }
#pragma unroll
            for (int k = 0; k < at_once; k++) {
                int to = __shfl_sync(all_lanes, id, i + k);
                if (!inside || to < 0) continue;
                for (int j = 0; j < n; j++) sums[j] += Accumulator(values[k][j]);
                if (!(ends >> (i + k) & 1)) continue;
                if (to == id_before) {
                    for (int j = 0; j < n; j++) parts[pack * n + j] = sums[j];
                } else {
                    Pack<n> total = load<n>(out, (to * packs + pack) * n);
                    for (int j = 0; j < n; j++) total[j] = Scalar(Accumulator(total[j]) + sums[j]);
                    store(out, (to * packs + pack) * n, total);
                }
                for (int j = 0; j < n; j++) sums[j] = 0;
            }
        }
        if (inside && last >= 0 && last == id_after)
            for (int j = 0; j < n; j++) parts[(last == id_before ? 0 : width) + pack * n + j] = sums[j];
    }
}

// Launch: blocks of (32, 4) threads. Along x there is one for each four pieces, and each of its warps takes a piece. Along y
// there is one for each 512 bytes of a row, 16 bytes for each lane. A lane adds up its columns over all rows of the piece. If
// arrays are not aligned, it takes one column at a time, and then further ones.
extern "C" __global__ void __launch_bounds__(piece_threads, 1) sum_pieces(
    const Scalar* rows, const long long* ids, const long long* order, Scalar* out, Accumulator* parts, long long count,
    long long width, long long num_rows) {
    if (width % widest == 0 && aligned(rows, out))
        sum_piece<widest>(rows, ids, order, out, parts, count, width, num_rows);
    else
        sum_piece<1>(rows, ids, order, out, parts, count, width, num_rows);
}

// For each piece but the last: if an id begins in it and continues in the next, this adds the sum of the id's parts to `out`.
//
// Launch: blocks of (32, 8) threads. Along x there is one for each piece but the last, and along y one for each 128 columns, 32
// at a time. Lane threadIdx.x has a column. Warp threadIdx.y adds up every eighth part, and warp 0 adds the sums of the warps.
extern "C" __global__ void __launch_bounds__(part_threads, 1) add_parts(
    const Accumulator* parts, const long long* ids, const long long* order, Scalar* out, long long count, long long width,
    long long num_rows) {
    long long piece = blockIdx.x, first = piece * piece_size, past = first + piece_size;
    int id = id_at(past, ids, order, count, num_rows);
    bool continues = id >= 0 && id == id_at(past - 1, ids, order, count, num_rows);
    bool wanted = continues && id != id_at(first - 1, ids, order, count, num_rows);
    long long more = 1;  // further pieces with the id
    for (unsigned int matches = wanted ? all_lanes : 0; matches == all_lanes; more += __popc(matches)) {
        long long position = past + (more + threadIdx.x) * piece_size;
        matches = __ballot_sync(all_lanes, id == id_at(position, ids, order, count, num_rows));
    }
    for (long long start = static_cast<long long>(blockIdx.y) * warp_size; wanted && start < width;
         start += static_cast<long long>(gridDim.y) * warp_size) {
        long long column = start + threadIdx.x;
        double sum = 0;  // an id may occur a million times
        if (column < width)
            for (long long i = threadIdx.y; i <= more; i += blockDim.y)
                sum += parts[((piece + i) * 2 + (i == 0)) * width + column];
        sum = column_sum(sum);
        if (threadIdx.y == 0 && column < width)
            out[id * width + column] = Scalar(Accumulator(out[id * width + column]) + Accumulator(sum));
    }
}
