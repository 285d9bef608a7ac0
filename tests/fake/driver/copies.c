/* Copies and fills that need no kernel. */
#include "libcuda.h"

#include <string.h>

struct copy {
    struct operation operation;
    uintptr_t to, from;
    size_t size;
    bool is_drivers; /* cuMemcpyPeer: needs no mapping on either GPU */
    long long corrupt;
};

/* A copy right after the same copy changes nothing, and benchmarks repeat theirs often: it is not done again. */
static struct {
    uintptr_t to, from;
    size_t size;
} last;

void copies_forget(void)
{
    last.size = 0;
}

static void damage(void *bytes, size_t size, long long offset)
{
    if (offset >= 0 && size) {
        ((unsigned char *)bytes)[(size_t)offset % size] ^= 0xff;
        copies_forget();
    }
}

static int run_copy(struct operation *operation, struct stream *stream, double *seconds)
{
    const struct copy *copy = (const struct copy *)operation;
    int gpu = stream_context(stream)->gpu;
    void *to = copy_pointer(copy->is_drivers ? -1 : gpu, copy->to, copy->size, WRITE);
    const void *from = copy_pointer(copy->is_drivers ? -1 : gpu, copy->from, copy->size, READ);
    if (!to || !from)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (last.to != copy->to || last.from != copy->from || last.size != copy->size)
        memmove(to, from, copy->size);
    last.to = copy->to;
    last.from = copy->from;
    last.size = copy->size;
    damage(to, copy->size, copy->corrupt);
    copy_count(gpu, copy->to, copy->from, copy->size);
    *seconds = copy_seconds(gpu, copy->to, copy->from, copy->size);
    return 0;
}

enum side { DEVICE_SIDE, ANY_SIDE, DRIVERS_SIDE };

static int copy(uintptr_t to, enum side to_side, uintptr_t from, enum side from_side, size_t size, CUstream handle,
                bool wait)
{
    struct stream *stream;
    TRY(stream_find(handle, &stream));
    bool to_known = address_is_known(to, size), from_known = address_is_known(from, size);
    if ((to_side != ANY_SIDE && !to_known) || (from_side != ANY_SIDE && !from_known))
        return size ? CUDA_ERROR_INVALID_VALUE : 0;
    int gpu = stream_context(stream)->gpu;
    if (to_side != DRIVERS_SIDE && (copy_is_refused(gpu, to, size) || copy_is_refused(gpu, from, size)))
        return CUDA_ERROR_INVALID_VALUE;
    struct copy *copy = operation_new(sizeof *copy, run_copy);
    copy->to = to;
    copy->from = from;
    copy->size = size;
    copy->is_drivers = to_side == DRIVERS_SIDE;
    copy->corrupt = call_current()->corrupt;
    stream_add(stream, copy);
    /* With memory that is not pinned the call returns when the copy is done. */
    return wait || !to_known || !from_known ? stream_finish(stream) : 0;
}

#define COPY_ARGUMENTS "size=%zu to=0x%llx from=0x%llx"

EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    CALL("cuMemcpy", copy(to, ANY_SIDE, from, ANY_SIDE, size, NULL, true), COPY_ARGUMENTS, size, to, from);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    CALL("cuMemcpyAsync", copy(to, ANY_SIDE, from, ANY_SIDE, size, stream, false), COPY_ARGUMENTS " stream=%p", size,
         to, from, (void *)stream);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    CALL("cuMemcpyHtoD", copy(to, DEVICE_SIDE, (uintptr_t)from, ANY_SIDE, size, NULL, true),
         "size=%zu to=0x%llx from=%p", size, to, from);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    CALL("cuMemcpyHtoDAsync", copy(to, DEVICE_SIDE, (uintptr_t)from, ANY_SIDE, size, stream, false),
         "size=%zu to=0x%llx from=%p stream=%p", size, to, from, (void *)stream);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    CALL("cuMemcpyDtoH", copy((uintptr_t)to, ANY_SIDE, from, DEVICE_SIDE, size, NULL, true),
         "size=%zu to=%p from=0x%llx", size, to, from);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    CALL("cuMemcpyDtoHAsync", copy((uintptr_t)to, ANY_SIDE, from, DEVICE_SIDE, size, stream, false),
         "size=%zu to=%p from=0x%llx stream=%p", size, to, from, (void *)stream);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    CALL("cuMemcpyDtoD", copy(to, DEVICE_SIDE, from, DEVICE_SIDE, size, NULL, true), COPY_ARGUMENTS, size, to, from);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    CALL("cuMemcpyDtoDAsync", copy(to, DEVICE_SIDE, from, DEVICE_SIDE, size, stream, false),
         COPY_ARGUMENTS " stream=%p", size, to, from, (void *)stream);
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                             size_t size)
{
    (void)to_context, (void)from_context;
    CALL("cuMemcpyPeer", copy(to, DRIVERS_SIDE, from, DRIVERS_SIDE, size, NULL, true), COPY_ARGUMENTS, size, to, from);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                  size_t size, CUstream stream)
{
    (void)to_context, (void)from_context;
    CALL("cuMemcpyPeerAsync", copy(to, DRIVERS_SIDE, from, DRIVERS_SIDE, size, stream, false),
         COPY_ARGUMENTS " stream=%p", size, to, from, (void *)stream);
}

