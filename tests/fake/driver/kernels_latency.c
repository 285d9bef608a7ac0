/* The kernels of latency, natively: chase.cu, pingpong.cu.
 *
 * Their walks are really walked, so that a damaged chain leads astray as it would on a GPU. Their times are invented:
 * each load takes what a kernel that reads one line would.
 */
#include "kernels.h"

enum { LINE = 128, CHAIN_LIMIT = 1 << 30, FLAG_LINES = 64 };

static uint64_t place(uint64_t step, uint64_t lines, uint64_t seed)
{
    if (seed == 0)
        return step;
    int bits = lines > 1 ? 64 - __builtin_clzll(lines - 1) : 0, half = (bits + 1) / 2;
    uint64_t mask = (1ULL << bits) - 1, key = seed * 0x9E3779B97F4A7C15ULL;
    do {
        for (int round = 0; round < 3; ++round) {
            step = ((step ^ key >> 16 * round) & mask) * 0xBF58476D1CE4E5B9ULL & mask;
            step ^= step >> half;
        }
    } while (step >= lines);
    return step;
}

static int make_chain(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t lines = launch->arguments[1], stride = launch->arguments[2], seed = launch->arguments[3];
    unsigned char *chain = kernel_range(launch, stream, 0, lines * stride, WRITE);
    if (lines * stride > CHAIN_LIMIT)
        fake_abort("make_chain: a chain of %llu bytes would take as much real memory",
                   (unsigned long long)(lines * stride));
    if (!chain)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    uint64_t first = place(0, lines, seed), at = first;
    for (uint64_t i = 0; i < lines; ++i) {
        uint64_t next = i + 1 < lines ? place(i + 1, lines, seed) : first;
        *(uint64_t *)(chain + at * stride) = next * stride;
        at = next;
    }
    if (launch->corrupt >= 0 && lines)
        chain[(uint64_t)launch->corrupt % (lines * stride)] ^= 0xff;
    *seconds = kernel_seconds(stream_context(stream)->gpu, launch->arguments[0], lines * LINE);
    return 0;
}

/* Follows the chain from the offset in argument 1, for the loads in arguments 2 and 3. Each load is checked: a damaged
 * chain may lead out of the buffer. */
static int walk(const struct launch *launch, struct stream *stream, uint64_t *offset, uint64_t *nanoseconds)
{
    int gpu = stream_context(stream)->gpu;
    uint64_t chain = launch->arguments[0], loads = launch->arguments[3];
    *offset = launch->arguments[1];
    for (uint64_t i = 0; i < launch->arguments[2] + loads; ++i) {
        const uint64_t *line = kernel_pointer(gpu, chain + *offset, 8, READ);
        if (!line)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        *offset = *line;
    }
    *nanoseconds = (uint64_t)(1e9 * kernel_seconds(gpu, chain, LINE) * (double)loads);
    return 0;
}

static int chase(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t *result = kernel_range(launch, stream, 5, 32, WRITE), offset, nanoseconds;
    if (!result)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    TRY(walk(launch, stream, &offset, &nanoseconds));
    result[0] = 1000;
    result[1] = 1000 + nanoseconds;
    result[2] = offset;
    result[3] = launch->arguments[4];
    *seconds = (double)nanoseconds * 1e-9;
    return 0;
}

/* Whatever the number of blocks beside the first, they read the buffer once. */
static int chase_loaded(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t size = launch->arguments[5], offset, nanoseconds;
    uint64_t *shared = kernel_range(launch, stream, 7, 88, WRITE);
    if (!shared || !kernel_range(launch, stream, 4, size, READ))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    TRY(walk(launch, stream, &offset, &nanoseconds));
    shared[0] = shared[8] = 1000;
    shared[1] = shared[9] = 1000 + nanoseconds;
    shared[2] = offset;
    shared[6] = 2;
    shared[7] = launch->blocks > 1 ? size : 0;
    *seconds = (double)nanoseconds * 1e-9;
    return 0;
}

/* Only the last lap is played: both sides wait for its number as they would for each one before. */
static int ping_pong(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t laps = launch->arguments[2], last = (laps - 1) % FLAG_LINES * (LINE / 4);
    const volatile uint32_t *poll = kernel_range(launch, stream, 0, FLAG_LINES * LINE, READ);
    volatile uint32_t *send = kernel_range(launch, stream, 1, FLAG_LINES * LINE, WRITE);
    uint64_t *result = kernel_range(launch, stream, 5, (3 + laps) * 8, WRITE);
    if (!poll || !send || !result)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (launch->arguments[3])
        send[last] = (uint32_t)laps;
    double lap = kernel_seconds(stream_context(stream)->gpu, launch->arguments[1], LINE) * 2;
    bool over = poll[last] == laps;
    if (!over && !launch_expired(launch, launch->arguments[4]))
        return OPERATION_BLOCKED;
    send[last] = (uint32_t)laps;
    result[0] = over ? laps : 0;
    result[1] = result[2] = (uint64_t)(lap * 1e9 * (double)laps);
    for (uint64_t i = 0; i < laps; ++i)
        result[3 + i] = result[1] / laps;
    *seconds = lap * (double)laps;
    return 0;
}

/* atomic_latency.cu: what all additions leave. An answer that is not what it must be leads to another counter. */
static int add_in_turn(struct launch *launch, struct stream *stream, double *seconds)
{
    uint64_t first = launch->arguments[1], adds = launch->arguments[3], all = launch->arguments[2] + adds, slip = 0;
    uint64_t *counters = kernel_range(launch, stream, 0, FLAG_LINES * LINE, WRITE);
    uint64_t *result = kernel_range(launch, stream, 4, 32, WRITE);
    if (!counters || !result)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    result[2] = 0;
    for (uint64_t n = first; n < first + all; ++n) {
        slip = counters[(n + slip) % FLAG_LINES * (LINE / 8)]++ - n / FLAG_LINES;
        result[2] += slip != 0;
    }
    if (launch->corrupt >= 0)
        ((unsigned char *)counters)[launch->corrupt % (FLAG_LINES * LINE)] ^= 0xff;
    *seconds = kernel_seconds(stream_context(stream)->gpu, launch->arguments[0], 8) * (double)adds;
    result[0] = 1000;
    result[1] = 1000 + (uint64_t)(1e9 * *seconds);
    result[3] = 0;
    return 0;
}

const struct kernel latency_kernels[] = {
    {"make_chain", {8, 8, 8, 8}, make_chain},
    {"chase", {8, 8, 8, 8, 8, 8}, chase},
    {"chase_bulk", {8, 8, 8, 8, 8, 8}, chase},
    {"chase_loaded", {8, 8, 8, 8, 8, 8, 8, 8}, chase_loaded},
    {"ping_pong", {8, 8, 8, 8, 8, 8}, ping_pong},
    {"add_in_turn", {8, 8, 8, 8, 8}, add_in_turn},
    {0},
};
