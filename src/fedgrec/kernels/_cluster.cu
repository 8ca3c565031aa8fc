// What _resident.cu needs of the GPU: clusters of thread blocks (compute capability 9.0) and approximate roots.
// tests/laws/emulated.h has the same by C++ threads.

typedef REAL real;
typedef unsigned long long Mailbox;
constexpr int WARP = 32;
constexpr unsigned EVERYONE = 0xffffffffu;
#define DEVICE __device__ __forceinline__

extern __shared__ __align__(32) unsigned char shared_memory[];

DEVICE unsigned address(const void *mine) { return unsigned(__cvta_generic_to_shared(mine)); }

DEVICE void open_mailbox(Mailbox &box) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&box)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One thread says how much mail a step will bring; some may be there already.
DEVICE void expect(Mailbox &box, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&box)), "r"(bytes) : "memory");
}

// Writes to the place of `mine` in the given block, and counts it in that block's box.
#define POST(type, bits, constraint)                                                                    \
    DEVICE void post(type *mine, type value, const Mailbox &box, int rank) {                            \
        asm volatile(                                                                                   \
            "{ .reg .b32 there, box;\n"                                                                 \
            "mapa.shared::cluster.u32 there, %0, %2;\n"                                                 \
            "mapa.shared::cluster.u32 box, %1, %2;\n"                                                   \
            "st.async.shared::cluster.mbarrier::complete_tx::bytes" bits " [there], %3, [box]; }"       \
            ::"r"(address(mine)), "r"(address(&box)), "r"(rank), constraint(value) : "memory");         \
    }
POST(float, ".f32", "f")
POST(double, ".f64", "d")
POST(unsigned long long, ".b64", "l")
#undef POST

// Four numbers at once: fewer posts for a mailbox to count.
DEVICE void post(float (*mine)[4], const float (&x)[4], const Mailbox &box, int rank) {
    asm volatile(
        "{ .reg .b32 there, box;\n"
        "mapa.shared::cluster.u32 there, %0, %2;\n"
        "mapa.shared::cluster.u32 box, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [box]; }"
        ::"r"(address(mine)), "r"(address(&box)), "r"(rank), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
}
DEVICE void post(double (*mine)[4], const double (&x)[4], const Mailbox &box, int rank) {
    for (int c = 0; c < 4; ++c) post(&(*mine)[c], x[c], box, rank);
}

// Waits until all mail of this step is here.
DEVICE void collect(Mailbox &box, int step) {
    unsigned here;
    do asm volatile(
        "{ .reg .pred here;\n mbarrier.try_wait.parity.shared::cta.b64 here, [%1], %2;\n selp.u32 %0, 1, 0, here; }"
        : "=r"(here)
        : "r"(address(&box)), "r"(step & 1)
        : "memory");
    while (!here);
}

// No block goes on before all have arrived and opened their mailboxes; a block's own threads see what it wrote.
// `relaxed`: other blocks read nothing else that a block wrote, and a fence for all of it takes long.
DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.relaxed;\n barrier.sync 0;\n barrier.cluster.wait;" ::: "memory");
}

// A barrier of some warps of the block: `announce` arrives and goes on, `meet` waits for the others.
DEVICE void announce(int id, int warps) {
    asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(warps * WARP) : "memory");
}
DEVICE void meet(int id, int warps) {
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(warps * WARP) : "memory");
}

template <class T>
DEVICE T across(T x, int offset) { return __shfl_xor_sync(EVERYONE, x, offset); }

template <class T>
DEVICE T from_lane(T x, int lane, int lanes) { return __shfl_sync(EVERYONE, x, lane, lanes); }

// By the hardware's own approximations, good to 2⁻²², as in _negatives_triton.adam_step.
DEVICE float adam_step(float first, float second, float epsilon) {
    float root, inverse;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(second));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(root + epsilon));
    return first * inverse;
}
DEVICE float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

DEVICE double adam_step(double first, double second, double epsilon) { return first / (sqrt(second) + epsilon); }
DEVICE double sigmoid(double x) { return 1 / (1 + exp(-x)); }
