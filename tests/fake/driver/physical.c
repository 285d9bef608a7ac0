/* Physical memory as memfds: what may be made where, its limits, and what an imported file is. */
#include "libcuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ATTRIBUTE_POSIX_FD_SUPPORTED = 103,
    ATTRIBUTE_FABRIC_SUPPORTED = 128,
    ATTRIBUTE_HOST_NUMA_VMM_SUPPORTED = 141,
};

static struct physical *physicals;

/* What an imported file is: GPUs are named by bus id, their numbers are those of one process. */
struct trailer {
    char magic[8];
    uint64_t size;
    int32_t location_type, location_id, handle_types;
    char location_bus_id[16], owner_bus_id[16];
};

static const char TRAILER_MAGIC[8] = "egmfake";

size_t whole_pages(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

static bool same_place(CUmemLocation a, CUmemLocation b)
{
    return a.type == b.type && (a.id == b.id || a.type == CU_MEM_LOCATION_TYPE_HOST);
}

static size_t used_at(CUmemLocation location)
{
    size_t used = 0;
    for (const struct physical *physical = physicals; physical; physical = physical->next)
        if (physical->counted && same_place(physical->location, location))
            used += whole_pages(physical->size);
    return used;
}

static size_t limit_of(CUmemLocation location)
{
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return (size_t)answer_number(0, "gpu.%d.cuda.memory", location.id);
    if (location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return (size_t)answer_number(0, "numa.%d.bytes", location.id);
    return SIZE_MAX;
}

size_t memory_total(int gpu)
{
    return limit_of((CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, gpu});
}

size_t memory_free(int gpu)
{
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu};
    return limit_of(location) - used_at(location);
}

static struct physical *physical_new(int fd, size_t size, CUmemLocation location, int owner_gpu, int handle_types)
{
    struct physical *physical = malloc(sizeof *physical);
    *physical = (struct physical){
        .fd = fd,
        .size = size,
        .location = location,
        .owner_gpu = owner_gpu,
        .handle_types = handle_types,
        .references = 1,
        .next = physicals,
    };
    return physicals = physical;
}

static void copy_bus_id(char bus_id[16], int gpu)
{
    memset(bus_id, 0, 16);
    if (gpu >= 0)
        snprintf(bus_id, 16, "%s", gpu_bus_id(gpu));
}

int physical_file(size_t size, CUmemLocation location, int owner_gpu, int handle_types)
{
    size_t span = whole_pages(size);
    struct trailer trailer = {
        .size = size,
        .location_type = location.type,
        .location_id = location.id,
        .handle_types = handle_types,
    };
    memcpy(trailer.magic, TRAILER_MAGIC, sizeof trailer.magic);
    copy_bus_id(trailer.location_bus_id, location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1);
    copy_bus_id(trailer.owner_bus_id, owner_gpu);
    int fd = memfd_create("fake-gpu-memory", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)(span + TRAILER_SIZE)) < 0 ||
        pwrite(fd, &trailer, sizeof trailer, (off_t)span) != sizeof trailer)
        fake_abort("cannot make a memory file of %zu bytes: %s", size, strerror(errno));
    return fd;
}

int physical_identify(int fd, struct identity *identity)
{
    struct trailer trailer;
    struct stat status;
    if (fstat(fd, &status) < 0 || status.st_size < TRAILER_SIZE ||
        pread(fd, &trailer, sizeof trailer, status.st_size - TRAILER_SIZE) != sizeof trailer ||
        memcmp(trailer.magic, TRAILER_MAGIC, sizeof trailer.magic))
        return CUDA_ERROR_INVALID_VALUE;
    identity->size = trailer.size;
    identity->location = (CUmemLocation){trailer.location_type, trailer.location_id};
    if (trailer.location_type == CU_MEM_LOCATION_TYPE_DEVICE)
        identity->location.id = gpu_by_bus_id(trailer.location_bus_id);
    identity->owner_gpu = gpu_by_bus_id(trailer.owner_bus_id);
    identity->handle_types = trailer.handle_types;
    /* Measured on H200s: memory cannot be imported where its owner's device node is out of reach, host memory included. */
    bool reached = identity->owner_gpu >= 0 && gpu_is_accessible(identity->owner_gpu);
    return reached ? 0 : CUDA_ERROR_INVALID_DEVICE;
}

