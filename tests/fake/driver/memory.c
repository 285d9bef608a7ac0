/* Physical memory as memfds, its limits, and the regions of address space it is seen through. */
#include "cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
    ATTRIBUTE_POSIX_FD_SUPPORTED = 103,
    ATTRIBUTE_FABRIC_SUPPORTED = 128,
    ATTRIBUTE_HOST_NUMA_VMM_SUPPORTED = 141,
    REGION_ALIGNMENT = 2 << 20,
};

static struct physical *physicals;
static struct region *regions;

/* What an imported file is: GPUs are named by bus id, their numbers are those of one process. */
struct trailer {
    char magic[8];
    uint64_t size;
    int32_t location_type, location_id, handle_types;
    char location_bus_id[16], owner_bus_id[16];
};

static const char TRAILER_MAGIC[8] = "egmfake";

static size_t whole_pages(size_t size)
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

int physical_create(struct physical **made, size_t size, CUmemLocation location, int owner_gpu, int handle_types)
{
    size_t used = used_at(location), limit = limit_of(location), span = whole_pages(size);
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (used > limit || span > limit - used)
        return CUDA_ERROR_OUT_OF_MEMORY;
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
    *made = physical_new(fd, size, location, owner_gpu, handle_types);
    (*made)->counted = true;
    return 0;
}

