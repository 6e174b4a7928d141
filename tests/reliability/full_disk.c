/*
 * Preloaded before the C library: writes to the files of a directory fail with an error once they have used up
 * their room. For a process of one thread.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char under[4096];
static long long room;
static int error;

void full_disk_allow(const char *directory, long long bytes, int number)
{
    strncpy(under, directory, sizeof under - 1);
    room = bytes;
    error = number;
}

static int has_no_room(int descriptor, size_t length)
{
    char link[64], name[PATH_MAX];
    if (!under[0])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t found = readlink(link, name, sizeof name - 1);
    if (found < 0)
        return 0;
    name[found] = 0;
    if (strncmp(name, under, strlen(under)))
        return 0;
    if (room < (long long)length) {
        errno = error;
        return 1;
    }
    room -= length;
    return 0;
}

#define PWRITE(FUNCTION, OFFSET)                                                                   \
    ssize_t FUNCTION(int descriptor, const void *data, size_t length, OFFSET offset)               \
    {                                                                                              \
        if (has_no_room(descriptor, length))                                                       \
            return -1;                                                                             \
        return ((ssize_t(*)(int, const void *, size_t, OFFSET))dlsym(RTLD_NEXT, #FUNCTION))(       \
            descriptor, data, length, offset);                                                     \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t write(int descriptor, const void *data, size_t length)
{
    if (has_no_room(descriptor, length))
        return -1;
    return ((ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(descriptor, data, length);
}
