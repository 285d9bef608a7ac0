/* The fake libnvidia-ml.so.1: what egmctl.facts asks NVML, answered from the machine file.
 *
 * An answer "!<code>" in the answers file is that error: a value that is null in the machine file comes back null for
 * the same reason.
 */
#include "fake.h"
#include "nvml_abi.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TRY(work)                                                                                                      \
    do {                                                                                                               \
        int tried_ = (work);                                                                                           \
        if (tried_)                                                                                                    \
            return tried_;                                                                                             \
    } while (0)

static int users;
static int listed[MAX_GPUS];
static int listed_count;

/* --- answers ------------------------------------------------------------------------------------------------------ */

static int check(const char *text)
{
    return !text ? NVML_ERROR_NOT_SUPPORTED : text[0] == '!' ? atoi(text + 1) : NVML_SUCCESS;
}

/* The machine's number of a device; an error for something that is no handle. */
static int gpu_of(nvmlDevice_t device, int *gpu)
{
    *gpu = (int)(intptr_t)device - 1;
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    for (int i = 0; i < listed_count; ++i)
        if (listed[i] == *gpu)
            return NVML_SUCCESS;
    return NVML_ERROR_INVALID_ARGUMENT;
}

static int get_number(nvmlDevice_t device, const char *name, unsigned long long *value)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    const char *text = answer("gpu.%d.nvml.%s", gpu, name);
    TRY(check(text));
    *value = strtoull(text, NULL, 10);
    return NVML_SUCCESS;
}

static int get_int(nvmlDevice_t device, const char *name, void *value)
{
    unsigned long long number;
    TRY(get_number(device, name, &number));
    *(unsigned int *)value = (unsigned int)number;
    return NVML_SUCCESS;
}

static int copy_text(const char *text, char *buffer, unsigned int length)
{
    TRY(check(text));
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

static int get_text(nvmlDevice_t device, const char *name, char *buffer, unsigned int length)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    return copy_text(answer("gpu.%d.nvml.%s", gpu, name), buffer, length);
}

/* A kernel list ("0-3,8") as a bit mask. */
static int get_mask(nvmlDevice_t device, const char *name, unsigned int words, unsigned long *mask)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    const char *text = answer("gpu.%d.nvml.%s", gpu, name);
    TRY(check(text));
    memset(mask, 0, words * sizeof *mask);
    while (*text) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        if (end == text)
            break;
        for (unsigned long i = first; i <= last && i / 64 < words; ++i)
            mask[i / 64] |= 1UL << i % 64;
        text = *end == ',' ? end + 1 : end;
    }
    return NVML_SUCCESS;
}

static int gpu_number(nvmlDevice_t device)
{
    return (int)(intptr_t)device - 1;
}

/* --- the library and its devices ---------------------------------------------------------------------------------- */

