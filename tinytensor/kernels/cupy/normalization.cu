// Layer norm and RMS norm of the rows of a matrix; kernels/numpy/normalization.py has the formulas. The blockDim.x threads with
// the same threadIdx.y take a row: some lanes of a warp (a power of two), or a whole block for wide rows. RMS norm has no
// `mean`. That of layer norm is the mean of the row minus its first element.
#include "common.cuh"

constexpr int row_threads = 512, sum_threads = 256;  // the most in a block, as in normalization.py

// Calls body(Count<n>, i) for the n columns starting at i. The threads of a row together cover it.
template <typename Body>
__device__ void for_each_column(long long width, bool in_packs, Body body) {
    if (in_packs)
        for (long long i = threadIdx.x * widest; i < width; i += blockDim.x * widest) body(Count<widest>(), i);
    else
        for (long long i = threadIdx.x; i < width; i += blockDim.x) body(Count<1>(), i);
}

// A part of the weight or bias, or `otherwise` without one.
template <int count>
__device__ Pack<count> load_or(const Scalar* array, long long i, float otherwise) {
    if (array) return load<count>(array, i);
    Pack<count> pack;
    for (int k = 0; k < count; k++) pack[k] = Scalar(otherwise);
    return pack;
}

// The number that is subtracted from a row before its mean is computed: its first, or 0 for RMS norm and for empty rows.
template <bool centred>
__device__ Accumulator first_of(const Scalar* row, long long columns) {
    return centred && columns > 0 ? Accumulator(row[0]) : Accumulator(0);
}

template <bool centred>
__device__ void forward(const Scalar* x, const Scalar* weight, const Scalar* bias, Scalar* out, Accumulator* means,
                        Accumulator* rstds, Accumulator eps, long long rows, long long width) {
    bool in_packs = width % widest == 0 && aligned(x, weight, bias, out);
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    long long columns = row < rows ? width : 0;  // threads without a row take part, as all must call the sums
    x += row * width;
    out += row * width;
    Accumulator first = first_of<centred>(x, columns), mean = 0;
    if (centred) {
        for_each_column(columns, in_packs, [&](auto count, long long i) {
            constexpr int n = decltype(count)::value;
            Pack<n> values = load<n>(x, i);
            for (int k = 0; k < n; k++) mean += Accumulator(values[k]) - first;
        });
        mean = row_sum(mean) / Accumulator(width);
    }
    double squares = 0;  // squares of a float neither overflow nor vanish in it
    for_each_column(columns, in_packs, [&](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i);
        for (int k = 0; k < n; k++) {
            Accumulator difference = Accumulator(values[k]) - first - mean;
            squares += double(difference) * difference;
        }
    });
    Accumulator rstd = Accumulator(1 / sqrt(row_sum(squares) / width + eps));
    for_each_column(columns, in_packs, [&](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i), scales = load_or<n>(weight, i, 1), shifts = load_or<n>(bias, i, 0);
        for (int k = 0; k < n; k++) {
            Accumulator normalized = (Accumulator(values[k]) - first - mean) * rstd;
            values[k] = Scalar(normalized * Accumulator(scales[k]) + Accumulator(shifts[k]));
        }
        store(out, i, values);
    });
    if (row < rows && threadIdx.x == 0) {
        if (centred && means) means[row] = mean;
        if (rstds) rstds[row] = rstd;
    }
}

// Launch of both forward kernels: a block of 512 threads for each row of more than 2,048 columns. A narrower row has a lane for
// each 16 columns, rounded up to 4, 8 or 16 lanes, and never more than 32. Such rows share blocks of 128 threads: blockDim.x
// lanes by blockDim.y rows.

extern "C" __global__ void __launch_bounds__(row_threads, 1) layer_norm_forward(
    const Scalar* x, const Scalar* weight, const Scalar* bias, Scalar* out, Accumulator* means, Accumulator* rstds,
    Accumulator eps, long long rows, long long width) {
    forward<true>(x, weight, bias, out, means, rstds, eps, rows, width);
}

extern "C" __global__ void __launch_bounds__(row_threads, 1) rms_norm_forward(
    const Scalar* x, const Scalar* weight, Scalar* out, Accumulator* rstds, Accumulator eps, long long rows, long long width) {
    forward<false>(x, weight, nullptr, out, nullptr, rstds, eps, rows, width);
}

// Writes the gradient of x plus `before`, unless that is null.
template <bool centred>
__device__ void input_gradient(const Scalar* g, const Scalar* x, const Scalar* weight, const Accumulator* means,
                               const Accumulator* rstds, const Scalar* before, Scalar* d_x, long long rows, long long width) {
    bool in_packs = width % widest == 0 && aligned(g, x, weight, before, d_x);
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    long long columns = row < rows ? width : 0;
    g += row * width;
    x += row * width;
    if (before) before += row * width;
    d_x += row * width;
    Accumulator mean = centred && row < rows ? means[row] : Accumulator(0), rstd = row < rows ? rstds[row] : Accumulator(0);
    Accumulator first = first_of<centred>(x, columns), mean_h = 0, mean_h_n = 0;
    for_each_column(columns, in_packs, [&](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> gradients = load<n>(g, i), values = load<n>(x, i), scales = load_or<n>(weight, i, 1);
        for (int k = 0; k < n; k++) {
            Accumulator h = Accumulator(gradients[k]) * Accumulator(scales[k]);
            mean_h += h;
            mean_h_n += h * ((Accumulator(values[k]) - first - mean) * rstd);
        }
    });
    mean_h = centred ? row_sum(mean_h) / Accumulator(width) : Accumulator(0);
    mean_h_n = row_sum(mean_h_n) / Accumulator(width);
    for_each_column(columns, in_packs, [&](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> gradients = load<n>(g, i), values = load<n>(x, i), scales = load_or<n>(weight, i, 1);
        Pack<n> added = load_or<n>(before, i, 0);
        for (int k = 0; k < n; k++) {
            Accumulator h = Accumulator(gradients[k]) * Accumulator(scales[k]);
            Accumulator normalized = (Accumulator(values[k]) - first - mean) * rstd;
            values[k] = Scalar((h - mean_h - normalized * mean_h_n) * rstd + Accumulator(added[k]));
        }
        store(d_x, i, values);
    });
}

