// How the stand-in runs kernels: their blocks one after the other, and the threads of a block as fibers: each runs until it has
// to wait for others, at a barrier or in a shuffle, and then the next one does.
#include "cuda_on_cpu.hpp"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
int warpSize = 32;

namespace cpu {

// ------------------------------------------------------------------------------------------------------------ errors

char message[512];
sigjmp_buf launcher;

void fail(const char* format, ...) {
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

struct Copy {  // to shared memory, at its thread's own pace
    char* to;
    const char* from;
    size_t given, whole;  // bytes: those that are copied, and those that are set, with zeros behind
};

constexpr size_t stack_bytes = 256 * 1024;
Thread threads[most_threads];
std::vector<Copy> copies[most_threads];  // of each thread: those that it has not waited for
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

void wake(Thread* const* first, Thread* const* last) {
    static std::vector<Thread*> sleepers;
    sleepers.assign(first, last);
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
    for (int i = 0; i < count; i++) threads[i].state = unstarted, copies[i].clear();
    started = finished = waiting = 0;
    memset(arrived, 0, sizeof arrived);
    if (!__builtin_setjmp(scheduler)) switch_to(next_thread());
    if (finished < count) explain_standstill();
}

// -------------------------------------------------------------------------------------------------- barriers, shuffles

void open_barrier(int line) {
    waiting = 0;
    static std::vector<Thread*> all;
    all.clear();
    for (int i = 0; i < count; i++) {
        if (threads[i].line != line) explain_standstill();
        all.push_back(&threads[i]);
    }
    wake(all.data(), all.data() + count);
}

bool complete(const Thread* warp, const Thread& thread) {
    for (int i = 0; i < lanes; i++) {
        if (!(thread.mask >> i & 1)) continue;
        const Thread* other = warp + i;
        if (other >= threads + count || other->state != in_warp || other->line != thread.line || other->mask != thread.mask) return false;
    }
    return true;
}

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
        copies[current - threads].push_back(copy);
}

void wait_for_own_copies() {
    std::vector<Copy>& mine = copies[current - threads];
    for (const Copy& copy : mine) carry_out(copy);
    mine.clear();
}

}  // namespace cpu

// ------------------------------------------------------------------------------------------------------------ launches

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
