// The local steps of a cohort, each user on a cluster of thread blocks that holds its rows from first step to last.
//
// Block r of a cluster has HELD of its user's negatives: how far each has moved and its two moments in registers, f and
// λx as they arrived in shared memory. LANES threads share a row, a thread has ROWS of them, and nobody else reads them.
// Positive i belongs to block i mod CLUSTER, there to the first warps, the chain. A local step:
//
//     all     score their negatives; once the scores of the positives are here, slopes g and Σ g f
//     chain   what the slopes of each positive add up to in this block, to its owner
//     chain   slopes of its own positives
//     leader  this block's part of ∂L/∂f_u = Σ g f, to all blocks; leader is the last warp, which rarely has positives
//     leader  ∂L/∂f_u and the user's step: every block computes the same, so that f_u need not travel
//     chain   scores of its own positives, to all blocks
//     all     the optimizer's step of the negatives, while chain and leader do the above
//
// What goes from block to block is posted: written into the other's shared memory and counted there by a mailbox, so
// that only threads that need it wait. The optimizer's step, whose roots and reciprocals take most of the time, needs
// nothing from elsewhere, and hides the exchange. The names are those of reference.local_steps and of _triton, whose
// launches do everything before and after. Sums of real numbers have one order and sums without an order are of
// integers, so the bits are the same every time.
//
// resident.py defines the constants in capitals (Sizes, Rules, Reals and Wholes of _state_triton among them) and puts
// _cluster.cu in front; tests put emulated.h there. The file is long because it is one kernel: no part is used alone.

typedef unsigned long long word;

struct alignas(4 * sizeof(real)) Four { real x[4]; };
struct Slopes { unsigned low, high; };  // a sum of slopes in 2⁻⁴⁵, its bits below LOW_BITS and the others
struct State { real f[D], moved[D], first[D], second[D]; };  // of a positive, f as it arrived

constexpr int LANES = D / 8 < 4 ? 4 : D / 8;  // threads that share a row
constexpr int FOURS = D / LANES / 4;          // columns 4·lane.. and, if two, D/2 + 4·lane.. are a thread's
constexpr int ROWS = 4;                       // of a thread, so that lane i mod 4 can have the slope of row i
constexpr int GROUPS = THREADS / LANES;       // of lanes
constexpr int PER_WARP = WARP / LANES;
constexpr int WARPS = THREADS / WARP;
constexpr int LEADER = WARPS - 1;
constexpr int HELD = GROUPS * ROWS;
constexpr int WIDTH = D < WARP ? 1 : D / WARP;        // columns of a lane of the leader, in rows of the user
constexpr int OWNED = (CAP + CLUSTER - 1) / CLUSTER;  // positives of a block at most
constexpr int LOW_BITS = 23;                          // so that neither word of 512 slopes, each at most 1, runs over
static_assert(HELD <= 512 && LANES <= WARP, "a block of this many threads cannot hold rows of this width");

// The user of a cluster, how many rows of each kind train, and how fast each decays, as in _state_triton.decays.
struct User {
    long long u, start;
    int slot, rank, P, N, owned, chain;  // positives of this block, and warps that have some or are the first
    int taken;                           // steps of Adam, before this round
    real decay, decay_positive, decay_negative, scale, rate;
};

enum { SCORES, SLOPES, DRIFTS, PARTS, MAILBOXES = PARTS + 2 };  // what is posted in every step
enum { GATHERED = 1, SUMMED, NEXT };                            // barriers of a block

struct Shared {
    Four f[FOURS * ROWS][THREADS], shrink[FOURS * ROWS][THREADS];  // of a thread's own rows: f_t and λx_t at first
    Four second_of_first[FOURS][THREADS];                          // see Negatives
    State owned[HOMES];                                            // positives of this block; more are in the scratch
    real starts[HOMES][D];                                         // x_t of these, as it arrived
    real sums[2 * WARPS][D];                                       // each warp's, of its negatives and its positives
    real parts[2][CLUSTER][D], drifts[CLUSTER][D];                 // posted by each block
    real f_u[2][D];                                                // of even and of odd steps
    real e[D], first[D], second[D], latents[D];                    // of the user; Σ α_k e_u^k
    word totals[OWNED][CLUSTER];                                   // slopes of this block's positives, posted by each
    Mailbox mail[MAILBOXES];
    User user;
    Slopes gathered[CAP];  // by this block's negatives
    real scores[CAP];      // of all positives, posted by their owners
    real slopes[OWNED];    // of this block's positives
};
static_assert(sizeof(Shared) <= SHARED, "resident.py counts less shared memory than this");
// Members that exist twice serve even and odd steps. A block without positives waits for no slopes, so it may post its
// next part while another block still reads this one. It cannot be two steps ahead, since it needs all parts.

