/* Modules, libraries and launches. Any bytes are a module that holds every kernel of kernels.c. */
#include "libcuda.h"

#include <stdlib.h>
#include <string.h>

struct function {
    const struct kernel *kernel;
    struct module *module;
    struct function *next;
    unsigned int shared_limit;
};

struct module {
    struct function *functions;
    struct module *next;
};

static struct module *modules;

static struct module *module_new(void)
{
    struct module *module = calloc(1, sizeof *module);
    module->next = modules;
    return modules = module;
}

static int load(CUmodule *module, const void *image)
{
    struct context *context;
    TRY(context_current(&context));
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    *module = module_new();
    return 0;
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CALL("cuModuleLoadData", load(module, image), "module=%p", (void *)*module);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
    (void)options, (void)values;
    CALL("cuModuleLoadDataEx", load(module, image), "options=%u module=%p", count, (void *)*module);
}

static int load_library(CUlibrary *library, const void *code)
{
    TRY(initialised());
    if (!code)
        return CUDA_ERROR_INVALID_VALUE;
    *library = module_new();
    return 0;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options, void **jit_values,
                                  unsigned int jit_count, int *options, void **values, unsigned int count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    CALL("cuLibraryLoadData", load_library(library, code), "module=%p", (void *)*library);
}

static int unload(struct module *module)
{
    TRY(initialised());
    struct module **link = &modules;
    while (*link && *link != module)
        link = &(*link)->next;
    if (!*link)
        return CUDA_ERROR_INVALID_HANDLE;
    *link = module->next;
    for (struct function *function; (function = module->functions);) {
        module->functions = function->next;
        free(function);
    }
    free(module);
    return 0;
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    CALL("cuModuleUnload", unload(module), "module=%p", (void *)module);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    CALL("cuLibraryUnload", unload(library), "module=%p", (void *)library);
}

static int get_function(CUfunction *found, struct module *module, const char *name)
{
    const struct kernel *kernel = kernel_find(name);
    TRY(initialised());
    if (!kernel)
        return CUDA_ERROR_NOT_FOUND;
    struct function *function = calloc(1, sizeof *function);
    function->kernel = kernel;
    function->module = module;
    function->shared_limit = 48 * 1024;
    function->next = module->functions;
    *found = module->functions = function;
    return 0;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CALL("cuModuleGetFunction", get_function(function, module, name), "name=%s", name);
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CALL("cuLibraryGetKernel", get_function(kernel, library, name), "name=%s", name);
}

static const struct function *function_find(const struct function *handle)
{
    for (const struct module *module = modules; module; module = module->next)
        for (const struct function *function = module->functions; function; function = function->next)
            if (function == handle)
                return function;
    return NULL;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CALL("cuKernelGetFunction", (*function = kernel, function_find(kernel) ? 0 : CUDA_ERROR_INVALID_HANDLE), "%s", "");
}

static int run_launch(struct operation *operation, struct stream *stream, double *seconds)
{
    struct launch *launch = (struct launch *)operation;
    copies_forget();
    return launch->kernel->run(launch, stream, seconds);
}

/* The limits of every GPU that the tool supports (CUDA C++ Programming Guide, "Compute Capabilities"). */
static int check_shape(const CUlaunchConfig *shape)
{
    unsigned long long threads = (unsigned long long)shape->blockDimX * shape->blockDimY * shape->blockDimZ;
    unsigned long long blocks = (unsigned long long)shape->gridDimX * shape->gridDimY * shape->gridDimZ;
    return threads && blocks && threads <= 1024 && shape->gridDimX < 1ULL << 31 && shape->gridDimY < 65536 &&
                   shape->gridDimZ < 65536
               ? 0
               : CUDA_ERROR_INVALID_VALUE;
}

static int launch(const CUlaunchConfig *shape, CUfunction handle, void **parameters)
{
    struct stream *stream;
    const struct function *function = function_find(handle);
    TRY(stream_find(shape->hStream, &stream));
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(check_shape(shape));
    if (shape->sharedMemBytes > function->shared_limit)
        return CUDA_ERROR_INVALID_VALUE;
    struct launch *launch = operation_new(sizeof *launch, run_launch);
    launch->kernel = function->kernel;
    launch->blocks = shape->gridDimX;
    launch->corrupt = call_current()->corrupt;
    for (int i = 0; i < KERNEL_PARAMETERS && launch->kernel->sizes[i]; ++i)
        memcpy(&launch->arguments[i], parameters[i], launch->kernel->sizes[i]);
    stream_add(stream, launch);
    return 0;
}

/* A kernel's name and arguments, for the log. */
static const char *launch_text(CUfunction handle, void **parameters)
{
    static __thread char text[512];
    const struct function *function = function_find(handle);
    size_t length = (size_t)snprintf(text, sizeof text, "kernel=%s", function ? function->kernel->name : "unknown");
    for (int i = 0; function && parameters && i < KERNEL_PARAMETERS && function->kernel->sizes[i]; ++i) {
        uint64_t value = 0;
        memcpy(&value, parameters[i], function->kernel->sizes[i]);
        length += (size_t)snprintf(text + length, sizeof text - length, " argument%d=0x%llx", i,
                                   (unsigned long long)value);
    }
    return text;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                               unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                               CUstream stream, void **parameters, void **extra)
{
    CUlaunchConfig shape = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, NULL, 0};
    if (extra)
        fake_abort("cuLaunchKernel: arguments in one buffer are not modelled");
    CALL("cuLaunchKernel", launch(&shape, function, parameters), "%s grid=%u,%u,%u block=%u,%u,%u stream=%p",
         launch_text(function, parameters), grid_x, grid_y, grid_z, block_x, block_y, block_z, (void *)stream);
}

/* A kernel may use more than 48 KiB of dynamic shared memory only after this; 227 KiB is what compute capability 9.0 has. */
static int set_attribute(CUfunction handle, int attribute, int value)
{
    enum { MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
    TRY(initialised());
    if (!function_find(handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > 227 * 1024)
        return CUDA_ERROR_INVALID_VALUE;
    handle->shared_limit = (unsigned int)value;
    return 0;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    CALL("cuFuncSetAttribute", set_attribute(function, attribute, value), "attribute=%d value=%d", attribute, value);
}

static int get_attribute(int *value, int attribute, CUfunction handle)
{
    enum { MAX_THREADS_PER_BLOCK = 0, NUM_REGS = 4 };
    TRY(initialised());
    if (!function_find(handle))
        return CUDA_ERROR_INVALID_HANDLE;
    *value = attribute == MAX_THREADS_PER_BLOCK ? 1024 : attribute == NUM_REGS ? 32 : 0;
    return 0;
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    CALL("cuFuncGetAttribute", get_attribute(value, attribute, function), "attribute=%d", attribute);
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size,
                                                            size_t shared)
{
    CALL("cuOccupancyMaxActiveBlocksPerMultiprocessor",
         (*blocks = block_size > 0 && block_size <= 1024 ? 2048 / block_size : 0,
          function_find(function) ? 0 : CUDA_ERROR_INVALID_HANDLE),
         "block_size=%d shared=%zu", block_size, shared);
}
