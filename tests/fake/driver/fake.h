/* The fake driver: libcuda.so.1 and libnvidia-ml.so.1 for tests without a GPU. What both libraries share.
 *
 * A fake describes the node of a machine file (through the answers that tests/fake/answers.py derives from it) and does
 * with ordinary memory what the GPU would do. Nothing that comes out of it is a measurement: every GPU name begins
 * with "FAKE ".
 *
 * Modelled: devices and their visibility (device nodes, CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER), contexts, memory of
 * devices and NUMA nodes with its limits and its access rules, memory that processes share (file descriptors, legacy
 * IPC and fabric handles, pools), streams and events in simulated time, interprocess events, the project's kernels by
 * name, the NVML queries of egmctl.facts; that EGM memory belongs to the GPU whose context was current when it was made,
 * and which links' counters then rise, which follows the open kernel driver's source and was not measured. What real drivers answer where they refuse follows what was measured on H200s.
 *
 * Not modelled: sharing of a link (streams that run at once each get the whole of it), caches, graphs, textures,
 * multicast, host callbacks, work that goes on without the host ever waiting for it (a stream runs
 * when something synchronises or queries), memory that other processes hold.
 *
 * Each exported function is one CALL(): it counts the call, looks at the fault plan, does the work under one lock and
 * writes a line to the call log.
 *
 * Environment: EGMCTL_FAKE_ANSWERS (file, required), EGMCTL_FAKE_LOG (file), EGMCTL_FAKE_FAULTS (text, see faults.c),
 * EGMCTL_FAKE_STATE (folder: what faults that happen once have happened, and what the links have carried),
 * EGMCTL_FAKE_COUNTERS (NVML counts the bytes that copy engines move), EGMCTL_FAKE_NODES (folder: real device nodes in
 * its dev, so that cgroups, modes and mounts decide what the libraries find).
 */
#ifndef EGMCTL_FAKE_H
#define EGMCTL_FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))
#define PRINTF(template, first) __attribute__((format(printf, template, first)))

enum { MAX_GPUS = 64 };

/* answers.c: "key = value" lines. A key is made with printf; a value is a number, a text, or "!<code>": the call for
 * it returns that error. */

/* The text of a key, NULL if there is none. */
const char *answer(const char *key, ...) PRINTF(1, 2);
/* The number of a key, `otherwise` if there is none. */
long long answer_number(long long otherwise, const char *key, ...) PRINTF(2, 3);
/* Whether this process may open a device node of NVIDIA's by its name in EGMCTL_FAKE_NODES/dev; without that, yes. */
bool node_opens(const char *name);
/* The same of a GPU's, which the machine file may also say is denied. */
bool gpu_opens(int gpu);

/* calls.c: one exported function's passage through the fake. */

struct call {
    const char *name; /* without its version suffix: cuMemAlloc, not cuMemAlloc_v2 */
    int gpu;          /* the GPU that it is about, if the fault plan names GPUs; else -1 */
    int error;        /* the fault plan's answer in place of the real one; 0: do the work */
    long long corrupt; /* the byte of the moved data to damage; -1: none */
    bool answers;      /* with `answer` in place of what was measured */
    double answer;
};

/* The GPU that a call of NVML is about, by "gpu=" or "index=" in its arguments; -1 if it is about none. */
int call_gpu(const char *arguments, ...) PRINTF(1, 2);
/* Takes the lock. Does not return where the fault plan says hang or exit. */
void call_enter(struct call *call);
/* Writes the log line, gives the lock back, returns `result`. */
int call_leave(const struct call *call, int result, const char *arguments, ...) PRINTF(3, 4);
/* The last CUDA call that failed, in any thread; its name is NULL if none did. */
struct failed_call {
    const char *name;
    int result;
    unsigned long thread;
};
struct failed_call call_last_failed(void);
/* Lets other threads in for a moment; for work that waits for something outside this thread. */
void call_wait(void);

/* The host's real clock, which only runs forwards. */
double real_seconds(void);
/* Lets other threads call for so many seconds, fewer than one; none if there are not more than 0. */
void call_sleep(double seconds);
/* The call under way in this thread, for work that passes its damage on to a later moment. */
const struct call *call_current(void);

#define CALL(call_name, work, ...)                                                                                     \
    do {                                                                                                               \
        struct call call_ = {.name = (call_name), .gpu = -1};                                                          \
        /* Other arguments may be valid after the work only. */                                                        \
        if (call_.name[0] == 'n' && fault_names_gpus())                                                                \
            call_.gpu = call_gpu(__VA_ARGS__);                                                                         \
        call_enter(&call_);                                                                                            \
        int result_ = call_.error ? call_.error : (int)(work);                                                         \
        return call_leave(&call_, result_, __VA_ARGS__);                                                               \
    } while (0)

/* faults.c */

/* Whether the plan names GPUs. */
bool fault_names_gpus(void);

struct fault {
    enum { FAULT_NONE, FAULT_ERROR, FAULT_HANG, FAULT_EXIT, FAULT_KILL, FAULT_CORRUPT, FAULT_MISSING, FAULT_ANSWER } action;
    long long argument; /* error code, exit status, signal or byte offset */
    double answer;
};

/* What the plan has for the next call of `name` about a GPU (-1: about none); counts the call. */
struct fault fault_for_call(const char *name, int gpu);
/* Whether the plan says that the driver has no such function. */
bool fault_is_missing(const char *name);

/* traffic.c */

struct traffic {
    uint64_t nvlink_sent, nvlink_received, pcie_sent, pcie_received; /* bytes */
};

/* A GPU's, NULL where the node has no counters of bytes. */
struct traffic *traffic_of(int gpu);

/* A message on stderr and abort(): the test asked for something the fake does not model. */
void fake_abort(const char *message, ...) PRINTF(1, 2) __attribute__((noreturn));

#endif
