// A slow disk for `cargo bench --bench load -- slow-disk`. Preloaded, it makes each fsync and fdatasync of a
// file take 400 ms longer, if the file is below the directory that the symbolic link $QUORATE_BENCH_SLOW
// leads to.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_if_slow(int fd) {
    char link[64], directory[PATH_MAX], file[PATH_MAX];
    const char *slow = getenv("QUORATE_BENCH_SLOW");
    ssize_t bytes = slow ? readlink(slow, directory, sizeof directory) : -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (bytes > 0 && readlink(link, file, sizeof file) > bytes && !memcmp(file, directory, bytes))
        usleep(400 * 1000);
}

int fsync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_if_slow(fd);
    return next(fd);
}

int fdatasync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_if_slow(fd);
    return next(fd);
}
