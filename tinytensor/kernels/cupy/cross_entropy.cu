// Cross-entropy for class indices; kernels/numpy/cross_entropy.py has the formulas. The blockDim.x threads with the same
// threadIdx.y take a row: a warp, or a whole block for many classes. One pass over the row computes both the largest logit and
// the sum of the exponentials (Milakov and Gimelshein 2018).
//
// A row with the target `ignored` is not read: its loss and gradient are 0. Targets are not checked on a GPU. One that is no
// class gives the loss NaN, and no memory outside its row is touched.
#include "common.cuh"

constexpr int row_threads = 512, reduce_threads = 1024;  // the most in a block, as in cross_entropy.py

// Calls body(Count<n>, i) for the n columns starting at i. The row's threads together cover it, and a thread always gets the
// same columns. A row may begin anywhere in memory. The columns before and after the packs, fewer than a warp has lanes, are
// taken one by one.
template <typename Body>
__device__ void for_each_column(const Scalar* row, long long width, bool in_packs, Body body) {
    long long past = reinterpret_cast<unsigned long long>(row) % 16 / sizeof(Scalar);
    long long before = min(width, (widest - past) % widest);
    long long packs = in_packs ? (width - before) / widest : 0;
    long long single = width - packs * widest;
    for (long long i = threadIdx.x; i < single; i += blockDim.x) body(Count<1>(), i < before ? i : i + packs * widest);
    for (long long i = threadIdx.x; i < packs; i += blockDim.x) body(Count<widest>(), before + i * widest);
}

struct Row {
    Accumulator largest;
    Accumulator sum;  // of exp(x - largest)
    Accumulator loss;
};

// All threads of the block must call it. All threads of a row get the same. Width 0 means an ignored row.
__device__ Row read_row(const Scalar* x, long long width, long long target, Accumulator smoothing) {
    Accumulator largest = lowest, sum = 0, plain = 0;  // plain: of x minus its first element, as x may be large and alike
    Accumulator first = width > 0 ? Accumulator(x[0]) : Accumulator(0);
    if (!(first > lowest)) first = 0;
    for_each_column(x, width, true, [&](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i);
        Accumulator most = largest;
        for (int k = 0; k < n; k++) most = max(most, Accumulator(values[k]));
        if (most > largest) sum *= exp(largest - most);
        largest = most;
        for (int k = 0; k < n; k++) {
            sum += exp(Accumulator(values[k]) - largest);
            plain += Accumulator(values[k]) - first;
        }
    });
    Accumulator right = 0;
    if (width > 0) right = target >= 0 && target < width ? Accumulator(x[target]) : Accumulator(__uint_as_float(0x7fc00000u));
    Row row;
    row.largest = over_row(largest, lowest, [](Accumulator a, Accumulator b) { return max(a, b); });
    row.sum = row_sum(sum * exp(largest - row.largest));
    row.loss = log(row.sum) - (Accumulator(1) - smoothing) * (right - row.largest);
    if (smoothing != 0) row.loss -= smoothing * (row_sum(plain) / Accumulator(width) + (first - row.largest));
    if (width == 0) row.loss = 0;
    return row;
}

// out = (exp(x - shift) factor - the target distribution) scale, or 0 if the scale is 0. x and out may be the same array, as
// each column is read and written by one thread.
__device__ void write_gradient(const Scalar* x, Scalar* out, long long width, long long target, Accumulator smoothing,
                               Accumulator shift, Accumulator factor, Accumulator scale) {
    bool in_packs = (reinterpret_cast<unsigned long long>(x) - reinterpret_cast<unsigned long long>(out)) % 16 == 0;
    Accumulator everywhere = smoothing / Accumulator(width), there = Accumulator(1) - smoothing;
    for_each_column(x, width, in_packs, [=](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i);
        for (int k = 0; k < n; k++) {
            Accumulator difference = exp(Accumulator(values[k]) - shift) * factor - everywhere;
            if (i + k == target) difference -= there;
            values[k] = Scalar(scale == 0 ? Accumulator(0) : difference * scale);
        }
        store(out, i, values);
    });
}

// Launch of `forward`, `backward` and `replace_by_gradient`: with more than 2,048 classes a block of 512 threads for each row,
// otherwise a block of (32, 4) threads for each four rows, one for each warp. Thread threadIdx.x of a row's threads takes every
// blockDim.x-th pack of columns.

