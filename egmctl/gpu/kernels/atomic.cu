// Atomic additions to memory that another GPU or the host may own, and a look at whether each of them arrived.
//
// All threads take neighbouring 8-byte words at a time. The result of an addition is not asked for, so the compiler makes
// it a reduction (red.global.add.u64), of which as many are under way as the path takes.
//
// Pass p works on slot p % slots, slots being neighbours in memory.
//
// add_ones <<<any, at most 512>>>
//   0  destination  unsigned long long *   8-byte aligned
//   1  words        unsigned long long     in one slot
//   2  passes       unsigned long long
//   3  slots        unsigned long long     at least 1
//
// verify_counts <<<any, at most 512>>>     of memory that was 0 before add_ones with the same numbers
//   0  data         const unsigned long long *
//   1  words        unsigned long long     in one slot
//   2  passes       unsigned long long
//   3  slots        unsigned long long
//   4  result       unsigned long long *   two words, 0 before: += words that differ; the least offset in words that
//                                          differs, inverted, as the largest

typedef unsigned long long u64;

extern "C" __launch_bounds__(512, 2) __global__ void add_ones(u64 *destination, u64 words, u64 passes, u64 slots)
{
    const u64 threads = (u64)gridDim.x * blockDim.x;
    for (u64 pass = 0; pass < passes; ++pass) {
        u64 *to = destination + pass % slots * words;
        for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += threads)
            atomicAdd_system(to + i, 1ULL);
    }
}

extern "C" __launch_bounds__(512, 2) __global__ void verify_counts(const u64 *data, u64 words, u64 passes, u64 slots,
                                                                   u64 *result)
{
    const u64 threads = (u64)gridDim.x * blockDim.x, all = words * (passes < slots ? passes : slots);
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += threads) {
        const u64 slot = i / words, expected = passes / slots + (slot < passes % slots ? 1 : 0);
        if (__ldcg(data + i) != expected) {
            atomicAdd(result, 1ULL);
            atomicMax(result + 1, ~i);
        }
    }
}
