/* The link model: bytes a second between a GPU and a place, from tests/fake/answers.py, and a latency.
 *
 * Each operation has its links to itself: streams that run at once on one link do not share it.
 */
#include "libcuda.h"

#include <math.h>

/* Invented; of the order of a real kernel launch and of a real copy's set-up. */
static const double KERNEL_LATENCY = 3e-6, COPY_LATENCY = 2e-6;

static double rate(int gpu, uintptr_t address)
{
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
