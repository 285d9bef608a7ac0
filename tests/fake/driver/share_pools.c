/* Memory pools for other processes: the pool by its file's descriptor, memory in it by a handle of bytes. */
#include "pools.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

static const char POINTER[8] = "pointer", POOL[8] = "pool";

static int export_pool(void *shareable, const struct pool *pool, int type, unsigned long long flags)
{
    TRY(initialised());
    if (!pool_exists(pool) || pool->imported || flags || !(pool->handle_types & type))
        return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        handle_make(shareable, POOL, pool->fd, 0);
        return 0;
    }
    int fd = fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = fd;
    return 0;
}

EXPORT CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, int type, unsigned long long flags)
{
    CALL("cuMemPoolExportToShareableHandle", export_pool(shareable, pool, type, flags), "pool=%p handle=%s",
         (void *)pool, handle_types_text(type));
}

static int import_pool(CUmemoryPool *pool, void *shareable, int type, unsigned long long flags)
{
    struct identity is;
    TRY(initialised());
    bool fabric = type == CU_MEM_HANDLE_TYPE_FABRIC;
    if (flags || (!fabric && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_INVALID_VALUE;
    if (fabric && !answer_number(0, "node.imex"))
        return CUDA_ERROR_NOT_PERMITTED;
    int fd = fabric ? handle_open(shareable, POOL) : (int)(intptr_t)shareable;
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    int result = physical_identify(fd, &is);
    if (fabric)
        close(fd);
    /* Measured on H200, driver 580: of a GPU that a device cgroup denies this call ends the process; host memory is
     * refused when a pointer is imported. */
    if (result == CUDA_ERROR_INVALID_DEVICE && is.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        raise(SIGSEGV);
    if (result == CUDA_ERROR_INVALID_VALUE || is.size)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = pool_new(is.location, is.handle_types);
    (*pool)->imported = true;
    return 0;
}

EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, int type,
                                                   unsigned long long flags)
{
    CALL("cuMemPoolImportFromShareableHandle", import_pool(pool, shareable, type, flags), "handle=%s pool=%p",
         handle_types_text(type), (void *)*pool);
}

static int export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer)
{
    TRY(initialised());
    const struct region *region = region_find(pointer);
    if (!region || region->kind != REGION_POOL || region->pool->imported || !region->pool->handle_types)
        return CUDA_ERROR_INVALID_VALUE;
    const struct physical *physical = region->mappings->physical;
    handle_make((struct handle *)data, POINTER, physical->fd, physical->size);
    return 0;
}

EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer)
{
    CALL("cuMemPoolExportPointer", export_pointer(data, pointer), "address=0x%llx", pointer);
}

static int import_pointer(CUdeviceptr *pointer, struct pool *pool, const CUmemPoolPtrExportData *data)
{
    struct physical *physical;
    struct region *region;
    TRY(initialised());
    int fd = pool_exists(pool) && pool->imported ? handle_open((const struct handle *)data, POINTER) : -1;
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(physical_import(&physical, fd));
    int result = region_of_physical(&region, REGION_POOL, physical, physical->size);
    physical_drop(physical);
    TRY(result);
    region->pool = pool;
    *pointer = region->base;
    return 0;
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    CALL("cuMemPoolImportPointer", import_pointer(pointer, pool, data), "pool=%p address=0x%llx", (void *)pool,
         *pointer);
}
