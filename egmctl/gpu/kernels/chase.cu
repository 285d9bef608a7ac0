// Latency: a pointer chain through the lines of a buffer, and one thread that follows it, alone or under load.
//
// The walk visits line place(0), place(1), place(2) and so on. The first 8 bytes of a line hold the offset in bytes of
// the next line from the start of the buffer, so the chain is valid in every address space. As place is a bijection,
// the chain is one cycle that visits every line once, and egmctl/gpu/chase.py computes where a walk must end.
//
// place is a bijection of the numbers of as many bits as the line count needs: each step is invertible (exclusive or
// with a key, multiplication by an odd number, folding the upper half onto the lower one). If it gives a number that is
// not a line, it is applied again, so it is a bijection of the lines too. Seed 0 is the sequential order: place(i) = i.
//
// make_chain <<<any, any>>>
//   0  chain     unsigned char *           8-byte aligned
//   1  lines     unsigned long long        in the buffer
//   2  stride    unsigned long long        bytes from one line to the next, a multiple of 8
//   3  seed      unsigned long long
//
// chase <<<any, 1>>>
//   0  chain     const unsigned char *
//   1  offset    unsigned long long        offset of the first line
//   2  warm      unsigned long long        loads before the clock starts
//   3  loads     unsigned long long        loads to be timed
//   4  block     unsigned long long        index of the block that walks; the others return at once
//   5  result    unsigned long long[4]     start and end by %globaltimer, offset of the line reached, %smid
//
// chase_loaded <<<1 + blocks that load, a multiple of 32>>>    all blocks must be resident on the GPU at once
//   0  chain       const unsigned char *
//   1  offset      unsigned long long        offset of the first line
//   2  warm        unsigned long long        loads under load before the clock starts
//   3  loads       unsigned long long        loads to be timed
//   4  data        const uint4 *             buffer that the other blocks read
//   5  size        unsigned long long        size of the buffer in bytes
//   6  timeout_ns  unsigned long long        timeout of each block, by %globaltimer since its start
//   7  shared      unsigned long long[11]    in memory of this GPU; the host sets all to 0, [8] to 2^64 - 1
//                                            [0] start and [1] end of the chase by %globaltimer
//                                            [2] offset of the line reached  [3] %smid of the chase
//                                            [4] 1 if a block timed out      [5] blocks that have begun to load
//                                            [6] 0 before, 1 while, 2 after the chase is timed
//                                            while it was timed: [7] bytes read, [8] first start, [9] last end
//                                            [10] warps that load on the SM of the chase

__device__ static unsigned long long place(unsigned long long step, unsigned long long lines, unsigned long long seed)
{
    if (seed == 0)
        return step;
    const int bits = 64 - __clzll((long long)(lines - 1));
    const int half = (bits + 1) / 2;
    const unsigned long long mask = (1ULL << bits) - 1;
    const unsigned long long key = seed * 0x9E3779B97F4A7C15ULL;
    do {
        for (int round = 0; round < 3; ++round) {
            step = ((step ^ key >> 16 * round) & mask) * 0xBF58476D1CE4E5B9ULL & mask;
            step ^= step >> half;
        }
    } while (step >= lines);
    return step;
}

extern "C" __global__ void make_chain(unsigned char *chain, unsigned long long lines, unsigned long long stride,
                                      unsigned long long seed)
{
    const unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < lines; i += threads) {
        const unsigned long long next = place(i + 1 < lines ? i + 1 : 0, lines, seed);
        *(unsigned long long *)(chain + place(i, lines, seed) * stride) = next * stride;
    }
}

__device__ static unsigned long long globaltimer_ns()
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

__device__ static unsigned int sm_id()
{
    unsigned int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    return sm;
}

// The loads bypass L1, because L1 hits would hide the path. They are volatile to stay between the two times.
__device__ static unsigned long long walk(const unsigned char *chain, unsigned long long offset,
                                          unsigned long long loads)
{
#pragma unroll 8
    for (unsigned long long i = 0; i < loads; ++i)
        asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(offset) : "l"(chain + offset) : "memory");
    return offset;
}

extern "C" __global__ void chase(const unsigned char *chain, unsigned long long offset, unsigned long long warm,
                                 unsigned long long loads, unsigned long long block, unsigned long long *result)
{
    if (blockIdx.x != block)
        return;
    offset = walk(chain, offset, warm);
    // Each time is read while the previous load is in flight: an error of one in tens of thousands at both ends.
    const unsigned long long start = globaltimer_ns();
    offset = walk(chain, offset, loads);
    const unsigned long long end = globaltimer_ns();
    result[0] = start;
    result[1] = end;
    result[2] = offset;
    result[3] = sm_id();
}