// Writes losses[row] and, unless they are null, the row's largest logit and the sum of exp(logit - largest). The logarithm of
// this sum is never added to the largest logit, which would round it to fewer digits. Rows are `stride` apart.
extern "C" __global__ void __launch_bounds__(row_threads, 1) forward(
    const Scalar* logits, const long long* targets, Accumulator* losses, Accumulator* largest, Accumulator* totals,
    long long ignored, Accumulator smoothing, long long rows, long long width, long long stride) {
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    long long target = row < rows ? targets[row] : ignored;
    Row row_values = read_row(logits + row * stride, target == ignored ? 0 : width, target, smoothing);
    if (row < rows && threadIdx.x == 0) {
        losses[row] = row_values.loss;
        if (largest) largest[row] = row_values.largest;
        if (totals) totals[row] = row_values.sum;
    }
}

// g is one number, or with `each` one for each row. *count is how many rows the mean is over; null without a mean.
extern "C" __global__ void __launch_bounds__(row_threads, 1) backward(
    const Accumulator* g, const Scalar* logits, const long long* targets, const Accumulator* largest, const Accumulator* totals,
    const Accumulator* count, Scalar* d_logits, long long each, long long ignored, Accumulator smoothing, long long rows,
    long long width) {
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row < rows) {
        long long target = targets[row];
        Accumulator scale = target == ignored ? Accumulator(0) : g[each ? row : 0] / (count ? *count : Accumulator(1));
        write_gradient(logits + row * width, d_logits + row * width, width, target, smoothing, largest[row],
                       Accumulator(1) / totals[row], scale);
    }
}

// Writes losses[row], and overwrites the logits by the gradient of the sum of the losses.
extern "C" __global__ void __launch_bounds__(row_threads, 1) replace_by_gradient(
    Scalar* logits, const long long* targets, Accumulator* losses, long long ignored, Accumulator smoothing, long long rows,
    long long width, long long stride) {
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    long long target = row < rows ? targets[row] : ignored;
    bool kept = target != ignored;
    Scalar* x = logits + row * stride;
    Row row_values = read_row(x, kept ? width : 0, target, smoothing);
    // All threads must have read the target's logit. In a block the barriers of the sums ensure it, but shuffles order no
    // memory.
    __syncwarp();
    if (row < rows) {
        write_gradient(x, x, width, target, smoothing, row_values.largest, Accumulator(1) / row_values.sum, kept);
        if (threadIdx.x == 0) losses[row] = row_values.loss;
    }
}

// Writes the sum of the losses, or if `count` is not null, their mean over the rows that are not ignored, whose number goes to
// *count.
//
// Launch: a single block of 1,024 threads, each of which adds up every 1,024th loss.
extern "C" __global__ void __launch_bounds__(reduce_threads, 1) reduce(
    const Accumulator* losses, const long long* targets, Accumulator* loss, Accumulator* count, long long ignored,
    long long rows) {
    Accumulator sum = 0, kept = 0;
    for (long long row = threadIdx.x; row < rows; row += blockDim.x) {
        sum += losses[row];
        if (count) kept += targets[row] != ignored;
    }
    sum = row_sum(sum);
    kept = max(row_sum(kept), Accumulator(1));
    if (threadIdx.x == 0) {
        *loss = count ? sum / kept : sum;
        if (count) *count = kept;
    }
}

// out (rows, width) = x, but 0 in ignored rows.
//
// Launch: a block of 256 threads for each 1,024 elements, see for_each_pack.
extern "C" __global__ void __launch_bounds__(elementwise_threads, 1) without_ignored(
    const Scalar* x, const long long* targets, Scalar* out, long long ignored, long long width, long long size) {
    for_each_pack(size, width % widest == 0 && aligned(x, out), [=](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i);
        if (targets[i / width] == ignored)
            for (int k = 0; k < n; k++) values[k] = Scalar(0.0f);
        store(out, i, values);
    });
}

// out = x g / count, where a null `count` means 1.
//
// Launch of `scale` and `scale_sums`: a block of 256 threads for each 1,024 elements, see for_each_pack.
extern "C" __global__ void __launch_bounds__(elementwise_threads, 1) scale(
    const Scalar* x, const Accumulator* g, const Accumulator* count, Scalar* out, long long size) {
    Accumulator factor = *g / (count ? *count : Accumulator(1));
    for_each_pack(size, aligned(x, out), [=](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i);
        for (int k = 0; k < n; k++) values[k] = Scalar(Accumulator(values[k]) * factor);
        store(out, i, values);
    });
}

// The same for an x that holds Accumulators.
extern "C" __global__ void __launch_bounds__(elementwise_threads, 1) scale_sums(
    const Accumulator* x, const Accumulator* g, const Accumulator* count, Scalar* out, long long size) {
    Accumulator factor = *g / (count ? *count : Accumulator(1));
    for_each_pack(size, false, [=](auto, long long i) { out[i] = Scalar(x[i] * factor); });
}
