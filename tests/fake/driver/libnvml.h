/* What the files of the fake libnvidia-ml share. */
#ifndef EGMCTL_FAKE_NVML_H
#define EGMCTL_FAKE_NVML_H

#include "fake.h"
#include "nvml_abi.h"

#define TRY(work)                                                                                                      \
    do {                                                                                                               \
        int tried_ = (work);                                                                                           \
        if (tried_)                                                                                                    \
            return tried_;                                                                                             \
    } while (0)

/* The error that an answer stands for: none for a value, "not supported" for no answer. */
int answer_error(const char *text);
/* The machine's number of a device; an error for something that is no handle. */
int gpu_of(nvmlDevice_t device, int *gpu);
int gpu_number(nvmlDevice_t device); /* the same for the log, unchecked */

/* The answer "gpu.<number>.nvml.<name>". */
int get_number(nvmlDevice_t device, const char *name, unsigned long long *value);
int get_int(nvmlDevice_t device, const char *name, void *value);
int copy_text(const char *text, char *buffer, unsigned int length);

#endif
