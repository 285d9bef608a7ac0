/* Memory pools: what pools.c does with this process' own and share_pools.c with those that processes share. */
#ifndef EGMCTL_FAKE_POOLS_H
#define EGMCTL_FAKE_POOLS_H

#include "libcuda.h"

struct pool {
    CUmemLocation location;
    int handle_types;
    int fd;        /* of a pool that can be shared, -1 */
    bool imported; /* another process' */
    bool stays;    /* the driver's own of a place that is no device */
    unsigned char access[MAX_GPUS];
    unsigned long long release_threshold;
    struct pool *instead; /* of a default pool: the one that is set for its place */
    struct pool *next;
};

struct pool *pool_new(CUmemLocation location, int handle_types);
bool pool_exists(const struct pool *pool);

#endif