// The tensors of _state_triton that are read or written here, in the order of resident.py.
struct Tensors {
    const int *counter, *first_round, *sampled, *counts;
    word *cut;
    const long long *indptr;
    const real *gather;
    real *embeddings, *moment1, *moment2;
    long long *steps;
    const real *items, *f;
    word *sums;
    const int *rows, *edges, *partners;
    State *positives;
    const real *alphas, *rates, *epsilons, *unbias1, *unbias2;
};

// Rows of a thread. The second moments of its first row are in shared memory: registers are short.
struct Negatives { Four moved[ROWS][FOURS], first[ROWS][FOURS], second[ROWS - 1][FOURS]; };

DEVICE int thread() { return threadIdx.x; }
DEVICE int lane() { return threadIdx.x % LANES; }
DEVICE int group() { return threadIdx.x / LANES; }
DEVICE int warp() { return threadIdx.x / WARP; }
DEVICE int column(int v) { return 4 * (lane() + v * LANES); }

// The columns of the leader's lanes when it works on rows of the user.
#define FOR_COLUMNS(c) \
    _Pragma("unroll") for (int c = thread() % WARP * WIDTH, end = c + WIDTH; c < end && c < D; ++c)

DEVICE Four &four(real *row, int v) { return *reinterpret_cast<Four *>(row + column(v)); }
DEVICE const Four &four(const real *row, int v) { return *reinterpret_cast<const Four *>(row + column(v)); }

// A thread's columns of a row of a table, zero beyond DIM.
DEVICE Four table_row(const real *table, int t, int v) {
    const real *row = table + (long long)t * DIM;
    Four found;
    if (DIM == D) found = four(row, v);
    else
#pragma unroll
        for (int c = 0; c < 4; ++c) found.x[c] = column(v) + c < DIM ? row[column(v) + c] : 0;
    return found;
}

// ------------------------------------------------------------------------------------------------ optimizers

// How far back one number moves. Adam's moments are without their factor 1 − β, which rate and ε contain.
DEVICE real item_step(real grad, real &first, real &second, real rate, real epsilon) {
    if (!ITEM_ADAM) return rate * grad;
    first = BETA1 * first + grad;
    second = BETA2 * second + grad * grad;
    return rate * adam_step(first, second, epsilon);
}

// One step of the thread's rows FROM.. below TO; lane r has the slope of row r.
template <int FROM, int TO>
DEVICE void move_negatives(
    Negatives &mine, Shared &here, const real *f_u, real g, real decay, real rate, real epsilon
) {
#pragma unroll
    for (int r = FROM; r < TO; ++r) {
        const real slope = SHARE * from_lane(g, r, LANES);
#pragma unroll
        for (int v = 0; v < FOURS; ++v) {
            const Four shrink = here.shrink[v * ROWS + r][thread()], along = four(f_u, v);
            Four &home = r == 0 ? here.second_of_first[v][thread()] : mine.second[r == 0 ? 0 : r - 1][v], second = home;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                real &moved = mine.moved[r][v].x[c];
                const real grad = slope * along.x[c] + (decay * moved + shrink.x[c]);
                moved -= item_step(grad, mine.first[r][v].x[c], second.x[c], rate, epsilon);
            }
            home = second;
        }
    }
}

// One step of column c of e_u^0; Adam's moments of the user are unbiased by these.
DEVICE void move_user(Shared &here, int c, real grad_f, real unbias1, real unbias2) {
    const real grad = SHARE * grad_f + here.user.decay * here.e[c];
    if (!USER_ADAM) {
        here.e[c] -= here.user.rate * grad;
        return;
    }
    const real first = BETA1 * here.first[c] + (1 - BETA1) * grad;
    const real second = BETA2 * here.second[c] + (1 - BETA2) * grad * grad;
    here.first[c] = first;
    here.second[c] = second;
    here.e[c] -= here.user.rate * adam_step(first * unbias1, second * unbias2, EPSILON);
}

