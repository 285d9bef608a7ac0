/* The queues of streams: they run when the host synchronises or queries, in simulated time.
 *
 * Each stream has a clock. An operation starts when its stream is free, and not before the simulated time at which the
 * host queued it; the host's clock moves to the end of whatever it has waited for. So streams overlap as on a GPU,
 * and what the host does in between takes no time. Whoever waits does so for as long in real time too.
 */
#include "queues.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static struct stream *streams;
static double host_clock;

struct context *stream_context(const struct stream *stream)
{
    return stream->context;
}

void stream_reach_host(struct stream *stream)
{
    stream->clock = fmax(stream->clock, host_clock);
}

struct stream *stream_new(struct context *context, unsigned int flags, int priority)
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

void record_drop(struct record *record)
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

struct record *record_new(void)
{
    struct record *record = calloc(1, sizeof *record);
    record->references = 1;
    return record;
}

/* A recording after all that is queued on a stream now; the caller holds one reference. */
static struct record *record_here(struct stream *stream)
{
    struct record *record = record_new();
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

void stream_add_record(struct stream *stream, struct record *record)
{
    stream_add(stream, record_operation(record, run_record));
}

void stream_add_wait(struct stream *stream, struct record *record)
{
    stream_add(stream, record_operation(record, run_wait));
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* The driver's Xid 31, in the form that H200s log (driver 580), as a record of the file that stands for /dev/kmsg. */
static void log_page_fault(int gpu)
{
    const char *path = getenv("EGMCTL_FAKE_KMSG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (!log)
        return;
    fprintf(log,
            "4,1,%.0f,c;NVRM: Xid (PCI:%.10s): 31, pid=%d, name=python3, channel 0x0000000a, intr 00000000. MMU Fault: "
            "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x400_00000000. Fault is of type FAULT_PDE "
            "ACCESS_TYPE_VIRT_READ\n",
            real_seconds() * 1e6, gpu_bus_id(gpu), getpid());
    fclose(log);
}

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
            if (result == CUDA_ERROR_ILLEGAL_ADDRESS)
                log_page_fault(context->gpu);
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

void run_all(void)
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

/* A bound for a clock that runs away; far above any sample, which would else end before its events say so. */
#define LONGEST_WAIT_S 2.0

void record_await(const struct record *record)
{
    double entered = real_seconds(), before = host_clock;
    for (run_all(); !record->done; run_all())
        call_wait();
    host_clock = fmax(host_clock, record->time);
    /* A device takes the time that its events say, also where this host copies faster: who waits for it sees as much. */
    call_sleep(fmin(host_clock - before - (real_seconds() - entered), LONGEST_WAIT_S));
}

int stream_finish(struct stream *stream)
{
    struct context *context = stream->context;
    struct record *record = record_here(stream);
    record_await(record);
    record_drop(record);
    return context->sticky;
}

static struct stream *busy_stream(const struct context *context)
{
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (stream->context == context && stream->first)
            return stream;
    return NULL;
}

int context_finish(struct context *context)
{
    for (struct stream *stream; (stream = busy_stream(context));)
        stream_finish(stream);
    for (const struct stream *stream = streams; stream; stream = stream->next)
        if (stream->context == context)
            host_clock = fmax(host_clock, stream->clock);
    return context->sticky;
}

void streams_of_context_destroy(struct context *context)
{
    for (struct stream *stream = streams, *next; stream; stream = next) {
        next = stream->next;
        if (stream->context == context)
            stream_free(stream);
    }
    context->null_stream = NULL;
}

bool stream_is_idle(struct stream *stream)
{
    run_all();
    if (stream->first)
        return false;
    host_clock = fmax(host_clock, stream->clock);
    return true;
}
