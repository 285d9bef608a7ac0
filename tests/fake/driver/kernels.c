/* The project's kernels, natively: what egmctl/gpu/kernels/NAME.cu says, one loop for all threads.
 *
 * A kernel here checks each range that it touches, as the GPU's page tables would, and says how long it takes.
 */
#include "kernels.h"

#include <string.h>

void *kernel_range(const struct launch *launch, const struct stream *stream, int parameter, size_t size,
                   enum access access)
{
    return kernel_pointer(stream_context(stream)->gpu, launch->arguments[parameter], size, access);
}

bool launch_expired(struct launch *launch, uint64_t timeout_ns)
{
    if (!launch->started)
        launch->started = real_seconds();
    return (real_seconds() - launch->started) * 1e9 > (double)timeout_ns;
}

/* gate.cu: waits for a word of the host's. */
static int gate(struct launch *launch, struct stream *stream, double *seconds)
{
    const volatile uint32_t *open = kernel_range(launch, stream, 0, 4, READ);
    volatile uint32_t *expired = kernel_range(launch, stream, 1, 4, WRITE);
    (void)seconds;
    if (!open || !expired)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (!*open) {
        if (!launch_expired(launch, launch->arguments[2]))
            return OPERATION_BLOCKED;
        *expired = 1;
    }
    stream_reach_host(stream);
    return 0;
}

enum { VECTOR = 16 };

/* pattern.cu: SplitMix64, word by word. */
static uint64_t pattern_word(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static void damage(const struct launch *launch, void *bytes, uint64_t size)
{
    if (launch->corrupt >= 0 && size)
        ((unsigned char *)bytes)[(uint64_t)launch->corrupt % size] ^= 0xff;
}

/* Passes over slots: what later ones repeat is not done again. */
static uint64_t slots_moved(uint64_t passes, uint64_t slots)
{
    return passes < slots ? passes : slots;
}

static int fill_pattern(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t slot = launch->arguments[1] * VECTOR, seed = launch->arguments[2], passes = launch->arguments[3];
    uint64_t size = slot * slots_moved(passes, launch->arguments[4]);
    uint64_t *data = kernel_range(launch, stream, 0, size, WRITE);
    if (!data)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint64_t i = 0; i < size / 8; ++i)
        data[i] = pattern_word(seed, i);
    damage(launch, data, size);
    *seconds = kernel_seconds(stream_context(stream)->gpu, launch->arguments[0], slot * passes);
    return 0;
}

static int verify_pattern(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t size = launch->arguments[1] * VECTOR, seed = launch->arguments[2];
    const uint64_t *data = kernel_range(launch, stream, 0, size, READ);
    uint64_t *result = kernel_range(launch, stream, 3, 16, WRITE);
    if (!data || !result)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint64_t i = 0; i < size / 8; ++i)
        if (data[i] != pattern_word(seed, i)) {
            ++result[0];
            if (~i > result[1])
                result[1] = ~i;
        }
    *seconds = kernel_seconds(stream_context(stream)->gpu, launch->arguments[0], size);
    return 0;
}

static int sum_pattern(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t first = launch->arguments[0], words = launch->arguments[1], seed = launch->arguments[2];
    uint64_t *result = kernel_range(launch, stream, 3, 8, WRITE);
    if (!result)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint64_t i = 0; i < words; ++i)
        *result += pattern_word(seed, first + i);
    *seconds = kernel_seconds(stream_context(stream)->gpu, launch->arguments[3], 8);
    return 0;
}

/* copy.cu */
static int copy_vectors(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t slot = launch->arguments[2] * VECTOR, passes = launch->arguments[3];
    uint64_t size = slot * slots_moved(passes, launch->arguments[4]);
    void *to = kernel_range(launch, stream, 0, size, WRITE);
    const void *from = kernel_range(launch, stream, 1, size, READ);
    if (!to || !from)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    memcpy(to, from, size);
    damage(launch, to, size);
    *seconds = copy_seconds(stream_context(stream)->gpu, launch->arguments[0], launch->arguments[1], slot * passes);
    return 0;
}

static int sum_vectors(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t slot = launch->arguments[1] * VECTOR, passes = launch->arguments[2], slots = launch->arguments[3];
    const uint64_t *from = kernel_range(launch, stream, 0, slot * slots_moved(passes, slots), READ);
    uint64_t *result = kernel_range(launch, stream, 4, 8, WRITE);
    if (!from || !result)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    uint64_t sum = *result;
    for (uint64_t number = 0; number < slots_moved(passes, slots); ++number) {
        /* What later passes over a slot repeat is not read again. */
        uint64_t of_slot = 0, times = passes / slots + (number < passes % slots);
        for (uint64_t i = 0; i < slot / 8; ++i)
            of_slot += from[number * (slot / 8) + i];
        sum += times * of_slot;
    }
    *result = sum;
    damage(launch, result, 8);
    *seconds = kernel_seconds(stream_context(stream)->gpu, launch->arguments[0], slot * passes);
    return 0;
}

/* atomic.cu */
static int add_ones(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t words = launch->arguments[1], passes = launch->arguments[2], slots = launch->arguments[3];
    uint64_t size = words * 8 * slots_moved(passes, slots);
    uint64_t *to = kernel_range(launch, stream, 0, size, WRITE);
    if (!to)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint64_t i = 0; i < size / 8; ++i)
        to[i] += passes / slots + (i / words < passes % slots);
    damage(launch, to, size);
    *seconds = kernel_seconds(stream_context(stream)->gpu, launch->arguments[0], words * 8 * passes);
    return 0;
}

static int verify_counts(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t words = launch->arguments[1], passes = launch->arguments[2], slots = launch->arguments[3];
    uint64_t size = words * 8 * slots_moved(passes, slots);
    const uint64_t *data = kernel_range(launch, stream, 0, size, READ);
    uint64_t *result = kernel_range(launch, stream, 4, 16, WRITE);
    if (!data || !result)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint64_t i = 0; i < size / 8; ++i)
        if (data[i] != passes / slots + (i / words < passes % slots)) {
            ++result[0];
            if (~i > result[1])
                result[1] = ~i;
        }
    *seconds = kernel_seconds(stream_context(stream)->gpu, launch->arguments[0], size);
    return 0;
}

static const struct kernel kernels[] = {
    {"gate", {8, 8, 8}, gate},
    {"fill_pattern", {8, 8, 8, 8, 8}, fill_pattern},
    {"verify_pattern", {8, 8, 8, 8}, verify_pattern},
    {"sum_pattern", {8, 8, 8, 8}, sum_pattern},
    {"copy_vectors", {8, 8, 8, 8, 8}, copy_vectors},
    {"add_ones", {8, 8, 8, 8}, add_ones},
    {"verify_counts", {8, 8, 8, 8, 8}, verify_counts},
    {"copy_bulk", {8, 8, 8, 8, 8}, copy_vectors},
    {"sum_vectors", {8, 8, 8, 8, 8}, sum_vectors},
};

const struct kernel *kernel_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; ++i)
        if (!strcmp(kernels[i].name, name))
            return &kernels[i];
    for (const struct kernel *kernel = latency_kernels; kernel->name; ++kernel)
        if (!strcmp(kernel->name, name))
            return kernel;
    return NULL;
}
