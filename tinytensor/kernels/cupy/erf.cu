// The error function: CUDA's own.
#include "common.cuh"

// Launch: a block of 256 threads for each 1,024 elements, see for_each_pack.
extern "C" __global__ void __launch_bounds__(elementwise_threads, 1) forward(const Scalar* x, Scalar* out, long long size) {
    for_each_pack(size, aligned(x, out), [=](auto count, long long i) {
        constexpr int n = decltype(count)::value;
        Pack<n> values = load<n>(x, i);
        for (int k = 0; k < n; k++) values[k] = Scalar(erf(Accumulator(values[k])));
        store(out, i, values);
    });
}
