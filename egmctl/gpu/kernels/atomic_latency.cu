// Latency of an atomic addition that returns the old value, in memory that another GPU or the host may own.
//
// One thread adds 1 to one counter after another and reads the old value. The choice of the next counter depends on
// that value, so an addition starts only after the previous one has returned. There are LINES counters, each in its own
// line. Addition n goes to counter n % LINES and must return n / LINES. If it does not, the next addition goes to
// another of the LINES counters.
//
// The counters keep their values, so that the host can check that no addition was lost.
//
// add_in_turn <<<1, 1>>>
//   0  counters  unsigned long long *      LINES lines of 128 bytes; the first word of each is the counter, 0 at first
//   1  first     unsigned long long        additions made by earlier launches
//   2  warm      unsigned long long        additions before the clock starts
//   3  adds      unsigned long long        additions to be timed
//   4  result    unsigned long long[4]     start and end by %globaltimer, number of wrong old values, %smid

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
    // Each time is read while the previous addition is in flight: an error of one in tens of thousands at both ends.
    const u64 start = globaltimer_ns();
    add(counters, first + warm, adds, &wrong);
    const u64 end = globaltimer_ns();
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    result[0] = start;
    result[1] = end;
    result[2] = wrong;
    result[3] = sm;
}
