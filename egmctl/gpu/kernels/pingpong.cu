// Latency: two GPUs wait for each other's flag, one thread on each.
//
// The kernel is launched on both GPUs at the same time. Each GPU polls one word and writes another. The serving GPU
// writes the number of the lap and waits until it comes back; the other waits for the number and sends it back. The
// words carry no other data, so no memory ordering is needed and volatile is enough.
//
// Each lap uses the next of LINES lines on both sides, because its time depends on where in the L2 caches its lines
// are: 1158 to 1523 ns on H200, while means over 64 lines differ by one thousandth.
//
// ping_pong <<<1, 1>>>
//   0  poll        const unsigned int *    lines whose first words the other GPU writes; 0 before the launch
//   1  send        unsigned int *          lines whose first words the other GPU polls; 0 before the launch
//   2  laps        unsigned long long
//   3  serves      unsigned long long      1 or 0
//   4  timeout_ns  unsigned long long      timeout, by %globaltimer since the start
//   5  result      unsigned long long[3 + laps]
//                                          [0] completed laps, fewer than requested after a timeout
//                                          [1] nanoseconds by %globaltimer and [2] clock cycles of all laps
//                                          [3...] clock cycles of each lap, on the serving side only

enum { LINES = 64, LINE_WORDS = 32 };

__device__ static unsigned long long globaltimer_ns()
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

extern "C" __global__ void ping_pong(const unsigned int *poll, unsigned int *send, unsigned long long laps,
                                     unsigned long long serves, unsigned long long timeout_ns,
                                     unsigned long long *result)
{
    const unsigned long long start_ns = globaltimer_ns();
    const long long start = clock64();
    unsigned long long done = 0;
    for (; done < laps; ++done) {
        const unsigned int lap = (unsigned int)done + 1, place = (unsigned int)done % LINES * LINE_WORDS;
        const volatile unsigned int *here = poll + place;
        volatile unsigned int *there = send + place;
        const long long served = clock64();
        if (serves)
            *there = lap;
        for (unsigned int polls = 1; *here != lap; ++polls)
            // The timer is not read at each poll, because that takes longer than a poll.
            if (polls % 256 == 0 && globaltimer_ns() - start_ns > timeout_ns)
                goto over;
        if (serves)
            result[3 + done] = (unsigned long long)(clock64() - served);
        else
            *there = lap;
    }
over:
    result[0] = done;
    result[1] = globaltimer_ns() - start_ns;
    result[2] = (unsigned long long)(clock64() - start);
}
