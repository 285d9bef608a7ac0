/* cuInit and what the driver says of devices and pairs. */
#include "libcuda.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_initialised;
static int visible[MAX_GPUS];
static int visible_count;

int initialised(void)
{
    return is_initialised ? 0 : CUDA_ERROR_NOT_INITIALIZED;
}

int device_count(void)
{
    return visible_count;
}

bool device_exists(CUdevice device)
{
    return device >= 0 && device < visible_count;
}

int device_gpu(CUdevice device)
{
    return visible[device];
}

static int gpu_count(void)
{
    return (int)answer_number(0, "gpu.count");
}

const char *gpu_bus_id(int gpu)
{
    return answer("gpu.%d.bus_id", gpu);
}

int gpu_by_bus_id(const char *bus_id)
{
    for (int gpu = 0; gpu < gpu_count(); ++gpu)
        if (!strcasecmp(gpu_bus_id(gpu), bus_id))
            return gpu;
    return -1;
}

bool gpu_is_accessible(int gpu)
{
    return gpu_opens(gpu);
}

int gpu_attribute(int gpu, int attribute, int otherwise)
{
    return (int)answer_number(otherwise, "gpu.%d.attribute.%d", gpu, attribute);
}

bool gpu_may_reach(int gpu, int peer)
{
    return gpu != peer && answer_number(0, "pair.%d.%d.can_access_peer", gpu, peer);
}

static int by_bus_id(const void *a, const void *b)
{
    return strcmp(gpu_bus_id(*(const int *)a), gpu_bus_id(*(const int *)b));
}

/* The place in `visible` that an entry of CUDA_VISIBLE_DEVICES names, -1 if none. */
static int find_entry(const char *text, const int *gpus, int count)
{
    if (isdigit((unsigned char)*text)) {
        char *end;
        long number = strtol(text, &end, 10);
        return !*end && number < count ? (int)number : -1;
    }
    for (int i = 0; *text && i < count; ++i) {
        const char *uuid = answer("gpu.%d.uuid", gpus[i]);
        if (uuid && !strncmp(uuid, text, strlen(text)))
            return i;
    }
    return -1;
}

/* An invalid entry hides the devices after it, a repeated one hides them all (CUDA C++ Programming Guide, "CUDA
 * Environment Variables"). */
static void apply_visible_devices(const char *list)
{
    int all[MAX_GPUS], count = visible_count;
    memcpy(all, visible, sizeof all);
    visible_count = 0;
    char *copy = strdup(list), *rest = copy, *text;
    while ((text = strsep(&rest, ","))) {
        while (isspace((unsigned char)*text))
            ++text;
        int place = find_entry(text, all, count);
        if (place < 0)
            break;
        for (int i = 0; i < visible_count; ++i)
            if (visible[i] == all[place]) {
                visible_count = 0;
                free(copy);
                return;
            }
        visible[visible_count++] = all[place];
    }
    free(copy);
}

static int init(unsigned int flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_initialised)
        return 0;
    TRY((int)answer_number(0, "cuda.error"));
    /* As measured on H200. */
    if (!node_opens("nvidiactl"))
        return CUDA_ERROR_NO_DEVICE;
    if (!node_opens("nvidia-uvm"))
        return CUDA_ERROR_UNKNOWN;
    for (int gpu = 0; gpu < gpu_count(); ++gpu)
        if (gpu_is_accessible(gpu) && answer_number(0, "gpu.%d.cuda", gpu))
            visible[visible_count++] = gpu;
    const char *order = getenv("CUDA_DEVICE_ORDER"), *list = getenv("CUDA_VISIBLE_DEVICES");
    if (order && !strcmp(order, "PCI_BUS_ID"))
        qsort(visible, (size_t)visible_count, sizeof *visible, by_bus_id);
    if (list)
        apply_visible_devices(list);
    if (!visible_count)
        return CUDA_ERROR_NO_DEVICE;
    is_initialised = true;
    return 0;
}