int physical_create(struct physical **made, size_t size, CUmemLocation location, int owner_gpu, int handle_types)
{
    size_t used = used_at(location), limit = limit_of(location), span = whole_pages(size);
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (used > limit || span > limit - used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int fd = physical_file(size, location, owner_gpu, handle_types);
    *made = physical_new(fd, size, location, owner_gpu, handle_types);
    (*made)->counted = true;
    return 0;
}

int physical_import(struct physical **made, int fd)
{
    struct identity is;
    int result = physical_identify(fd, &is);
    if (!result && !is.size)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result) {
        close(fd);
        return result;
    }
    *made = physical_new(fd, is.size, is.location, is.owner_gpu, is.handle_types);
    return 0;
}

void physical_keep(struct physical *physical)
{
    ++physical->references;
}

void physical_drop(struct physical *physical)
{
    if (--physical->references)
        return;
    struct physical **link = &physicals;
    while (*link != physical)
        link = &(*link)->next;
    *link = physical->next;
    close(physical->fd);
    free(physical);
}

struct physical *physical_find(unsigned long long handle)
{
    for (struct physical *physical = physicals; physical; physical = physical->next)
        if ((uintptr_t)physical == handle && physical->handles)
            return physical;
    return NULL;
}

int answering_gpu(CUmemLocation location)
{
    struct context *context;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return location.id;
    return context_current_even_broken(&context) ? device_gpu(0) : context->gpu;
}

int location_check(CUmemLocation *location, int handle_types)
{
    if (handle_types & ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC))
        return CUDA_ERROR_INVALID_VALUE;
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        if (!device_exists(location->id))
            return CUDA_ERROR_INVALID_DEVICE;
        location->id = device_gpu(location->id);
        break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        if (!answer_number(0, "numa.%d.host", location->id))
            return CUDA_ERROR_INVALID_VALUE;
        if (!gpu_attribute(answering_gpu(*location), ATTRIBUTE_HOST_NUMA_VMM_SUPPORTED, 0))
            return CUDA_ERROR_NOT_SUPPORTED;
        break;
    case CU_MEM_LOCATION_TYPE_HOST:
        if (handle_types)
            return CUDA_ERROR_INVALID_VALUE;
        location->id = 0;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    int gpu = answering_gpu(*location);
    if (handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !gpu_attribute(gpu, ATTRIBUTE_POSIX_FD_SUPPORTED, 0))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (handle_types & CU_MEM_HANDLE_TYPE_FABRIC) {
        if (!gpu_attribute(gpu, ATTRIBUTE_FABRIC_SUPPORTED, 0))
            return CUDA_ERROR_NOT_SUPPORTED;
        if (!answer_number(0, "node.imex"))
            return CUDA_ERROR_NOT_PERMITTED;
    }
    return 0;
}

const char *location_text(CUmemLocation location)
{
    static __thread char texts[4][32];
    static __thread int next;
    static const char *const words[] = {"INVALID", "DEVICE", "HOST", "HOST_NUMA", "HOST_NUMA_CURRENT"};
    char *text = texts[next++ % 4];
    const char *word = location.type >= 0 && location.type < 5 ? words[location.type] : "UNKNOWN";
    snprintf(text, sizeof texts[0], "%s:%d", word, location.id);
    return text;
}

const char *handle_types_text(int handle_types)
{
    switch (handle_types) {
    case 0:
        return "NONE";
    case CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
        return "POSIX_FD";
    case CU_MEM_HANDLE_TYPE_FABRIC:
        return "FABRIC";
    case CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC:
        return "POSIX_FD+FABRIC";
    default:
        return "UNKNOWN";
    }
}
