/* Virtual memory management: cuMemCreate and what belongs to it. */
#include "libcuda.h"

#include <stdlib.h>
#include <unistd.h>

enum { GRANULARITY = 2 << 20 }; /* measured on H200s for each location, minimum and recommended */

/* Succeeds for locations that cannot be created too (measured on H200s). */
static int get_granularity(size_t *granularity, const CUmemAllocationProp *properties)
{
    TRY(initialised());
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return 0;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    CALL("cuMemGetAllocationGranularity", get_granularity(granularity, properties), "location=%s option=%s",
         location_text(properties->location), option ? "RECOMMENDED" : "MINIMUM");
}

static int owner_of(CUmemLocation location)
{
    struct context *context;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return location.id;
    return context_current_even_broken(&context) ? device_gpu(0) : context->gpu;
}

static int create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                  unsigned long long flags)
{
    CUmemLocation location = properties->location;
    struct physical *physical;
    TRY(initialised());
    if (flags || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED || size % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(location_check(&location, properties->requestedHandleTypes));
    TRY(physical_create(&physical, size, location, owner_of(location), properties->requestedHandleTypes));
    physical->handles = 1;
    *handle = (uintptr_t)physical;
    return 0;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    CALL("cuMemCreate", create(handle, size, properties, flags), "size=%zu location=%s handle=%s allocation=0x%llx",
         size, location_text(properties->location), handle_types_text(properties->requestedHandleTypes), *handle);
}

static int release(CUmemGenericAllocationHandle handle)
{
    TRY(initialised());
    struct physical *physical = physical_find(handle);
    if (!physical)
        return CUDA_ERROR_INVALID_VALUE;
    --physical->handles;
    physical_drop(physical);
    return 0;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CALL("cuMemRelease", release(handle), "allocation=0x%llx", handle);
}

static int address_reserve(CUdeviceptr *pointer, size_t size, size_t alignment, unsigned long long flags)
{
    TRY(initialised());
    if (!size || size % GRANULARITY || flags || alignment & (alignment - 1))
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = region_create(REGION_RESERVED, size, alignment)->base;
    return 0;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags)
{
    CALL("cuMemAddressReserve", address_reserve(pointer, size, alignment, flags),
         "size=%zu alignment=%zu hint=0x%llx address=0x%llx", size, alignment, hint, *pointer);
}

static struct region *reserved(CUdeviceptr pointer, size_t size)
{
    struct region *region = region_find(pointer);
    bool inside = region && region->kind == REGION_RESERVED && size && size <= region->size &&
                  pointer - region->base <= region->size - size;
    return inside ? region : NULL;
}

static int address_free(CUdeviceptr pointer, size_t size)
{
    TRY(initialised());
    struct region *region = reserved(pointer, size);
    if (!region || region->base != pointer || region->size != size || region->mappings)
        return CUDA_ERROR_INVALID_VALUE;
    region_destroy(region);
    return 0;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
    CALL("cuMemAddressFree", address_free(pointer, size), "size=%zu address=0x%llx", size, pointer);
}

static int map(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
               unsigned long long flags)
{
    TRY(initialised());
    struct region *region = reserved(pointer, size);
    struct physical *physical = physical_find(handle);
    /* "offset must be 0" (CUDA driver API, cuMemMap). */
    if (!region || !physical || flags || offset || pointer % GRANULARITY || size % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    return region_map(region, pointer - region->base, size, physical, offset);
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    CALL("cuMemMap", map(pointer, size, offset, handle, flags), "size=%zu offset=%zu address=0x%llx allocation=0x%llx",
         size, offset, pointer, handle);
}

/* Whether a range is made of whole mappings, without gaps. */
static bool whole_mappings(const struct region *region, size_t start, size_t size)
{
    size_t bytes = 0;
    for (const struct mapping *mapping = region->mappings; mapping; mapping = mapping->next)
        if (mapping->start >= start && mapping->start + mapping->size <= start + size)
            bytes += mapping->size;
    return bytes == size;
}

static int unmap(CUdeviceptr pointer, size_t size)
{
    TRY(initialised());
    struct region *region = reserved(pointer, size);
    if (!region || !whole_mappings(region, pointer - region->base, size))
        return CUDA_ERROR_INVALID_VALUE;
    region_unmap(region, pointer - region->base, size);
    return 0;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    CALL("cuMemUnmap", unmap(pointer, size), "size=%zu address=0x%llx", size, pointer);
}

/* The CPU gets access to host memory by a descriptor with the memory's own node, or with HOST where it has none. */
static bool may_open(const struct mapping *mapping, CUmemLocation location)
{
    CUmemLocation memory = mapping->physical->location;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return device_exists(location.id);
    return location.type == memory.type && (location.type == CU_MEM_LOCATION_TYPE_HOST || location.id == memory.id);
}

static void open_to(struct region *region, struct mapping *mapping, const CUmemAccessDesc *descriptor)
{
    if (descriptor->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        mapping->access[device_gpu(descriptor->location.id)] = (unsigned char)descriptor->flags;
    else
        region_protect(region, mapping, descriptor->flags);
}

static int set_access(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *descriptors, size_t count)
{
    TRY(initialised());
    struct region *region = reserved(pointer, size);
    size_t start = region ? pointer - region->base : 0;
    if (!region || !count || !whole_mappings(region, start, size))
        return CUDA_ERROR_INVALID_VALUE;
    for (int apply = 0; apply < 2; ++apply)
        for (struct mapping *mapping = region->mappings; mapping; mapping = mapping->next)
            for (size_t i = 0; i < count; ++i) {
                if (mapping->start < start || mapping->start >= start + size)
                    continue;
                if (apply)
                    open_to(region, mapping, &descriptors[i]);
                else if (!may_open(mapping, descriptors[i].location))
                    return CUDA_ERROR_INVALID_VALUE;
            }
    return 0;
}

const char *access_text(const CUmemAccessDesc *descriptors, size_t count)
{
    static __thread char text[2048];
    size_t length = 0;
    text[0] = 0;
    for (size_t i = 0; i < count && length < sizeof text - 64; ++i)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s:%s", i ? "," : "",
                                   location_text(descriptors[i].location),
                                   descriptors[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? "RW"
                                   : descriptors[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? "R"
                                                                                              : "NONE");
    return text;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *descriptors, size_t count)
{
    CALL("cuMemSetAccess", set_access(pointer, size, descriptors, count), "size=%zu address=0x%llx access=%s", size,
         pointer, access_text(descriptors, count));
}

static int get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)
{
    TRY(initialised());
    const struct mapping *mapping = mapping_at(pointer);
    if (!mapping || !may_open(mapping, *location))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? mapping->access[device_gpu(location->id)]
                                                           : (unsigned)mapping->host_access;
    return 0;
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)
{
    CALL("cuMemGetAccess", get_access(flags, location, pointer), "location=%s address=0x%llx", location_text(*location),
         pointer);
}

static int retain(CUmemGenericAllocationHandle *handle, void *pointer)
{
    TRY(initialised());
    const struct region *region = region_find((uintptr_t)pointer);
    const struct mapping *mapping = mapping_at((uintptr_t)pointer);
    if (!mapping || region->kind != REGION_RESERVED)
        return CUDA_ERROR_INVALID_VALUE;
    physical_keep(mapping->physical);
    ++mapping->physical->handles;
    *handle = (uintptr_t)mapping->physical;
    return 0;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer)
{
    CALL("cuMemRetainAllocationHandle", retain(handle, pointer), "address=%p allocation=0x%llx", pointer, *handle);
}

static int get_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    TRY(initialised());
    const struct physical *physical = physical_find(handle);
    if (!physical)
        return CUDA_ERROR_INVALID_VALUE;
    *properties = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = physical->handle_types,
        .location = physical->location,
    };
    for (CUdevice device = 0; physical->location.type == CU_MEM_LOCATION_TYPE_DEVICE && device < device_count(); ++device)
        if (device_gpu(device) == physical->location.id)
            properties->location.id = device;
    return 0;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                       CUmemGenericAllocationHandle handle)
{
    CALL("cuMemGetAllocationPropertiesFromHandle", get_properties(properties, handle), "allocation=0x%llx", handle);
}
