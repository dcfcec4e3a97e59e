// One step of a recurrent layer, except for its matrix product: the gates, the states, and padding, which keeps the state.
// kernels/numpy/recurrence.py has the formulas.
//
// Launch of all kernels: a block of 256 threads for each 256 elements of the state (batch, width). Thread i of the grid
// computes element i, in row i / width (a sequence) and column i % width. Its gates lie `width` apart in rows of gates * width.
//
// `product` is the previous state's part of the gates. `mask` (batch,), true for a token, may be null. All arrays are those of
// one step.
//
// In the backward pass, `d_state` holds the gradient of the state after the step, to which `g` is added. The part that bypasses
// the gates stays in it; the product of the gates' gradients is added afterwards.
#include "common.cuh"

constexpr int threads = 256;  // in a block, as in recurrence.py

constexpr Accumulator one = 1;

__device__ inline Accumulator sigmoid(Accumulator x) { return one / (one + exp(-x)); }

// Calls body(i, row, column) for the elements of the state. Each thread has one.
template <typename Body>
__device__ void for_the_state(long long batch, long long width, Body body) {
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < batch * width) body(i, i / width, i % width);
}

__device__ inline bool is_padding(const bool* mask, long long row) { return mask && !mask[row]; }

// ---------------------------------------------------------------------------------------------------- plain network

extern "C" __global__ void __launch_bounds__(threads, 1) rnn_forward(
    const Scalar* projected, const Accumulator* product, const Scalar* old, const bool* mask, Scalar* states,
    long long is_relu, long long batch, long long width) {
    for_the_state(batch, width, [=](long long i, long long row, long long column) {
        Accumulator a = Accumulator(projected[i]) + product[i];
        Accumulator value = is_relu ? (a < 0 ? Accumulator(0) : a) : tanh(a);  // NaN stays NaN
        states[i] = is_padding(mask, row) ? old[i] : Scalar(value);
    });
}

extern "C" __global__ void __launch_bounds__(threads, 1) rnn_backward(
    const Scalar* g, const Scalar* states, const bool* mask, Accumulator* d_state, Scalar* d_gates, long long is_relu,
    long long batch, long long width) {
    for_the_state(batch, width, [=](long long i, long long row, long long column) {
        Accumulator d_new = d_state[i] + Accumulator(g[i]), h = states[i];
        bool padding = is_padding(mask, row);
        Accumulator d_gate = is_relu ? (h <= 0 ? Accumulator(0) : d_new) : d_new * (one - h * h);
        d_gates[i] = Scalar(padding ? Accumulator(0) : d_gate);
        d_state[i] = padding ? d_new : Accumulator(0);
    });
}

// -------------------------------------------------------------------------------------------------------------- GRU

// `saved` (batch, 4 * width) gets r, z, n and u_n, the product that r multiplies. Null if no gradient is needed.
extern "C" __global__ void __launch_bounds__(threads, 1) gru_forward(
    const Scalar* projected, const Accumulator* product, const Scalar* bias, const Scalar* old, const bool* mask,
    Scalar* states, Accumulator* saved, long long batch, long long width) {
    for_the_state(batch, width, [=](long long i, long long row, long long column) {
        long long first = row * 3 * width + column;
        Accumulator p[3], u[3];
        for (int k = 0; k < 3; k++) {
            p[k] = projected[first + k * width];
            u[k] = product[first + k * width] + (bias ? Accumulator(bias[column + k * width]) : Accumulator(0));
        }
        Accumulator r = sigmoid(p[0] + u[0]), z = sigmoid(p[1] + u[1]), n = tanh(p[2] + r * u[2]);
        Accumulator value = n + z * (Accumulator(old[i]) - n);
        states[i] = is_padding(mask, row) ? old[i] : Scalar(value);
        if (saved) {
            Accumulator values[4] = {r, z, n, u[2]};
            for (int k = 0; k < 4; k++) saved[row * 4 * width + k * width + column] = values[k];
        }
    });
}

