/* The structures of NVML that the fake needs, with the layout of nvml.h (as in pynvml.py of nvidia-ml-py). */
#ifndef EGMCTL_NVML_ABI_H
#define EGMCTL_NVML_ABI_H

#include <stdint.h>

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

typedef struct device *nvmlDevice_t; /* the machine's number of the GPU + 1 */

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned long long bar1Total;
    unsigned long long bar1Free;
    unsigned long long bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
    unsigned int gpu, memory; /* per cent of the time */
} nvmlUtilization_t;

typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned int valueType, nvmlReturn;
    union {
        double dVal;
        unsigned int uiVal;
        unsigned long long ullVal;
    } value;
} nvmlFieldValue_t;

enum { NVML_VALUE_TYPE_UNSIGNED_INT = 1, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3 };

typedef struct {
    unsigned int version; /* version 1 has none */
    unsigned char clusterUuid[16];
    unsigned int status, cliqueId, state, healthMask;
    unsigned char healthSummary; /* from version 3 */
} nvmlGpuFabricInfoV_t;

typedef struct {
    unsigned char clusterUuid[16];
    unsigned int status;
    struct {
        unsigned char type;
        unsigned int id;
    } cliques[64];
    unsigned int numCliques;
    unsigned char state;
    unsigned int healthMask;
    unsigned char healthSummary;
} nvmlGpuFabricInfo_v4_t;

typedef struct {
    unsigned int version;
    unsigned char ibGuid[16], chassisSerialNumber[16];
    unsigned char slotNumber, trayIndex, hostId, peerType, moduleId;
} nvmlPlatformInfo_t;

typedef struct {
    unsigned int version, value;
} nvmlVersionedValue_t; /* nvmlDeviceCapabilities_v1_t, nvmlDeviceAddressingMode_v1_t, nvmlNvLinkInfo_v1_t */

typedef struct {
    unsigned int version, environment, ccFeature, devToolsMode, multiGpuMode;
} nvmlSystemConfComputeSettings_t;

typedef struct {
    unsigned int version;
    unsigned long long counts[11];
    unsigned int bThresholdExceeded;
} nvmlEccSramErrorStatus_v1_t;

typedef struct {
    unsigned int version, sensorType;
    int temperature;
} nvmlTemperature_v1_t;

typedef struct {
    unsigned int version, bIsBest;
    unsigned char bwMode;
} nvmlNvlinkGetBwMode_t;

typedef struct {
    unsigned int version, profiles[8], requested[8], enforced[8];
} nvmlWorkloadPowerProfileCurrentProfiles_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(nvmlBAR1Memory_t) == 24, "nvmlBAR1Memory_t");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(nvmlGpuFabricInfoV_t) == 40, "nvmlGpuFabricInfo_v3_t");
_Static_assert(sizeof(nvmlGpuFabricInfo_v4_t) == 548, "nvmlGpuFabricInfo_v4_t");
_Static_assert(sizeof(nvmlPlatformInfo_t) == 44, "nvmlPlatformInfo_v2_t");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "nvmlProcessInfo_v2_t");
_Static_assert(sizeof(nvmlNvlinkGetBwMode_t) == 12, "nvmlNvlinkGetBwMode_v1_t");
_Static_assert(sizeof(nvmlWorkloadPowerProfileCurrentProfiles_t) == 100, "nvmlWorkloadPowerProfileCurrentProfiles_v1_t");

#endif
