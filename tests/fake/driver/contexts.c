/* Contexts: primary ones, those made with cuCtxCreate, and each thread's stack of them. */
#include "libcuda.h"

#include <stdlib.h>
#include <string.h>

static struct context *contexts;
static __thread struct context *stack[64];
static __thread int depth;

/* Handles of contexts that are gone stay in threads' stacks: they are looked up, never followed. */
static bool exists(const struct context *context)
{
    for (const struct context *other = contexts; other; other = other->next)
        if (other == context)
            return true;
    return false;
}

int context_current_even_broken(struct context **context)
{
    TRY(initialised());
    *context = depth ? stack[depth - 1] : NULL;
    return *context && exists(*context) && (!(*context)->primary || (*context)->uses) ? 0 : CUDA_ERROR_INVALID_CONTEXT;
}

int context_current(struct context **context)
{
    TRY(context_current_even_broken(context));
    return (*context)->sticky;
}

bool gpu_has_peer_access(int gpu, int peer)
{
    for (const struct context *context = contexts; context; context = context->next)
        if (context->gpu == gpu && context->peers[peer])
            return true;
    return false;
}

static struct context *context_new(CUdevice device, bool primary)
{
    static unsigned long long ids;
    struct context *context = calloc(1, sizeof *context);
    context->gpu = device_gpu(device);
    context->device = device;
    context->primary = primary;
    context->id = ++ids;
    context->next = contexts;
    contexts = context;
    return context;
}

static void context_destroy(struct context *context)
{
    streams_of_context_destroy(context);
    events_of_context_destroy(context);
    for (struct region *region; (region = region_of_context(context));)
        region_destroy(region);
    context->sticky = 0;
    memset(context->peers, 0, sizeof context->peers);
}

static struct context *primary_context(CUdevice device)
{
    for (struct context *context = contexts; context; context = context->next)
        if (context->primary && context->device == device)
            return context;
    return context_new(device, true);
}

static int primary_of(CUdevice device, struct context **context)
{
    TRY(initialised());
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *context = primary_context(device);
    return 0;
}

static int retain(CUcontext *handle, CUdevice device)
{
    struct context *context;
    TRY(primary_of(device, &context));
    TRY(context->sticky);
    ++context->uses;
    *handle = context;
    return 0;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
    CALL("cuDevicePrimaryCtxRetain", retain(handle, device), "device=%d", device);
}

static int release(CUdevice device)
{
    struct context *context;
    TRY(primary_of(device, &context));
    if (!context->uses)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!--context->uses)
        context_destroy(context);
    return 0;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CALL("cuDevicePrimaryCtxRelease", release(device), "device=%d", device);
}

static int reset(CUdevice device)
{
    struct context *context;
    TRY(primary_of(device, &context));
    context_destroy(context);
    context->uses = 0;
    return 0;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    CALL("cuDevicePrimaryCtxReset", reset(device), "device=%d", device);
}

static int get_state(CUdevice device, unsigned int *flags, int *active)
{
    struct context *context;
    TRY(primary_of(device, &context));
    *flags = context->flags;
    *active = context->uses > 0;
    return 0;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    CALL("cuDevicePrimaryCtxGetState", get_state(device, flags, active), "device=%d", device);
}

static int set_flags(CUdevice device, unsigned int flags)
{
    struct context *context;
    TRY(primary_of(device, &context));
    context->flags = flags;
    return 0;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    CALL("cuDevicePrimaryCtxSetFlags", set_flags(device, flags), "device=%d flags=%u", device, flags);
}

static int push(struct context *context)
{
    TRY(initialised());
    if (!exists(context) || depth == 64)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return 0;
}

static int create(CUcontext *handle, unsigned int flags, CUdevice device)
{
    TRY(initialised());
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *handle = context_new(device, false);
    (*handle)->flags = flags;
    return push(*handle);
}

