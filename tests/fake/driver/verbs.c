/* A libibverbs with the NICs of EGMCTL_FAKE_NICS ("mlx5_0,mlx5_1"), with which memory can be registered, and no more;
 * and a libmlx5, through which those of EGMCTL_FAKE_DATA_DIRECT have a Data Direct function. Made by the documents of
 * rdma-core and the source of the kernel, not seen on hardware.
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
    struct ibv_device *nic;
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
    struct object *context = make("ibv_open_device", NULL);
    if (context)
        context->nic = device;
    return context;
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

/* --- libmlx5 ------------------------------------------------------------------------------------------------------ */

EXPORT int mlx5dv_get_data_direct_sysfs_path(struct object *context, char *path, size_t length)
{
    const char *names = getenv("EGMCTL_FAKE_DATA_DIRECT");
    char *rest = strdup(names ? names : ""), *name;
    while ((name = strsep(&rest, ",")))
        if (strcmp(name, context->nic->name) == 0) {
            snprintf(path, length, "/devices/data-direct-of-%s", name);
            CALL("mlx5dv_get_data_direct_sysfs_path", 0, "%s", "");
        }
    return ENODEV;
}

/* drivers/infiniband/hw/mlx5/mr.c, reg_user_mr_dmabuf_by_data_direct: a base outside the grid of pages is refused. */
EXPORT void *mlx5dv_reg_dmabuf_mr(struct object *domain, uint64_t offset, size_t length, uint64_t iova, int fd,
                                  int access, int mlx5_access)
{
    if (fcntl(fd, F_GETFD) < 0 || !length || iova != offset || access != 7 || mlx5_access != 1)
        fake_abort("mlx5dv_reg_dmabuf_mr: fd %d, offset %llu, length %zu, access %d, %d", fd,
                   (unsigned long long)offset, length, access, mlx5_access);
    if (iova % 4096) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    return make("mlx5dv_reg_dmabuf_mr", domain);
}
