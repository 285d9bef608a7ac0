/* Memory for other processes: file descriptors, fabric handles, legacy IPC handles.
 *
 * A descriptor is the memory's own memfd. The two kinds of byte handles name it as the exporting process' descriptor
 * (/proc/<pid>/fd/<n>), so they work on one machine, between processes of one user, while the exporter lives.
 */
#include "libcuda.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const char FABRIC[8] = "fabric", LEGACY[8] = "legacy";

void handle_make(struct handle *handle, const char *magic, int fd, size_t size)
{
    memset(handle, 0, sizeof *handle);
    memcpy(handle->magic, magic, sizeof handle->magic);
    handle->pid = getpid();
    handle->fd = fd;
    handle->size = size;
}

int handle_open(const struct handle *handle, const char *magic)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->pid, handle->fd);
    return memcmp(handle->magic, magic, sizeof handle->magic) ? -1 : open(path, O_RDWR | O_CLOEXEC);
}

static int export(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    TRY(initialised());
    const struct physical *physical = physical_find(handle);
    if (!physical || flags || !(physical->handle_types & type))
        return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        handle_make(shareable, FABRIC, physical->fd, physical->size);
        return 0;
    }
    int fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = fd;
    return 0;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                             unsigned long long flags)
{
    CALL("cuMemExportToShareableHandle", export(shareable, handle, type, flags), "allocation=0x%llx handle=%s", handle,
         handle_types_text(type));
}

/* A dma-buf is the memory's own memfd, too. Not modelled: which host memory a driver refuses. */
static int export_range(int *handle, CUdeviceptr address, size_t size, int type, unsigned long long flags)
{
    enum { DMA_BUF_SUPPORTED = 124, DMA_BUF_FD = 1 };
    struct context *context;
    TRY(context_current(&context));
    const struct mapping *mapping = mapping_at(address);
    if (!mapping || size > mapping->size || type != DMA_BUF_FD || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (!gpu_attribute(context->gpu, DMA_BUF_SUPPORTED, 1))
        return CUDA_ERROR_NOT_SUPPORTED;
    *handle = fcntl(mapping->physical->fd, F_DUPFD_CLOEXEC, 0);
    return *handle < 0 ? CUDA_ERROR_OPERATING_SYSTEM : 0;
}

EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size, int type,
                                              unsigned long long flags)
{
    CALL("cuMemGetHandleForAddressRange", export_range(handle, address, size, type, flags), "address=0x%llx flags=%llu",
         (unsigned long long)address, flags);
}

static int import(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    struct physical *physical;
    int fd;
    TRY(initialised());
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        if (!answer_number(0, "node.imex"))
            return CUDA_ERROR_NOT_PERMITTED;
        fd = handle_open(shareable, FABRIC);
    } else if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    int result = physical_import(&physical, fd);
    if (result == CUDA_ERROR_INVALID_DEVICE && type == CU_MEM_HANDLE_TYPE_FABRIC)
        return CUDA_ERROR_NOT_SUPPORTED;
    TRY(result);
    physical->handles = 1;
    *handle = (uintptr_t)physical;
    return 0;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    CALL("cuMemImportFromShareableHandle", import(handle, shareable, type), "handle=%s allocation=0x%llx",
         handle_types_text(type), *handle);
}

static int ipc_get(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    struct context *context;
    TRY(context_current(&context));
    const struct region *region = region_find(pointer);
    if (!region || region->kind != REGION_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    const struct physical *physical = region->mappings->physical;
    handle_make((struct handle *)handle, LEGACY, physical->fd, region->size);
    ((struct handle *)handle)->offset = region->mappings->offset;
    return 0;
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    CALL("cuIpcGetMemHandle", ipc_get(handle, pointer), "address=0x%llx", pointer);
}

static int ipc_open(CUdeviceptr *pointer, const struct handle *handle, unsigned int flags)
{
    struct context *context;
    struct physical *physical;
    struct region *region;
    TRY(context_current(&context));
    /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS is the only flag, and must be given. */
    if (flags != 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle->pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    int fd = handle_open(handle, LEGACY);
    if (fd < 0 || physical_import(&physical, fd))
        return CUDA_ERROR_INVALID_VALUE;
    int owner = physical->location.id, result;
    if (owner != context->gpu && !gpu_may_reach(context->gpu, owner))
        result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    else
        result = region_of_physical(&region, REGION_IPC, physical, physical->size);
    physical_drop(physical);
    TRY(result);
    region->context = context;
    region->mappings->access[context->gpu] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    region->entry = handle->offset;
    region->exported = handle->offset + handle->size;
    *pointer = region->base + region->entry;
    return 0;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    CALL("cuIpcOpenMemHandle", ipc_open(pointer, (const struct handle *)&handle, flags), "flags=%u address=0x%llx",
         flags, *pointer);
}

static int ipc_close(CUdeviceptr pointer)
{
    struct context *context;
    TRY(context_current_even_broken(&context));
    struct region *region = region_find(pointer);
    if (!region || region->kind != REGION_IPC || region->base + region->entry != pointer)
        return CUDA_ERROR_INVALID_VALUE;
    int result = context_finish(context);
    region_destroy(region);
    return result;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    CALL("cuIpcCloseMemHandle", ipc_close(pointer), "address=0x%llx", pointer);
}