static int init(void)
{
    TRY((int)answer_number(0, "nvml.error"));
    if (users++)
        return NVML_SUCCESS;
    listed_count = 0;
    for (int gpu = 0; gpu < answer_number(0, "gpu.count"); ++gpu)
        if (answer_number(1, "gpu.%d.accessible", gpu) && answer_number(0, "gpu.%d.nvml", gpu))
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

/* --- one value each ----------------------------------------------------------------------------------------------- */

#define TEXT(name, key)                                                                                                \
    EXPORT int name(nvmlDevice_t device, char *text, unsigned int length)                                              \
    {                                                                                                                  \
        CALL(#name, get_text(device, key, text, length), "gpu=%d", gpu_number(device));                                \
    }

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part_number")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")

#define NUMBER(name, key)                                                                                              \
    EXPORT int name(nvmlDevice_t device, unsigned int *value)                                                          \
    {                                                                                                                  \
        CALL(#name, get_int(device, key, value), "gpu=%d", gpu_number(device));                                        \
    }

NUMBER(nvmlDeviceGetIndex, "index")
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetModuleId, "module_id")
NUMBER(nvmlDeviceGetNumaNodeId, "numa_node")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence_mode")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetVirtualizationMode, "virtualization")
NUMBER(nvmlDeviceGetPerformanceState, "performance_state")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_generation_max")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
NUMBER(nvmlDeviceGetC2cModeInfoV, "c2c_enabled")

#define TWO_NUMBERS(name, key, second_key)                                                                             \
    static int two_##name(nvmlDevice_t device, unsigned int *value, unsigned int *second)                              \
    {                                                                                                                  \
        TRY(get_int(device, key, value));                                                                              \
        return get_int(device, second_key, second);                                                                    \
    }                                                                                                                  \
    EXPORT int name(nvmlDevice_t device, unsigned int *value, unsigned int *second)                                    \
    {                                                                                                                  \
        CALL(#name, two_##name(device, value, second), "gpu=%d", gpu_number(device));                                  \
    }

TWO_NUMBERS(nvmlDeviceGetCudaComputeCapability, "compute_capability_major", "compute_capability_minor")
TWO_NUMBERS(nvmlDeviceGetMigMode, "mig_mode", "mig_mode_pending")
TWO_NUMBERS(nvmlDeviceGetEccMode, "ecc_mode", "ecc_mode")

#define VERSIONED(name, key)                                                                                           \
    EXPORT int name(nvmlDevice_t device, nvmlVersionedValue_t *value)                                                  \
    {                                                                                                                  \
        CALL(#name,                                                                                                    \
             value->version == 0x1000008 ? get_int(device, key, &value->value) : NVML_ERROR_ARGUMENT_VERSION_MISMATCH, \
             "gpu=%d", gpu_number(device));                                                                            \
    }

VERSIONED(nvmlDeviceGetCapabilities, "capabilities")
VERSIONED(nvmlDeviceGetAddressingMode, "addressing_mode")

static const char *clock_key(unsigned int type, bool maximum)
{
    static const char *const keys[2][3] = {{"sm_clock", "sm_clock", "memory_clock"},
                                           {"sm_clock_max", "sm_clock_max", "memory_clock_max"}};
    return type < 3 ? keys[maximum][type] : "no_such_clock";
}

EXPORT int nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    CALL("nvmlDeviceGetClockInfo", get_int(device, clock_key(type, false), mhz), "gpu=%d", gpu_number(device));
}

EXPORT int nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    CALL("nvmlDeviceGetMaxClockInfo", get_int(device, clock_key(type, true), mhz), "gpu=%d", gpu_number(device));
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    CALL("nvmlDeviceGetCurrentClocksEventReasons", get_number(device, "event_reasons", reasons), "gpu=%d",
         gpu_number(device));
}

EXPORT int nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    CALL("nvmlDeviceGetTemperature", get_int(device, "temperature", celsius), "gpu=%d sensor=%u", gpu_number(device),
         sensor);
}

EXPORT int nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    CALL("nvmlDeviceGetTemperatureV", get_int(device, "temperature", &temperature->temperature), "gpu=%d",
         gpu_number(device));
}

EXPORT int nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                       unsigned long long *count)
{
    CALL("nvmlDeviceGetTotalEccErrors",
         get_number(device, type == 1 && counter == 0 ? "ecc_uncorrected_volatile" : "no_such_counter", count),
         "gpu=%d type=%u counter=%u", gpu_number(device), type, counter);
}

EXPORT int nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *mask)
{
    CALL("nvmlDeviceGetCpuAffinity", get_mask(device, "cpu_affinity", words, mask), "gpu=%d", gpu_number(device));
}

EXPORT int nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *mask,
                                               unsigned int scope)
{
    CALL("nvmlDeviceGetCpuAffinityWithinScope", get_mask(device, "cpu_affinity", words, mask), "gpu=%d scope=%u",
         gpu_number(device), scope);
}

EXPORT int nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *mask, unsigned int scope)
{
    CALL("nvmlDeviceGetMemoryAffinity", get_mask(device, "numa_affinity", words, mask), "gpu=%d scope=%u",
         gpu_number(device), scope);
}

/* --- structures --------------------------------------------------------------------------------------------------- */

static int fill_pci_info(const char *bus_id, unsigned int device_id, unsigned int subsystem_id, nvmlPciInfo_t *info)
{
    unsigned int domain, bus, slot, function;
    memset(info, 0, sizeof *info);
    if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
        return NVML_ERROR_NOT_FOUND;
    *info = (nvmlPciInfo_t){
        .domain = domain, .bus = bus, .device = slot, .pciDeviceId = device_id, .pciSubSystemId = subsystem_id};
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.%X", domain & 0xffff, bus & 0xff, slot & 0xff,
             function & 0xf);
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.%X", domain, bus, slot, function);
    return NVML_SUCCESS;
}

static int pci_info(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    return fill_pci_info(answer("gpu.%d.bus_id", gpu), (unsigned)answer_number(0, "gpu.%d.pci_device", gpu),
                         (unsigned)answer_number(0, "gpu.%d.pci_subsystem", gpu), info);
}

