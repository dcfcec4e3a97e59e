// Sorting by counting comparisons (Knuth, The Art of Computer Programming, volume 3, section 5.2, algorithm C): the position of
// an id in the order is the number of ids before it. The count * count comparisons are little work for a GPU, in one launch and
// without memory.
#include "common.cuh"

constexpr int threads = 256;  // in a block, as in embedding.py

// order[position] = i for each id at i. An id comes before another if it is smaller, or equal and earlier.
//
// Launch: a thread for each id. The threads of a block share their loads: each loads one id of a tile, and then reads all of it.
extern "C" __global__ void __launch_bounds__(threads, 1) order_of(const long long* ids, long long* order, long long count) {
    __shared__ int tile[threads];
    long long i = static_cast<long long>(blockIdx.x) * threads + threadIdx.x;
    int id = i < count ? static_cast<int>(ids[i]) : 0;
    long long position = 0;
    for (long long first = 0; first < count; first += threads) {
        __syncthreads();  // the previous tile has been read
        if (first + threadIdx.x < count) tile[threadIdx.x] = static_cast<int>(ids[first + threadIdx.x]);
        __syncthreads();
        int size = count - first < threads ? static_cast<int>(count - first) : threads;
        for (int k = 0; k < size; k++) position += tile[k] < id || (tile[k] == id && first + k < i);
    }
    if (i < count) order[position] = i;
}