/* The first argument (CUctxCreateParams) asks for execution affinity and CIG: not modelled. */
EXPORT CUresult cuCtxCreate_v4(CUcontext *handle, void *parameters, unsigned int flags, CUdevice device)
{
    if (parameters)
        fake_abort("cuCtxCreate: parameters are not modelled");
    CALL("cuCtxCreate", create(handle, flags, device), "device=%d flags=%u context=%p", device, flags, (void *)*handle);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice device)
{
    CALL("cuCtxCreate", create(handle, flags, device), "device=%d flags=%u context=%p", device, flags, (void *)*handle);
}

static int destroy(struct context *context)
{
    TRY(initialised());
    if (!exists(context) || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    context_destroy(context);
    struct context **link = &contexts;
    while (*link != context)
        link = &(*link)->next;
    *link = context->next;
    if (depth && stack[depth - 1] == context)
        --depth;
    free(context);
    return 0;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    CALL("cuCtxDestroy", destroy(context), "context=%p", (void *)context);
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CALL("cuCtxPushCurrent", push(context), "context=%p", (void *)context);
}

static int pop(CUcontext *context)
{
    TRY(initialised());
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    --depth;
    if (context)
        *context = stack[depth];
    return 0;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CALL("cuCtxPopCurrent", pop(context), "%s", "");
}

static int set_current(struct context *context)
{
    TRY(initialised());
    if (context && !exists(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth)
        --depth;
    return context ? push(context) : 0;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    CALL("cuCtxSetCurrent", set_current(context), "device=%d", context && exists(context) ? context->device : -1);
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    CALL("cuCtxGetCurrent", (*context = depth ? stack[depth - 1] : NULL, initialised()), "%s", "");
}

static int get_device(CUdevice *device)
{
    struct context *context;
    TRY(context_current_even_broken(&context));
    *device = context->device;
    return 0;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    CALL("cuCtxGetDevice", get_device(device), "%s", "");
}

static int get_flags(unsigned int *flags)
{
    struct context *context;
    TRY(context_current_even_broken(&context));
    *flags = context->flags;
    return 0;
}

EXPORT CUresult cuCtxGetFlags(unsigned int *flags)
{
    CALL("cuCtxGetFlags", get_flags(flags), "%s", "");
}

static int get_id(struct context *context, unsigned long long *id)
{
    if (!context)
        TRY(context_current_even_broken(&context));
    if (!exists(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    *id = context->id;
    return 0;
}

EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    CALL("cuCtxGetId", get_id(context, id), "%s", "");
}

static int synchronize(void)
{
    struct context *context;
    TRY(context_current(&context));
    return context_finish(context);
}

EXPORT CUresult cuCtxSynchronize(void)
{
    CALL("cuCtxSynchronize", synchronize(), "%s", "");
}

static int priority_range(int *least, int *greatest)
{
    struct context *context;
    TRY(context_current(&context));
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return 0;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CALL("cuCtxGetStreamPriorityRange", priority_range(least, greatest), "%s", "");
}

static int enable_peer(struct context *peer, unsigned int flags)
{
    struct context *context;
    TRY(context_current(&context));
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!exists(peer) || peer->gpu == context->gpu)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!gpu_may_reach(context->gpu, peer->gpu))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (context->peers[peer->gpu])
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers[peer->gpu] = true;
    return 0;
}

/* The device of the current context, for the log. */
static int current_device(void)
{
    struct context *context;
    return context_current_even_broken(&context) ? -1 : context->device;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    CALL("cuCtxEnablePeerAccess", enable_peer(peer, flags), "device=%d peer=%d", current_device(),
         exists(peer) ? peer->device : -1);
}

static int disable_peer(struct context *peer)
{
    struct context *context;
    TRY(context_current(&context));
    if (!exists(peer) || !context->peers[peer->gpu])
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers[peer->gpu] = false;
    return 0;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    CALL("cuCtxDisablePeerAccess", disable_peer(peer), "device=%d peer=%d", current_device(),
         exists(peer) ? peer->device : -1);
}
