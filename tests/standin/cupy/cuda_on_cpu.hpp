// CUDA C++ as C++17: put before a kernel's source, it runs the kernel's blocks one after the other, and the threads of a block
// as fibers: each runs until it has to wait for others, at a barrier or in a shuffle, and then the next one does.
// What is undefined on a GPU ends the launch with a message: see `fail`.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

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

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
int warpSize = 32;  // no constant in CUDA either

namespace cpu {

constexpr int lanes = 32;  // of a warp

// ------------------------------------------------------------------------------------------------------------ errors

char message[512];
sigjmp_buf launcher;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(message, sizeof message, "%s (block %u, %u, %u)", text, blockIdx.x, blockIdx.y, blockIdx.z);
    siglongjmp(launcher, 1);
}

struct Guarded {  // an array between pages that may not be touched
    char *pages, *usable, *usable_end, *array;
    size_t bytes, pages_bytes;
    char filler;
};
std::vector<Guarded> guarded;
constexpr size_t page = 4096, forbidden = 1 << 20;

void on_signal(int number, siginfo_t* info, void*) {
    char* address = static_cast<char*>(info->si_addr);
    if (number == SIGILL)
        fail("thread %u, %u, %u: a misaligned load or store, an index outside a fixed array, or undefined arithmetic", threadIdx.x,
             threadIdx.y, threadIdx.z);
    if (number == SIGFPE) fail("thread %u, %u, %u: an integer divided by zero", threadIdx.x, threadIdx.y, threadIdx.z);
    for (const Guarded& g : guarded)
        if (address >= g.pages && address < g.pages + g.pages_bytes)
            fail("thread %u, %u, %u: byte %lld of an array of %zu bytes", threadIdx.x, threadIdx.y, threadIdx.z,
                 static_cast<long long>(address - g.array), g.bytes);
    fail("thread %u, %u, %u: an address outside every array", threadIdx.x, threadIdx.y, threadIdx.z);
}

constexpr int caught[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
struct sigaction before[4];
stack_t stack_before;
alignas(16) char signal_stack[1 << 16];

void catch_signals() {
    stack_t stack = {};
    stack.ss_sp = signal_stack;
    stack.ss_size = sizeof signal_stack;
    sigaltstack(&stack, &stack_before);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 4; i++) sigaction(caught[i], &action, &before[i]);
}

