// CUDA C++ as C++17: put before a kernel's source, it compiles the kernel for the CPU. How it is run is in `cuda_runtime.cpp`,
// which is compiled once, and which each kernel is linked with.
// What is undefined on a GPU ends the launch with a message: see `fail`.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __constant__ static
#define __shared__ static __attribute__((section("cuda_shared")))  // one block runs at a time

struct dim3 {
    unsigned x, y, z;
};
struct uint3 {
    unsigned x, y, z;
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
extern int warpSize;  // no constant in CUDA either

namespace cpu {

constexpr int lanes = 32;  // of a warp

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

// ------------------------------------------------------------------------------------------------------------ threads

struct Fiber;

enum State { unstarted, running, at_barrier, in_warp, ended };

struct Thread {
    Fiber* fiber;
    uint3 index;
    State state;
    int line;                  // where it waits
    const char* operation;     // a warp's: what it waits in
    unsigned mask;             // and which lanes for
    int source;                // the lane whose value it wants
    uint64_t value, result;
};

constexpr int most_threads = 1024;
extern Thread threads[most_threads];
extern Thread* current;
extern int count, waiting;     // threads of the block, and those at its barrier
extern int arrived[most_threads / lanes];  // in each warp's shuffle

inline void become(Thread* thread) {
    current = thread;
    thread->state = running;
    threadIdx = thread->index;
}

void wait();  // until another thread wakes this one
void wake(Thread* const* first, Thread* const* last);
void open_barrier(int line);                              // wakes all, as the last one has come
bool complete(const Thread* warp, const Thread& thread);  // whether all lanes that the thread waits for are where it is
void copy_beside(void* to, const void* from, size_t given, size_t whole);
void wait_for_own_copies();

// -------------------------------------------------------------------------------------------------- barriers, shuffles

// Counts the threads at the barrier.
inline void barrier(int line) {
    current->state = at_barrier;
    current->line = line;
    if (++waiting < count) return wait();
    open_barrier(line);
    become(current);
}

// Waits for the lanes in `mask`. The last of them to come calls finish(warp, group, size), with the warp's first thread and those
// that met, and then all go on. Inlined, as every return on another stack than that of the call is a misprediction.
template <typename Finish>
inline __attribute__((always_inline)) void meet(const char* operation, int line, unsigned mask, Finish finish) {
    Thread* thread = current;
    int place = static_cast<int>(thread - threads);
    Thread* warp = thread - place % lanes;
    thread->state = in_warp;
    thread->operation = operation;
    thread->line = line;
    thread->mask = mask;
    if (++arrived[place / lanes] < __builtin_popcount(mask) || !complete(warp, *thread)) return wait();
    Thread* group[lanes];
    int size = 0;
    for (int i = 0; i < lanes; i++)
        if (mask >> i & 1) group[size++] = warp + i;
    finish(warp, group, size);
    for (int i = 0; i < size; i++) group[i]->state = running;
    arrived[place / lanes] -= size;
    wake(group, group + size);
    become(thread);
}

// Leaves a value for the lanes in `mask` and takes that of the lane `source`, once all have come.
inline __attribute__((always_inline)) uint64_t exchange(const char* operation, int line, unsigned mask, uint64_t value, int source) {
    Thread* thread = current;
    int lane = static_cast<int>(thread - threads) % lanes;
    if (!(mask >> lane & 1)) fail("%s in line %d: lane %d is not in its own mask %08x", operation, line, lane, mask);
    if (!(mask >> source & 1)) fail("%s in line %d: lane %d reads lane %d, which is not in the mask %08x", operation, line, lane, source, mask);
    thread->value = value;
    thread->source = source;
    meet(operation, line, mask, [](Thread* warp, Thread** group, int size) {
        for (int i = 0; i < size; i++) group[i]->result = warp[group[i]->source].value;
    });
    return thread->result;
}

// What a warp does as one: work(all), where all[i] are lane i's registers, once the whole warp has come.
template <typename Registers, typename Work>
inline __attribute__((always_inline)) void together(const char* operation, Registers& mine, Work work, int line = __builtin_LINE()) {
    current->value = reinterpret_cast<uint64_t>(&mine);
    meet(operation, line, ~0u, [&work](Thread* warp, Thread**, int) {
        Registers* all[lanes];
        for (int i = 0; i < lanes; i++) all[i] = reinterpret_cast<Registers*>(warp[i].value);
        work(all);
    });
}

template <typename T>
__attribute__((always_inline)) inline T shuffled(const char* operation, int line, unsigned mask, T value, int source) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = exchange(operation, line, mask, bits, source);
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline int lane() { return static_cast<int>(current - threads) % lanes; }

// ----------------------------------------------------------------------------------------------------------- launches

// The letter of a type, with one before it for a pointer: m, or c of what is const.
template <typename T>
void add_code(char*& end) {
    if constexpr (std::is_pointer_v<T>) {
        using Element = std::remove_pointer_t<T>;
        *end++ = std::is_const_v<Element> ? 'c' : 'm';
        add_code<std::remove_const_t<Element>>(end);
    } else if constexpr (std::is_void_v<T>) {
        *end++ = 'v';
    } else if constexpr (std::is_class_v<T>) {
        *end++ = sizeof(T) == 2 ? 'e' : 'v';  // bfloat16
    } else {
        using std::is_same_v;
        *end++ = is_same_v<T, float> ? 'f' : is_same_v<T, double> ? 'd' : is_same_v<T, bool> ? '?' : is_same_v<T, char> ? 'b'
            : is_same_v<T, signed char> ? 'b' : is_same_v<T, unsigned char> ? 'B' : is_same_v<T, short> ? 'h'
            : is_same_v<T, unsigned short> ? 'H' : is_same_v<T, int> ? 'i' : is_same_v<T, unsigned> ? 'I'
            : is_same_v<T, long long> || is_same_v<T, long> ? 'q' : 'Q';
    }
}

template <typename... Parameters>
const char* signature(void (*)(Parameters...)) {
    static char codes[8 * sizeof...(Parameters) + 1];  // of pointers to pointers, too
    char* end = codes;
    ((add_code<Parameters>(end), *end++ = ' '), ...);
    *end = 0;
    return codes;
}

template <typename... Parameters, size_t... i>
void call(void (*function)(Parameters...), void** arguments, std::index_sequence<i...>) {
    function(*static_cast<std::remove_const_t<Parameters>*>(arguments[i])...);
}

template <typename... Parameters>
void call(void (*function)(Parameters...), void** arguments) {
    call(function, arguments, std::index_sequence_for<Parameters...>());
}

}  // namespace cpu

#define CUDA_EXPORT extern "C" __attribute__((visibility("default")))

// For each kernel: what its parameters are, how to call it with pointers to its arguments, and the most threads of a block.
#define CUDA_KERNEL(name, bound)                                                      \
    CUDA_EXPORT int cuda_bound_##name() { return bound; }                             \
    CUDA_EXPORT const char* cuda_signature_##name() { return cpu::signature(&name); } \
    CUDA_EXPORT void cuda_call_##name(void** a) { cpu::call(&name, a); }

// --------------------------------------------------------------------------------------------- what CUDA has built in

inline void __syncthreads(int line = __builtin_LINE()) { cpu::barrier(line); }

inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    cpu::exchange("__syncwarp", line, mask, 0, cpu::lane());
}

