/* Streams and events: queues that run when the host synchronises or queries, in simulated time.
 *
 * Each stream has a clock. An operation starts when its stream is free, and not before the simulated time at which the
 * host queued it; the host's clock moves to the end of whatever it has waited for. So streams overlap as on a GPU,
 * and what the host does in between takes no time.
 */
#include "cuda.h"

#include <math.h>
#include <stdlib.h>

/* One recording of an event: it stays for those who wait for it when the event is recorded again. */
struct record {
    int references;
    bool done;
    double time;
};

struct event {
    struct context *context;
    unsigned int flags;
    struct record *record; /* the latest, NULL before the first */
    struct event *next;
};

struct stream {
    struct context *context;
    unsigned int flags;
    int priority;
    double clock;
    bool destroyed; /* by the program: it goes when its work is done */
    struct operation *first, *last;
    struct stream *next;
};

enum { STREAM_NON_BLOCKING = 1, EVENT_DISABLE_TIMING = 2, EVENT_INTERPROCESS = 4 };

static struct stream *streams;
static struct event *events;
static double host_clock;

struct context *stream_context(const struct stream *stream)
{
    return stream->context;
}

void stream_reach_host(struct stream *stream)
{
    stream->clock = fmax(stream->clock, host_clock);
}

static struct stream *stream_new(struct context *context, unsigned int flags, int priority)
{
    struct stream *stream = calloc(1, sizeof *stream);
    *stream = (struct stream){.context = context, .flags = flags, .priority = priority, .next = streams};
    return streams = stream;
}

static void stream_free(struct stream *stream)
{
    struct stream **link = &streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    for (struct operation *operation; (operation = stream->first);) {
        stream->first = operation->next;
        if (operation->dispose)
            operation->dispose(operation);
        free(operation);
    }
    free(stream);
}

static struct stream *null_stream(struct context *context)
{
    if (!context->null_stream)
        context->null_stream = stream_new(context, 0, 0);
    return context->null_stream;
}

int stream_find(CUstream handle, struct stream **found)
{
    struct context *context;
    /* 0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD: the last is taken for the null stream too. */
    if ((uintptr_t)handle <= 2) {
        TRY(context_current(&context));
        *found = null_stream(context);
        return 0;
    }
    TRY(initialised());
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (stream == handle && !stream->destroyed) {
            *found = stream;
            return stream->context->sticky;
        }
    return CUDA_ERROR_INVALID_HANDLE;
}

void *operation_new(size_t size, int (*run)(struct operation *, struct stream *, double *))
{
    struct operation *operation = calloc(1, size);
    operation->run = run;
    return operation;
}

static void append(struct stream *stream, struct operation *operation)
{
    operation->not_before = host_clock;
    if (stream->first)
        stream->last->next = operation;
    else
        stream->first = operation;
    stream->last = operation;
}

/* --- recordings and waits ---------------------------------------------------------------------------------------- */

struct record_operation {
    struct operation operation;
    struct record *record;
};

static void record_drop(struct record *record)
{
    if (record && !--record->references)
        free(record);
}

static void dispose_record(struct operation *operation)
{
    record_drop(((struct record_operation *)operation)->record);
}

static int run_record(struct operation *operation, struct stream *stream, double *seconds)
{
    struct record *record = ((struct record_operation *)operation)->record;
    (void)seconds;
    record->done = true;
    record->time = stream->clock;
    return 0;
}

static int run_wait(struct operation *operation, struct stream *stream, double *seconds)
{
    const struct record *record = ((struct record_operation *)operation)->record;
    (void)seconds;
    if (!record->done)
        return OPERATION_BLOCKED;
    stream->clock = fmax(stream->clock, record->time);
    return 0;
}

static struct record_operation *record_operation(struct record *record,
                                                 int (*run)(struct operation *, struct stream *, double *))
{
    struct record_operation *operation = operation_new(sizeof *operation, run);
    operation->operation.dispose = dispose_record;
    operation->record = record;
    ++record->references;
    return operation;
}

/* A recording after all that is queued on a stream now; the caller holds one reference. */
static struct record *record_here(struct stream *stream)
{
    struct record *record = calloc(1, sizeof *record);
    record->references = 1;
    append(stream, &record_operation(record, run_record)->operation);
    return record;
}

static void wait_here(struct stream *stream, struct record *record)
{
    append(stream, &record_operation(record, run_wait)->operation);
}