static int check_device(CUdevice device)
{
    TRY(initialised());
    return device_exists(device) ? 0 : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuInit(unsigned int flags)
{
    CALL("cuInit", init(flags), "devices=%d", visible_count);
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    CALL("cuDriverGetVersion", (*version = (int)answer_number(0, "cuda.version"), 0), "%s", "");
}

static int get_count(int *count)
{
    TRY(initialised());
    *count = visible_count;
    return 0;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    CALL("cuDeviceGetCount", get_count(count), "%s", "");
}

static int get_device(CUdevice *device, int ordinal)
{
    TRY(check_device(ordinal));
    *device = ordinal;
    return 0;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CALL("cuDeviceGet", get_device(device, ordinal), "ordinal=%d", ordinal);
}

static int get_name(char *name, int length, CUdevice device)
{
    TRY(check_device(device));
    const char *text = answer("gpu.%d.name", device_gpu(device));
    if (length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", text ? text : "FAKE GPU");
    return 0;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    CALL("cuDeviceGetName", get_name(name, length, device), "device=%d", device);
}

static int get_uuid(CUuuid *uuid, CUdevice device)
{
    TRY(check_device(device));
    const char *text = answer("gpu.%d.uuid", device_gpu(device));
    memset(uuid, 0, sizeof *uuid);
    if (!text)
        return 0;
    if (!strncmp(text, "GPU-", 4))
        text += 4;
    for (int i = 0; i < 16; ++i) {
        while (*text == '-')
            ++text;
        unsigned int byte;
        if (sscanf(text, "%2x", &byte) != 1)
            break;
        uuid->bytes[i] = (unsigned char)byte;
        text += 2;
    }
    return 0;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CALL("cuDeviceGetUuid", get_uuid(uuid, device), "device=%d", device);
}

static int attribute_answer(int *value, const char *text)
{
    /* What drivers say of an attribute that is newer than themselves. */
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    if (text[0] == '!')
        return atoi(text + 1);
    *value = atoi(text);
    return 0;
}

static int get_attribute(int *value, int attribute, CUdevice device)
{
    TRY(check_device(device));
    return attribute_answer(value, answer("gpu.%d.attribute.%d", device_gpu(device), attribute));
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    CALL("cuDeviceGetAttribute", get_attribute(value, attribute, device), "attribute=%d device=%d", attribute, device);
}

static int total_memory(size_t *bytes, CUdevice device)
{
    TRY(check_device(device));
    *bytes = memory_total(device_gpu(device));
    return 0;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CALL("cuDeviceTotalMem", total_memory(bytes, device), "device=%d", device);
}

static int get_bus_id(char *text, int length, CUdevice device)
{
    TRY(check_device(device));
    const char *bus_id = gpu_bus_id(device_gpu(device));
    if (length <= (int)strlen(bus_id))
        return CUDA_ERROR_INVALID_VALUE;
    do
        *text++ = (char)toupper((unsigned char)*bus_id);
    while (*bus_id++);
    return 0;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    CALL("cuDeviceGetPCIBusId", get_bus_id(text, length, device), "device=%d", device);
}

static int by_pci_bus_id(CUdevice *device, const char *text)
{
    TRY(initialised());
    for (int i = 0; i < visible_count; ++i)
        if (!strcasecmp(gpu_bus_id(visible[i]), text)) {
            *device = i;
            return 0;
        }
    return gpu_by_bus_id(text) < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    CALL("cuDeviceGetByPCIBusId", by_pci_bus_id(device, text), "bus_id=%s", text);
}

static int can_access_peer(int *can, CUdevice device, CUdevice peer)
{
    TRY(check_device(device));
    TRY(check_device(peer));
    *can = gpu_may_reach(device_gpu(device), device_gpu(peer));
    return 0;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CALL("cuDeviceCanAccessPeer", can_access_peer(can, device, peer), "device=%d peer=%d", device, peer);
}

enum { ATOMIC_OPERATIONS = 13 };

static int atomics(unsigned int *found, const int *operations, unsigned int count, const char *prefix)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; ++i) {
        if (operations[i] < 0 || operations[i] >= ATOMIC_OPERATIONS)
            return CUDA_ERROR_INVALID_VALUE;
        found[i] = (unsigned int)answer_number(0, "%s.atomic.%d", prefix, operations[i]);
    }
    return 0;
}

static int get_host_atomics(unsigned int *found, const int *operations, unsigned int count, CUdevice device)
{
    char prefix[32];
    TRY(check_device(device));
    snprintf(prefix, sizeof prefix, "gpu.%d", device_gpu(device));
    return atomics(found, operations, count, prefix);
}

EXPORT CUresult cuDeviceGetHostAtomicCapabilities(unsigned int *found, const int *operations, unsigned int count,
                                                  CUdevice device)
{
    CALL("cuDeviceGetHostAtomicCapabilities", get_host_atomics(found, operations, count, device), "device=%d", device);
}

static int get_p2p_atomics(unsigned int *found, const int *operations, unsigned int count, CUdevice device,
                           CUdevice peer)
{
    char prefix[32];
    TRY(check_device(device));
    TRY(check_device(peer));
    if (device == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(prefix, sizeof prefix, "pair.%d.%d", device_gpu(device), device_gpu(peer));
    return atomics(found, operations, count, prefix);
}

EXPORT CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int *found, const int *operations, unsigned int count,
                                                 CUdevice device, CUdevice peer)
{
    CALL("cuDeviceGetP2PAtomicCapabilities", get_p2p_atomics(found, operations, count, device, peer),
         "device=%d peer=%d", device, peer);
}

static int get_p2p_attribute(int *value, int attribute, CUdevice device, CUdevice peer)
{
    TRY(check_device(device));
    TRY(check_device(peer));
    if (device == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    return attribute_answer(value,
                            answer("pair.%d.%d.attribute.%d", device_gpu(device), device_gpu(peer), attribute));
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer)
{
    CALL("cuDeviceGetP2PAttribute", get_p2p_attribute(value, attribute, device, peer),
         "attribute=%d device=%d peer=%d", attribute, device, peer);
}
