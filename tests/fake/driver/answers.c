/* The answers file: what the machine file says, flattened by tests/fake/answers.py to sorted "key = value" lines. */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct line {
    const char *key, *value;
};

static struct line *lines;
static size_t line_count;

static char *read_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0)
        fake_abort("EGMCTL_FAKE_ANSWERS: cannot read %s", path);
    char *text = malloc((size_t)status.st_size + 1);
    ssize_t size = read(fd, text, (size_t)status.st_size);
    if (size != status.st_size)
        fake_abort("EGMCTL_FAKE_ANSWERS: cannot read all of %s", path);
    text[size] = 0;
    close(fd);
    return text;
}

__attribute__((constructor)) static void load(void)
{
    const char *path = getenv("EGMCTL_FAKE_ANSWERS");
    if (!path)
        fake_abort("EGMCTL_FAKE_ANSWERS is not set: the fake driver has no machine to describe");
    char *rest = read_file(path), *text;
    while ((text = strsep(&rest, "\n"))) {
        char *separator = strstr(text, " = ");
        if (!separator)
            continue;
        *separator = 0;
        if (line_count % 1024 == 0)
            lines = realloc(lines, (line_count + 1024) * sizeof *lines);
        lines[line_count++] = (struct line){text, separator + 3};
    }
    if (answer_number(0, "gpu.count") > MAX_GPUS)
        fake_abort("more than %d GPUs", MAX_GPUS);
}

static int compare(const void *key, const void *line)
{
    return strcmp(key, ((const struct line *)line)->key);
}

static const char *find(const char *key, va_list arguments)
{
    char text[128];
    vsnprintf(text, sizeof text, key, arguments);
    const struct line *found = bsearch(text, lines, line_count, sizeof *lines, compare);
    return found ? found->value : NULL;
}

const char *answer(const char *key, ...)
{
    va_list arguments;
    va_start(arguments, key);
    const char *text = find(key, arguments);
    va_end(arguments);
    return text;
}

bool node_opens(const char *name)
{
    const char *root = getenv("EGMCTL_FAKE_NODES");
    char path[4096];
    if (!root)
        return true;
    snprintf(path, sizeof path, "%s/dev/%s", root, name);
    struct stat status;
    int number;
    if (stat(path, &status) < 0 || !S_ISCHR(status.st_mode) || major(status.st_rdev) == 1)
        return false;
    if (sscanf(name, "nvidia%d", &number) == 1 && (int)minor(status.st_rdev) != number)
        return false;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0)
        close(fd);
    /* A node that may be opened and has no driver behind it says ENXIO. */
    return fd >= 0 || errno == ENXIO;
}

bool gpu_opens(int gpu)
{
    char name[32];
    snprintf(name, sizeof name, "nvidia%lld", answer_number(gpu, "gpu.%d.nvml.minor", gpu));
    return answer_number(1, "gpu.%d.accessible", gpu) && node_opens(name);
}

long long answer_number(long long otherwise, const char *key, ...)
{
    va_list arguments;
    va_start(arguments, key);
    const char *text = find(key, arguments);
    va_end(arguments);
    return text ? strtoll(text, NULL, 10) : otherwise;
}