void release_signals() {
    for (int i = 0; i < 4; i++) sigaction(caught[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
}

// ------------------------------------------------------------------------------------------------- fibers and threads

// __builtin_setjmp keeps the place and the stack, and the compiler the rest: a tenth of what setjmp costs.
using Context = void* [5];

struct Fiber {
    Context context;
    bool entered;
    char* stack;
    size_t stack_bytes;
};

enum State { unstarted, running, at_barrier, in_warp, ended };

struct Copy {  // to shared memory, at its thread's own pace
    char* to;
    const char* from;
    size_t given, whole;  // bytes: those that are copied, and those that are set, with zeros behind
};

struct Thread {
    Fiber* fiber;
    uint3 index;
    State state;
    int line;                  // where it waits
    const char* operation;     // a warp's: what it waits in
    unsigned mask;             // and which lanes for
    int source;                // the lane whose value it wants
    uint64_t value, result;
    std::vector<Copy> copies;  // that it has not waited for
};

constexpr int most_threads = 1024;
constexpr size_t stack_bytes = 256 * 1024;
Thread threads[most_threads];
int order[most_threads];       // in which threads start
int count, started, finished, waiting;
int arrived[most_threads / lanes];  // in each warp's shuffle
Thread* current;
Thread* to_start;              // by the fiber that is switched to
std::vector<Fiber*> fibers, idle;
std::vector<Thread*> ready;
size_t ready_from;
Context scheduler;
void (*kernel)(void**);
void** kernel_arguments;

enum Order { forward_order, reversed_order, shuffled_order };
Order chosen_order;
std::mt19937 shuffling;

template <typename T>
void rearrange(T first, T last) {
    if (chosen_order == reversed_order) std::reverse(first, last);
    if (chosen_order == shuffled_order) std::shuffle(first, last, shuffling);
}

// Forward, all threads go from one waiting place to the next side by side; reversed, those that can go on run far ahead.
Thread* next_thread() {
    if (ready_from < ready.size()) {
        if (chosen_order == shuffled_order) std::swap(ready[ready_from], ready[ready_from + shuffling() % (ready.size() - ready_from)]);
        Thread* thread = chosen_order == reversed_order ? ready.back() : ready[ready_from++];
        if (chosen_order == reversed_order) ready.pop_back();
        if (ready_from == ready.size()) ready.clear(), ready_from = 0;
        return thread;
    }
    return started < count ? &threads[order[started++]] : nullptr;
}

void fiber_body();

__attribute__((noinline)) void enter(Fiber* fiber) {
    if (fiber->entered) __builtin_longjmp(fiber->context, 1);
    fiber->entered = true;
    static ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack;
    context.uc_stack.ss_size = fiber->stack_bytes;
    context.uc_link = nullptr;
    makecontext(&context, fiber_body, 0);
    setcontext(&context);
}

// Goes to a thread: where it waits, or to a fiber at rest that starts it. With none left, back to the scheduler.
[[noreturn]] __attribute__((noinline)) void switch_to(Thread* thread) {
    if (!thread) __builtin_longjmp(scheduler, 1);
    if (thread->state == unstarted) {
        to_start = thread;
        if (idle.empty()) {
            void* stack = mmap(nullptr, page + stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            mprotect(stack, page, PROT_NONE);
            size_t shift = fibers.size() % 64 * 448;  // or the tops of all stacks would share few places of the processor's cache
            fibers.push_back(new Fiber{{}, false, static_cast<char*>(stack) + page, stack_bytes - shift});
            idle.push_back(fibers.back());
        }
        Fiber* fiber = idle.back();
        idle.pop_back();
        thread->fiber = fiber;
        enter(fiber);
    }
    enter(thread->fiber);
    __builtin_unreachable();
}

void become(Thread* thread) {
    current = thread;
    thread->state = running;
    threadIdx = thread->index;
}

void fiber_body() {
    for (;;) {
        Thread* thread = to_start;
        Fiber* fiber = thread->fiber;
        while (thread && thread->state == unstarted) {  // threads that wait for nobody share one fiber
            thread->fiber = fiber;
            become(thread);
            kernel(kernel_arguments);
            current->state = ended;
            finished++;
            thread = next_thread();
        }
        idle.push_back(fiber);
        if (!__builtin_setjmp(fiber->context)) switch_to(thread);
    }
}

__attribute__((noinline)) void wait() {
    Thread* thread = current;
    if (!__builtin_setjmp(thread->fiber->context)) switch_to(next_thread());
    become(thread);
}

void wake(std::vector<Thread*>& sleepers) {
    rearrange(sleepers.begin(), sleepers.end());
    for (Thread* thread : sleepers)
        if (thread != current) ready.push_back(thread);
}

[[noreturn]] void explain_standstill() {
    const Thread* stuck = nullptr;
    for (int i = 0; i < count; i++)
        if (threads[i].state == in_warp || (threads[i].state == at_barrier && !stuck)) stuck = &threads[i];
    int warp = static_cast<int>(stuck - threads) / lanes * lanes;
    int first = stuck->state == in_warp ? warp : 0, last = stuck->state == in_warp ? std::min(warp + lanes, count) : count;
    for (int i = first; i < last; i++) {
        const Thread& other = threads[i];
        if (stuck->state == in_warp && !(stuck->mask >> (i - warp) & 1)) continue;
        if (other.state == stuck->state && other.line == stuck->line) continue;
        std::string there = other.state == ended ? "ended" : other.state == at_barrier ? "waits at __syncthreads()" : "waits at ";
        if (other.state == in_warp) there += other.operation;
        if (other.state != ended) there += " in line " + std::to_string(other.line);
        fail("thread %u, %u, %u waits at %s in line %d for thread %u, %u, %u, which %s", stuck->index.x, stuck->index.y,
             stuck->index.z, stuck->state == at_barrier ? "__syncthreads()" : stuck->operation, stuck->line, other.index.x,
             other.index.y, other.index.z, there.c_str());
    }
    fail("thread %u, %u, %u waits at %s in line %d for lanes beyond its block (mask %08x)", stuck->index.x, stuck->index.y,
         stuck->index.z, stuck->operation, stuck->line, stuck->mask);
}

extern "C" char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));

void run_block(bool poison) {
    if (poison && __start_cuda_shared) memset(__start_cuda_shared, 0xff, __stop_cuda_shared - __start_cuda_shared);
    for (int i = 0; i < count; i++) threads[i].state = unstarted, threads[i].copies.clear();
    started = finished = waiting = 0;
    memset(arrived, 0, sizeof arrived);
    if (!__builtin_setjmp(scheduler)) switch_to(next_thread());
    if (finished < count) explain_standstill();
}

// -------------------------------------------------------------------------------------------------- barriers, shuffles

// Counts the threads at the barrier; the last one wakes the others.
inline void barrier(int line) {
    current->state = at_barrier;
    current->line = line;
    if (++waiting < count) return wait();
    waiting = 0;
    static std::vector<Thread*> all;
    all.clear();
    for (int i = 0; i < count; i++) {
        if (threads[i].line != line) explain_standstill();
        all.push_back(&threads[i]);
    }
    wake(all);
    become(current);
}

// Whether all lanes that the thread waits for are where it is.
bool complete(const Thread* warp, const Thread& thread) {
    for (int i = 0; i < lanes; i++) {
        if (!(thread.mask >> i & 1)) continue;
        const Thread* other = warp + i;
        if (other >= threads + count || other->state != in_warp || other->line != thread.line || other->mask != thread.mask) return false;
    }
    return true;
}

// Waits for the lanes in `mask`. The last of them to come calls finish(warp, group), with the warp's first thread and those that
// met, and then all go on. Inlined, as every return on another stack than that of the call is a misprediction.
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
    static std::vector<Thread*> group;
    group.clear();
    for (int i = 0; i < lanes; i++)
        if (mask >> i & 1) group.push_back(warp + i);
    finish(warp, group);
    for (Thread* other : group) other->state = running;
    arrived[place / lanes] -= static_cast<int>(group.size());
    wake(group);
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
    meet(operation, line, mask, [](Thread* warp, const std::vector<Thread*>& group) {
        for (Thread* other : group) other->result = warp[other->source].value;
    });
    return thread->result;
}

