/* Interprocess events: recordings are counted in a file that all who share the event have mapped.
 *
 * A process that waits looks at the count again and again, as long as its own host waits for something; when a process
 * records, its streams run as far as they go, because nothing may make them run later.
 */
#include "queues.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct ipc_record {
    uint64_t recorded; /* the number of the latest recording, 0 before the first */
    uint64_t reached;  /* the number of the latest one that a stream has come to */
};

static const char EVENT[8] = "event";

static int map_record(struct event *event, int fd)
{
    void *mapped = mmap(NULL, sizeof(struct ipc_record), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return CUDA_ERROR_OPERATING_SYSTEM;
    event->shared = mapped;
    event->fd = fd;
    return 0;
}

int ipc_record_create(struct event *event)
{
    int fd = memfd_create("fake-gpu-event", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct ipc_record)) < 0)
        fake_abort("cannot make an event's file");
    return map_record(event, fd);
}

void ipc_record_close(struct event *event)
{
    if (!event->shared)
        return;
    munmap(event->shared, sizeof *event->shared);
    close(event->fd);
}

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

bool ipc_record_is_reached(const struct event *event)
{
    return load(&event->shared->reached) >= load(&event->shared->recorded);
}

/* An operation may outlive its event: it has the file mapped once more. */
struct ipc_operation {
    struct operation operation;
    struct ipc_record *shared;
    uint64_t number;
};

static void dispose(struct operation *operation)
{
    munmap(((struct ipc_operation *)operation)->shared, sizeof(struct ipc_record));
}

static int run_record(struct operation *operation, struct stream *stream, double *seconds)
{
    const struct ipc_operation *record = (const struct ipc_operation *)operation;
    (void)stream, (void)seconds;
    __atomic_store_n(&record->shared->reached, record->number, __ATOMIC_SEQ_CST);
    return 0;
}

static int run_wait(struct operation *operation, struct stream *stream, double *seconds)
{
    const struct ipc_operation *wait = (const struct ipc_operation *)operation;
    (void)seconds;
    if (load(&wait->shared->reached) < wait->number)
        return OPERATION_BLOCKED;
    stream_reach_host(stream);
    return 0;
}

static void add(struct event *event, struct stream *stream, uint64_t number,
                int (*run)(struct operation *, struct stream *, double *))
{
    struct ipc_operation *operation = operation_new(sizeof *operation, run);
    operation->operation.dispose = dispose;
    operation->shared = mmap(NULL, sizeof *operation->shared, PROT_READ | PROT_WRITE, MAP_SHARED, event->fd, 0);
    if (operation->shared == MAP_FAILED)
        fake_abort("cannot map an event's file");
    operation->number = number;
    stream_add(stream, operation);
}

void ipc_record_add(struct event *event, struct stream *stream)
{
    add(event, stream, __atomic_add_fetch(&event->shared->recorded, 1, __ATOMIC_SEQ_CST), run_record);
    run_all();
}

void ipc_wait_add(struct event *event, struct stream *stream)
{
    add(event, stream, load(&event->shared->recorded), run_wait);
}

static int get_handle(CUipcEventHandle *handle, CUevent event_handle)
{
    TRY(initialised());
    const struct event *event = event_find(event_handle);
    if (!event || !event->shared)
        return CUDA_ERROR_INVALID_HANDLE;
    handle_make((struct handle *)handle, EVENT, event->fd, sizeof(struct ipc_record));
    return 0;
}

EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    CALL("cuIpcGetEventHandle", get_handle(handle, event), "event=%p", (void *)event);
}

static int open_handle(CUevent *opened, const struct handle *handle)
{
    struct context *context;
    TRY(context_current(&context));
    int fd = handle_open(handle, EVENT);
    if (fd < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    struct event *event = event_new(context, EVENT_DISABLE_TIMING | EVENT_INTERPROCESS);
    TRY(map_record(event, fd));
    *opened = event;
    return 0;
}

EXPORT CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
    CALL("cuIpcOpenEventHandle", open_handle(event, (const struct handle *)&handle), "event=%p", (void *)*event);
}
