// Softmax cross-entropy for class indices; the formulas stand in kernels/numpy/cross_entropy.py. A row belongs to the blockDim.x
// threads of equal threadIdx.y: to one warp, or where there are many classes to a whole block, which reads it once for the
// largest logit and the sum of the exponentials together (Milakov and Gimelshein 2018).
//
// A row with the target `ignored` is not read: its loss and its gradient are 0. Targets come from outside and are checked on
// the CPU alone: for one that is no class the loss is NaN, and nothing beside the row is touched.
#include "common.cuh"

constexpr Accumulator lowest = sizeof(Accumulator) == 8 ? -1.7976931348623157e308 : -3.4028234663852886e38;

// Calls body(Count<n>, i) for the n columns from i on, so that the threads of the row together cover it, each always the same
// ones. Rows begin anywhere in memory: what comes before and after the packs, fewer columns than a warp has lanes, goes singly.
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

// All threads of the block must call it; all of a row get the same. Width 0 stands for a row that does not count.
__device__ Row read_row(const Scalar* x, long long width, long long target, Accumulator smoothing) {
    Accumulator largest = lowest, sum = 0, plain = 0;
    for_each_column(x, width, true, [&](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i);
        Accumulator most = largest;
        for (int k = 0; k < n; k++) most = max(most, Accumulator(values[k]));
        if (most > largest) sum *= exp(largest - most);
        largest = most;
        for (int k = 0; k < n; k++) {
            sum += exp(Accumulator(values[k]) - largest);
            plain += Accumulator(values[k]);
        }
    });
    Accumulator right = 0;
    if (width > 0) right = target >= 0 && target < width ? Accumulator(x[target]) : Accumulator(__uint_as_float(0x7fc00000u));
    Row row;
    row.largest = over_row(largest, lowest, [](Accumulator a, Accumulator b) { return max(a, b); });
    row.sum = row_sum(sum * exp(largest - row.largest));
    row.loss = log(row.sum) - (Accumulator(1) - smoothing) * (right - row.largest);
    if (smoothing != 0) row.loss -= smoothing * (row_sum(plain) / Accumulator(width) - row.largest);
    if (width == 0) row.loss = 0;
    return row;
}

// out = (exp(x - shift) factor - the target distribution) scale, or 0 with scale 0; x and out may be the same. All of a
// thread's columns are those that it read before.
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

// losses[row], and where it is not null totals[row], the logarithm of the sum of exponentials. Rows are `stride` apart.
extern "C" __global__ void forward(const Scalar* logits, const long long* targets, Accumulator* losses, Accumulator* totals,
                                   long long ignored, Accumulator smoothing, long long rows, long long width,
                                   long long stride) {
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    long long target = row < rows ? targets[row] : ignored;
    Row found = read_row(logits + row * stride, target == ignored ? 0 : width, target, smoothing);
    if (row < rows && threadIdx.x == 0) {
        losses[row] = found.loss;
        if (totals) totals[row] = log(found.sum) + found.largest;
    }
}

// g is one number, or with `each` one for every row; count is how many rows make the mean, or null for other reductions.
extern "C" __global__ void backward(const Accumulator* g, const Scalar* logits, const long long* targets,
                                    const Accumulator* totals, const Accumulator* count, Scalar* d_logits, long long each,
                                    long long ignored, Accumulator smoothing, long long rows, long long width) {
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row < rows) {
        long long target = targets[row];
        Accumulator scale = target == ignored ? Accumulator(0) : g[each ? row : 0] / (count ? *count : Accumulator(1));
        write_gradient(logits + row * width, d_logits + row * width, width, target, smoothing, totals[row], 1, scale);
    }
}

// Both in one, in the logits' place: losses[row], and the gradient of their sum.
extern "C" __global__ void replace_by_gradient(Scalar* logits, const long long* targets, Accumulator* losses,
                                               long long ignored, Accumulator smoothing, long long rows, long long width,
                                               long long stride) {
    long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    long long target = row < rows ? targets[row] : ignored;
    bool kept = target != ignored;
    Scalar* x = logits + row * stride;
    Row found = read_row(x, kept ? width : 0, target, smoothing);
    __syncwarp();  // all have read the target's logit: in a block the sums' barriers see to that, but shuffles order no memory
    if (row < rows) {
        write_gradient(x, x, width, target, smoothing, found.largest, Accumulator(1) / found.sum, kept);
        if (threadIdx.x == 0) losses[row] = found.loss;
    }
}

// One block: the sum of the losses, or where `count` is not null their mean over the rows that count, whose number goes there.
extern "C" __global__ void reduce(const Accumulator* losses, const long long* targets, Accumulator* loss, Accumulator* count,
                                  long long ignored, long long rows) {
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

// out = x g / count, the last being 1 where it is null.
extern "C" __global__ void scale(const Scalar* x, const Accumulator* g, const Accumulator* count, Scalar* out, long long size) {
    Accumulator factor = *g / (count ? *count : Accumulator(1));
    for_each_pack(size, aligned(x, out), [=](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i);
        for (int k = 0; k < n; k++) values[k] = Scalar(Accumulator(values[k]) * factor);
        store(out, i, values);
    });
}

// The same for sums that are kept in Accumulators.
extern "C" __global__ void scale_sums(const Accumulator* x, const Accumulator* g, const Accumulator* count, Scalar* out,
                                      long long size) {
    Accumulator factor = *g / (count ? *count : Accumulator(1));
    for_each_pack(size, false, [=](auto, long long i) { out[i] = Scalar(x[i] * factor); });
}
