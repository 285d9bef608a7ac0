/* What the links of the node have carried: NVML's counters of bytes, the same for all processes, in a file of
 * EGMCTL_FAKE_STATE. There are none unless EGMCTL_FAKE_COUNTERS is set: only what copy engines move is counted. */
#include "fake.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct traffic *traffic_of(int gpu)
{
    static struct traffic *all;
    const char *state = getenv("EGMCTL_FAKE_STATE");
    if (!getenv("EGMCTL_FAKE_COUNTERS"))
        return NULL;
    if (!all) {
        char path[4096];
        size_t size = MAX_GPUS * sizeof *all;
        snprintf(path, sizeof path, "%s/traffic", state ? state : "");
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (!state || fd < 0 || ftruncate(fd, (off_t)size) < 0)
            fake_abort("EGMCTL_FAKE_COUNTERS needs EGMCTL_FAKE_STATE");
        void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (mapped == MAP_FAILED)
            fake_abort("cannot map %s", path);
        all = mapped;
    }
    return &all[gpu];
}