// Loaded latency: one thread follows the chain while other blocks of the same launch read another buffer as fast as
// they can. The number of blocks sets the load. The blocks count the bytes that they read while the chase is timed.

enum { START, END, OFFSET, SM, EXPIRED, BEGUN, PHASE, BYTES, FIRST, LAST, BESIDE };
enum { BEFORE, TIMED, OVER };

__device__ static void follow(const unsigned char *chain, unsigned long long offset, unsigned long long warm,
                              unsigned long long loads, unsigned long long timeout_ns,
                              volatile unsigned long long *shared)
{
    const unsigned long long begun = globaltimer_ns();
    shared[SM] = sm_id();
    while (shared[BEGUN] < gridDim.x - 1)
        if (globaltimer_ns() - begun > timeout_ns) {
            shared[EXPIRED] = 1;
            shared[PHASE] = OVER;
            return;
        }
    offset = walk(chain, offset, warm);
    shared[PHASE] = TIMED;
    const unsigned long long start = globaltimer_ns();
    offset = walk(chain, offset, loads);
    const unsigned long long end = globaltimer_ns();
    shared[START] = start;
    shared[END] = end;
    shared[OFFSET] = offset;
    __threadfence();
    shared[PHASE] = OVER;
}

// Each warp on its own reads 16 KiB, polls the phase of the chase, and repeats.
__device__ static void load(const uint4 *data, unsigned long long size, unsigned long long timeout_ns,
                            unsigned long long *shared)
{
    enum { ROUNDS = 8, IN_FLIGHT = 4, WARP = 32 };
    volatile unsigned long long *const seen = shared;
    const unsigned long long begun = globaltimer_ns();
    const unsigned long long words = size / sizeof(uint4);
    const unsigned long long warp = (unsigned long long)(blockIdx.x - 1) * (blockDim.x / WARP) + threadIdx.x / WARP;
    const unsigned long long warps = (unsigned long long)(gridDim.x - 1) * (blockDim.x / WARP);
    const unsigned int lane = threadIdx.x % WARP;
    unsigned long long at = words / warps * warp;
    unsigned long long first = 0, last = 0, bytes = 0;
    unsigned int sum = 0;
    bool announced = false;
    for (unsigned long long phase = BEFORE; phase != OVER;) {
#pragma unroll 1
        for (int round = 0; round < ROUNDS; ++round) {
            if (at + IN_FLIGHT * WARP > words)
                at = 0;
            uint4 read[IN_FLIGHT];
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; ++i)
                read[i] = __ldcg(data + at + i * WARP + lane);
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; ++i)
                sum += read[i].x ^ read[i].y ^ read[i].z ^ read[i].w;
            at += IN_FLIGHT * WARP;
        }
        phase = seen[PHASE];
        const unsigned long long now = globaltimer_ns();
        if (first != 0) {
            bytes += ROUNDS * IN_FLIGHT * WARP * sizeof(uint4);
            last = now;
        } else if (phase == TIMED) {
            first = now;
        }
        if (!announced && threadIdx.x == 0)
            atomicAdd(shared + BEGUN, 1);
        announced = true;
        if (now - begun > timeout_ns) {
            seen[EXPIRED] = 1;
            break;
        }
    }
    // The data must be used, or the compiler removes the loads.
    if (sum == 0x9E3779B9U)
        (void)seen[PHASE];
    if (lane == 0) {
        atomicAdd(shared + BYTES, bytes);
        if (first != 0) {
            atomicMin(shared + FIRST, first);
            atomicMax(shared + LAST, last);
        }
        if (sm_id() == seen[SM])
            atomicAdd(shared + BESIDE, 1);
    }
}

extern "C" __global__ void chase_loaded(const unsigned char *chain, unsigned long long offset, unsigned long long warm,
                                        unsigned long long loads, const uint4 *data, unsigned long long size,
                                        unsigned long long timeout_ns, unsigned long long *shared)
{
    if (blockIdx.x != 0)
        load(data, size, timeout_ns, shared);
    else if (threadIdx.x == 0)
        follow(chain, offset, warm, loads, timeout_ns, shared);
}