EXPORT int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    CALL("nvmlDeviceGetPciInfo", pci_info(device, info), "gpu=%d", gpu_number(device));
}

static int memory(nvmlDevice_t device, unsigned long long *total, unsigned long long *free_bytes,
                  unsigned long long *used)
{
    TRY(get_number(device, "memory_total", total));
    TRY(get_number(device, "memory_used", used));
    *free_bytes = *total - *used;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *info)
{
    CALL("nvmlDeviceGetMemoryInfo", memory(device, &info->total, &info->free, &info->used), "gpu=%d",
         gpu_number(device));
}

static int memory_v2(nvmlDevice_t device, nvmlMemory_v2_t *info)
{
    if (info->version != 0x02000028)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    info->reserved = 0;
    return memory(device, &info->total, &info->free, &info->used);
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *info)
{
    CALL("nvmlDeviceGetMemoryInfo", memory_v2(device, info), "gpu=%d version=2", gpu_number(device));
}

static int remapped_rows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                         unsigned int *pending, unsigned int *failure)
{
    TRY(get_int(device, "remapped_rows_correctable", correctable));
    TRY(get_int(device, "remapped_rows_uncorrectable", uncorrectable));
    TRY(get_int(device, "remapped_rows_pending", pending));
    return get_int(device, "remapped_rows_failure", failure);
}

EXPORT int nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                     unsigned int *pending, unsigned int *failure)
{
    CALL("nvmlDeviceGetRemappedRows", remapped_rows(device, correctable, uncorrectable, pending, failure), "gpu=%d",
         gpu_number(device));
}

/* Hexadecimal digits, with or without dashes. */
static void read_bytes(const char *text, unsigned char *bytes, size_t count)
{
    memset(bytes, 0, count);
    for (size_t i = 0; text && i < count; ++i) {
        unsigned int byte;
        while (*text == '-')
            ++text;
        if (sscanf(text, "%2x", &byte) != 1)
            return;
        bytes[i] = (unsigned char)byte;
        text += 2;
    }
}

static int fabric_info(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    enum { VERSION_2 = 0x02000024, VERSION_3 = 0x03000028 };
    int gpu;
    unsigned long long state;
    TRY(gpu_of(device, &gpu));
    TRY(get_number(device, "fabric.state", &state));
    if (info->version != VERSION_2 && info->version != VERSION_3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    /* A driver that is too old for version 3 says so through this answer. */
    if (info->version == VERSION_3)
        TRY(get_int(device, "fabric.health_summary", &(unsigned int){0}));
    info->state = (unsigned)state;
    info->status = (unsigned)answer_number(0, "gpu.%d.nvml.fabric.status", gpu);
    info->cliqueId = (unsigned)answer_number(0, "gpu.%d.nvml.fabric.clique_id", gpu);
    info->healthMask = (unsigned)answer_number(0, "gpu.%d.nvml.fabric.health_mask", gpu);
    read_bytes(answer("gpu.%d.nvml.fabric.cluster_uuid", gpu), info->clusterUuid, sizeof info->clusterUuid);
    if (info->version == VERSION_3)
        info->healthSummary = (unsigned char)answer_number(0, "gpu.%d.nvml.fabric.health_summary", gpu);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    CALL("nvmlDeviceGetGpuFabricInfoV", fabric_info(device, info), "gpu=%d version=%u", gpu_number(device),
         info->version >> 24);
}

static int platform_info(nvmlDevice_t device, nvmlPlatformInfo_t *info)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    TRY(check(answer("gpu.%d.nvml.platform", gpu)));
    if (info->version != 0x0200002c)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const char *serial = answer("gpu.%d.nvml.platform.chassis_serial", gpu);
    memset(info->chassisSerialNumber, 0, sizeof info->chassisSerialNumber);
    if (serial)
        memcpy(info->chassisSerialNumber, serial, strnlen(serial, sizeof info->chassisSerialNumber));
    info->slotNumber = (unsigned char)answer_number(0xff, "gpu.%d.nvml.platform.slot", gpu);
    info->trayIndex = (unsigned char)answer_number(0xff, "gpu.%d.nvml.platform.tray", gpu);
    info->hostId = (unsigned char)answer_number(0xff, "gpu.%d.nvml.platform.host_id", gpu);
    info->peerType = (unsigned char)answer_number(0xff, "gpu.%d.nvml.platform.peer_type", gpu);
    info->moduleId = (unsigned char)answer_number(0xff, "gpu.%d.nvml.module_id", gpu);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *info)
{
    CALL("nvmlDeviceGetPlatformInfo", platform_info(device, info), "gpu=%d", gpu_number(device));
}

