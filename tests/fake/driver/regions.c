/* Regions of address space, what is mapped in them, and who may touch it. */
#include "libcuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
    REGION_ALIGNMENT = 2 << 20,
};

static struct region *regions;

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

struct region *region_apart(size_t size)
{
    struct region *region = region_create(REGION_RESERVED, size, 0);
    regions = region->next;
    return region;
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
    if (region->kind != REGION_REGISTERED && !region->is_part) {
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

struct region *region_of_part(const struct region *block, struct physical *physical, size_t offset, size_t size)
{
    struct region *region = calloc(1, sizeof *region);
    *region = (struct region){.kind = REGION_DEVICE, .base = block->base + offset, .shadow = block->shadow + offset,
                              .size = size, .span = whole_pages(size), .is_part = true, .next = regions};
    regions = region;
    if (region_map(region, 0, size, physical, offset))
        fake_abort("a part of a block does not fit into it");
    return region;
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
    case REGION_MANAGED:
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

bool copy_is_refused(int gpu, uintptr_t address, size_t size)
{
    const struct region *region = region_find(address);
    return region && region->kind == REGION_RESERVED && region->mappings && in_bounds(region, address, size) &&
           !covered(region, address, size, gpu, READ);
}

bool address_is_known(uintptr_t address, size_t size)
{
    const struct region *region = region_find(address);
    if (!region || !in_bounds(region, address, size))
        return false;
    size_t start = address - region->base;
    return !region->exported || (start >= region->entry && start + size <= region->exported);
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