struct fill {
    struct operation operation;
    uintptr_t to;
    unsigned int value;
    size_t width, count; /* bytes of one element, elements */
    long long corrupt;
};

/* Fills with a value of some bytes: one block by single values, the others with that block, as fast as memory takes it. */
static void repeat(unsigned char *to, const void *value, size_t width, size_t size)
{
    enum { BLOCK = 4096 };
    size_t first = size < BLOCK ? size : BLOCK;
    for (size_t at = 0; at < first; at += width)
        memcpy(to + at, value, width);
    for (size_t at = first; at < size; at += BLOCK)
        memcpy(to + at, to, size - at < BLOCK ? size - at : BLOCK);
}

static int run_fill(struct operation *operation, struct stream *stream, double *seconds)
{
    const struct fill *fill = (const struct fill *)operation;
    int gpu = stream_context(stream)->gpu;
    size_t size = fill->width * fill->count;
    unsigned char *to = copy_pointer(gpu, fill->to, size, WRITE);
    copies_forget();
    if (!to)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    repeat(to, &fill->value, fill->width, size);
    damage(to, size, fill->corrupt);
    *seconds = kernel_seconds(gpu, fill->to, size);
    return 0;
}

static int fill(CUdeviceptr to, unsigned int value, size_t width, size_t count, CUstream handle, bool wait)
{
    struct stream *stream;
    TRY(stream_find(handle, &stream));
    if (!address_is_known(to, width * count) || to % width)
        return CUDA_ERROR_INVALID_VALUE;
    struct fill *fill = operation_new(sizeof *fill, run_fill);
    fill->to = to;
    fill->value = value;
    fill->width = width;
    fill->count = count;
    fill->corrupt = call_current()->corrupt;
    stream_add(stream, fill);
    return wait ? stream_finish(stream) : 0;
}

#define FILL(name, symbol, type, width)                                                                                \
    EXPORT CUresult symbol(CUdeviceptr to, type value, size_t count)                                                   \
    {                                                                                                                  \
        CALL(name, fill(to, value, width, count, NULL, true), "to=0x%llx value=%u count=%zu", to, (unsigned)value,     \
             count);                                                                                                   \
    }
#define FILL_ASYNC(name, symbol, type, width)                                                                          \
    EXPORT CUresult symbol(CUdeviceptr to, type value, size_t count, CUstream stream)                                  \
    {                                                                                                                  \
        CALL(name, fill(to, value, width, count, stream, false), "to=0x%llx value=%u count=%zu stream=%p", to,         \
             (unsigned)value, count, (void *)stream);                                                                  \
    }

FILL("cuMemsetD8", cuMemsetD8_v2, unsigned char, 1)
FILL("cuMemsetD16", cuMemsetD16_v2, unsigned short, 2)
FILL("cuMemsetD32", cuMemsetD32_v2, unsigned int, 4)
FILL_ASYNC("cuMemsetD8Async", cuMemsetD8Async, unsigned char, 1)
FILL_ASYNC("cuMemsetD16Async", cuMemsetD16Async, unsigned short, 2)
FILL_ASYNC("cuMemsetD32Async", cuMemsetD32Async, unsigned int, 4)
