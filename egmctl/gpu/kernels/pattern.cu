// Test data: fill a buffer with a pattern generated from a seed, check a buffer against it, and sum the pattern.
//
// Word i (8 bytes, little endian) of the pattern of a seed is the i-th output of the SplitMix64 generator (Steele, Lea
// and Flood 2014) that starts at the seed, so any part of the pattern can be generated or checked alone.
// egmctl/gpu/pattern.py implements it in numpy:
//
//   z = seed + (i + 1) * 0x9E3779B97F4A7C15
//   z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
//   z = (z ^ (z >> 27)) * 0x94D049BB133111EB
//   word = z ^ (z >> 31)                              all modulo 2^64
//
// Accesses are 16-byte vectors of two words and bypass L1, because other GPUs and copy engines use the memory too.
//
// fill_pattern <<<any, any>>>
//   0  data     ulonglong2 *                  16-byte aligned
//   1  vectors  unsigned long long            16-byte vectors in one slot
//   2  seed     unsigned long long
//   3  passes   unsigned long long            pass p writes slot p % slots, as in copy.cu
//   4  slots    unsigned long long            at least 1; the pattern continues from one slot to the next
//
// verify_pattern <<<any, any>>>
//   0  data     const ulonglong2 *            16-byte aligned
//   1  vectors  unsigned long long            number of 16-byte vectors to check
//   2  seed     unsigned long long
//   3  result   unsigned long long[2]         in device memory; the host sets it to {0, 0} before:
//                                             [0] += number of words that differ
//                                             [1]  = max([1], ~index of the first word that differs)
//
// sum_pattern <<<any, any>>>
//   0  first    unsigned long long            index of the first word
//   1  words    unsigned long long            number of words
//   2  seed     unsigned long long
//   3  result   unsigned long long *          in device memory; the host sets it to 0 before:
//                                             += the sum of the words, modulo 2^64

typedef unsigned long long u64;

constexpr int UNROLL = 4;

__device__ static u64 pattern_word(u64 seed, u64 index)
{
    u64 z = seed + (index + 1) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

extern "C" __global__ void fill_pattern(ulonglong2 *data, u64 vectors, u64 seed, u64 passes, u64 slots)
{
    const u64 threads = (u64)gridDim.x * blockDim.x;
    for (u64 pass = 0; pass < passes; ++pass) {
        const u64 start = pass % slots * vectors;
        for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += threads) {
            const u64 word = 2 * (start + i);
            __stcg(data + start + i, make_ulonglong2(pattern_word(seed, word), pattern_word(seed, word + 1)));
        }
    }
}

extern "C" __global__ void verify_pattern(const ulonglong2 *data, u64 vectors, u64 seed, u64 *result)
{
    const u64 threads = (u64)gridDim.x * blockDim.x;
    u64 differ = 0;
    u64 first = ~0ULL;
    const auto look = [&](u64 index, u64 found) {
        if (found != pattern_word(seed, index)) {
            ++differ;
            first = index < first ? index : first;
        }
    };
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (UNROLL - 1) * threads < vectors; i += UNROLL * threads) {
        ulonglong2 held[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            held[k] = __ldcg(data + i + k * threads);
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            look(2 * (i + k * threads), held[k].x);
            look(2 * (i + k * threads) + 1, held[k].y);
        }
    }
    for (; i < vectors; i += threads) {
        const ulonglong2 found = __ldcg(data + i);
        look(2 * i, found.x);
        look(2 * i + 1, found.y);
    }
    if (differ != 0) {
        atomicAdd(result, differ);
        atomicMax(result + 1, ~first);
    }
}

extern "C" __global__ void sum_pattern(u64 first, u64 words, u64 seed, u64 *result)
{
    u64 sum = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x)
        sum += pattern_word(seed, first + i);
    atomicAdd(result, sum);
}
