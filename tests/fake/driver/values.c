/* Stream memory operations: a stream waits for a word, or writes one. */
#include "libcuda.h"

enum { GREATER_OR_EQUAL = 0, EQUAL = 1, AND = 2, NOR = 3 };

struct value_operation {
    struct operation operation;
    uintptr_t address;
    uint64_t value;
    size_t width;
    unsigned int flags;
};

static uint64_t load(const void *word, size_t width)
{
    return width == 4 ? *(const volatile uint32_t *)word : *(const volatile uint64_t *)word;
}

static bool is_reached(uint64_t word, const struct value_operation *wait)
{
    switch (wait->flags & 3) {
    case GREATER_OR_EQUAL:
        return wait->width == 4 ? (int32_t)(word - wait->value) >= 0 : (int64_t)(word - wait->value) >= 0;
    case EQUAL:
        return word == wait->value;
    case AND:
        return (word & wait->value) != 0;
    default:
        return ~(word | wait->value) != 0;
    }
}

static int run_wait(struct operation *operation, struct stream *stream, double *seconds)
{
    const struct value_operation *wait = (const struct value_operation *)operation;
    const void *word = kernel_pointer(stream_context(stream)->gpu, wait->address, wait->width, READ);
    (void)seconds;
    if (!word)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (!is_reached(load(word, wait->width), wait))
        return OPERATION_BLOCKED;
    stream_reach_host(stream);
    return 0;
}

static int run_write(struct operation *operation, struct stream *stream, double *seconds)
{
    const struct value_operation *write = (const struct value_operation *)operation;
    void *word = kernel_pointer(stream_context(stream)->gpu, write->address, write->width, WRITE);
    (void)seconds;
    copies_forget();
    if (!word)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (write->width == 4)
        *(volatile uint32_t *)word = (uint32_t)write->value;
    else
        *(volatile uint64_t *)word = write->value;
    return 0;
}

static int add(CUstream handle, CUdeviceptr address, uint64_t value, size_t width, unsigned int flags,
               int (*run)(struct operation *, struct stream *, double *))
{
    struct stream *stream;
    TRY(stream_find(handle, &stream));
    if (address % width || !address_is_known(address, width))
        return CUDA_ERROR_INVALID_VALUE;
    struct value_operation *operation = operation_new(sizeof *operation, run);
    operation->address = address;
    operation->value = value;
    operation->width = width;
    operation->flags = flags;
    stream_add(stream, operation);
    return 0;
}

#define VALUE_OPERATION(name, type, run)                                                                               \
    EXPORT CUresult name##_v2(CUstream stream, CUdeviceptr address, type value, unsigned int flags)                    \
    {                                                                                                                  \
        CALL(#name, add(stream, address, value, sizeof value, flags, run),                                             \
             "address=0x%llx value=%llu flags=%u stream=%p", address, (unsigned long long)value, flags,                \
             (void *)stream);                                                                                          \
    }

VALUE_OPERATION(cuStreamWaitValue32, uint32_t, run_wait)
VALUE_OPERATION(cuStreamWaitValue64, uint64_t, run_wait)
VALUE_OPERATION(cuStreamWriteValue32, uint32_t, run_write)
VALUE_OPERATION(cuStreamWriteValue64, uint64_t, run_write)
