/* Stream-ordered memory pools. Memory is there as soon as it is asked for, and goes when the stream comes to the free.
 *
 * A pool that can be shared has a file of its own, without memory, that says what it is.
 */
#include "pools.h"

#include <stdlib.h>
#include <unistd.h>

enum { ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88 };

static struct pool *pools;
static struct pool *default_pools[MAX_GPUS], *device_pools[MAX_GPUS];

int pool_access(const struct pool *pool, int gpu)
{
    return pool->access[gpu];
}

bool pool_exists(const struct pool *pool)
{
    for (const struct pool *other = pools; other; other = other->next)
        if (other == pool)
            return true;
    return false;
}

struct pool *pool_new(CUmemLocation location, int handle_types)
{
    struct pool *pool = calloc(1, sizeof *pool);
    pool->location = location;
    pool->handle_types = handle_types;
    pool->fd = -1;
    /* Memory of a device is open to that device, host memory to the host only (CUDA driver API, cuMemPoolCreate). */
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        pool->access[location.id] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    pool->next = pools;
    return pools = pool;
}

static int create(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CUmemLocation location = properties->location;
    TRY(initialised());
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(location_check(&location, properties->handleTypes));
    *pool = pool_new(location, properties->handleTypes);
    if (properties->handleTypes)
        (*pool)->fd = physical_file(0, location, answering_gpu(location), properties->handleTypes);
    return 0;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CALL("cuMemPoolCreate", create(pool, properties), "location=%s handle=%s pool=%p",
         location_text(properties->location), handle_types_text(properties->handleTypes), (void *)*pool);
}

/* Measured on H200, driver 580 (docs/hardware-notes.md): when a process has destroyed another one's pool of host memory,
 * the next memory that it asks for in such a pool of its own is refused. */
static bool host_pool_was_destroyed;

static bool refuses(const struct pool *pool)
{
    bool own = !pool->imported && pool->handle_types && pool->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    bool refused = own && host_pool_was_destroyed;
    host_pool_was_destroyed &= !own;
    return refused;
}

static int destroy(struct pool *pool)
{
    TRY(initialised());
    for (int gpu = 0; gpu < MAX_GPUS; ++gpu)
        if (!pool_exists(pool) || pool->stays || default_pools[gpu] == pool)
            return CUDA_ERROR_INVALID_VALUE;
    for (int gpu = 0; gpu < MAX_GPUS; ++gpu)
        if (device_pools[gpu] == pool)
            device_pools[gpu] = NULL;
    struct pool **link = &pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    host_pool_was_destroyed |= pool->imported && pool->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (pool->fd >= 0)
        close(pool->fd);
    /* Memory that is still allocated outlives the pool's handle: the pool itself stays for its regions. */
    return 0;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CALL("cuMemPoolDestroy", destroy(pool), "pool=%p", (void *)pool);
}

static int set_access(struct pool *pool, const CUmemAccessDesc *descriptors, size_t count)
{
    TRY(initialised());
    if (!pool_exists(pool))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
        CUmemLocation to = descriptors[i].location;
        if (to.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_exists(to.id))
            return CUDA_ERROR_INVALID_VALUE;
        /* A device's access to its own memory cannot be revoked (CUDA Programming Guide, "Stream-Ordered Memory
         * Allocator"). */
        bool own = pool->location.type == CU_MEM_LOCATION_TYPE_DEVICE && pool->location.id == device_gpu(to.id);
        if (own && descriptors[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i)
        pool->access[device_gpu(descriptors[i].location.id)] = (unsigned char)descriptors[i].flags;
    return 0;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *descriptors, size_t count)
{
    CALL("cuMemPoolSetAccess", set_access(pool, descriptors, count), "pool=%p access=%s", (void *)pool,
         access_text(descriptors, count));
}

static int get_access(int *flags, struct pool *pool, const CUmemLocation *location)
{
    TRY(initialised());
    if (!pool_exists(pool) || location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_exists(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = pool->access[device_gpu(location->id)];
    return 0;
}

EXPORT CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, const CUmemLocation *location)
{
    CALL("cuMemPoolGetAccess", get_access(flags, pool, location), "pool=%p location=%s", (void *)pool,
         location_text(*location));
}

static struct pool *default_pool(int gpu)
{
    if (!default_pools[gpu])
        default_pools[gpu] = pool_new((CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, gpu}, 0);
    return default_pools[gpu];
}

static int get_pool(CUmemoryPool *pool, CUdevice device, bool current)
{
    TRY(initialised());
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    int gpu = device_gpu(device);
    *pool = current && device_pools[gpu] ? device_pools[gpu] : default_pool(gpu);
    return 0;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    CALL("cuDeviceGetDefaultMemPool", get_pool(pool, device, false), "device=%d", device);
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    CALL("cuDeviceGetMemPool", get_pool(pool, device, true), "device=%d", device);
}

static int default_pool_of(CUmemoryPool *found, const CUmemLocation *at, int type)
{
    CUmemLocation location = *at;
    TRY(initialised());
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_NOT_SUPPORTED;
    TRY(location_check(&location, 0));
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        *found = default_pool(location.id);
        return 0;
    }
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->stays && pool->location.type == location.type && pool->location.id == location.id) {
            *found = pool;
            return 0;
        }
    *found = pool_new(location, 0);
    (*found)->stays = true;
    return 0;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    CALL("cuMemGetDefaultMemPool", default_pool_of(pool, location, type), "location=%s", location_text(*location));
}

