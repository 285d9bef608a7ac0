// Copies and reads by the multiprocessors. (fill_pattern writes without reading.)
//
// Neighbouring threads access neighbouring 16-byte vectors, and each thread has UNROLL vectors in flight, enough to
// cover the latency of the link. Loads and stores are .cg, cached in L2 only: L1 is not coherent with other GPUs, and
// no data are reused.
//
// A pass moves `vectors` for any number of threads; the remainder modulo UNROLL is moved one vector at a time. Pass p
// works on slot p % slots. Slots are contiguous in memory. If each pass used the same bytes, the L2 caches on the path
// would serve a buffer smaller than themselves.
//
// copy_vectors <<<any, at most 512>>>
//   0  destination  uint4 *                16-byte aligned
//   1  source       const uint4 *          16-byte aligned
//   2  vectors      unsigned long long     16-byte vectors in one slot
//   3  passes       unsigned long long
//   4  slots        unsigned long long     at least 1
//
// sum_vectors <<<any multiple of 32, at most 512>>>
//   0  source       const uint4 *          16-byte aligned
//   1  vectors      unsigned long long     16-byte vectors in one slot
//   2  passes       unsigned long long
//   3  slots        unsigned long long     at least 1
//   4  result       unsigned long long *   in device memory; the host sets it to 0 before: += the sum of all 8-byte
//                                          words read in all passes, modulo 2^64

typedef unsigned long long u64;

constexpr int UNROLL = 8;

__device__ static u64 sum_of(uint4 vector)
{
    return (((u64)vector.y << 32) | vector.x) + (((u64)vector.w << 32) | vector.z);
}

extern "C" __launch_bounds__(512, 2) __global__ void copy_vectors(uint4 *destination, const uint4 *source, u64 vectors,
                                                                  u64 passes, u64 slots)
{
    const u64 threads = (u64)gridDim.x * blockDim.x;
    for (u64 pass = 0; pass < passes; ++pass) {
        uint4 *to = destination + pass % slots * vectors;
        const uint4 *from = source + pass % slots * vectors;
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
        for (; i + (UNROLL - 1) * threads < vectors; i += UNROLL * threads) {
            uint4 held[UNROLL];
#pragma unroll
            for (int k = 0; k < UNROLL; ++k)
                held[k] = __ldcg(from + i + k * threads);
#pragma unroll
            for (int k = 0; k < UNROLL; ++k)
                __stcg(to + i + k * threads, held[k]);
        }
        for (; i < vectors; i += threads)
            __stcg(to + i, __ldcg(from + i));
    }
}

extern "C" __launch_bounds__(512, 2) __global__ void sum_vectors(const uint4 *source, u64 vectors, u64 passes,
                                                                 u64 slots, u64 *result)
{
    const u64 threads = (u64)gridDim.x * blockDim.x;
    u64 sum = 0;
    for (u64 pass = 0; pass < passes; ++pass) {
        const uint4 *from = source + pass % slots * vectors;
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
        for (; i + (UNROLL - 1) * threads < vectors; i += UNROLL * threads) {
            uint4 held[UNROLL];
#pragma unroll
            for (int k = 0; k < UNROLL; ++k)
                held[k] = __ldcg(from + i + k * threads);
#pragma unroll
            for (int k = 0; k < UNROLL; ++k)
                sum += sum_of(held[k]);
        }
        for (; i < vectors; i += threads)
            sum += sum_of(__ldcg(from + i));
    }
    // One atomic addition per warp, because one per thread would take a noticeable part of the time.
    for (int lane = 16; lane > 0; lane /= 2)
        sum += __shfl_down_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0)
        atomicAdd(result, sum);
}
