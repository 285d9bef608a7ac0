/* The link model: bytes a second between a GPU and a place, from tests/fake/answers.py, and a latency.
 *
 * Each operation has its links to itself: streams that run at once on one link do not share it.
 */
#include "libcuda.h"

#include <math.h>

/* Invented; of the order of a real kernel launch and of a real copy's set-up. */
static const double KERNEL_LATENCY = 3e-6, COPY_LATENCY = 2e-6;

/* The GPU that EGM memory belongs to: the one that was current when it was made, if it sits on that node, else the first
 * one there; -1: it is no EGM. */
static int egm_owner(uintptr_t address)
{
    const struct mapping *mapping = mapping_at(address);
    if (!mapping || mapping->physical->location.type != CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return -1;
    int node = mapping->physical->location.id, gpus = (int)answer_number(0, "gpu.count");
    if (answer_number(-1, "gpu.%d.egm.node", mapping->physical->owner_gpu) == node)
        return mapping->physical->owner_gpu;
    for (int gpu = 0; gpu < gpus; ++gpu)
        if (answer_number(-1, "gpu.%d.egm.node", gpu) == node)
            return gpu;
    return -1;
}

static double rate(int gpu, uintptr_t address)
{
    int owner = egm_owner(address);
    if (owner >= 0 && owner != gpu && answer("gpu.%d.nvlink.gpu.%d", gpu, owner))
        return fmin((double)answer_number(1000000000, "gpu.%d.rate.gpu.%d", gpu, owner),
                    (double)answer_number(1000000000, "gpu.%d.rate.host", owner));
    CUmemLocation location = address_location(address);
    double host = (double)answer_number(1000000000, "gpu.%d.rate.host", gpu);
    if (location.type == CU_MEM_LOCATION_TYPE_HOST)
        return host;
    if (location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return (double)answer_number((long long)host, "gpu.%d.rate.numa.%d", gpu, location.id);
    /* Without access to the peer a copy goes through host memory: two crossings. */
    if (location.id != gpu && !kernel_pointer(gpu, address, 1, READ))
        return host / 2;
    return (double)answer_number(1000000000, "gpu.%d.rate.gpu.%d", gpu, location.id);
}

static bool is_local(int gpu, uintptr_t address)
{
    CUmemLocation location = address_location(address);
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id == gpu;
}

double kernel_seconds(int gpu, uintptr_t address, size_t size)
{
    return KERNEL_LATENCY + (double)size / rate(gpu, address);
}

double copy_seconds(int gpu, uintptr_t to, uintptr_t from, size_t size)
{
    /* Within one memory each byte is read and written. */
    double crossings = is_local(gpu, to) && is_local(gpu, from) ? 2 : 1;
    return COPY_LATENCY + crossings * (double)size / fmin(rate(gpu, to), rate(gpu, from));
}

static void add(uint64_t *counter, size_t size)
{
    __atomic_fetch_add(counter, size, __ATOMIC_RELAXED);
}

/* A GPU's own memory, and the CPU's over the GPU's own NVLink-C2C, are counted nowhere. */
static void count(int gpu, uintptr_t address, size_t size, bool sent)
{
    CUmemLocation location = address_location(address);
    int peer = location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : egm_owner(address);
    struct traffic *own = traffic_of(gpu);
    if (!own || peer == gpu)
        return;
    if (peer >= 0 && answer("gpu.%d.nvlink.gpu.%d", gpu, peer)) {
        struct traffic *other = traffic_of(peer);
        add(sent ? &own->nvlink_sent : &own->nvlink_received, size);
        add(sent ? &other->nvlink_received : &other->nvlink_sent, size);
    } else if (!answer("gpu.%d.c2c", gpu))
        add(sent ? &own->pcie_sent : &own->pcie_received, size);
}

void copy_count(int gpu, uintptr_t to, uintptr_t from, size_t size)
{
    count(gpu, to, size, true);
    count(gpu, from, size, false);
}