// ------------------------------------------------------------------------------------------------------ sums

// Σ over the groups of a warp. In each exchange a lane gives away half of its columns and sums the other half.
DEVICE void store_warp_sum(Four (&x)[FOURS], real *sum) {
    int width = 4 * FOURS, first = 0;
#pragma unroll
    for (int offset = WARP / 2; offset >= LANES; offset /= 2) {
        if (width == 1) {
            x[0].x[0] += across(x[0].x[0], offset);
            continue;
        }
        width /= 2;
        const bool upper = thread() & offset;
#pragma unroll
        for (int c = 0; c < width; ++c) {
            real &low = x[c / 4].x[c % 4], &high = x[(c + width) / 4].x[(c + width) % 4];
            const real given = upper ? low : high;
            low = (upper ? high : low) + across(given, offset);
        }
        first += upper ? width : 0;
    }
#pragma unroll
    for (int c = 0; c < width; ++c) sum[column((first + c) / 4) + (first + c) % 4] = x[c / 4].x[c % 4];
}

// The leader adds up what all warps stored of negatives and the chain of positives, and posts the sum to all blocks.
DEVICE void post_block_sum(Shared &here, const User &user, bool negatives, real (&parts)[CLUSTER][D], int box) {
    const int warps = user.chain < WARPS ? user.chain + 1 : WARPS;  // the leader may be of the chain
    if (warp() < LEADER) return announce(SUMMED, warps);
    constexpr int QUADS = D / 4, TURNS = QUADS > WARP ? QUADS / WARP : 1;  // a lane has four columns
    constexpr int AT_ONCE = WARP > QUADS ? WARP / QUADS : 1;               // and some of the blocks
    const int lane = thread() % WARP, quad = 4 * (lane % QUADS);
    Four sum[TURNS] = {};
    auto add = [&](const real *row) {
        for (int i = 0; i < TURNS; ++i)
            for (int c = 0; c < 4; ++c) sum[i].x[c] += reinterpret_cast<const Four *>(row + quad)[i * WARP].x[c];
    };
#pragma unroll
    for (int w = 0; negatives && w < WARPS; ++w) add(here.sums[w]);
    meet(SUMMED, warps);
    for (int w = 0; w < user.chain; ++w) add(here.sums[WARPS + w]);
    __syncwarp();  // a warp that has all parts may overwrite these sums, so all lanes must read before one posts
    for (int i = 0; i < TURNS; ++i)
        for (int rank = lane / QUADS; rank < CLUSTER; rank += AT_ONCE)
            post(reinterpret_cast<real(*)[4]>(&parts[user.rank][quad]) + i * WARP, sum[i].x, here.mail[box], rank);
}

// Σ of what all blocks have posted of column c.
DEVICE real total_of(const real (&parts)[CLUSTER][D], int c) {
    real sum = 0;
    for (int rank = 0; rank < CLUSTER; ++rank) sum += parts[rank][c];
    return sum;
}

// The scores of the thread's four rows, summed over lanes: lane i has that of row i mod 4.
DEVICE real negative_score(const Negatives &mine, const Shared &here, const real *f_u) {
    real s[ROWS] = {};
#pragma unroll
    for (int v = 0; v < FOURS; ++v) {
        const Four along = four(f_u, v);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const Four f = here.f[v * ROWS + r][thread()];
#pragma unroll
            for (int c = 0; c < 4; ++c) s[r] += (f.x[c] + SHARE * mine.moved[r][v].x[c]) * along.x[c];
        }
    }
    const bool odd = lane() & 1, high = lane() & 2;
    const real a = (odd ? s[1] : s[0]) + across(odd ? s[0] : s[1], 1);
    const real b = (odd ? s[3] : s[2]) + across(odd ? s[2] : s[3], 1);
    real own = (high ? b : a) + across(high ? a : b, 2);
#pragma unroll
    for (int offset = 4; offset < LANES; offset *= 2) own += across(own, offset);
    return own;
}

