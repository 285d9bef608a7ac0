/* What the files of the fake libcuda share. */
#ifndef EGMCTL_FAKE_CUDA_H
#define EGMCTL_FAKE_CUDA_H

#include "cuda_abi.h"
#include "fake.h"

#include <sys/types.h>

#define TRY(work)                                                                                                      \
    do {                                                                                                               \
        int tried_ = (work);                                                                                           \
        if (tried_)                                                                                                    \
            return tried_;                                                                                             \
    } while (0)

/* devices.c: GPUs have two numbers. The machine's ("gpu") is their place in the machine file and in the answers; CUDA's
 * ordinal ("device") depends on what is visible to this process. */

int device_count(void);                 /* visible devices; 0 before cuInit */
bool device_exists(CUdevice device);
int device_gpu(CUdevice device);        /* the machine's number of a visible device */
int gpu_by_bus_id(const char *bus_id);  /* -1: the machine has no such GPU */
const char *gpu_bus_id(int gpu);
bool gpu_is_accessible(int gpu);        /* this process may open its device node */
int gpu_attribute(int gpu, int attribute, int otherwise);
bool gpu_may_reach(int gpu, int peer);  /* cuDeviceCanAccessPeer */
int initialised(void);                  /* 0, or CUDA_ERROR_NOT_INITIALIZED */

/* contexts.c */

struct context {
    int gpu;
    CUdevice device;
    bool primary;
    int uses;                 /* retains of a primary context; 0: it is not active */
    unsigned int flags;
    int sticky;               /* the error that every further call in this context returns */
    bool peers[MAX_GPUS];     /* cuCtxEnablePeerAccess */
    struct stream *null_stream;
    unsigned long long id;
    struct context *next;
};

/* The calling thread's context; an error if there is none or it is broken. */
int context_current(struct context **context);
/* The same, and a broken context is no error: for queries and releases. */
int context_current_even_broken(struct context **context);
bool gpu_has_peer_access(int gpu, int peer); /* in any context of `gpu` */

/* physical.c, regions.c: physical memory, and regions of address space that it is seen through.
 *
 * Every allocation is a memfd. A region's pages at `base` are what the program sees: inaccessible unless the memory is
 * meant for the CPU. The same files are mapped a second time at `shadow`, readable and writable, for the fake's own
 * use, so that a kernel's loop runs over one contiguous range whatever is mapped how. */

enum { TRAILER_SIZE = 4096 }; /* bytes after the memory in its file, where struct trailer says what it is */

struct physical {
    int fd;
    size_t size;
    CUmemLocation location; /* DEVICE with the machine's number, HOST_NUMA, HOST */
    int owner_gpu;          /* of the memory, or the one that was current when host memory was made */
    int handle_types;
    int references;         /* handles and mappings */
    int handles;            /* what cuMemRelease may give back */
    bool counted;           /* against its device's or node's memory; not where another process owns it */
    struct physical *next;
};

struct mapping {
    struct physical *physical;
    size_t start, size, offset; /* place in the region, and in the physical memory */
    unsigned char access[MAX_GPUS]; /* CU_MEM_ACCESS_FLAGS_PROT_* of each GPU */
    int host_access;
    struct mapping *next;
};

struct region {
    enum { REGION_DEVICE, REGION_RESERVED, REGION_HOST, REGION_REGISTERED, REGION_POOL, REGION_IPC, REGION_MANAGED } kind;
    uintptr_t base, shadow;
    size_t size;      /* as asked for: what bounds are checked against */
    size_t span;      /* whole pages */
    size_t entry;     /* of an imported legacy handle: where its memory begins in the block that it opens, and */
    size_t exported;  /* where that memory ends, to which copies are bounded; 0: the region's size bounds them */
    bool is_part;     /* of a block of small allocations, whose addresses outlive it */
    struct context *context;
    struct pool *pool;
    struct mapping *mappings;
    struct region *next;
};

size_t whole_pages(size_t size); /* rounded up */
int physical_create(struct physical **made, size_t size, CUmemLocation location, int owner_gpu, int handle_types);
int physical_import(struct physical **made, int fd); /* takes the descriptor */

/* What a file of the fake's says of itself to other processes; a pool's has no bytes. */
struct identity {
    size_t size;
    CUmemLocation location;
    int owner_gpu, handle_types;
};

int physical_file(size_t size, CUmemLocation location, int owner_gpu, int handle_types); /* a new one's descriptor */
int physical_identify(int fd, struct identity *identity);
void physical_keep(struct physical *physical);
void physical_drop(struct physical *physical);
struct physical *physical_find(unsigned long long handle); /* of a CUmemGenericAllocationHandle; NULL */

