// Bulk copies through shared memory by the multiprocessors' copy unit (the Tensor Memory Accelerator of compute
// capability 9.0 and newer), issued by one thread per block, and the latency of one such load.
//
// copy_bulk: each block copies every gridDim.x-th chunk. Shared memory has STAGES stages of one chunk, used in rotation: a chunk
// is loaded into its stage (an mbarrier signals that all of its bytes have arrived) and stored from it. The stage is
// loaded again when the store has read it. So AHEAD loads and STAGES - AHEAD stores are in flight at a time. The copy
// unit does both loads and stores: no thread touches the data, and no fence is needed between them.
//
// A pass copies `vectors`. Pass p works on slot p % slots, as in copy.cu.
//
// copy_bulk <<<any, 32>>>, dynamic shared memory STAGES * CHUNK_BYTES + 128
//   0  destination  uint4 *                16-byte aligned
//   1  source       const uint4 *          16-byte aligned
//   2  vectors      unsigned long long     16-byte vectors in one slot
//   3  passes       unsigned long long
//   4  slots        unsigned long long     at least 1
//
// chase_bulk <<<any, 1>>>: the walk of chase (chase.cu, whose make_chain writes the chain; lines aligned to 16 bytes) by
// bulk loads of 16 bytes, the smallest there are. A load ends when its bytes are read from shared memory.
//   0  chain        const unsigned char *
//   1  offset       unsigned long long     offset of the first line
//   2  warm         unsigned long long     loads before the clock starts
//   3  loads        unsigned long long     loads to be timed
//   4  block        unsigned long long     index of the block that walks; the others return at once
//   5  result       unsigned long long[4]  start and end by %globaltimer, offset of the line reached, %smid

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 STAGES = 6, AHEAD = STAGES - 2, CHUNK_BYTES = 16384, VECTOR_BYTES = 16;

#if __CUDA_ARCH__ >= 900

__device__ static void begin_load(u32 stage, u32 barrier, const char *from, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(stage),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ static void make_barrier(u32 barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

// Make initialized barriers visible to the copy unit.
__device__ static void show_barriers()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ static void begin_store(char *to, u32 stage, u32 bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(stage), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ static void wait_loaded(u32 barrier, u32 parity)
{
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
}

// The position of a block: a chunk and its slot. It advances without division, because one thread does all arithmetic
// of a block, and a 64-bit division takes as long as the copy unit needs for a chunk.
struct Place {
    u64 chunk, slot;

    __device__ void go_on(u64 by, u64 chunks, u64 slots)
    {
        for (chunk += by; chunk >= chunks; chunk -= chunks)
            slot = slot + 1 == slots ? 0 : slot + 1;
    }
};

__device__ static u64 globaltimer_ns()
{
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

// The address of each load depends on the word that the previous one brought, so one stage is enough.
__device__ static u64 walk(const char *chain, u64 offset, u64 loads, u32 stage, u32 barrier, u32 &parity)
{
    for (u64 i = 0; i < loads; ++i, parity ^= 1) {
        begin_load(stage, barrier, chain + offset, VECTOR_BYTES);
        wait_loaded(barrier, parity);
        asm volatile("ld.shared.u64 %0, [%1];" : "=l"(offset) : "r"(stage) : "memory");
    }
    return offset;
}

#endif

extern "C" __launch_bounds__(32) __global__ void copy_bulk(uint4 *destination, const uint4 *source, u64 vectors,
                                                           u64 passes, u64 slots)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char shared[];
    if (threadIdx.x)
        return;
    const u32 first_stage = (u32)__cvta_generic_to_shared(shared);
    const u32 first_barrier = first_stage + STAGES * CHUNK_BYTES;
    for (u32 i = 0; i < STAGES; ++i)
        make_barrier(first_barrier + 8 * i);
    show_barriers();

    const u64 slot_bytes = vectors * VECTOR_BYTES;
    const u64 chunks = (slot_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES, all = chunks * passes;
    const u64 mine = all > blockIdx.x ? (all - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;

    Place load = {blockIdx.x % chunks, blockIdx.x / chunks % slots}, store = load;
    for (u64 begun = 0, done = 0; done < mine; ++done) {
        for (; begun < mine && begun < done + AHEAD; ++begun) {
            const u64 offset = load.chunk * CHUNK_BYTES, left = slot_bytes - offset;
            const u32 stage = (u32)(begun % STAGES);
            begin_load(first_stage + stage * CHUNK_BYTES, first_barrier + 8 * stage,
                       (const char *)source + load.slot * slot_bytes + offset, left < CHUNK_BYTES ? (u32)left : CHUNK_BYTES);
            load.go_on(gridDim.x, chunks, slots);
        }
        const u64 offset = store.chunk * CHUNK_BYTES, left = slot_bytes - offset;
        const u32 stage = (u32)(done % STAGES);
        wait_loaded(first_barrier + 8 * stage, (u32)(done / STAGES & 1));
        begin_store((char *)destination + store.slot * slot_bytes + offset, first_stage + stage * CHUNK_BYTES,
                    left < CHUNK_BYTES ? (u32)left : CHUNK_BYTES);
        store.go_on(gridDim.x, chunks, slots);
        // The next load reuses the stage of the store before the last STAGES - AHEAD ones, which may still be reading.
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(STAGES - AHEAD) : "memory");
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#else
    __trap();
#endif
}

extern "C" __launch_bounds__(1) __global__ void chase_bulk(const unsigned char *chain, u64 offset, u64 warm, u64 loads,
                                                           u64 block, u64 *result)
{
#if __CUDA_ARCH__ >= 900
    __shared__ __align__(16) u64 shared[3];
    if (blockIdx.x != block)
        return;
    const u32 stage = (u32)__cvta_generic_to_shared(shared), barrier = stage + VECTOR_BYTES;
    make_barrier(barrier);
    show_barriers();
    u32 parity = 0, sm;
    offset = walk((const char *)chain, offset, warm, stage, barrier, parity);
    const u64 start = globaltimer_ns();
    offset = walk((const char *)chain, offset, loads, stage, barrier, parity);
    const u64 end = globaltimer_ns();
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    result[0] = start;
    result[1] = end;
    result[2] = offset;
    result[3] = sm;
#else
    __trap();
#endif
}
