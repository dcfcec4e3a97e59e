// Layer norm and RMS norm of the rows of a matrix. The formulas are in kernels/numpy/normalization.py. A row belongs to the
// blockDim.x threads with the same threadIdx.y. They are some lanes of a warp (a power of two), or a whole block where rows are
// wide. RMS norm has no `mean`.
#include "common.cuh"

constexpr int row_threads = 512, sum_threads = 256;  // the most in a block, as in normalization.py

// Calls body(Count<n>, i) for the n columns from i on. The threads of a row together cover it.
template <typename Body>
__device__ void for_each_column(long long width, bool in_packs, Body body) {
    if (in_packs)
        for (long long i = threadIdx.x * widest; i < width; i += blockDim.x * widest) body(Count<widest>(), i);
    else
        for (long long i = threadIdx.x; i < width; i += blockDim.x) body(Count<1>(), i);
}

// A part of the weight or bias, or `otherwise` where there is none.
template <int count>
__device__ Pack<count> load_or(const Scalar* array, long long i, float otherwise) {
    if (array) return load<count>(array, i);
    Pack<count> pack;
    for (int k = 0; k < count; k++) pack[k] = Scalar(otherwise);
    return pack;
}

template <bool centred>
__device__ void forward(const Scalar* x, const Scalar* weight, const Scalar* bias, Scalar* out, Accumulator* means,
                        Accumulator* rstds, Accumulator eps, long long rows, long long width) {
    bool in_packs = width % widest == 0 && aligned(x, weight, bias, out);
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    long long columns = row < rows ? width : 0;  // threads without a row take part, as all must call the sums
    x += row * width;
    out += row * width;
    Accumulator mean = 0;
    if (centred) {
        for_each_column(columns, in_packs, [&](auto count, long long i) {
            constexpr int n = decltype(count)::value;
            Pack<n> values = load<n>(x, i);
            for (int k = 0; k < n; k++) mean += Accumulator(values[k]);
        });
        mean = row_sum(mean) / Accumulator(width);
    }
    Accumulator squares = 0;
    for_each_column(columns, in_packs, [&](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i);
        for (int k = 0; k < n; k++) {
            Accumulator difference = Accumulator(values[k]) - mean;
            squares += difference * difference;
        }
    });
    Accumulator rstd = Accumulator(1) / sqrt(row_sum(squares) / Accumulator(width) + eps);
    for_each_column(columns, in_packs, [&](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i), scales = load_or<n>(weight, i, 1), shifts = load_or<n>(bias, i, 0);
        for (int k = 0; k < n; k++) {
            Accumulator normalized = (Accumulator(values[k]) - mean) * rstd;
            values[k] = Scalar(normalized * Accumulator(scales[k]) + Accumulator(shifts[k]));
        }
        store(out, i, values);
    });
    if (row < rows && threadIdx.x == 0) {
        if (centred && means) means[row] = mean;
        if (rstds) rstds[row] = rstd;
    }
}

extern "C" __global__ void __launch_bounds__(row_threads, 1) layer_norm_forward(
    const Scalar* x, const Scalar* weight, const Scalar* bias, Scalar* out, Accumulator* means, Accumulator* rstds,
    Accumulator eps, long long rows, long long width) {
    forward<true>(x, weight, bias, out, means, rstds, eps, rows, width);
}

extern "C" __global__ void __launch_bounds__(row_threads, 1) rms_norm_forward(
    const Scalar* x, const Scalar* weight, Scalar* out, Accumulator* rstds, Accumulator eps, long long rows, long long width) {
    forward<false>(x, weight, nullptr, out, nullptr, rstds, eps, rows, width);
}

