/* The fake libnvidia-ml.so.1: what egmctl.facts asks NVML, answered from the machine file.
 *
 * An answer "!<code>" in the answers file is that error: a value that is null in the machine file comes back null for
 * the same reason.
 */
#include "libnvml.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int users;
static int listed[MAX_GPUS];
static int listed_count;

/* --- answers ------------------------------------------------------------------------------------------------------ */

int answer_error(const char *text)
{
    return !text ? NVML_ERROR_NOT_SUPPORTED : text[0] == '!' ? atoi(text + 1) : NVML_SUCCESS;
}

int gpu_of(nvmlDevice_t device, int *gpu)
{
    *gpu = (int)(intptr_t)device - 1;
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    for (int i = 0; i < listed_count; ++i)
        if (listed[i] == *gpu)
            return NVML_SUCCESS;
    return NVML_ERROR_INVALID_ARGUMENT;
}

int get_number(nvmlDevice_t device, const char *name, unsigned long long *value)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    const char *text = answer("gpu.%d.nvml.%s", gpu, name);
    TRY(answer_error(text));
    *value = strtoull(text, NULL, 10);
    return NVML_SUCCESS;
}

int get_int(nvmlDevice_t device, const char *name, void *value)
{
    unsigned long long number;
    TRY(get_number(device, name, &number));
    *(unsigned int *)value = (unsigned int)number;
    return NVML_SUCCESS;
}

int copy_text(const char *text, char *buffer, unsigned int length)
{
    TRY(answer_error(text));
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

int gpu_number(nvmlDevice_t device)
{
    return (int)(intptr_t)device - 1;
}

/* --- the library and its devices ---------------------------------------------------------------------------------- */

static int init(void)
{
    TRY((int)answer_number(0, "nvml.error"));
    /* As measured on H200. */
    if (!node_opens("nvidiactl"))
        return NVML_ERROR_UNKNOWN;
    if (users++)
        return NVML_SUCCESS;
    listed_count = 0;
    for (int gpu = 0; gpu < answer_number(0, "gpu.count"); ++gpu)
        if (gpu_opens(gpu) && answer_number(0, "gpu.%d.nvml", gpu))
            listed[listed_count++] = gpu;
    return NVML_SUCCESS;
}

EXPORT int nvmlInitWithFlags(unsigned int flags)
{
    CALL("nvmlInit", init(), "flags=%u", flags);
}

EXPORT int nvmlInit_v2(void)
{
    CALL("nvmlInit", init(), "%s", "");
}

EXPORT int nvmlShutdown(void)
{
    CALL("nvmlShutdown", users ? (--users, NVML_SUCCESS) : NVML_ERROR_UNINITIALIZED, "%s", "");
}

EXPORT const char *nvmlErrorString(int error)
{
    static const char *const texts[] = {
        "Success",          "Uninitialized",        "Invalid Argument",
        "Not Supported",    "Insufficient Permissions", "Already Initialized",
        "Not Found",        "Insufficient Size",    "Insufficient External Power",
        "Driver Not Loaded", "Timeout",             "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM",
        "GPU is lost",      "GPU requires reset",   "The operating system has blocked the request.",
    };
    return error >= 0 && error < (int)(sizeof texts / sizeof *texts) ? texts[error] : "Unknown Error";
}

static int system_text(const char *key, char *text, unsigned int length)
{
    return users ? copy_text(answer("%s", key), text, length) : NVML_ERROR_UNINITIALIZED;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    CALL("nvmlSystemGetDriverVersion", system_text("driver.version", version, length), "%s", "");
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    CALL("nvmlSystemGetNVMLVersion", system_text("nvml.version", version, length), "%s", "");
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    CALL("nvmlSystemGetCudaDriverVersion", (*version = (int)answer_number(0, "cuda.version"), NVML_SUCCESS), "%s", "");
}

static int system_number(const char *key, unsigned int *value)
{
    const char *text = answer("%s", key);
    TRY(users ? answer_error(text) : NVML_ERROR_UNINITIALIZED);
    *value = (unsigned)strtoul(text, NULL, 10);
    return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetNvlinkBwMode(unsigned int *mode)
{
    CALL("nvmlSystemGetNvlinkBwMode", system_number("driver.nvlink_bandwidth_mode", mode), "%s", "");
}

static int confidential_compute(nvmlSystemConfComputeSettings_t *settings)
{
    if (settings->version != 0x1000014)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(system_number("driver.confidential_compute", &settings->ccFeature));
    settings->environment = settings->devToolsMode = 0;
    settings->multiGpuMode = (unsigned)answer_number(0, "driver.confidential_compute_mode");
    return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetConfComputeSettings(nvmlSystemConfComputeSettings_t *settings)
{
    CALL("nvmlSystemGetConfComputeSettings", confidential_compute(settings), "%s", "");
}

EXPORT int nvmlSystemGetConfComputeGpusReadyState(unsigned int *ready)
{
    CALL("nvmlSystemGetConfComputeGpusReadyState", system_number("driver.confidential_ready", ready), "%s", "");
}

static int process_name(unsigned int pid, char *name, unsigned int length)
{
    const char *text = answer("process.%u.name", pid);
    return text ? copy_text(text, name, length) : NVML_ERROR_NOT_FOUND;
}

EXPORT int nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    CALL("nvmlSystemGetProcessName", process_name(pid, name, length), "pid=%u", pid);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count)
{
    CALL("nvmlDeviceGetCount", (*count = (unsigned)listed_count, users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED), "%s",
         "");
}

static int by_index(unsigned int index, nvmlDevice_t *device)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (index >= (unsigned)listed_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = (nvmlDevice_t)(intptr_t)(listed[index] + 1);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    CALL("nvmlDeviceGetHandleByIndex", by_index(index, device), "index=%u", index);
}

/* Drivers write bus ids with domains of 4 or of 8 digits. */
static bool same_bus_id(const char *a, const char *b)
{
    const char *tail_a = strchr(a, ':'), *tail_b = strchr(b, ':');
    return tail_a && tail_b && strtoul(a, NULL, 16) == strtoul(b, NULL, 16) && !strcasecmp(tail_a, tail_b);
}

static int by_key(const char *key, const char *wanted, bool (*same)(const char *, const char *), nvmlDevice_t *device)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    for (int i = 0; i < listed_count; ++i) {
        const char *text = answer("gpu.%d.%s", listed[i], key);
        if (text && same(text, wanted)) {
            *device = (nvmlDevice_t)(intptr_t)(listed[i] + 1);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static bool same_text(const char *a, const char *b)
{
    return !strcmp(a, b);
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    CALL("nvmlDeviceGetHandleByPciBusId", by_key("bus_id", bus_id, same_bus_id, device), "bus_id=%s", bus_id);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    CALL("nvmlDeviceGetHandleByUUID", by_key("nvml.uuid", uuid, same_text, device), "uuid=%s", uuid);
}
