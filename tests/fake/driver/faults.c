/* The fault plan: EGMCTL_FAKE_FAULTS is "<call>[#<gpu>][@<n>]=<action>[,once]" entries with ";" between them.
 *
 * <call>   name without a version suffix: cuMemAlloc also means cuMemAlloc_v2; nvmlInit also means nvmlInitWithFlags.
 *          nvmlField91 is the answer for one field value, 91 here, of nvmlDeviceGetFieldValues.
 * #<gpu>   calls of NVML about that GPU, from 0 in the order of the machine file; without it about any.
 * @<n>     the nth call in a process, from 1; without it every call.
 * <action> error:<code>      return the code, do nothing
 *          hang              never return
 *          exit:<status>     end the process at once
 *          abort             SIGABRT
 *          kill:<signal>     that signal
 *          corrupt:<offset>  do it, then damage the byte at this offset of the data it moved or wrote
 *          answer:<number>   do it, then answer this in place of what was measured (cuEventElapsedTime; nan, inf too)
 *          missing           the driver has no such function (for NVML tests/fake/build.py takes the symbol away)
 * once     in the first process that gets there only: needs EGMCTL_FAKE_STATE.
 */
#include "fake.h"

#include <ctype.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct entry {
    const char *call;
    int gpu; /* -1: any */
    long long nth, seen;
    struct fault fault;
    bool once;
};

static struct entry entries[64];
static int entry_count;

static struct fault parse_action(const char *text)
{
    static const struct {
        const char *word;
        int action;
        bool has_argument;
    } words[] = {
        {"error:", FAULT_ERROR, true},     {"hang", FAULT_HANG, false},        {"exit:", FAULT_EXIT, true},
        {"kill:", FAULT_KILL, true},       {"corrupt:", FAULT_CORRUPT, true},  {"missing", FAULT_MISSING, false},
    };
    if (!strcmp(text, "abort"))
        return (struct fault){FAULT_KILL, SIGABRT, 0};
    if (!strncmp(text, "answer:", strlen("answer:")))
        return (struct fault){FAULT_ANSWER, 0, strtod(text + strlen("answer:"), NULL)};
    for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
        size_t length = strlen(words[i].word);
        if (strncmp(text, words[i].word, length))
            continue;
        if (words[i].has_argument ? isdigit((unsigned char)text[length]) : !text[length])
            return (struct fault){words[i].action, words[i].has_argument ? strtoll(text + length, NULL, 0) : 0, 0};
    }
    fake_abort("EGMCTL_FAKE_FAULTS: no such action: %s", text);
}

__attribute__((constructor)) static void parse_plan(void)
{
    const char *plan = getenv("EGMCTL_FAKE_FAULTS");
    char *rest = strdup(plan ? plan : ""), *text;
    while ((text = strsep(&rest, ";"))) {
        while (isspace((unsigned char)*text))
            ++text;
        for (size_t end = strlen(text); end > 0 && isspace((unsigned char)text[end - 1]); --end)
            text[end - 1] = 0;
        if (!*text)
            continue;
        char *action = strchr(text, '=');
        if (!action || entry_count == (int)(sizeof entries / sizeof *entries))
            fake_abort("EGMCTL_FAKE_FAULTS: not an entry, or too many: %s", text);
        *action++ = 0;
        struct entry *entry = &entries[entry_count++];
        char *nth = strchr(text, '@'), *gpu = strchr(text, '#'), *once = strstr(action, ",once");
        if (nth)
            *nth++ = 0;
        if (gpu)
            *gpu++ = 0;
        if (once)
            *once = 0;
        *entry = (struct entry){.call = text, .nth = nth ? strtoll(nth, NULL, 10) : 0, .once = once != NULL};
        entry->gpu = gpu ? atoi(gpu) : -1;
        entry->fault = parse_action(action);
    }
}

/* Whether this process is the first to come to an entry that happens once: the one that makes the file. */
static bool claim(int index)
{
    char path[4096];
    const char *state = getenv("EGMCTL_FAKE_STATE");
    if (!state)
        fake_abort("EGMCTL_FAKE_FAULTS: an entry with \"once\" needs EGMCTL_FAKE_STATE");
    snprintf(path, sizeof path, "%s/fault-%d", state, index);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

bool fault_names_gpus(void)
{
    for (int i = 0; i < entry_count; ++i)
        if (entries[i].gpu >= 0)
            return true;
    return false;
}

struct fault fault_for_call(const char *name, int gpu)
{
    struct fault due = {FAULT_NONE, 0, 0};
    for (int i = 0; i < entry_count; ++i) {
        struct entry *entry = &entries[i];
        bool other = entry->gpu >= 0 && entry->gpu != gpu;
        if (entry->fault.action == FAULT_MISSING || other || strcmp(entry->call, name))
            continue;
        ++entry->seen;
        if (due.action == FAULT_NONE && (!entry->nth || entry->nth == entry->seen) && (!entry->once || claim(i)))
            due = entry->fault;
    }
    return due;
}

bool fault_is_missing(const char *name)
{
    for (int i = 0; i < entry_count; ++i)
        if (entries[i].fault.action == FAULT_MISSING && !strcmp(entries[i].call, name))
            return true;
    return false;
}