template <bool centred>
__device__ void backward(const Scalar* g, const Scalar* x, const Scalar* weight, const Accumulator* means,
                         const Accumulator* rstds, Scalar* d_x, long long rows, long long width) {
    bool in_packs = width % widest == 0 && aligned(g, x, weight, d_x);
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    long long columns = row < rows ? width : 0;
    g += row * width;
    x += row * width;
    d_x += row * width;
    Accumulator mean = centred && row < rows ? means[row] : Accumulator(0), rstd = row < rows ? rstds[row] : Accumulator(0);
    Accumulator mean_h = 0, mean_h_n = 0;
    for_each_column(columns, in_packs, [&](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> gradients = load<n>(g, i), values = load<n>(x, i), scales = load_or<n>(weight, i, 1);
        for (int k = 0; k < n; k++) {
            Accumulator h = Accumulator(gradients[k]) * Accumulator(scales[k]);
            mean_h += h;
            mean_h_n += h * (Accumulator(values[k]) - mean) * rstd;
        }
    });
    mean_h = centred ? row_sum(mean_h) / Accumulator(width) : Accumulator(0);
    mean_h_n = row_sum(mean_h_n) / Accumulator(width);
    for_each_column(columns, in_packs, [&](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> gradients = load<n>(g, i), values = load<n>(x, i), scales = load_or<n>(weight, i, 1);
        for (int k = 0; k < n; k++) {
            Accumulator h = Accumulator(gradients[k]) * Accumulator(scales[k]);
            Accumulator normalized = (Accumulator(values[k]) - mean) * rstd;
            values[k] = Scalar((h - mean_h - normalized * mean_h_n) * rstd);
        }
        store(d_x, i, values);
    });
}

extern "C" __global__ void __launch_bounds__(row_threads, 1) layer_norm_backward(
    const Scalar* g, const Scalar* x, const Scalar* weight, const Accumulator* means, const Accumulator* rstds, Scalar* d_x,
    long long rows, long long width) {
    backward<true>(g, x, weight, means, rstds, d_x, rows, width);
}

extern "C" __global__ void __launch_bounds__(row_threads, 1) rms_norm_backward(
    const Scalar* g, const Scalar* x, const Scalar* weight, const Accumulator* rstds, Scalar* d_x, long long rows,
    long long width) {
    backward<false>(g, x, weight, nullptr, rstds, d_x, rows, width);
}

// ------------------------------------------------------------------------------ the gradients of weight and bias
// Sums over rows in two stages, always in the same order. The rows are cut into gridDim.y groups. First, each block sums 32
// columns of a group, blockDim.y rows at a time. Then, one block for each 32 columns adds up the sums of the groups.

// Writes weights[group], the sum of g n over the rows of a group, and biases[group], the sum of g, each unless it is null. Both
// are (groups, width).
extern "C" __global__ void __launch_bounds__(sum_threads, 1) sum_row_groups(
    const Scalar* g, const Scalar* x, const Accumulator* means, const Accumulator* rstds, Accumulator* weights,
    Accumulator* biases, long long rows, long long width) {
    long long column = static_cast<long long>(blockIdx.x) * warp_size + threadIdx.x;
    long long each = (rows + gridDim.y - 1) / gridDim.y;
    long long first = blockIdx.y * each, last = min(rows, first + each);
    Accumulator weight = 0, bias = 0;
    if (column < width) {
        for (long long row = first + threadIdx.y; row < last; row += blockDim.y) {
            Accumulator gradient = Accumulator(g[row * width + column]);
            bias += gradient;
            if (weights) {
                Accumulator mean = means ? means[row] : Accumulator(0);
                weight += gradient * (Accumulator(x[row * width + column]) - mean) * rstds[row];
            }
        }
    }
    weight = column_sum(weight);
    bias = column_sum(bias);
    if (threadIdx.y == 0 && column < width) {
        if (weights) weights[blockIdx.y * width + column] = weight;
        if (biases) biases[blockIdx.y * width + column] = bias;
    }
}

extern "C" __global__ void __launch_bounds__(sum_threads, 1) add_groups(
    const Accumulator* sums, Scalar* out, long long count, long long width) {
    long long column = static_cast<long long>(blockIdx.x) * warp_size + threadIdx.x;
    Accumulator sum = 0;
    if (column < width)
        for (long long group = threadIdx.y; group < count; group += blockDim.y) sum += sums[group * width + column];
    sum = column_sum(sum);
    if (threadIdx.y == 0 && column < width) out[column] = Scalar(sum);
}