struct region *region_create(int kind, size_t size, size_t alignment);
int region_register(struct region **made, uintptr_t base, size_t size); /* memory of the program */
struct region *region_find(uintptr_t address);
struct region *region_of_context(const struct context *context); /* any one, NULL if there is none */
void region_destroy(struct region *region);
/* Addresses alone, which region_find() does not find. */
struct region *region_apart(size_t size);
int region_map(struct region *region, size_t start, size_t size, struct physical *physical, size_t offset);
void region_unmap(struct region *region, size_t start, size_t size);
/* Gives the CPU access to a part of a region. */
void region_protect(struct region *region, struct mapping *mapping, int flags);
/* A region that one allocation fills. */
int region_of_physical(struct region **made, int kind, struct physical *physical, size_t size);
/* A part of a block: both are `offset` bytes into an allocation and into the addresses of the region `block`. */
struct region *region_of_part(const struct region *block, struct physical *physical, size_t offset, size_t size);

enum access { READ, WRITE };

/* Where `size` bytes at `address` are for the fake, NULL if the GPU may not touch them. */
void *kernel_pointer(int gpu, uintptr_t address, size_t size, enum access access);
/* Whether the driver refuses a copy that `gpu` is asked for: of memory from cuMemCreate that is not open to it at all. */
bool copy_is_refused(int gpu, uintptr_t address, size_t size);
/* The same as kernel_pointer for a copy that `gpu` does (-1: that the driver does between two contexts): memory of a peer is reached without peer access too (through the host), and any
 * memory of the process is host memory. `known` tells memory that CUDA knows from the rest. */
void *copy_pointer(int gpu, uintptr_t address, size_t size, enum access access);
bool address_is_known(uintptr_t address, size_t size);
const struct mapping *mapping_at(uintptr_t address); /* NULL */
/* Where the memory at an address is. */
CUmemLocation address_location(uintptr_t address);

/* The device whose driver answers for a location: its own (the machine's number), for host memory the current
 * context's. */
int answering_gpu(CUmemLocation location);
size_t memory_free(int gpu);
size_t memory_total(int gpu);
/* Checks a location and handle types as cuMemCreate and cuMemPoolCreate do; makes DEVICE ids the machine's numbers. */
int location_check(CUmemLocation *location, int handle_types);
const char *location_text(CUmemLocation location);
const char *handle_types_text(int handle_types);
const char *access_text(const CUmemAccessDesc *descriptors, size_t count);

/* pools.c */
int pool_access(const struct pool *pool, int gpu);

/* share.c: a handle of bytes by which another process finds a file of this one. */

struct handle {
    char magic[8];
    int pid, fd;
    unsigned long long size;
    unsigned long long offset; /* of legacy memory in its block */
    char unused[32];
};

void handle_make(struct handle *handle, const char *magic, int fd, size_t size);
/* A descriptor of the file, or -1. */
int handle_open(const struct handle *handle, const char *magic);

/* rates.c: the link model. */
double kernel_seconds(int gpu, uintptr_t address, size_t size);
double copy_seconds(int gpu, uintptr_t to, uintptr_t from, size_t size);
void copy_count(int gpu, uintptr_t to, uintptr_t from, size_t size); /* in the links' counters */

/* queues.c, streams.c */

struct operation {
    /* Does it: 0, a CUDA error, or OPERATION_BLOCKED to be asked again. Sets *seconds to what it takes on the GPU. */
    int (*run)(struct operation *operation, struct stream *stream, double *seconds);
    void (*dispose)(struct operation *operation); /* frees what it holds, not itself; may be NULL */
    double not_before;                            /* simulated time at which the host queued it */
    struct operation *next;
};

enum { OPERATION_BLOCKED = -1 };

/* Allocates an operation: a struct of `size` bytes that begins with a struct operation. */
void *operation_new(size_t size, int (*run)(struct operation *, struct stream *, double *));
/* The stream of a handle, NULL and the like being the current context's null stream; its context must be whole. */
int stream_find(CUstream handle, struct stream **stream);
struct context *stream_context(const struct stream *stream);
void stream_add(struct stream *stream, void *operation);
/* Runs until all that is queued on it now is done. */
int stream_finish(struct stream *stream);
/* For an operation that waited for the host: it ends no earlier than the host's simulated now. */
void stream_reach_host(struct stream *stream);
int context_finish(struct context *context);
void streams_of_context_destroy(struct context *context);
void events_of_context_destroy(const struct context *context);

/* copies.c: host code or another operation may have changed what the last copy left behind. */
void copies_forget(void);

/* kernels.c */

enum { KERNEL_PARAMETERS = 8 };

struct launch {
    struct operation operation;
    const struct kernel *kernel;
    uint64_t arguments[KERNEL_PARAMETERS];
    unsigned int blocks; /* of the grid, along x */
    double started;    /* real time at which it first ran, 0: not yet */
    long long corrupt; /* byte of its output to damage, -1 */
};

struct kernel {
    const char *name;
    unsigned char sizes[KERNEL_PARAMETERS]; /* of the parameters, in bytes; 0 ends them */
    int (*run)(struct launch *launch, struct stream *stream, double *seconds);
};

const struct kernel *kernel_find(const char *name);

#endif