// Σ g f over the warp's negatives.
DEVICE void sum_negatives(const Negatives &mine, Shared &here, real g) {
    Four total[FOURS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const real slope = from_lane(g, r, LANES);
#pragma unroll
        for (int v = 0; v < FOURS; ++v) {
            const Four f = here.f[v * ROWS + r][thread()];
#pragma unroll
            for (int c = 0; c < 4; ++c) total[v].x[c] += slope * (f.x[c] + SHARE * mine.moved[r][v].x[c]);
        }
    }
    store_warp_sum(total, here.sums[warp()]);
}

// ------------------------------------------------------------------------------------------------- positives

// All lanes of a warp must exchange together, so a warp goes on while any of its groups has a positive j.
#define FOR_POSITIVES(j) for (int j = group(); j - group() % PER_WARP < user.owned; j += GROUPS)

// HOME: all of this block's positives fit into shared memory, as nearly all users' do; the compiler then knows where
// they are, which makes reading them faster.
template <bool HOME>
DEVICE State &state_of(Shared &here, const Tensors &at, const User &user, int j) {
    if (HOME || j < HOMES) return here.owned[j];
    return at.positives[(long long)user.slot * C + j * CLUSTER + user.rank];
}

DEVICE int row_of(const Tensors &at, const User &user, int j) {
    return at.rows[(long long)user.slot * M + j * CLUSTER + user.rank];
}

// A thread's columns of f, with the positive's movement so far.
DEVICE Four f_now(const State &state, int v) {
    Four f = four(state.f, v);
    const Four moved = four(state.moved, v);
    for (int c = 0; c < 4; ++c) f.x[c] += SHARE * moved.x[c];
    return f;
}

template <bool HOME>
DEVICE void score_positives(Shared &here, const Tensors &at, const User &user, const real *f_u) {
    FOR_POSITIVES(j) {
        real score = 0;
        if (j < user.owned)
            for (int v = 0; v < FOURS; ++v) {
                const Four f = f_now(state_of<HOME>(here, at, user, j), v), along = four(f_u, v);
                for (int c = 0; c < 4; ++c) score += f.x[c] * along.x[c];
            }
        for (int offset = 1; offset < LANES; offset *= 2) score += across(score, offset);
        if (j < user.owned)
            for (int rank = lane(); rank < CLUSTER; rank += LANES)
                post(&here.scores[j * CLUSTER + user.rank], score, here.mail[SCORES], rank);
    }
}

// What this block's negatives have gathered for each positive, to its owner.
DEVICE void post_gathered(Shared &here, const User &user) {
    for (int i = thread(); i < user.P; i += user.chain * WARP) {
        const word sum = ((word)here.gathered[i].high << LOW_BITS) + here.gathered[i].low;
        here.gathered[i] = {0, 0};
        post(&here.totals[i / CLUSTER][user.rank], sum, here.mail[SLOPES], i % CLUSTER);
    }
}

// g of this block's positives: minus what all blocks gathered for them. Their part of ∂L/∂f_u.
template <bool HOME>
DEVICE void slopes_of_positives(Shared &here, const Tensors &at, const User &user) {
    Four total[FOURS] = {};
    FOR_POSITIVES(j) {
        word sum = 0;
        if (j < user.owned)
            for (int rank = lane(); rank < CLUSTER; rank += LANES) sum += here.totals[j][rank];
        for (int offset = 1; offset < LANES; offset *= 2) sum += across(sum, offset);
        const real g = -(real(sum) * real(1.0 / (1ll << 45)));
        if (j >= user.owned) continue;
        if (lane() == 0) here.slopes[j] = g;
        for (int v = 0; v < FOURS; ++v) {
            const Four f = f_now(state_of<HOME>(here, at, user, j), v);
            for (int c = 0; c < 4; ++c) total[v].x[c] += g * f.x[c];
        }
    }
    __syncwarp();  // the slopes are there for the other lanes
    store_warp_sum(total, here.sums[WARPS + warp()]);
}

