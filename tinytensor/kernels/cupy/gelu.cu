// The tanh form of the Gaussian error linear unit; the formulas stand in kernels/numpy/gelu.py.
#include "common.cuh"

constexpr Accumulator scale = Accumulator(0.7978845608028653559);  // sqrt(2 / pi)
constexpr Accumulator cubic = Accumulator(0.044715);

// p = (1 + tanh(u)) / 2 as 1 / (1 + exp(-2 u)), which loses no digits where tanh(u) is close to -1.
__device__ inline Accumulator probability(Accumulator x) {
    Accumulator u = scale * x * (Accumulator(1) + cubic * x * x);
    return Accumulator(1) / (Accumulator(1) + exp(Accumulator(-2) * u));
}

__device__ inline Accumulator slope(Accumulator x) {
    Accumulator p = probability(x);
    Accumulator twice_inner = Accumulator(2) * scale * (Accumulator(1) + Accumulator(3) * cubic * x * x);
    return p * (Accumulator(1) + (Accumulator(1) - p) * x * twice_inner);
}

extern "C" __global__ void forward(const Scalar* x, Scalar* out, long long size) {
    for_each_pack(size, aligned(x, out), [=](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i);
        for (int k = 0; k < n; k++) values[k] = Scalar(Accumulator(values[k]) * probability(Accumulator(values[k])));
        store(out, i, values);
    });
}

extern "C" __global__ void backward(const Scalar* g, const Scalar* x, Scalar* d_x, long long size) {
    for_each_pack(size, aligned(g, x, d_x), [=](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> gradients = load<n>(g, i), values = load<n>(x, i);
        for (int k = 0; k < n; k++) values[k] = Scalar(Accumulator(gradients[k]) * slope(Accumulator(values[k])));
        store(d_x, i, values);
    });
}