/* The pools that are set for places, by the default pool of the place. */
static int get_pool_of(CUmemoryPool *found, const CUmemLocation *location, int type)
{
    CUmemoryPool usual;
    TRY(default_pool_of(&usual, location, type));
    *found = pool_exists(usual->instead) ? usual->instead : usual;
    return 0;
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    CALL("cuMemGetMemPool", get_pool_of(pool, location, type), "location=%s", location_text(*location));
}

static int set_pool_of(const CUmemLocation *location, int type, struct pool *pool)
{
    CUmemoryPool usual;
    TRY(default_pool_of(&usual, location, type));
    if (!pool_exists(pool) || pool->location.type != location->type || pool->location.id != usual->location.id)
        return CUDA_ERROR_INVALID_VALUE;
    usual->instead = pool == usual ? NULL : pool;
    return 0;
}

EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
    CALL("cuMemSetMemPool", set_pool_of(location, type, pool), "location=%s pool=%p", location_text(*location),
         (void *)pool);
}

static int set_pool(CUdevice device, struct pool *pool)
{
    TRY(initialised());
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pool_exists(pool))
        return CUDA_ERROR_INVALID_VALUE;
    /* Measured on H200, driver 580: a device takes a pool of its own memory only (docs/hardware-notes.md). The guide's
     * chapter on EGM has coherent devices take one of host memory. */
    const CUmemLocation *location = &pool->location;
    bool own = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == device_gpu(device);
    bool host = location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!own && !(host && gpu_attribute(device_gpu(device), ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0)))
        return CUDA_ERROR_INVALID_VALUE;
    device_pools[device_gpu(device)] = pool;
    return 0;
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    CALL("cuDeviceSetMemPool", set_pool(device, pool), "device=%d pool=%p", device, (void *)pool);
}

static int alloc(CUdeviceptr *pointer, size_t size, struct pool *pool, CUstream handle)
{
    struct stream *stream;
    struct physical *physical;
    struct region *region;
    TRY(stream_find(handle, &stream));
    if (!pool) {
        CUmemoryPool found;
        TRY(get_pool(&found, stream_context(stream)->device, true));
        pool = found;
    }
    if (!pool_exists(pool) || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (refuses(pool))
        return CUDA_ERROR_OUT_OF_MEMORY;
    TRY(physical_create(&physical, size, pool->location, stream_context(stream)->gpu, pool->handle_types));
    int result = region_of_physical(&region, REGION_POOL, physical, size);
    physical_drop(physical);
    TRY(result);
    region->pool = pool;
    if (pool->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        region_protect(region, region->mappings, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    *pointer = region->base;
    return 0;
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    CALL("cuMemAllocFromPoolAsync", pool ? alloc(pointer, size, pool, stream) : CUDA_ERROR_INVALID_VALUE,
         "size=%zu pool=%p address=0x%llx", size, (void *)pool, *pointer);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    CALL("cuMemAllocAsync", alloc(pointer, size, NULL, stream), "size=%zu address=0x%llx", size, *pointer);
}

struct free_operation {
    struct operation operation;
    uintptr_t address;
};

static int run_free(struct operation *operation, struct stream *stream, double *seconds)
{
    (void)stream, (void)seconds;
    struct region *region = region_find(((struct free_operation *)operation)->address);
    if (region)
        region_destroy(region);
    return 0;
}

static int free_async(CUdeviceptr pointer, CUstream handle)
{
    struct stream *stream;
    TRY(stream_find(handle, &stream));
    const struct region *region = region_find(pointer);
    if (!region || region->base != pointer || region->kind != REGION_POOL)
        return CUDA_ERROR_INVALID_VALUE;
    struct free_operation *operation = operation_new(sizeof *operation, run_free);
    operation->address = pointer;
    stream_add(stream, operation);
    return 0;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    CALL("cuMemFreeAsync", free_async(pointer, stream), "address=0x%llx", pointer);
}

enum { RELEASE_THRESHOLD = 4 };

static int set_attribute(struct pool *pool, int attribute, const void *value)
{
    TRY(initialised());
    if (!pool_exists(pool) || attribute > RELEASE_THRESHOLD)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == RELEASE_THRESHOLD)
        pool->release_threshold = *(const unsigned long long *)value;
    return 0;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    CALL("cuMemPoolSetAttribute", set_attribute(pool, attribute, value), "pool=%p attribute=%d", (void *)pool,
         attribute);
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CALL("cuMemPoolTrimTo", pool_exists(pool) ? 0 : CUDA_ERROR_INVALID_VALUE, "pool=%p keep=%zu", (void *)pool, keep);
}