// One step of this block's positives. LIVE: ∂L/∂f_u moves them too, and Σ w·moved enters the next f_u.
template <bool HOME>
DEVICE void move_positives(
    Shared &here, const Tensors &at, const User &user, const real *f_u, real rate, real epsilon, int step
) {
    Four drift[FOURS] = {};
    for (int j = group(); j < user.owned; j += GROUPS) {
        const int i = j * CLUSTER + user.rank;
        const real slope = SHARE * here.slopes[j];
        const real w = LIVE ? at.gather[user.start + at.edges[(long long)user.slot * C + i]] : 0;
        State &state = state_of<HOME>(here, at, user, j);
#pragma unroll 1  // no more: the negatives leave few registers
        for (int v = 0; v < FOURS; ++v) {
            const Four along = four(f_u, v);
            const Four start = HOME || j < HOMES ? four(here.starts[j], v) : table_row(at.items, row_of(at, user, j), v);
            Four moved = four(state.moved, v), first = four(state.first, v), second = four(state.second, v);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                real grad = slope * along.x[c] + user.decay_positive * (start.x[c] + moved.x[c]);
                if (LIVE) grad += w * (LIVE_SHARE * total_of(here.parts[step % 2], column(v) + c));
                moved.x[c] -= item_step(grad, first.x[c], second.x[c], rate, epsilon);
                if (LIVE) drift[v].x[c] += w * moved.x[c];
            }
            four(state.moved, v) = moved;
            four(state.first, v) = first;
            four(state.second, v) = second;
        }
    }
    if (LIVE) store_warp_sum(drift, here.sums[WARPS + warp()]);
}

// ------------------------------------------------------------------------------------------------- the kernel

// The user of this cluster; false: there is none, or it has no items.
DEVICE bool find_user(User &user, const Tensors &at) {
    const int turn = *at.counter - *at.first_round;
    user.slot = blockIdx.x / CLUSTER;
    user.rank = blockIdx.x % CLUSTER;
    if (user.slot >= at.counts[turn]) return false;
    user.u = at.sampled[turn * S + user.slot];
    user.start = at.indptr[user.u];
    const int degree = int(at.indptr[user.u + 1] - user.start), free = N_ITEMS - (EXCLUDE ? degree : 0);
    user.P = degree < MOST_POSITIVES ? degree : MOST_POSITIVES;
    user.N = free < MOST_NEGATIVES ? free : MOST_NEGATIVES;
    user.owned = (user.P - user.rank + CLUSTER - 1) / CLUSTER;
    const int with_positives = (user.owned + PER_WARP - 1) / PER_WARP;
    user.chain = with_positives < 1 ? 1 : with_positives < WARPS ? with_positives : WARPS;
    const real pairs = user.N > 1 ? user.N : 1, whole = PER_ROW || MEAN ? L2 : L2 * user.N;
    user.decay = whole;
    user.decay_positive = PER_ROW ? L2 : whole / (user.P > 1 ? user.P : 1);
    user.decay_negative = PER_ROW ? L2 : whole / pairs;
    user.scale = MEAN ? 1 / pairs : real(1);
    user.taken = USER_ADAM && KEPT ? int(at.steps[user.u]) : 0;
    user.rate = USER_RATE * exp2(-*at.counter * FALL);
    return user.P > 0;
}

// The rows as they arrived, the user as it is, and empty sums, into shared memory.
DEVICE void load(Shared &here, const Tensors &at, const User &user, const int *rows, int first) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int v = 0; v < FOURS; ++v) {
            Four start = {}, f = {};
            if (first + r < user.N) {
                const int t = rows[user.P + first + r];
                start = table_row(at.items, t, v);
                f = table_row(at.f, t, v);
            }
            for (int c = 0; c < 4; ++c) start.x[c] *= user.decay_negative;
            here.shrink[v * ROWS + r][thread()] = start;
            here.f[v * ROWS + r][thread()] = f;
            if (r == 0) here.second_of_first[v][thread()] = Four{};
        }
    for (int j = group(); j < user.owned; j += GROUPS) {
        State &state = state_of<false>(here, at, user, j);
        for (int v = 0; v < FOURS; ++v) {
            four(state.f, v) = table_row(at.f, row_of(at, user, j), v);
            if (j < HOMES) four(here.starts[j], v) = table_row(at.items, row_of(at, user, j), v);
            four(state.moved, v) = four(state.first, v) = four(state.second, v) = Four{};
        }
    }
    for (int i = thread(); i < user.P; i += THREADS) here.gathered[i] = {0, 0};
    const real *home = at.embeddings + user.u * (K + 1) * DIM;
    for (int c = thread(); c < D; c += THREADS) {
        const bool inside = c < DIM, kept = inside && USER_ADAM && KEPT;
        const real e = inside ? home[c] : 0;
        real latents = 0;
        for (int k = 1; k <= K; ++k) latents += inside ? at.alphas[k] * home[k * DIM + c] : 0;
        here.e[c] = e;
        here.first[c] = kept ? at.moment1[user.u * DIM + c] : 0;
        here.second[c] = kept ? at.moment2[user.u * DIM + c] : 0;
        here.latents[c] = latents;
        here.f_u[0][c] = SHARE * e + latents;
    }
    if (thread() > 0) return;
    here.user = user;
    for (int box = 0; box < MAILBOXES; ++box) open_mailbox(here.mail[box]);
}

