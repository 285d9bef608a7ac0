/* How the bindings find functions: cuGetProcAddress by name and by the CUDA version in which it got its present form. */
#include "libcuda.h"

#include <dlfcn.h>
#include <string.h>

/* The name and version that a symbol with a suffix stands for is its newest form, but for these. */
static const struct {
    const char *name;
    int version;
    const char *symbol; /* NULL: a form that the fake does not have */
} exceptions[] = {
    {"cuCtxCreate", 3020, "cuCtxCreate_v2"},
    {"cuCtxCreate", 11040, NULL},
    {"cuCtxGetDevice", 13000, NULL},
    {"cuCtxSynchronize", 13000, NULL},
};

static void *self(void)
{
    static void *handle;
    Dl_info info;
    if (!handle && dladdr((void *)self, &info))
        handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return handle;
}

static void *find(const char *name, int version)
{
    static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""};
    for (size_t i = 0; i < sizeof exceptions / sizeof *exceptions; ++i)
        if (!strcmp(name, exceptions[i].name) && version == exceptions[i].version)
            return exceptions[i].symbol ? dlsym(self(), exceptions[i].symbol) : NULL;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; ++i) {
        char symbol[128];
        snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[i]);
        void *function = dlsym(self(), symbol);
        if (function)
            return function;
    }
    return NULL;
}

/* Not in the call log: the bindings ask for some 500 functions. */
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    enum { FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT };
    bool too_old = version > answer_number(0, "cuda.version");
    (void)flags;
    *function = too_old || fault_is_missing(name) ? NULL : find(name, version);
    if (status)
        *status = *function ? FOUND : too_old ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* NVRTC looks here, in private tables, for what the driver can do, and copes without. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)id;
    CALL("cuGetExportTable", (*table = NULL, CUDA_ERROR_NOT_FOUND), "%s", "");
}

/* The end of CUDA's error log: the last failed call, and before it the reason that a real driver gives where one was
 * seen (H200, driver 580.159.04). Not in the call log: egmctl asks after each failed call. */
EXPORT CUresult cuLogsDumpToMemory(void *iterator, char *buffer, size_t *size, unsigned flags)
{
    static const struct {
        const char *name;
        int result;
        const char *reason;
    } reasons[] = {
        {"cuMemCreate", CUDA_ERROR_NOT_PERMITTED, "Failed to allocate physical memory"},
        {"cuIpcGetMemHandle", CUDA_ERROR_INVALID_VALUE,
         "Cannot get mem handle because allocation not created from malloc API function"},
    };
    struct failed_call last = call_last_failed();
    size_t room = *size;
    (void)iterator, (void)flags;
    *size = 0;
    for (size_t i = 0; last.name && i < sizeof reasons / sizeof *reasons; ++i)
        if (!strcmp(last.name, reasons[i].name) && last.result == reasons[i].result)
            *size += (size_t)snprintf(buffer, room, "[01:02:03.456][%lu][CUDA][E] %s\n", last.thread, reasons[i].reason);
    if (last.name)
        *size += (size_t)snprintf(buffer + *size, room - *size, "[01:02:03.456][%lu][CUDA][E] Returning %d (CUDA_ERROR) from %s_v2\n",
                                  last.thread, last.result, last.name);
    return CUDA_SUCCESS;
}