/* A field without a scope is answered by the key with scope 0. */
static int field_values(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    for (int i = 0; i < count; ++i) {
        const char *text = answer("gpu.%d.field.%u.%u", gpu, values[i].fieldId, values[i].scopeId);
        values[i].timestamp = values[i].latencyUsec = 0;
        values[i].nvmlReturn = (unsigned)check(text);
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        values[i].value.ullVal = values[i].nvmlReturn ? 0 : strtoull(text, NULL, 10);
    }
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    CALL("nvmlDeviceGetFieldValues", field_values(device, count, values), "gpu=%d count=%d", gpu_number(device), count);
}

static int running_processes(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *processes)
{
    int gpu;
    unsigned long long running;
    TRY(gpu_of(device, &gpu));
    TRY(get_number(device, "processes", &running));
    unsigned int room = *count;
    *count = (unsigned)running;
    if (running > room || (running && !processes))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < running; ++i)
        processes[i] = (nvmlProcessInfo_t){
            .pid = (unsigned)answer_number(0, "gpu.%d.nvml.process.%u.pid", gpu, i),
            .usedGpuMemory = (unsigned long long)answer_number(-1, "gpu.%d.nvml.process.%u.memory", gpu, i),
            .gpuInstanceId = ~0U,
            .computeInstanceId = ~0U,
        };
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                   nvmlProcessInfo_t *processes)
{
    CALL("nvmlDeviceGetComputeRunningProcesses", running_processes(device, count, processes), "gpu=%d",
         gpu_number(device));
}

/* --- NVLink ------------------------------------------------------------------------------------------------------- */

static int link_number(nvmlDevice_t device, unsigned int link, const char *name, unsigned int *value)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    const char *text = answer("gpu.%d.nvlink.%u.%s", gpu, link, name);
    TRY(check(text));
    *value = (unsigned)strtoul(text, NULL, 10);
    return NVML_SUCCESS;
}

#define LINK(name, key)                                                                                                \
    EXPORT int name(nvmlDevice_t device, unsigned int link, unsigned int *value)                                       \
    {                                                                                                                  \
        CALL(#name, link_number(device, link, key, value), "gpu=%d link=%u", gpu_number(device), link);                \
    }

LINK(nvmlDeviceGetNvLinkState, "active")
LINK(nvmlDeviceGetNvLinkVersion, "version")
LINK(nvmlDeviceGetNvLinkRemoteDeviceType, "remote_type")

static int remote_pci(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *info)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    const char *text = answer("gpu.%d.nvlink.%u.remote_bus_id", gpu, link);
    TRY(check(text));
    /* What virtual machines show instead of a bus id, measured on H200s. */
    if (!strcmp(text, "masked")) {
        memset(info, 0, sizeof *info);
        strcpy(info->busId, "FFFFFFFF:FF:FF.0");
        return NVML_SUCCESS;
    }
    return fill_pci_info(text, 0, 0, info);
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *info)
{
    CALL("nvmlDeviceGetNvLinkRemotePciInfo", remote_pci(device, link, info), "gpu=%d link=%u", gpu_number(device), link);
}

/* --- pairs -------------------------------------------------------------------------------------------------------- */

static int pair_number(nvmlDevice_t first, nvmlDevice_t second, const char *name, unsigned int *value)
{
    int gpu, peer;
    TRY(gpu_of(first, &gpu));
    TRY(gpu_of(second, &peer));
    const char *text = answer("pair.%d.%d.%s", gpu, peer, name);
    TRY(check(text));
    *value = (unsigned)strtoul(text, NULL, 10);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned int *level)
{
    CALL("nvmlDeviceGetTopologyCommonAncestor", pair_number(first, second, "common_ancestor", level), "gpu=%d peer=%d",
         gpu_number(first), gpu_number(second));
}

EXPORT int nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, unsigned int index, unsigned int *status)
{
    static const char *const names[] = {"p2p.read", "p2p.write", "p2p.nvlink", "p2p.atomics", "p2p.pci"};
    CALL("nvmlDeviceGetP2PStatus",
         index < 5 ? pair_number(first, second, names[index], status) : NVML_ERROR_INVALID_ARGUMENT,
         "gpu=%d peer=%d index=%u", gpu_number(first), gpu_number(second), index);
}
