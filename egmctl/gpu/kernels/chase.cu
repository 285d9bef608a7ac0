// Latency: a chain of lines through a buffer, and the one thread that follows it.
//
// The walk visits line place(0), place(1), place(2) and so on. The first 8 bytes of a line hold the distance in bytes
// of the next line from the start of the buffer, so that a chain means the same in every address space. As place is a
// bijection, the chain is one cycle that visits every line once, and where a walk must end is known without walking:
// egmctl/gpu/chase.py computes it.
//
// place is a bijection of the numbers of as many bits as the lines need (each step of it can be undone: exclusive or with
// a key, multiplication by an odd number, folding the upper half onto the lower one). Where it leads to a number that is
// no line it goes on from there, so it is a bijection of the lines too. Seed 0 is the sequential order: place(i) = i.
//
// make_chain <<<any, any>>>
//   0  chain     unsigned char *           8-byte aligned
//   1  lines     unsigned long long        in the buffer
//   2  stride    unsigned long long        bytes from one line to the next, a multiple of 8
//   3  seed      unsigned long long
//
// chase <<<any, 1>>>
//   0  chain     const unsigned char *
//   1  offset    unsigned long long        of the line to begin with
//   2  warm      unsigned long long        loads before the clock starts
//   3  loads     unsigned long long        loads to be timed
//   4  block     unsigned long long        the block that walks; the others end at once
//   5  result    unsigned long long[4]     start and end by %globaltimer, offset of the line reached, %smid

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

// Past L1, whose answers would say nothing of the path. Volatile, so that the loads stay between the two times.
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
    // Each time is taken while the load before it is under way: one of tens of thousands, at both ends.
    const unsigned long long start = globaltimer_ns();
    offset = walk(chain, offset, loads);
    const unsigned long long end = globaltimer_ns();
    unsigned int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    result[0] = start;
    result[1] = end;
    result[2] = offset;
    result[3] = sm;
}