// What a warp does as one: work(all), where all[i] are lane i's registers, once the whole warp has come.
template <typename Registers, typename Work>
inline __attribute__((always_inline)) void together(const char* operation, Registers& mine, Work work, int line = __builtin_LINE()) {
    current->value = reinterpret_cast<uint64_t>(&mine);
    meet(operation, line, ~0u, [&work](Thread* warp, const std::vector<Thread*>&) {
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

// ------------------------------------------------------------------------------------------------ copies beside the work

void carry_out(const Copy& copy) {
    memcpy(copy.to, copy.from, copy.given);
    memset(copy.to + copy.given, 0, copy.whole - copy.given);
}

// A copy that ends between now and when its thread waits for it. Forward it ends as late as it may, reversed at once, and
// shuffled by chance: so what is read too early, or overwritten too early, shows.
void copy_beside(void* to, const void* from, size_t given, size_t whole) {
    Copy copy = {static_cast<char*>(to), static_cast<const char*>(from), given, whole};
    if (reinterpret_cast<uintptr_t>(to) % whole || (given && reinterpret_cast<uintptr_t>(from) % whole))
        fail("thread %u, %u, %u copies %zu bytes from or to an address that is no multiple of %zu", threadIdx.x, threadIdx.y,
             threadIdx.z, whole, whole);
    if (chosen_order == reversed_order || (chosen_order == shuffled_order && shuffling() % 2))
        carry_out(copy);
    else
        current->copies.push_back(copy);
}

void wait_for_own_copies() {
    for (const Copy& copy : current->copies) carry_out(copy);
    current->copies.clear();
}

// ------------------------------------------------------------------------------------------------------------ launches

template <typename T>
std::string type_code() {
    if constexpr (std::is_pointer_v<T>) {
        using Element = std::remove_pointer_t<T>;
        return (std::is_const_v<Element> ? "c" : "m") + type_code<std::remove_const_t<Element>>();
    } else if constexpr (std::is_void_v<T>) {
        return "v";
    } else if constexpr (std::is_class_v<T>) {
        return sizeof(T) == 2 ? "e" : "v";  // bfloat16
    } else {
        using std::is_same_v;
        return is_same_v<T, float> ? "f" : is_same_v<T, double> ? "d" : is_same_v<T, bool> ? "?" : is_same_v<T, char> ? "b"
            : is_same_v<T, signed char> ? "b" : is_same_v<T, unsigned char> ? "B" : is_same_v<T, short> ? "h"
            : is_same_v<T, unsigned short> ? "H" : is_same_v<T, int> ? "i" : is_same_v<T, unsigned> ? "I"
            : is_same_v<T, long long> || is_same_v<T, long> ? "q" : "Q";
    }
}

template <typename... Parameters>
std::string signature(void (*)(Parameters...)) {
    std::string codes;
    ((codes += type_code<Parameters>() + " "), ...);
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
#define CUDA_KERNEL(name, bound)                                      \
    CUDA_EXPORT int cuda_bound_##name() { return bound; }             \
    CUDA_EXPORT const char* cuda_signature_##name() {                 \
        static const std::string codes = cpu::signature(&name);       \
        return codes.c_str();                                         \
    }                                                                 \
    CUDA_EXPORT void cuda_call_##name(void** a) { cpu::call(&name, a); }

// Runs a kernel. Returns nullptr, or what was wrong.
CUDA_EXPORT const char* cuda_launch(void (*kernel)(void**), void** arguments, const unsigned* grid, const unsigned* block,
                                    int order, unsigned seed, bool poison) {
    using namespace cpu;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    count = static_cast<int>(block[0] * block[1] * block[2]);
    cpu::kernel = kernel;
    kernel_arguments = arguments;
    chosen_order = static_cast<Order>(order);
    shuffling.seed(seed);
    ready.clear();
    ready_from = 0;
    idle = fibers;
    for (int i = 0; i < count; i++) {
        cpu::order[i] = i;
        threads[i].index = {i % block[0], i / block[0] % block[1], i / (block[0] * block[1])};
    }
    rearrange(cpu::order, cpu::order + count);
    static std::vector<unsigned> blocks;
    blocks.resize(size_t(grid[0]) * grid[1] * grid[2]);
    for (size_t i = 0; i < blocks.size(); i++) blocks[i] = static_cast<unsigned>(i);
    rearrange(blocks.begin(), blocks.end());
    const char* result = nullptr;
    catch_signals();
    if (sigsetjmp(launcher, 1) == 0) {
        for (unsigned i : blocks) {
            blockIdx = {i % grid[0], i / grid[0] % grid[1], i / (grid[0] * grid[1])};
            run_block(poison);
        }
    } else {  // what the fibers were at is lost: they start anew
        for (Fiber* fiber : fibers) fiber->entered = false;
        result = message;
    }
    release_signals();
    return result;
}

// Memory for an array, which ends (but for less than 16 bytes) where nothing may be touched, as before it.
// What is left over is filled: with 0xff, a float read there is NaN.
CUDA_EXPORT char* cuda_guard(size_t bytes, size_t misalignment, int filler) {
    using namespace cpu;
    size_t inner = (bytes + 32 + page - 1) / page * page;
    size_t whole = inner + 2 * forbidden;
    char* pages = static_cast<char*>(mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    char* usable = pages + forbidden;
    mprotect(usable, inner, PROT_READ | PROT_WRITE);
    memset(usable, filler, inner);
    char* array = usable + inner - (misalignment + bytes + 15) / 16 * 16 + misalignment;
    guarded.push_back({pages, usable, usable + inner, array, bytes, whole, static_cast<char>(filler)});
    return array;
}

// Whether what lies around the array is untouched.
CUDA_EXPORT bool cuda_intact(size_t i) {
    using namespace cpu;
    const Guarded& g = guarded[i];
    auto filler = [&g](char c) { return c == g.filler; };
    return std::all_of(g.usable, g.array, filler) && std::all_of(g.array + g.bytes, g.usable_end, filler);
}

CUDA_EXPORT void cuda_release() {
    for (const cpu::Guarded& g : cpu::guarded) munmap(g.pages, g.pages_bytes);
    cpu::guarded.clear();
}

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
