/* Streams, events and their queues: what queues.c runs and streams.c gives to the program. */
#ifndef EGMCTL_FAKE_QUEUES_H
#define EGMCTL_FAKE_QUEUES_H

#include "libcuda.h"

/* One recording of an event: it stays for those who wait for it when the event is recorded again. */
struct record {
    int references;
    bool done;
    double time;
};

struct event {
    struct context *context;
    unsigned int flags;
    struct record *record;       /* the latest, NULL before the first */
    struct ipc_record *shared;   /* of an interprocess event, in place of that */
    int fd;                      /* of its file */
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

/* ipc_events.c: what processes know of an event that they share. */
int ipc_record_create(struct event *event);
void ipc_record_close(struct event *event);
/* Records; as a stream runs only when its process waits for something, it runs now. */
void ipc_record_add(struct event *event, struct stream *stream);
void ipc_wait_add(struct event *event, struct stream *stream);
bool ipc_record_is_reached(const struct event *event);

struct event *event_new(struct context *context, unsigned int flags);
struct event *event_find(CUevent handle);

struct stream *stream_new(struct context *context, unsigned int flags, int priority);
/* An operation that ends a record's wait, or that waits for one. */
void stream_add_record(struct stream *stream, struct record *record);
void stream_add_wait(struct stream *stream, struct record *record);

struct record *record_new(void);
void record_drop(struct record *record); /* may be NULL */
/* Runs until it is done, and moves the host's clock there. */
void record_await(const struct record *record);

/* Runs every stream as far as it goes. */
void run_all(void);
/* Whether all that is queued on a stream is done; moves the host's clock there if it is. */
bool stream_is_idle(struct stream *stream);

#endif
