// Latency of an atomic addition whose answer is waited for, in memory that another GPU or the host may own.
//
// One thread adds 1 to one counter after another and asks for what was there before. Which counter is next depends on
// that answer, so no addition is under way before the last one has come back. Of LINES counters, each in a line of its
// own, addition n has the one with the number n % LINES: it must find n / LINES there. Where it does not, the next one
// goes to another counter of these, and never beyond them.
//
// What is added stays: that no addition was lost, the host sees in the counters.
//
// add_in_turn <<<1, 1>>>
//   0  counters  unsigned long long *      LINES lines of 128 bytes; the first words count, and are 0 before the first
//   1  first     unsigned long long        additions made by earlier launches
//   2  warm      unsigned long long        additions before the clock starts
//   3  adds      unsigned long long        additions to be timed
//   4  result    unsigned long long[4]     start and end by %globaltimer, answers that were not as they must be, %smid

typedef unsigned long long u64;

enum { LINES = 64, LINE_WORDS = 16 };

__device__ static u64 globaltimer_ns()
{
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

__device__ static void add(u64 *counters, u64 first, u64 count, u64 *wrong)
{
    u64 slip = 0;
    for (u64 n = first; n < first + count; ++n) {
        u64 before;
        asm volatile("atom.relaxed.sys.global.add.u64 %0, [%1], 1;"
                     : "=l"(before)
                     : "l"(counters + (n + slip) % LINES * LINE_WORDS)
                     : "memory");
        slip = before - n / LINES;
        *wrong += slip != 0;
    }
}

extern "C" __global__ void add_in_turn(u64 *counters, u64 first, u64 warm, u64 adds, u64 *result)
{
    u64 wrong = 0;
    unsigned int sm;
    add(counters, first, warm, &wrong);
    // Each time is taken while the addition before it is under way: one of tens of thousands, at both ends.
    const u64 start = globaltimer_ns();
    add(counters, first + warm, adds, &wrong);
    const u64 end = globaltimer_ns();
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    result[0] = start;
    result[1] = end;
    result[2] = wrong;
    result[3] = sm;
}
