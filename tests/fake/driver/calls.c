/* One exported function's passage: the lock, the fault plan, the call log.
 *
 * The log has one line a call, "<pid> <name> <key=value ...> -> <result>", written with one write(2) on an O_APPEND
 * file, so that the lines of several processes never mix. A result that the fault plan made is followed by
 * " (injected)"; a call that does not return has a word in the place of the result.
 */
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread const struct call *current;
static int log_fd = -1;
static struct failed_call failed;

__attribute__((constructor)) static void open_log(void)
{
    const char *path = getenv("EGMCTL_FAKE_LOG");
    if (path && *path && (log_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)) < 0)
        fake_abort("EGMCTL_FAKE_LOG: cannot write %s", path);
}

static void write_log(const char *line, size_t length)
{
    if (log_fd >= 0 && write(log_fd, line, length) != (ssize_t)length)
        fake_abort("EGMCTL_FAKE_LOG: cannot write");
}

static void log_last_words(const char *name, const char *how)
{
    char line[256];
    int length = snprintf(line, sizeof line, "%d %s -> %s\n", (int)getpid(), name, how);
    write_log(line, (size_t)length);
}

int call_gpu(const char *arguments, ...)
{
    int gpu = -1;
    char text[256];
    va_list list;
    va_start(list, arguments);
    vsnprintf(text, sizeof text, arguments, list);
    va_end(list);
    if (sscanf(text, "gpu=%d", &gpu) != 1)
        sscanf(text, "index=%d", &gpu);
    return gpu;
}

void call_enter(struct call *call)
{
    pthread_mutex_lock(&lock);
    struct fault fault = fault_for_call(call->name, call->gpu);
    call->corrupt = fault.action == FAULT_CORRUPT ? fault.argument : -1;
    call->answers = fault.action == FAULT_ANSWER;
    call->answer = fault.answer;
    call->error = fault.action == FAULT_ERROR ? (int)fault.argument : 0;
    current = call;
    switch (fault.action) {
    case FAULT_HANG:
        log_last_words(call->name, "hang");
        pthread_mutex_unlock(&lock);
        for (;;)
            pause();
    case FAULT_EXIT:
        log_last_words(call->name, "exit");
        _exit((int)fault.argument);
    case FAULT_KILL:
        log_last_words(call->name, "kill");
        signal((int)fault.argument, SIG_DFL);
        raise((int)fault.argument);
        _exit(255);
    default:
        break;
    }
}

int call_leave(const struct call *call, int result, const char *arguments, ...)
{
    if (log_fd >= 0) {
        char line[4096];
        size_t room = sizeof line - 64;
        size_t length = (size_t)snprintf(line, room, "%d %s ", (int)getpid(), call->name);
        va_list list;
        va_start(list, arguments);
        int more = vsnprintf(line + length, room - length, arguments, list);
        va_end(list);
        if (more < 0 || (size_t)more >= room - length)
            fake_abort("%s: its log line is too long", call->name);
        length += (size_t)more;
        if (more > 0)
            line[length++] = ' ';
        length += (size_t)snprintf(line + length, 64, "-> %d%s\n", result, call->error ? " (injected)" : "");
        write_log(line, length);
    }
    if (result && strncmp(call->name, "nvml", 4)) {
        failed.name = call->name;
        failed.result = result;
        failed.thread = (unsigned long)pthread_self();
    }
    current = NULL;
    pthread_mutex_unlock(&lock);
    return result;
}

struct failed_call call_last_failed(void)
{
    pthread_mutex_lock(&lock);
    struct failed_call last = failed;
    pthread_mutex_unlock(&lock);
    return last;
}

void call_wait(void)
{
    pthread_mutex_unlock(&lock);
    usleep(50);
    pthread_mutex_lock(&lock);
}

double real_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void call_sleep(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    if (seconds <= 0)
        return;
    pthread_mutex_unlock(&lock);
    nanosleep(&time, NULL);
    pthread_mutex_lock(&lock);
}

const struct call *call_current(void)
{
    return current;
}

void fake_abort(const char *message, ...)
{
    char line[512];
    va_list list;
    va_start(list, message);
    vsnprintf(line, sizeof line, message, list);
    va_end(list);
    fprintf(stderr, "fake driver: %s\n", line);
    abort();
}
