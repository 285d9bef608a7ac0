/* NVML's functions that tell one value each. */
#include "libnvml.h"

#include <stdlib.h>
#include <string.h>

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
    TRY(answer_error(text));
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
TEXT(nvmlDeviceGetInforomImageVersion, "inforom_image")

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
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default")
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
VERSIONED(nvmlDeviceGetNvLinkInfo, "nvlink_encryption")

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
