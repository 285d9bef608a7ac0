// Test data: fill a buffer with a pattern that a seed makes, and check a buffer against it.
//
// Word i (8 bytes, little endian) of the pattern of a seed is the i-th output of the SplitMix64 generator (Steele, Lea
// and Flood 2014) that starts at the seed, so any part of it can be made or checked alone. egmctl/gpu/pattern.py is the
// same in numpy:
//
//   z = seed + (i + 1) * 0x9E3779B97F4A7C15
//   z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
//   z = (z ^ (z >> 27)) * 0x94D049BB133111EB
//   word = z ^ (z >> 31)                              all modulo 2^64
//
// fill_pattern <<<any, any>>>
//   0  data     unsigned long long *          8-byte aligned
//   1  words    unsigned long long            number of 8-byte words to write
//   2  seed     unsigned long long
//
// verify_pattern <<<any, any>>>
//   0  data     const unsigned long long *    8-byte aligned
//   1  words    unsigned long long            number of 8-byte words to check
//   2  seed     unsigned long long
//   3  result   unsigned long long[2]         in device memory; the host sets it to {0, 2^64 - 1} before:
//                                             [0] += number of words that differ
//                                             [1]  = min([1], index of the first word that differs)

__device__ static unsigned long long pattern_word(unsigned long long seed, unsigned long long index)
{
    unsigned long long z = seed + (index + 1) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

extern "C" __global__ void fill_pattern(unsigned long long *data, unsigned long long words, unsigned long long seed)
{
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride)
        data[i] = pattern_word(seed, i);
}

extern "C" __global__ void verify_pattern(const unsigned long long *data, unsigned long long words,
                                          unsigned long long seed, unsigned long long *result)
{
    unsigned long long differ = 0;
    unsigned long long first = ~0ULL;
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
        // Past L1: another GPU or a copy engine wrote this memory.
        if (__ldcg(data + i) != pattern_word(seed, i)) {
            if (differ == 0)
                first = i;
            ++differ;
        }
    }
    if (differ != 0) {
        atomicAdd(result, differ);
        atomicMin(result + 1, first);
    }
}
