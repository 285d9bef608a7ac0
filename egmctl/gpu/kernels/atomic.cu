// Atomic additions to memory that another GPU or the host may own, and a check that none was lost.
//
// Neighbouring threads add to neighbouring 8-byte words. The result of an addition is not used, so the compiler emits a
// reduction (red.global.add.u64), of which as many are in flight as the path allows.
//
// Pass p works on slot p % slots. Slots are contiguous in memory.
//
// add_ones <<<any, at most 512>>>
//   0  destination  unsigned long long *   8-byte aligned
//   1  words        unsigned long long     in one slot
//   2  passes       unsigned long long
//   3  slots        unsigned long long     at least 1
//
// verify_counts <<<any, at most 512>>>     on memory that was 0 before add_ones ran with the same parameters
//   0  data         const unsigned long long *
//   1  words        unsigned long long     in one slot
//   2  passes       unsigned long long
//   3  slots        unsigned long long
//   4  result       unsigned long long[2]  the host sets it to {0, 0} before:
//                                          [0] += number of words that differ
//                                          [1]  = max([1], ~index of the first word that differs)

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
