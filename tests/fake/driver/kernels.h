/* What the files of native kernels share. */
#ifndef EGMCTL_FAKE_KERNELS_H
#define EGMCTL_FAKE_KERNELS_H

#include "libcuda.h"

/* The range that a parameter of the launch points to, NULL if the launch's GPU may not touch it. */
void *kernel_range(const struct launch *launch, const struct stream *stream, int parameter, size_t size,
                   enum access access);
/* Whether a kernel that waits has done so for longer than it is to. In real time, like %globaltimer. */
bool launch_expired(struct launch *launch, uint64_t timeout_ns);

extern const struct kernel latency_kernels[]; /* the last one has no name */

#endif
