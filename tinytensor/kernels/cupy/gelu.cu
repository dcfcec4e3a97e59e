// The Gaussian error linear unit, exact and with tanh; kernels/numpy/activations.py has the formulas.
#include "common.cuh"

constexpr Accumulator one = 1;
constexpr Accumulator far = 750;  // beyond it cdf is 0 or 1 to the last bit; replacing infinity by it avoids NaN

__device__ Accumulator from_below(Accumulator x) { return x < -far ? -far : x; }
__device__ Accumulator near(Accumulator x) { return x > far ? far : from_below(x); }

struct Exact {
    // (1 + erf(x / sqrt(2))) / 2, by erfc, which loses no digits for erf close to -1
    static __device__ Accumulator cdf(Accumulator x) {
        return Accumulator(0.5) * erfc(x * Accumulator(-0.7071067811865475244));
    }

    static __device__ Accumulator slope(Accumulator x) {
        return cdf(x) + x * exp(Accumulator(-0.5) * x * x) * Accumulator(0.3989422804014326779);  // 1 / sqrt(2 pi)
    }
};

struct Tanh {
    static constexpr Accumulator scale = Accumulator(0.7978845608028653559);  // sqrt(2 / pi)
    static constexpr Accumulator cubic = Accumulator(0.044715);

    // (1 + tanh(u)) / 2, as 1 / (1 + exp(-2 u)), which loses no digits for tanh close to -1
    static __device__ Accumulator cdf(Accumulator x) {
        Accumulator u = scale * x * (one + cubic * x * x);
        return one / (one + exp(Accumulator(-2) * u));
    }

    static __device__ Accumulator slope(Accumulator x) {
        Accumulator p = cdf(x);
        return p * (one + Accumulator(2) * (one - p) * x * scale * (one + Accumulator(3) * cubic * x * x));
    }
};

template <typename Form>
__device__ void forward(const Scalar* x, Scalar* out, long long size) {
    for_each_pack(size, aligned(x, out), [=](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i);
        for (int k = 0; k < n; k++) values[k] = Scalar(from_below(Accumulator(values[k])) * Form::cdf(Accumulator(values[k])));
        store(out, i, values);
    });
}

template <typename Form>
__device__ void backward(const Scalar* g, const Scalar* x, Scalar* d_x, long long size) {
    for_each_pack(size, aligned(g, x, d_x), [=](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> gradients = load<n>(g, i), values = load<n>(x, i);
        for (int k = 0; k < n; k++) values[k] = Scalar(Accumulator(gradients[k]) * Form::slope(near(Accumulator(values[k]))));
        store(d_x, i, values);
    });
}

// Launch of all four kernels: a block of 256 threads for each 1,024 elements, see for_each_pack.

extern "C" __global__ void __launch_bounds__(elementwise_threads, 1) exact_forward(
    const Scalar* x, Scalar* out, long long size) {
    forward<Exact>(x, out, size);
}

extern "C" __global__ void __launch_bounds__(elementwise_threads, 1) exact_backward(
    const Scalar* g, const Scalar* x, Scalar* d_x, long long size) {
    backward<Exact>(g, x, d_x, size);
}

extern "C" __global__ void __launch_bounds__(elementwise_threads, 1) tanh_forward(
    const Scalar* x, Scalar* out, long long size) {
    forward<Tanh>(x, out, size);
}

extern "C" __global__ void __launch_bounds__(elementwise_threads, 1) tanh_backward(
    const Scalar* g, const Scalar* x, Scalar* d_x, long long size) {
    backward<Tanh>(g, x, d_x, size);
}