int physical_import(struct physical **made, int fd)
{
    struct trailer trailer;
    struct stat status;
    if (fstat(fd, &status) < 0 || status.st_size < TRAILER_SIZE ||
        pread(fd, &trailer, sizeof trailer, status.st_size - TRAILER_SIZE) != sizeof trailer ||
        memcmp(trailer.magic, TRAILER_MAGIC, sizeof trailer.magic)) {
        close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* Measured on H200s: memory cannot be imported where its owner's device node is out of reach, host memory included. */
    int owner = gpu_by_bus_id(trailer.owner_bus_id);
    if (owner < 0 || !gpu_is_accessible(owner)) {
        close(fd);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    CUmemLocation location = {trailer.location_type, trailer.location_id};
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        location.id = gpu_by_bus_id(trailer.location_bus_id);
    *made = physical_new(fd, trailer.size, location, owner, trailer.handle_types);
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

static uintptr_t reserve(size_t span, size_t alignment)
{
    char *raw = mmap(NULL, span + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        fake_abort("cannot reserve %zu bytes of address space: %s", span, strerror(errno));
    uintptr_t base = ((uintptr_t)raw + alignment - 1) / alignment * alignment;
    size_t before = base - (uintptr_t)raw;
    if (before)
        munmap(raw, before);
    if (alignment > before)
        munmap((void *)(base + span), alignment - before);
    return base;
}

struct region *region_create(int kind, size_t size, size_t alignment)
{
    struct region *region = calloc(1, sizeof *region);
    region->kind = kind;
    region->size = size;
    region->span = whole_pages(size);
    region->base = reserve(region->span, alignment > REGION_ALIGNMENT ? alignment : REGION_ALIGNMENT);
    region->shadow = reserve(region->span, REGION_ALIGNMENT);
    region->next = regions;
    return regions = region;
}

int region_register(struct region **made, uintptr_t base, size_t size)
{
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    for (const struct region *other = regions; other; other = other->next)
        if (base < other->base + other->span && other->base < base + size)
            return other->kind == REGION_REGISTERED ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                                                    : CUDA_ERROR_INVALID_VALUE;
    struct region *region = calloc(1, sizeof *region);
    *region = (struct region){.kind = REGION_REGISTERED, .base = base, .shadow = base, .size = size, .span = size};
    region->next = regions;
    *made = regions = region;
    return 0;
}

struct region *region_find(uintptr_t address)
{
    for (struct region *region = regions; region; region = region->next)
        if (address >= region->base && address - region->base < region->span)
            return region;
    return NULL;
}

struct region *region_of_context(const struct context *context)
{
    for (struct region *region = regions; region; region = region->next)
        if (region->context == context)
            return region;
    return NULL;
}

static void map_file(uintptr_t address, const struct mapping *mapping, int protection)
{
    void *mapped = mmap((void *)address, whole_pages(mapping->size), protection, MAP_SHARED | MAP_FIXED,
                        mapping->physical->fd, (off_t)mapping->offset);
    if (mapped == MAP_FAILED)
        fake_abort("cannot map %zu bytes: %s", mapping->size, strerror(errno));
}

static void unmap_pages(uintptr_t address, size_t size)
{
    if (mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
        fake_abort("cannot unmap %zu bytes: %s", size, strerror(errno));
}

int region_map(struct region *region, size_t start, size_t size, struct physical *physical, size_t offset)
{
    if (start + size > region->span || offset + size > whole_pages(physical->size))
        return CUDA_ERROR_INVALID_VALUE;
    for (const struct mapping *other = region->mappings; other; other = other->next)
        if (start < other->start + other->size && other->start < start + size)
            return CUDA_ERROR_ALREADY_MAPPED;
    struct mapping *mapping = calloc(1, sizeof *mapping);
    mapping->physical = physical;
    mapping->start = start;
    mapping->size = size;
    mapping->offset = offset;
    mapping->next = region->mappings;
    region->mappings = mapping;
    physical_keep(physical);
    map_file(region->base + start, mapping, PROT_NONE);
    map_file(region->shadow + start, mapping, PROT_READ | PROT_WRITE);
    return 0;
}

void region_unmap(struct region *region, size_t start, size_t size)
{
    struct mapping **link = &region->mappings, *mapping;
    while ((mapping = *link)) {
        if (mapping->start < start || mapping->start >= start + size) {
            link = &mapping->next;
            continue;
        }
        unmap_pages(region->base + mapping->start, whole_pages(mapping->size));
        unmap_pages(region->shadow + mapping->start, whole_pages(mapping->size));
        *link = mapping->next;
        physical_drop(mapping->physical);
        free(mapping);
    }
}

void region_protect(struct region *region, struct mapping *mapping, int flags)
{
    int protection = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                     : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                 : PROT_NONE;
    mapping->host_access = flags;
    if (mprotect((void *)(region->base + mapping->start), whole_pages(mapping->size), protection) < 0)
        fake_abort("mprotect: %s", strerror(errno));
}

void region_destroy(struct region *region)
{
    region_unmap(region, 0, region->span);
    struct region **link = &regions;
    while (*link != region)
        link = &(*link)->next;
    *link = region->next;
    if (region->kind != REGION_REGISTERED) {
        munmap((void *)region->base, region->span);
        munmap((void *)region->shadow, region->span);
    }
    free(region);
}

int region_of_physical(struct region **made, int kind, struct physical *physical, size_t size)
{
    struct region *region = region_create(kind, size, 0);
    TRY(region_map(region, 0, size, physical, 0));
    *made = region;
    return 0;
}

static bool may(const struct region *region, const struct mapping *mapping, int gpu, enum access access)
{
    int owner = mapping->physical->location.id, flags = mapping->access[gpu];
    switch (region->kind) {
    case REGION_DEVICE:
    case REGION_IPC:
        return gpu == owner || flags || gpu_has_peer_access(gpu, owner);
    case REGION_POOL:
        flags = pool_access(region->pool, gpu);
        break;
    case REGION_HOST:
        return true;
    default:
        break;
    }
    return access == WRITE ? flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE : flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

static bool in_bounds(const struct region *region, uintptr_t address, size_t size)
{
    return size <= region->size && address - region->base <= region->size - size;
}

/* Whether each byte is mapped, and open to the GPU (any GPU: -1). */
static bool covered(const struct region *region, uintptr_t address, size_t size, int gpu, enum access access)
{
    size_t start = address - region->base, bytes = 0;
    if (!in_bounds(region, address, size))
        return false;
    if (region->kind == REGION_REGISTERED)
        return true;
    for (const struct mapping *mapping = region->mappings; mapping; mapping = mapping->next) {
        size_t first = mapping->start > start ? mapping->start : start;
        size_t end = mapping->start + mapping->size < start + size ? mapping->start + mapping->size : start + size;
        if (first >= end)
            continue;
        if (gpu >= 0 && !may(region, mapping, gpu, access))
            return false;
        bytes += end - first;
    }
    return bytes == size;
}

void *kernel_pointer(int gpu, uintptr_t address, size_t size, enum access access)
{
    const struct region *region = region_find(address);
    if (!region)
        return gpu_attribute(gpu, ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0) ? (void *)address : NULL;
    return covered(region, address, size, gpu, access) ? (void *)(region->shadow + (address - region->base)) : NULL;
}

void *copy_pointer(int gpu, uintptr_t address, size_t size, enum access access)
{
    const struct region *region = region_find(address);
    if (!region)
        return (void *)address;
    bool any = region->kind == REGION_DEVICE || region->kind == REGION_IPC;
    return covered(region, address, size, any ? -1 : gpu, access) ? (void *)(region->shadow + (address - region->base))
                                                                  : NULL;
}

bool address_is_known(uintptr_t address, size_t size)
{
    const struct region *region = region_find(address);
    return region && in_bounds(region, address, size);
}

const struct mapping *mapping_at(uintptr_t address)
{
    const struct region *region = region_find(address);
    for (const struct mapping *mapping = region ? region->mappings : NULL; mapping; mapping = mapping->next)
        if (address - region->base - mapping->start < mapping->size)
            return mapping;
    return NULL;
}

CUmemLocation address_location(uintptr_t address)
{
    const struct mapping *mapping = mapping_at(address);
    return mapping ? mapping->physical->location : (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0};
}

/* The device whose driver answers for a location: its own, for host memory the current context's. */
static int answering_gpu(CUmemLocation location)
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
