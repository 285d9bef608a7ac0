/* A libibverbs with the NICs of EGMCTL_FAKE_NICS ("mlx5_0,mlx5_1"), with which memory can be registered, and no more.
 *
 * The fault plan gives errno: "ibv_reg_dmabuf_mr=error:95". What is made from an object has to be given back before it:
 * the region, its domain, the context. Who breaks that is aborted.
 */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { NICS = 64, NAME = 64 };

struct ibv_device {
    char name[NAME];
};

struct object {
    struct object *above; /* what it was made from */
    int below;            /* how many were made from it */
};

static struct ibv_device nics[NICS];

/* Makes an object, or returns NULL with errno where the plan says so. */
static void *make(const char *name, struct object *above)
{
    struct call call = {.name = name, .gpu = -1};
    call_enter(&call);
    struct object *made = call.error ? NULL : calloc(1, sizeof *made);
    if (made && (made->above = above))
        ++above->below;
    call_leave(&call, call.error, "%s", "");
    errno = call.error;
    return made;
}

static int release(const char *name, struct object *object)
{
    if (object->below)
        fake_abort("%s: something made from it is still there", name);
    if (object->above)
        --object->above->below;
    free(object);
    CALL(name, 0, "%s", "");
}

EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc(NICS + 1, sizeof *list);
    const char *names = getenv("EGMCTL_FAKE_NICS");
    char *rest = strdup(names ? names : ""), *name;
    for (*count = 0; *count < NICS && (name = strsep(&rest, ","));)
        if (*name) {
            snprintf(nics[*count].name, NAME, "%s", name);
            list[*count] = &nics[*count];
            ++*count;
        }
    return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

EXPORT void *ibv_open_device(struct ibv_device *device)
{
    (void)device;
    return make("ibv_open_device", NULL);
}

EXPORT int ibv_close_device(struct object *context)
{
    return release("ibv_close_device", context);
}

EXPORT void *ibv_alloc_pd(struct object *context)
{
    return make("ibv_alloc_pd", context);
}

EXPORT int ibv_dealloc_pd(struct object *domain)
{
    return release("ibv_dealloc_pd", domain);
}

EXPORT void *ibv_reg_dmabuf_mr(struct object *domain, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
    if (fcntl(fd, F_GETFD) < 0 || offset || !length || iova || access != 7)
        fake_abort("ibv_reg_dmabuf_mr: fd %d, offset %llu, length %zu, access %d", fd, (unsigned long long)offset, length,
                   access);
    return make("ibv_reg_dmabuf_mr", domain);
}

EXPORT int ibv_dereg_mr(struct object *region)
{
    return release("ibv_dereg_mr", region);
}
