/* NVML's functions that fill structures, and those on links and pairs. */
#include "libnvml.h"

#include <stdlib.h>
#include <string.h>

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

static int bar1(nvmlDevice_t device, nvmlBAR1Memory_t *info)
{
    *info = (nvmlBAR1Memory_t){0};
    TRY(get_number(device, "bar1_total", &info->bar1Total));
    info->bar1Free = info->bar1Total;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *info)
{
    CALL("nvmlDeviceGetBAR1MemoryInfo", bar1(device, info), "gpu=%d", gpu_number(device));
}

/* Every GPU is as busy as another. */
static int utilization(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    *rates = (nvmlUtilization_t){.gpu = 97, .memory = 12};
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    CALL("nvmlDeviceGetUtilizationRates", utilization(device, rates), "gpu=%d", gpu_number(device));
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

static int sram_status(nvmlDevice_t device, nvmlEccSramErrorStatus_v1_t *status)
{
    if (status->version != 0x1000068)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(status->counts, 0, sizeof status->counts);
    return get_int(device, "sram_threshold_exceeded", &status->bThresholdExceeded);
}

EXPORT int nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_v1_t *status)
{
    CALL("nvmlDeviceGetSramEccErrorStatus", sram_status(device, status), "gpu=%d", gpu_number(device));
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

/* The types and ids of cliques, as "0:5,1:7"; a driver without the answer is too old for version 4. */
static int fabric_info_v4(nvmlDevice_t device, nvmlGpuFabricInfo_v4_t *info)
{
    int gpu, length;
    unsigned int type;
    TRY(gpu_of(device, &gpu));
    const char *cliques = answer("gpu.%d.nvml.fabric.cliques", gpu);
    if (!cliques)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    memset(info, 0, sizeof *info);
    for (; sscanf(cliques, "%u:%u%n", &type, &info->cliques[info->numCliques].id, &length) == 2; cliques += length) {
        info->cliques[info->numCliques++].type = (unsigned char)type;
        length += cliques[length] == ',';
    }
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetGpuFabricInfo_v4(nvmlDevice_t device, nvmlGpuFabricInfo_v4_t *info)
{
    CALL("nvmlDeviceGetGpuFabricInfo_v4", fabric_info_v4(device, info), "gpu=%d", gpu_number(device));
}

static int platform_info(nvmlDevice_t device, nvmlPlatformInfo_t *info)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    TRY(answer_error(answer("gpu.%d.nvml.platform", gpu)));
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

static const unsigned ALL_LINKS = 0xffffffff;

enum { KIB = 1024 };

/* Counters of bytes: NVLink's older ones in KiB and newer ones in bytes, PCIe's in bytes modulo 2^32.
   EGMCTL_FAKE_COUNTERS says which of NVLink's answer: "newer" or "both", else the older ones; with "links" not for all
   links together but for each, and the first link carries everything; with "apart" the newer ones count twice. */
static bool byte_counter(int gpu, const nvmlFieldValue_t *value, unsigned long long *count)
{
    const struct traffic *traffic = traffic_of(gpu);
    if (!traffic)
        return false;
    const char *which = getenv("EGMCTL_FAKE_COUNTERS");
    bool newer = strstr(which, "newer"), both = strstr(which, "both"), links = strstr(which, "links");
    bool scope = links ? value->scopeId < 18 : value->scopeId == ALL_LINKS;
    unsigned long long times = links && value->scopeId ? 0 : strstr(which, "apart") ? 2 : 1;
    switch (value->fieldId) {
    case 138:
        *count = traffic->nvlink_sent / KIB * (times > 0);
        return scope && !newer;
    case 139:
        *count = traffic->nvlink_received / KIB * (times > 0);
        return scope && !newer;
    case 202:
        *count = traffic->nvlink_sent * times;
        return scope && (newer || both);
    case 204:
        *count = traffic->nvlink_received * times;
        return scope && (newer || both);
    case 197:
        *count = (uint32_t)traffic->pcie_sent;
        return true;
    case 198:
        *count = (uint32_t)traffic->pcie_received;
        return true;
    default:
        return false;
    }
}

/* A field without a scope is answered by the key with scope 0. */
static int field_values(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    for (int i = 0; i < count; ++i) {
        const char *text = answer("gpu.%d.field.%u.%u", gpu, values[i].fieldId, values[i].scopeId);
        values[i].timestamp = values[i].latencyUsec = 0;
        values[i].nvmlReturn = (unsigned)answer_error(text);
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        values[i].value.ullVal = values[i].nvmlReturn ? 0 : strtoull(text, NULL, 10);
        unsigned long long count;
        if (byte_counter(gpu, &values[i], &count)) {
            values[i].nvmlReturn = NVML_SUCCESS;
            values[i].value.ullVal = count;
        }
        char name[32];
        snprintf(name, sizeof name, "nvmlField%u", values[i].fieldId);
        struct fault fault = fault_for_call(name, gpu);
        if (fault.action == FAULT_ERROR)
            values[i].nvmlReturn = (unsigned)fault.argument;
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

static int bandwidth_mode(nvmlDevice_t device, nvmlNvlinkGetBwMode_t *mode)
{
    unsigned int packed;
    if (mode->version != 0x100000c)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(get_int(device, "bw_mode", &packed));
    TRY(get_int(device, "bw_mode_best", &mode->bIsBest));
    mode->bwMode = (unsigned char)packed;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetNvlinkBwMode(nvmlDevice_t device, nvmlNvlinkGetBwMode_t *mode)
{
    CALL("nvmlDeviceGetNvlinkBwMode", bandwidth_mode(device, mode), "gpu=%d", gpu_number(device));
}

/* Profiles above 31 are not answered. */
static int power_profiles(nvmlDevice_t device, nvmlWorkloadPowerProfileCurrentProfiles_t *profiles)
{
    return profiles->version == 0x1000064 ? get_int(device, "power_profiles", &profiles->enforced[0])
                                          : NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

EXPORT int nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(nvmlDevice_t device,
                                                            nvmlWorkloadPowerProfileCurrentProfiles_t *profiles)
{
    CALL("nvmlDeviceWorkloadPowerProfileGetCurrentProfiles", power_profiles(device, profiles), "gpu=%d",
         gpu_number(device));
}

/* --- NVLink ------------------------------------------------------------------------------------------------------- */

static int link_number(nvmlDevice_t device, unsigned int link, const char *name, unsigned int *value)
{
    int gpu;
    TRY(gpu_of(device, &gpu));
    const char *text = answer("gpu.%d.nvlink.%u.%s", gpu, link, name);
    TRY(answer_error(text));
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
    TRY(answer_error(text));
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
    TRY(answer_error(text));
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