extern "C" __global__ void __launch_bounds__(threads, 1) gru_backward(
    const Scalar* g, const Accumulator* saved, const Scalar* old, const bool* mask, Accumulator* d_state, Scalar* d_projected,
    Scalar* d_product, long long batch, long long width) {
    for_the_state(batch, width, [=](long long i, long long row, long long column) {
        Accumulator d_new = d_state[i] + Accumulator(g[i]);
        const Accumulator* gates = saved + row * 4 * width + column;
        Accumulator r = gates[0], z = gates[width], n = gates[2 * width], u = gates[3 * width];
        Accumulator d_n = d_new * (one - z) * (one - n * n);
        Accumulator d_r = d_n * u * r * (one - r), d_z = d_new * (Accumulator(old[i]) - n) * z * (one - z);
        bool padding = is_padding(mask, row);
        Accumulator of_projected[3] = {d_r, d_z, d_n}, of_product[3] = {d_r, d_z, d_n * r};
        for (int k = 0; k < 3; k++) {
            long long index = row * 3 * width + k * width + column;
            d_projected[index] = Scalar(padding ? Accumulator(0) : of_projected[k]);
            d_product[index] = Scalar(padding ? Accumulator(0) : of_product[k]);
        }
        d_state[i] = padding ? d_new : d_new * z;
    });
}

// ------------------------------------------------------------------------------------------------------------- LSTM

// `gates` (batch, 4 * width) gets i, f, u and o. Null if no gradient is needed.
extern "C" __global__ void __launch_bounds__(threads, 1) lstm_forward(
    const Scalar* projected, const Accumulator* product, const Scalar* old, const Accumulator* old_cell, const bool* mask,
    Scalar* states, Accumulator* cells, Accumulator* gates, long long batch, long long width) {
    for_the_state(batch, width, [=](long long i, long long row, long long column) {
        long long first = row * 4 * width + column;
        Accumulator a[4];
        for (int k = 0; k < 4; k++) a[k] = Accumulator(projected[first + k * width]) + product[first + k * width];
        Accumulator values[4] = {sigmoid(a[0]), sigmoid(a[1]), tanh(a[2]), sigmoid(a[3])};
        Accumulator cell = values[1] * old_cell[i] + values[0] * values[2];
        bool padding = is_padding(mask, row);
        cells[i] = padding ? old_cell[i] : cell;
        states[i] = padding ? old[i] : Scalar(values[3] * tanh(cell));
        if (gates)
            for (int k = 0; k < 4; k++) gates[first + k * width] = values[k];
    });
}

extern "C" __global__ void __launch_bounds__(threads, 1) lstm_backward(
    const Scalar* g, const Scalar* g_cell, const Accumulator* gates, const Accumulator* cells, const Accumulator* old_cell,
    const bool* mask, Accumulator* d_state, Accumulator* d_cell, Scalar* d_gates, long long batch, long long width) {
    for_the_state(batch, width, [=](long long k, long long row, long long column) {
        Accumulator d_new = d_state[k] + Accumulator(g[k]), d_new_cell = d_cell[k] + Accumulator(g_cell[k]);
        long long first = row * 4 * width + column;
        Accumulator i = gates[first], f = gates[first + width], u = gates[first + 2 * width], o = gates[first + 3 * width];
        Accumulator squashed = tanh(cells[k]);
        Accumulator d_total = d_new_cell + d_new * o * (one - squashed * squashed);
        bool padding = is_padding(mask, row);
        Accumulator values[4] = {d_total * u * i * (one - i), d_total * old_cell[k] * f * (one - f),
                                 d_total * i * (one - u * u), d_new * squashed * o * (one - o)};
        for (int gate = 0; gate < 4; gate++)
            d_gates[first + gate * width] = Scalar(padding ? Accumulator(0) : values[gate]);
        d_state[k] = padding ? d_new : Accumulator(0);
        d_cell[k] = padding ? d_new_cell : d_total * f;
    });
}
