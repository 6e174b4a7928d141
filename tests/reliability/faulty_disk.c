/*
 * Preloaded before the C library, this stands between a process and its disk:
 *
 * - a chosen fsync or fdatasync fails (faulty_disk_fail), or all of them do nothing (FAULTY_DISK_SKIPS_SYNCS=1);
 * - what is written to the files of a directory, and what is synced, is recorded in order (faulty_disk_record).
 *
 * For a process of one thread.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define DESCRIPTORS 1024

static int syncs, fail_at, fail_ever_since, fail_with;
static int skips_syncs = -1;

static int record = -1;
static char under[4096];
static char *names[DESCRIPTORS];

/* A line of the record: kind, lengths, offset, then the name and the data. */
struct line {
    uint8_t kind; /* c create, w write, t truncate, u unlink, m mkdir, s sync, f sync that failed, a acknowledged */
    uint8_t padding[3];
    uint32_t name_length;
    int64_t offset;
    int64_t length;
};

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static void put(const void *data, size_t length)
{
    for (const char *at = data; length;) {
        ssize_t done = syscall(SYS_write, record, at, length);
        if (done <= 0)
            abort();
        at += done;
        length -= done;
    }
}

static void note(char kind, const char *name, int64_t offset, const void *data, int64_t length)
{
    struct line line = {kind, {0}, strlen(name), offset, length};
    put(&line, sizeof line);
    put(name, line.name_length);
    if (data)
        put(data, length);
}

static int concerns(const char *name)
{
    size_t length = strlen(under);
    if (record < 0 || strncmp(name, under, length))
        return 0;
    length = strlen(name);
    return length < 4 || strcmp(name + length - 4, "-shm");
}

static const char *name_of(int descriptor)
{
    return record >= 0 && descriptor >= 0 && descriptor < DESCRIPTORS ? names[descriptor] : NULL;
}

/* What the test calls */

int faulty_disk_syncs(void) { return syncs; }

void faulty_disk_fail(int number, int ever_since, int error)
{
    syncs = 0;
    fail_at = number;
    fail_ever_since = ever_since;
    fail_with = error;
}

void faulty_disk_record(const char *file, const char *directory)
{
    strncpy(under, directory, sizeof under - 1);
    record = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND, 0600);
}

void faulty_disk_acknowledge(int64_t number) { note('a', "", number, NULL, 0); }

/* What stands before the C library's own */

static int opened(int descriptor, const char *name, int flags, int existed)
{
    if (descriptor >= 0 && descriptor < DESCRIPTORS) {
        free(names[descriptor]);
        names[descriptor] = concerns(name) ? strdup(name) : NULL;
        if (names[descriptor] && (flags & O_CREAT) && !existed)
            note('c', name, 0, NULL, 0);
    }
    return descriptor;
}

static int exists(const char *name)
{
    struct stat found;
    return fstatat(AT_FDCWD, name, &found, 0) == 0;
}

#define OPEN(FUNCTION)                                                                             \
    int FUNCTION(const char *name, int flags, ...)                                                 \
    {                                                                                              \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;                          \
        va_end(rest);                                                                              \
        int existed = (flags & O_CREAT) && exists(name);                                           \
        int descriptor = ((int (*)(const char *, int, ...))next(#FUNCTION))(name, flags, mode);    \
        return opened(descriptor, name, flags, existed);                                           \
    }
OPEN(open)
OPEN(open64)

int mknod(const char *name, mode_t mode, dev_t device)
{
    int done = ((int (*)(const char *, mode_t, dev_t))next("mknod"))(name, mode, device);
    if (!done && concerns(name))
        note('c', name, 0, NULL, 0);
    return done;
}

int close(int descriptor)
{
    if (descriptor >= 0 && descriptor < DESCRIPTORS) {
        free(names[descriptor]);
        names[descriptor] = NULL;
    }
    return ((int (*)(int))next("close"))(descriptor);
}

#define PWRITE(FUNCTION, OFFSET)                                                                   \
    ssize_t FUNCTION(int descriptor, const void *data, size_t length, OFFSET offset)               \
    {                                                                                              \
        ssize_t done =                                                                             \
            ((ssize_t(*)(int, const void *, size_t, OFFSET))next(#FUNCTION))(descriptor, data, length, offset); \
        if (done > 0 && name_of(descriptor))                                                       \
            note('w', name_of(descriptor), offset, data, done);                                    \
        return done;                                                                               \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t write(int descriptor, const void *data, size_t length)
{
    int64_t offset = name_of(descriptor) ? lseek(descriptor, 0, SEEK_CUR) : 0;
    ssize_t done = ((ssize_t(*)(int, const void *, size_t))next("write"))(descriptor, data, length);
    if (done > 0 && name_of(descriptor))
        note('w', name_of(descriptor), offset, data, done);
    return done;
}

#define TRUNCATE(FUNCTION, LENGTH)                                                                 \
    int FUNCTION(int descriptor, LENGTH length)                                                    \
    {                                                                                              \
        int done = ((int (*)(int, LENGTH))next(#FUNCTION))(descriptor, length);                    \
        if (done == 0 && name_of(descriptor))                                                      \
            note('t', name_of(descriptor), length, NULL, 0);                                       \
        return done;                                                                               \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int unlink(const char *name)
{
    int done = ((int (*)(const char *))next("unlink"))(name);
    if (done == 0 && concerns(name))
        note('u', name, 0, NULL, 0);
    return done;
}

int mkdir(const char *name, mode_t mode)
{
    int done = ((int (*)(const char *, mode_t))next("mkdir"))(name, mode);
    if (done == 0 && concerns(name))
        note('m', name, 0, NULL, 0);
    return done;
}

static int synced(const char *function, int descriptor)
{
    syncs++;
    if (fail_at && (syncs == fail_at || (fail_ever_since && syncs > fail_at))) {
        if (name_of(descriptor))
            note('f', name_of(descriptor), 0, NULL, 0);
        errno = fail_with;
        return -1;
    }
    if (skips_syncs < 0)
        skips_syncs = getenv("FAULTY_DISK_SKIPS_SYNCS") != NULL;
    if (skips_syncs)
        return 0;
    int done = ((int (*)(int))next(function))(descriptor);
    if (done == 0 && name_of(descriptor))
        note('s', name_of(descriptor), 0, NULL, 0);
    return done;
}

int fsync(int descriptor) { return synced("fsync", descriptor); }
int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }
