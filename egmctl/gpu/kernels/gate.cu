// The timing gate: blocks a stream until the host has queued all the timed work behind it.
//
// gate <<<1, 1>>>
//   0  open        const unsigned int *     4-byte word in host memory; the host writes 1 to open the gate
//   1  expired     unsigned int *           4-byte word in host memory; set to 1 if the gate times out, else unchanged
//   2  timeout_ns  unsigned long long       timeout, by %globaltimer
//
// After a timeout the work may have run before all of it was queued, so the host discards the sample.

__device__ static unsigned long long globaltimer_ns()
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

extern "C" __global__ void gate(const unsigned int *open, unsigned int *expired, unsigned long long timeout_ns)
{
    const unsigned long long start = globaltimer_ns();
    while (*(const volatile unsigned int *)open == 0) {
        if (globaltimer_ns() - start > timeout_ns) {
            *(volatile unsigned int *)expired = 1;
            __threadfence_system();
            return;
        }
    }
}