// Finished rows, rounded (ties to even), clipped, two neighbouring words in one 64-bit addition; see _triton.add_words.
DEVICE void send_negatives(const Negatives &mine, const Tensors &at, const int *chosen, int left) {
    int over = 0, t[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) t[r] = r < left ? chosen[r] : 0;  // starts all four loads before one is needed
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (r >= left) break;
        word *row = at.sums + (long long)t[r] * (D / 2);
#pragma unroll
        for (int v = 0; v < FOURS; ++v) {
            long long whole[4];
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const real x = rint(TO_ITEM_STEPS * mine.moved[r][v].x[c]);
                over += x > ITEM_BOUND || x < -ITEM_BOUND;
                whole[c] = int(x > ITEM_BOUND ? ITEM_BOUND : x < -ITEM_BOUND ? -ITEM_BOUND : x);
            }
            atomicAdd(row + column(v) / 2, word(whole[0] + (whole[1] << 32)));
            atomicAdd(row + column(v) / 2 + 1, word(whole[2] + (whole[3] << 32)));
        }
    }
    if (over) atomicAdd(at.cut, word(over));
}

// Stores what later launches read: positives, which _triton.send sends with the latents, and the user.
DEVICE void store(const Shared &here, const Tensors &at, const User &user) {
    for (int j = group(); j < user.owned && j < HOMES; j += GROUPS) {
        State &state = at.positives[(long long)user.slot * C + j * CLUSTER + user.rank];
        for (int v = 0; v < FOURS; ++v) four(state.moved, v) = four(here.owned[j].moved, v);
    }
    if (user.rank > 0) return;
    for (int c = thread(); c < DIM; c += THREADS) {
        at.embeddings[user.u * (K + 1) * DIM + c] = here.e[c];
        if (!(USER_ADAM && KEPT)) continue;
        at.moment1[user.u * DIM + c] = here.first[c];
        at.moment2[user.u * DIM + c] = here.second[c];
        if (c == 0) at.steps[user.u] = user.taken + TAU;
    }
}

// ∂L/∂s of the row of this lane, Eq. (5): the negative meets one random positive, for which the slope is gathered.
DEVICE real negative_slope(Shared &here, const User &user, real score, bool there, int partner) {
    if (!there) return 0;
    const real g = user.scale * sigmoid(score - here.scores[partner]);
    if (lane() < ROWS) {  // another lane may have the same row
        const word whole = word(g * real(1ll << 45));
        atomicAdd(&here.gathered[partner].low, unsigned(whole & ((1u << LOW_BITS) - 1)));
        atomicAdd(&here.gathered[partner].high, unsigned(whole >> LOW_BITS));
    }
    return g;
}

// The leader's end of a step: the user moves, and everybody learns the next f_u.
DEVICE void begin_next_step(Shared &here, const Tensors &at, int step) {
    const int taken = here.user.taken + step + 1, place = taken < UNBIASED_AFTER ? taken : UNBIASED_AFTER;
    const real unbias1 = USER_ADAM ? at.unbias1[place] : 0, unbias2 = USER_ADAM ? at.unbias2[place] : 0;
    collect(here.mail[PARTS + step % 2], step / 2);
    if (LIVE) collect(here.mail[DRIFTS], step);
    FOR_COLUMNS(c) {
        move_user(here, c, total_of(here.parts[step % 2], c), unbias1, unbias2);
        const real drift = LIVE ? LIVE_SHARE * total_of(here.drifts, c) : 0;
        here.f_u[(step + 1) % 2][c] = SHARE * here.e[c] + here.latents[c] + drift;
    }
}

