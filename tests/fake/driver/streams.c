/* The functions on streams and events. */
#include "queues.h"

#include <stdlib.h>

static struct event *events;

static int create_stream(CUstream *handle, unsigned int flags, int priority)
{
    struct context *context;
    TRY(context_current(&context));
    if (flags & ~(unsigned)STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = stream_new(context, flags, priority);
    return 0;
}

EXPORT CUresult cuStreamCreate(CUstream *handle, unsigned int flags)
{
    CALL("cuStreamCreate", create_stream(handle, flags, 0), "flags=%u stream=%p", flags, (void *)*handle);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned int flags, int priority)
{
    CALL("cuStreamCreateWithPriority", create_stream(handle, flags, priority), "flags=%u priority=%d stream=%p", flags,
         priority, (void *)*handle);
}

static int destroy_stream(CUstream handle)
{
    struct stream *stream;
    int result = stream_find(handle, &stream);
    if (result == CUDA_ERROR_INVALID_HANDLE || (uintptr_t)handle <= 2)
        return CUDA_ERROR_INVALID_HANDLE;
    stream->destroyed = true;
    run_all();
    return 0;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
    CALL("cuStreamDestroy", destroy_stream(handle), "stream=%p", (void *)handle);
}

static int synchronize_stream(CUstream handle)
{
    struct stream *stream;
    TRY(stream_find(handle, &stream));
    return stream_finish(stream);
}

EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
    CALL("cuStreamSynchronize", synchronize_stream(handle), "stream=%p", (void *)handle);
}

static int query_stream(CUstream handle)
{
    struct stream *stream;
    TRY(stream_find(handle, &stream));
    return stream_is_idle(stream) ? stream->context->sticky : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
    CALL("cuStreamQuery", query_stream(handle), "stream=%p", (void *)handle);
}

void events_of_context_destroy(const struct context *context)
{
    for (struct event *event = events; event; event = event->next)
        if (event->context == context)
            event->context = NULL;
}

struct event *event_find(CUevent handle)
{
    for (struct event *event = events; event; event = event->next)
        if (event == handle && event->context)
            return event;
    return NULL;
}

struct event *event_new(struct context *context, unsigned int flags)
{
    struct event *event = calloc(1, sizeof *event);
    *event = (struct event){.context = context, .flags = flags, .next = events};
    return events = event;
}

static int create_event(CUevent *handle, unsigned int flags)
{
    struct context *context;
    TRY(context_current(&context));
    if (flags & EVENT_INTERPROCESS && !(flags & EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = event_new(context, flags);
    if (flags & EVENT_INTERPROCESS)
        TRY(ipc_record_create(event));
    *handle = event;
    return 0;
}

EXPORT CUresult cuEventCreate(CUevent *handle, unsigned int flags)
{
    CALL("cuEventCreate", create_event(handle, flags), "flags=%u event=%p", flags, (void *)*handle);
}

static int destroy_event(CUevent handle)
{
    TRY(initialised());
    struct event **link = &events;
    while (*link && *link != handle)
        link = &(*link)->next;
    if (!*link)
        return CUDA_ERROR_INVALID_HANDLE;
    *link = handle->next;
    record_drop(handle->record);
    ipc_record_close(handle);
    free(handle);
    return 0;
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle)
{
    CALL("cuEventDestroy", destroy_event(handle), "event=%p", (void *)handle);
}

static int record_event(CUevent handle, CUstream stream_handle)
{
    struct stream *stream;
    struct event *event = event_find(handle);
    TRY(stream_find(stream_handle, &stream));
    if (!event || event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->shared) {
        ipc_record_add(event, stream);
        return 0;
    }
    record_drop(event->record);
    event->record = record_new();
    stream_add_record(stream, event->record);
    return 0;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CALL("cuEventRecord", record_event(event, stream), "event=%p stream=%p", (void *)event, (void *)stream);
}

static int wait_event(CUstream stream_handle, CUevent handle)
{
    struct stream *stream;
    struct event *event = event_find(handle);
    TRY(stream_find(stream_handle, &stream));
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->shared)
        ipc_wait_add(event, stream);
    else if (event->record)
        stream_add_wait(stream, event->record);
    return 0;
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    CALL("cuStreamWaitEvent", wait_event(stream, event), "stream=%p event=%p flags=%u", (void *)stream, (void *)event,
         flags);
}

static int synchronize_event(CUevent handle)
{
    const struct event *event = event_find(handle);
    TRY(initialised());
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->record)
        record_await(event->record);
    for (; event->shared && !ipc_record_is_reached(event); run_all())
        call_wait();
    return event->context->sticky;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    CALL("cuEventSynchronize", synchronize_event(event), "event=%p", (void *)event);
}

static int query_event(CUevent handle)
{
    const struct event *event = event_find(handle);
    TRY(initialised());
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    run_all();
    if ((event->record && !event->record->done) || (event->shared && !ipc_record_is_reached(event)))
        return CUDA_ERROR_NOT_READY;
    return event->context->sticky;
}

EXPORT CUresult cuEventQuery(CUevent event)
{
    CALL("cuEventQuery", query_event(event), "event=%p", (void *)event);
}

static int elapsed_time(float *milliseconds, CUevent start_handle, CUevent end_handle)
{
    const struct event *start = event_find(start_handle), *end = event_find(end_handle);
    TRY(initialised());
    if (!start || !end || !start->record || !end->record || (start->flags | end->flags) & EVENT_DISABLE_TIMING ||
        start->context != end->context)
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(start->context->sticky);
    run_all();
    if (!start->record->done || !end->record->done)
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((end->record->time - start->record->time) * 1e3);
    if (call_current()->answers)
        *milliseconds = (float)call_current()->answer;
    return 0;
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    CALL("cuEventElapsedTime", elapsed_time(milliseconds, start, end), "start=%p end=%p milliseconds=%.6f",
         (void *)start, (void *)end, (double)*milliseconds);
}