// The gradients of weight and bias are sums over rows in two stages, always in the same order. The rows are cut into groups.
// First, a block sums 32 columns of a group. Then, a block of add_groups for each 32 columns adds up the groups' sums.

// Writes weights[group], the sum of g n over the rows of a group, and biases[group], the sum of g, each unless it is null. Both
// are (groups, width). This is block number `block` of this work. A warp takes 32 columns of a row at a time.
__device__ void sum_group(long long block, const Scalar* g, const Scalar* x, const Accumulator* means,
                          const Accumulator* rstds, Accumulator* weights, Accumulator* biases, long long groups,
                          long long rows, long long width) {
    int thread = threadIdx.y * blockDim.x + threadIdx.x, warps = blockDim.x * blockDim.y / warp_size;
    int lane = thread % warp_size, warp = thread / warp_size;
    long long strips = (width + warp_size - 1) / warp_size, group = block / strips;
    long long column = block % strips * warp_size + lane;
    long long each = (rows + groups - 1) / groups, first = group * each, last = min(rows, first + each);
    Accumulator weight = 0, bias = 0;
    if (column < width) {
        for (long long row = first + warp; row < last; row += warps) {
            Accumulator gradient = Accumulator(g[row * width + column]);
            bias += gradient;
            if (weights) {
                Accumulator first = means ? Accumulator(x[row * width]) : Accumulator(0);
                Accumulator mean = means ? means[row] : Accumulator(0);
                weight += gradient * ((Accumulator(x[row * width + column]) - first - mean) * rstds[row]);
            }
        }
    }
    weight = column_sum(weight, lane, warp, warps);
    bias = column_sum(bias, lane, warp, warps);
    if (warp == 0 && column < width) {
        if (weights) weights[group * width + column] = weight;
        if (biases) biases[group * width + column] = bias;
    }
}

// The backward pass but for add_groups, in one launch. The first `row_blocks` blocks write d_x, each of a few rows. The others
// sum, one for each 32 columns of each group.
template <bool centred>
__device__ void backward(const Scalar* g, const Scalar* x, const Scalar* weight, const Accumulator* means,
                         const Accumulator* rstds, const Scalar* before, Scalar* d_x, Accumulator* weights, Accumulator* biases,
                         long long row_blocks, long long groups, long long rows, long long width) {
    if (blockIdx.x < row_blocks)
        input_gradient<centred>(g, x, weight, means, rstds, before, d_x, rows, width);
    else
        sum_group(blockIdx.x - row_blocks, g, x, means, rstds, weights, biases, groups, rows, width);
}

// Launch of both backward kernels: first the blocks that write d_x, as in the forward pass, except that narrow rows share
// blocks of 256 threads. Then the blocks that sum, of as many threads, where lanes are columns and each warp of the block takes
// other rows of the group.

extern "C" __global__ void __launch_bounds__(row_threads, 1) layer_norm_backward(
    const Scalar* g, const Scalar* x, const Scalar* weight, const Accumulator* means, const Accumulator* rstds,
    const Scalar* before, Scalar* d_x, Accumulator* weights, Accumulator* biases, long long row_blocks, long long groups,
    long long rows, long long width) {
    backward<true>(g, x, weight, means, rstds, before, d_x, weights, biases, row_blocks, groups, rows, width);
}

extern "C" __global__ void __launch_bounds__(row_threads, 1) rms_norm_backward(
    const Scalar* g, const Scalar* x, const Scalar* weight, const Accumulator* rstds, const Scalar* before, Scalar* d_x,
    Accumulator* weights, long long row_blocks, long long groups, long long rows, long long width) {
    backward<false>(g, x, weight, nullptr, rstds, before, d_x, weights, nullptr, row_blocks, groups, rows, width);
}

// `sums` is (1 or 2, count, width). Its sums over the second axis go to `first` and, if gridDim.y is 2, to `second`.
//
// Launch: blocks of (32, 8) threads, along x one for each 32 columns, and along y one for each output. Lane threadIdx.x has a
// column. Warp threadIdx.y adds up every eighth group, and warp 0 adds the sums of the warps.
extern "C" __global__ void __launch_bounds__(sum_threads, 1) add_groups(
    const Accumulator* sums, Scalar* first, Scalar* second, long long count, long long width) {
    long long column = static_cast<long long>(blockIdx.x) * warp_size + threadIdx.x;
    Accumulator sum = 0;
    sums += blockIdx.y * count * width;
    if (column < width)
        for (long long group = threadIdx.y; group < count; group += blockDim.y) sum += sums[group * width + column];
    sum = column_sum(sum);
    Scalar* out = blockIdx.y == 0 ? first : second;
    if (threadIdx.y == 0 && column < width) out[column] = Scalar(sum);
}