// All steps, and what is sent after them.
template <bool HOME>
DEVICE void train(Shared &here, const Tensors &at, const User &user, const int *chosen, int first) {
    const int own = first + lane() % ROWS;  // the negative whose slope this lane computes
    const bool chained = warp() < user.chain, leads = warp() == LEADER;
    Negatives mine = {};
    if (chained) score_positives<HOME>(here, at, user, here.f_u[0]);
    for (int step = 0; step < TAU; ++step) {
        const real *f_u = here.f_u[step % 2];
        const real rate = ITEM_ADAM ? at.rates[step] : ITEM_RATE, epsilon = at.epsilons[step];
        const bool there = own < user.N;
        const int partner = there ? at.partners[((long long)user.slot * TAU + step) * MANY + own] : 0;
        if (thread() == 0) {
            expect(here.mail[SCORES], user.P * sizeof(real));
            expect(here.mail[SLOPES], user.owned * sizeof(here.totals[0]));
            expect(here.mail[PARTS + step % 2], sizeof(here.parts[0]));
            if (LIVE) expect(here.mail[DRIFTS], sizeof(here.drifts));
        }
        const real score = negative_score(mine, here, f_u);
        collect(here.mail[SCORES], step);
        const real g = negative_slope(here, user, score, there, partner);
        sum_negatives(mine, here, g);
        // From here on the negatives need nothing from elsewhere, so their rows fill the waits of the exchange.
        if (chained || leads) meet(GATHERED, WARPS);
        else announce(GATHERED, WARPS);
        if (chained) post_gathered(here, user);
        move_negatives<0, 1>(mine, here, f_u, g, user.decay_negative, rate, epsilon);
        if (chained) {
            collect(here.mail[SLOPES], step);
            slopes_of_positives<HOME>(here, at, user);
        }
        if (chained || leads) post_block_sum(here, user, true, here.parts[step % 2], PARTS + step % 2);
        if (chained) {
            if (LIVE) collect(here.mail[PARTS + step % 2], step / 2);  // ∂L/∂f_u moves positives
            move_positives<HOME>(here, at, user, f_u, rate, epsilon, step);
        }
        if (LIVE && (chained || leads)) post_block_sum(here, user, false, here.drifts, DRIFTS);
        move_negatives<1, 2>(mine, here, f_u, g, user.decay_negative, rate, epsilon);
        if (leads) begin_next_step(here, at, step);
        if (chained || leads) meet(NEXT, WARPS);
        if (chained && step + 1 < TAU) score_positives<HOME>(here, at, user, here.f_u[(step + 1) % 2]);
        move_negatives<2, 4>(mine, here, f_u, g, user.decay_negative, rate, epsilon);
        if (!chained && !leads) meet(NEXT, WARPS);
    }
    send_negatives(mine, at, chosen + user.P + first, user.N - first);
    store(here, at, user);
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) resident(
    const int *counter, const int *first_round, const int *sampled, const int *counts, word *cut,
    const long long *indptr, const real *gather, real *embeddings, real *moment1, real *moment2, long long *steps,
    const real *items, const real *f, word *sums, const int *rows, const int *edges, const int *partners,
    State *positives, const real *alphas, const real *rates, const real *epsilons, const real *unbias1,
    const real *unbias2
) {
    const Tensors at = {
        counter, first_round, sampled, counts, cut, indptr, gather, embeddings, moment1, moment2, steps, items, f, sums,
        rows, edges, partners, positives, alphas, rates, epsilons, unbias1, unbias2
    };
    Shared &here = *reinterpret_cast<Shared *>(shared_memory);
    User found;
    if (!find_user(found, at)) return;  // all blocks of the cluster alike
    const int *chosen = rows + (long long)found.slot * M, first = found.rank * HELD + group() * ROWS;
    load(here, at, found, chosen, first);
    cluster_barrier();
    if (found.owned <= HOMES) train<true>(here, at, here.user, chosen, first);
    else train<false>(here, at, here.user, chosen, first);
}