static void order(struct stream *after, struct stream *before)
{
    struct record *record = record_here(before);
    wait_here(after, record);
    record_drop(record);
}

void stream_add(struct stream *stream, void *operation)
{
    struct stream *null = null_stream(stream->context);
    if (stream == null) {
        for (struct stream *other = streams; other; other = other->next)
            if (other->context == stream->context && other != null && !(other->flags & STREAM_NON_BLOCKING) &&
                other->first)
                order(null, other);
    } else if (!(stream->flags & STREAM_NON_BLOCKING) && null->first) {
        order(stream, null);
    }
    append(stream, operation);
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static bool run_stream(struct stream *stream)
{
    bool progress = false;
    for (struct operation *operation; (operation = stream->first); progress = true) {
        struct context *context = stream->context;
        double seconds = 0;
        stream->clock = fmax(stream->clock, operation->not_before);
        /* After an error nothing more happens in a context, but what waits for it ends. */
        if (!context->sticky || operation->run == run_record) {
            int result = operation->run(operation, stream, &seconds);
            if (result == OPERATION_BLOCKED)
                return progress;
            context->sticky = result ? result : context->sticky;
        }
        stream->clock += seconds;
        stream->first = operation->next;
        if (operation->dispose)
            operation->dispose(operation);
        free(operation);
    }
    return progress;
}

/* Runs every stream as far as it goes. */
static void run_all(void)
{
    bool progress = true;
    copies_forget();
    while (progress) {
        progress = false;
        for (struct stream *stream = streams, *next; stream; stream = next) {
            progress |= run_stream(stream);
            next = stream->next;
            if (stream->destroyed && !stream->first)
                stream_free(stream);
        }
    }
}

static void record_await(const struct record *record)
{
    for (run_all(); !record->done; run_all())
        call_wait();
    host_clock = fmax(host_clock, record->time);
}

int stream_finish(struct stream *stream)
{
    struct context *context = stream->context;
    struct record *record = record_here(stream);
    record_await(record);
    record_drop(record);
    return context->sticky;
}

int context_finish(struct context *context)
{
    struct record *records[1024];
    int count = 0;
    for (struct stream *stream = streams; stream && count < 1024; stream = stream->next)
        if (stream->context == context)
            records[count++] = record_here(stream);
    while (count--) {
        record_await(records[count]);
        record_drop(records[count]);
    }
    return context->sticky;
}

void streams_of_context_destroy(struct context *context)
{
    for (struct stream *stream = streams, *next; stream; stream = next) {
        next = stream->next;
        if (stream->context == context)
            stream_free(stream);
    }
    for (struct event *event = events; event; event = event->next)
        if (event->context == context)
            event->context = NULL;
    context->null_stream = NULL;
}

/* --- the API ------------------------------------------------------------------------------------------------------ */

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
    run_all();
    if (stream->first)
        return CUDA_ERROR_NOT_READY;
    host_clock = fmax(host_clock, stream->clock);
    return stream->context->sticky;
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
    CALL("cuStreamQuery", query_stream(handle), "stream=%p", (void *)handle);
}

static struct event *event_find(CUevent handle)
{
    for (struct event *event = events; event; event = event->next)
        if (event == handle && event->context)
            return event;
    return NULL;
}

static int create_event(CUevent *handle, unsigned int flags)
{
    struct context *context;
    TRY(context_current(&context));
    if (flags & EVENT_INTERPROCESS)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct event *event = calloc(1, sizeof *event);
    *event = (struct event){.context = context, .flags = flags, .next = events};
    *handle = events = event;
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
    record_drop(event->record);
    struct record *record = calloc(1, sizeof *record);
    record->references = 1;
    stream_add(stream, record_operation(record, run_record));
    event->record = record;
    return 0;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CALL("cuEventRecord", record_event(event, stream), "event=%p stream=%p", (void *)event, (void *)stream);
}

static int wait_event(CUstream stream_handle, CUevent handle)
{
    struct stream *stream;
    const struct event *event = event_find(handle);
    TRY(stream_find(stream_handle, &stream));
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->record)
        stream_add(stream, record_operation(event->record, run_wait));
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
    if (event->record && !event->record->done)
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
    return 0;
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    CALL("cuEventElapsedTime", elapsed_time(milliseconds, start, end), "start=%p end=%p milliseconds=%.6f",
         (void *)start, (void *)end, (double)*milliseconds);
}
