// What _resident.cu needs of a GPU, by C++ threads: small blocks and warps, and real barriers, so that a missing one
// shows, in a wrong result or under -fsanitize=thread. A thread that waits in vain says so and stops.

#pragma once
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#define DEVICE static inline
#define __global__
#define __cluster_dims__(...)
#define __launch_bounds__(...)

typedef REAL real;
using std::exp2, std::rint;

struct Index { int x; };
static thread_local Index threadIdx, blockIdx;

template <class Condition>
void wait_until(Condition holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds()) {
        std::this_thread::yield();
        if (std::chrono::steady_clock::now() > end) {
            std::fprintf(stderr, "thread %d of block %d waits in vain\n", threadIdx.x, blockIdx.x);
            std::abort();
        }
    }
}

struct Barrier {
    std::atomic<int> arrived{0}, turn{0};
    int arrive(int of) {
        const int mine = turn;
        if (arrived.fetch_add(1) + 1 == of) {
            arrived = 0;
            ++turn;
        }
        return mine;
    }
    void meet(int of) {
        const int mine = arrive(of);
        wait_until([&] { return turn != mine; });
    }
};

struct Warp {
    Barrier barrier;
    unsigned char slots[WARP][8];
};

constexpr std::size_t ALIGNED = 64;
struct Block {
    Barrier barriers[4];
    Warp warps[THREADS / WARP];
    std::unique_ptr<unsigned char[]> memory{new unsigned char[SHARED + ALIGNED]};
    unsigned char *shared() const {
        return memory.get() + ALIGNED - reinterpret_cast<std::size_t>(memory.get()) % ALIGNED;
    }
};
struct Cluster {
    Barrier barrier;
    Block blocks[CLUSTER];
};
static Cluster *cluster;

static Block &block() { return cluster->blocks[blockIdx.x % CLUSTER]; }
static Warp &this_warp() { return block().warps[threadIdx.x / WARP]; }
#define shared_memory (block().shared())

template <class T>
T &in_block(const T *mine, int rank) {
    const auto offset = reinterpret_cast<const unsigned char *>(mine) - block().shared();
    return *reinterpret_cast<T *>(cluster->blocks[rank].shared() + offset);
}

// ---------------------------------------------------------------------------------------------------- mailboxes

struct Mailbox {
    std::mutex lock;
    long left = 0;
    int phase = 0;
    bool expecting = false;
    void count(long bytes, bool expect) {
        const std::lock_guard<std::mutex> held(lock);
        left += bytes;
        expecting |= expect;
        if (expecting && left == 0) {
            expecting = false;
            ++phase;
        }
    }
    int now() {
        const std::lock_guard<std::mutex> held(lock);
        return phase;
    }
};

static void open_mailbox(Mailbox &box) { new (&box) Mailbox; }
static void expect(Mailbox &box, long bytes) { box.count(bytes, true); }
static int slow = -1;  // the block that takes a while when it has its mail
static void collect(Mailbox &box, int step) {
    wait_until([&] { return box.now() % 2 != step % 2; });
    if (blockIdx.x % CLUSTER == slow) std::this_thread::sleep_for(std::chrono::milliseconds(50));
}
template <class T>
void post(T *mine, T value, const Mailbox &box, int rank) {
    in_block(mine, rank) = value;
    in_block(&box, rank).count(-long(sizeof(T)), false);
}

void post(real (*mine)[4], const real (&x)[4], const Mailbox &box, int rank) {
    for (int c = 0; c < 4; ++c) post(&(*mine)[c], x[c], box, rank);
}

// ------------------------------------------------------------------------------------------- barriers and lanes

static void cluster_barrier() { cluster->barrier.meet(CLUSTER * THREADS); }
static void announce(int id, int warps) { block().barriers[id].arrive(warps * WARP); }
static void meet(int id, int warps) { block().barriers[id].meet(warps * WARP); }
static void __syncwarp() { this_warp().barrier.meet(WARP); }

template <class T>
T from(T x, int source) {
    Warp &warp = this_warp();
    T found;
    std::memcpy(warp.slots[threadIdx.x % WARP], &x, sizeof x);
    __syncwarp();
    std::memcpy(&found, warp.slots[source], sizeof x);
    __syncwarp();
    return found;
}
template <class T>
T across(T x, int offset) { return from(x, (threadIdx.x % WARP) ^ offset); }
template <class T>
T from_lane(T x, int lane, int lanes) { return from(x, threadIdx.x % WARP / lanes * lanes + lane); }

template <class T>
void atomicAdd(T *where, T value) { __atomic_fetch_add(where, value, __ATOMIC_RELAXED); }

static real adam_step(real first, real second, real epsilon) { return first / (std::sqrt(second) + epsilon); }
static real sigmoid(real x) { return 1 / (1 + std::exp(-x)); }

// ---------------------------------------------------------------------------------------------------- a launch

template <class... T, std::size_t... I>
void call(void (*kernel)(T...), void **arguments, std::index_sequence<I...>) { kernel(static_cast<T>(arguments[I])...); }

// One cluster after the other, as if the GPU had room for one.
template <class... T>
void emulate(void (*kernel)(T...), void **arguments, int clusters) {
    const char *named = std::getenv("SLOW_BLOCK");
    slow = named ? std::atoi(named) : -1;
    for (int slot = 0; slot < clusters; ++slot) {
        Cluster there;
        cluster = &there;
        std::vector<std::thread> threads;
        for (int i = 0; i < CLUSTER * THREADS; ++i)
            threads.emplace_back([=] {
                blockIdx.x = slot * CLUSTER + i / THREADS;
                threadIdx.x = i % THREADS;
                call(kernel, arguments, std::index_sequence_for<T...>());
            });
        for (std::thread &thread : threads) thread.join();
    }
}