// Where the lane that is asked for lies outside the lane's own group of `width`, it keeps its own value.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, int line = __builtin_LINE()) {
    int first = cpu::lane() / width * width;
    return cpu::shuffled("__shfl_sync", line, mask, value, first + (source & (width - 1)));
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize, int line = __builtin_LINE()) {
    int lane = cpu::lane(), source = lane ^ bits;
    return cpu::shuffled("__shfl_xor_sync", line, mask, value, source < lane / width * width + width ? source : lane);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = warpSize, int line = __builtin_LINE()) {
    int lane = cpu::lane(), source = lane + static_cast<int>(distance);
    return cpu::shuffled("__shfl_down_sync", line, mask, value, source < lane / width * width + width ? source : lane);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = warpSize, int line = __builtin_LINE()) {
    int lane = cpu::lane(), source = lane - static_cast<int>(distance);
    return cpu::shuffled("__shfl_up_sync", line, mask, value, source >= lane / width * width ? source : lane);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    unsigned votes = predicate ? 1u << cpu::lane() : 0u;
    for (int distance = 1; distance < cpu::lanes; distance *= 2) {
        int other = cpu::lane() ^ distance;
        votes |= cpu::shuffled("__ballot_sync", line, mask, votes, mask >> other & 1 ? other : cpu::lane());
    }
    return votes;
}

inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, line) != 0;
}

inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, line) == mask;
}

template <typename T>
T __ldg(const T* address) {
    return *address;
}

#define __builtin_assume(condition)
inline bool __isGlobal(const void*) { return true; }

template <typename To, typename From>
To bit_cast(From from) {
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

inline unsigned __float_as_uint(float x) { return bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return bit_cast<float>(x); }
inline int __float_as_int(float x) { return bit_cast<int>(x); }
inline float __int_as_float(int x) { return bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return bit_cast<double>(x); }

inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }

template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}
// NaN is the lesser choice, as in CUDA.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
