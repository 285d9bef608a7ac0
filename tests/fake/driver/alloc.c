/* cuMemAlloc, pinned and registered host memory. */
#include "libcuda.h"

#include <stdlib.h>

/* Measured on H200s: small allocations lie beside each other in a block of 2 MiB, which a legacy handle opens as a whole.
 * Only where EGMCTL_FAKE_BLOCKS is set; a block is never given back, nor is a part used twice. */
enum { BLOCK = 2 << 20, PART = 64 << 10 };

static int alloc_part(CUdeviceptr *pointer, size_t size, struct context *context)
{
    static struct {
        struct physical *physical;
        struct region *region;
        size_t used;
    } blocks[MAX_GPUS], *block;
    block = &blocks[context->gpu];
    if (!block->region || block->used == BLOCK) {
        CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, context->gpu};
        TRY(physical_create(&block->physical, BLOCK, location, context->gpu, 0));
        block->region = region_apart(BLOCK);
        block->used = 0;
    }
    struct region *region = region_of_part(block->region, block->physical, block->used, size);
    region->context = context;
    block->used += PART;
    *pointer = region->base;
    return 0;
}

static int alloc_device(CUdeviceptr *pointer, size_t size)
{
    struct context *context;
    struct physical *physical;
    struct region *region;
    TRY(context_current(&context));
    if (getenv("EGMCTL_FAKE_BLOCKS") && size && size <= PART)
        return alloc_part(pointer, size, context);
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, context->gpu};
    TRY(physical_create(&physical, size, location, context->gpu, 0));
    int result = region_of_physical(&region, REGION_DEVICE, physical, size);
    physical_drop(physical);
    TRY(result);
    region->context = context;
    *pointer = region->base;
    return 0;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    CALL("cuMemAlloc", alloc_device(pointer, size), "size=%zu address=0x%llx", size, *pointer);
}

static int free_device(CUdeviceptr pointer)
{
    struct context *context;
    TRY(context_current_even_broken(&context));
    if (!pointer)
        return 0;
    struct region *region = region_find(pointer);
    if (!region || region->base != pointer || (region->kind != REGION_DEVICE && region->kind != REGION_POOL && region->kind != REGION_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    /* cuMemFree waits for the work that may still use the memory. */
    int result = context_finish(region->context ? region->context : context);
    region_destroy(region);
    return result;
}

static int address_range(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    TRY(initialised());
    const struct region *region = region_find(pointer);
    if (!region || !mapping_at(pointer))
        return CUDA_ERROR_INVALID_VALUE;
    if (base)
        *base = region->base;
    if (size)
        *size = region->size;
    return 0;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    CALL("cuMemGetAddressRange", address_range(base, size, pointer), "address=0x%llx", pointer);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    CALL("cuMemFree", free_device(pointer), "address=0x%llx", pointer);
}

static int get_info(size_t *free_bytes, size_t *total)
{
    struct context *context;
    TRY(context_current(&context));
    *free_bytes = memory_free(context->gpu);
    *total = memory_total(context->gpu);
    return 0;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CALL("cuMemGetInfo", get_info(free_bytes, total), "free=%zu total=%zu", *free_bytes, *total);
}

static int alloc_host(void **pointer, size_t size, int kind)
{
    struct context *context;
    struct physical *physical;
    struct region *region;
    TRY(context_current(&context));
    TRY(physical_create(&physical, size, (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0}, context->gpu, 0));
    int result = region_of_physical(&region, kind, physical, size);
    physical_drop(physical);
    TRY(result);
    region->context = context;
    region_protect(region, region->mappings, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    *pointer = (void *)region->base;
    return 0;
}

EXPORT CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned int flags)
{
    CALL("cuMemHostAlloc", alloc_host(pointer, size, REGION_HOST), "size=%zu flags=%u address=%p", size, flags, *pointer);
}

EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t size)
{
    CALL("cuMemAllocHost", alloc_host(pointer, size, REGION_HOST), "size=%zu address=%p", size, *pointer);
}

static int release_host(void *pointer, int kind, int otherwise)
{
    struct context *context;
    TRY(context_current_even_broken(&context));
    struct region *region = region_find((uintptr_t)pointer);
    if (!region || region->base != (uintptr_t)pointer || (int)region->kind != kind)
        return otherwise;
    int result = context_finish(region->context);
    region_destroy(region);
    return result;
}

EXPORT CUresult cuMemFreeHost(void *pointer)
{
    CALL("cuMemFreeHost", release_host(pointer, REGION_HOST, CUDA_ERROR_INVALID_VALUE), "address=%p", pointer);
}

static int register_host(void *pointer, size_t size)
{
    struct context *context;
    struct region *region;
    TRY(context_current(&context));
    TRY(region_register(&region, (uintptr_t)pointer, size));
    region->context = context;
    return 0;
}

EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned int flags)
{
    CALL("cuMemHostRegister", register_host(pointer, size), "size=%zu flags=%u address=%p", size, flags, pointer);
}

EXPORT CUresult cuMemHostUnregister(void *pointer)
{
    CALL("cuMemHostUnregister", release_host(pointer, REGION_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
         "address=%p", pointer);
}

static int device_pointer(CUdeviceptr *device, void *pointer)
{
    struct context *context;
    TRY(context_current(&context));
    const struct region *region = region_find((uintptr_t)pointer);
    if (!region || (region->kind != REGION_HOST && region->kind != REGION_REGISTERED))
        return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)(uintptr_t)pointer;
    return 0;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned int flags)
{
    CALL("cuMemHostGetDevicePointer", device_pointer(device, pointer), "flags=%u address=%p", flags, pointer);
}

/* Managed memory: pages of the host that every GPU reaches, and that never move here. */
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags)
{
    CALL("cuMemAllocManaged", alloc_host((void **)pointer, size, REGION_MANAGED), "size=%zu flags=%u address=0x%llx", size,
         flags, *pointer);
}

static int advise(CUdeviceptr pointer, size_t size)
{
    struct context *context;
    TRY(context_current(&context));
    const struct region *region = region_find(pointer);
    return region && region->kind == REGION_MANAGED && size <= region->size ? 0 : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t size, int advice, CUmemLocation location)
{
    CALL("cuMemAdvise", advise(pointer, size), "advice=%d location=%d:%d size=%zu address=0x%llx", advice, location.type,
         location.id, size, pointer);
}
