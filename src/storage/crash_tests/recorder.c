/*
 * Preloaded into a process, records in order every change that it makes to the
 * files from RECORD_ROOT down, and every sync, into the file RECORD_LOG.
 *
 * A record: kind (1 byte), length of the path and of the data (4 bytes each),
 * offset (8), path, data. Kinds: W write, T truncate, S sync, C create, D make
 * directory, R rename (the data is the new path), U unlink, X remove directory.
 *
 * RECORD_CUT is a number of records after which the power is cut: the file system of RECORD_ROOT is shut down,
 * so that nothing more reaches its device, and the process ends. Before that, RECORD_STRAY, a number that is not 0, lets the system
 * write at some moments what nobody has synced: a file, or the journal.
 *
 * Each call and its record are made under one lock, so that the order in the
 * log is an order in which the calls happened.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static const char *root;

static long records;
static uint64_t stray;

/* EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN, and the flag that nothing is flushed before. */
#define SHUTDOWN _IOR('X', 125, uint32_t)
#define NOLOGFLUSH 2

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static int under_root(const char *path) {
    if (!root) root = getenv("RECORD_ROOT");
    size_t length = root ? strlen(root) : 0;
    return length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static uint64_t drawn(uint64_t below) {
    stray ^= stray << 13;
    stray ^= stray >> 7;
    stray ^= stray << 17;
    return stray % below;
}

/* What a system does by itself with files that nobody has synced. */
static void write_stray(const char *path) {
    int (*open_)(const char *, int, ...) = next("open64");
    int (*fsync_)(int) = next("fsync");
    int (*close_)(int) = next("close");
    ssize_t (*write_)(int, const void *, size_t) = next("write");
    if (drawn(4) == 0) {
        int file = open_(path, O_RDONLY | O_CLOEXEC);
        unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
        if (file >= 0) sync_file_range(file, 0, drawn(2) ? 0 : 8192, all), close_(file);
    }
    if (drawn(12) == 0) {
        char side[PATH_MAX];
        snprintf(side, sizeof side, "%s-side", root);
        int file = open_(side, O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0600);
        if (file >= 0) write_(file, "x", 1), fsync_(file), close_(file);
    }
}

static void after_record(const char *path) {
    const char *cut = getenv("RECORD_CUT");
    const char *seed = getenv("RECORD_STRAY");
    records++;
    if (!stray && seed) stray = strtoull(seed, NULL, 10);
    if (stray && (!cut || records < atol(cut))) write_stray(path);
    if (cut && records == atol(cut)) {
        int (*open_)(const char *, int, ...) = next("open64");
        uint32_t flag = NOLOGFLUSH;
        int file = open_(root, O_RDONLY | O_CLOEXEC);
        if (file < 0 || ioctl(file, SHUTDOWN, &flag)) abort();
        kill(getpid(), SIGKILL);
    }
}

static void record(char kind, const char *path, uint64_t offset, const void *data, uint32_t length) {
    int saved = errno;
    ssize_t (*write_)(int, const void *, size_t) = next("write");
    if (log_fd < 0) {
        int (*open_)(const char *, int, ...) = next("open64");
        log_fd = open_(getenv("RECORD_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    uint32_t path_length = strlen(path);
    size_t total = 17 + path_length + length;
    char *buffer = malloc(total);
    buffer[0] = kind;
    memcpy(buffer + 1, &path_length, 4);
    memcpy(buffer + 5, &length, 4);
    memcpy(buffer + 9, &offset, 8);
    memcpy(buffer + 17, path, path_length);
    if (length) memcpy(buffer + 17 + path_length, data, length);
    if (write_(log_fd, buffer, total) != (ssize_t)total) abort();
    free(buffer);
    after_record(path);
    errno = saved;
}

/* The path of an open file, if it is one that is recorded. */
static int path_of(int fd, char path[PATH_MAX]) {
    char link[64];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = 0;
    if (length > 10 && !strcmp(path + length - 10, " (deleted)")) return 0;
    return under_root(path);
}

/* The absolute form of a path given with a directory. */
static int resolve(int dir, const char *given, char path[PATH_MAX]) {
    if (given[0] == '/' || dir == AT_FDCWD) {
        if (given[0] == '/') snprintf(path, PATH_MAX, "%s", given);
        else return 0;
        return under_root(path);
    }
    char base[PATH_MAX];
    if (!path_of(dir, base)) return 0;
    if (strlen(base) + strlen(given) + 2 > PATH_MAX) return 0;
    strcpy(path, base);
    strcat(path, "/");
    strcat(path, given);
    return 1;
}

static int opened(const char *symbol, int at, int dir, const char *given, int flags, mode_t mode) {
    char path[PATH_MAX];
    pthread_mutex_lock(&lock);
    int ours = (flags & (O_CREAT | O_TRUNC)) && resolve(dir, given, path);
    struct stat status;
    int existed = ours && !stat(path, &status);
    int fd;
    if (at) {
        int (*call)(int, const char *, int, ...) = next(symbol);
        fd = call(dir, given, flags, mode);
    } else {
        int (*call)(const char *, int, ...) = next(symbol);
        fd = call(given, flags, mode);
    }
    if (fd >= 0 && ours) {
        if (!existed) record('C', path, 0, NULL, 0);
        else if (flags & O_TRUNC) record('T', path, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(flags, last)                                    \
    mode_t mode = 0;                                         \
    if (flags & (O_CREAT | O_TMPFILE)) {                     \
        va_list arguments;                                   \
        va_start(arguments, last);                           \
        mode = va_arg(arguments, mode_t);                    \
        va_end(arguments);                                   \
    }

int open(const char *path, int flags, ...) {
    MODE(flags, flags)
    return opened("open", 0, AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags, flags)
    return opened("open64", 0, AT_FDCWD, path, flags, mode);
}
int openat(int dir, const char *path, int flags, ...) {
    MODE(flags, flags)
    return opened("openat", 1, dir, path, flags, mode);
}
int openat64(int dir, const char *path, int flags, ...) {
    MODE(flags, flags)
    return opened("openat64", 1, dir, path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t length) {
    ssize_t (*call)(int, const void *, size_t) = next("write");
    char path[PATH_MAX];
    pthread_mutex_lock(&lock);
    ssize_t written = call(fd, data, length);
    if (written > 0 && path_of(fd, path)) {
        off_t end = lseek(fd, 0, SEEK_CUR);
        record('W', path, end - written, data, written);
    }
    pthread_mutex_unlock(&lock);
    return written;
}

static ssize_t written_at(const char *symbol, int fd, const void *data, size_t length, off64_t offset) {
    ssize_t (*call)(int, const void *, size_t, off64_t) = next(symbol);
    char path[PATH_MAX];
    pthread_mutex_lock(&lock);
    ssize_t written = call(fd, data, length, offset);
    if (written > 0 && path_of(fd, path)) record('W', path, offset, data, written);
    pthread_mutex_unlock(&lock);
    return written;
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    return written_at("pwrite", fd, data, length, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    return written_at("pwrite64", fd, data, length, offset);
}

static int truncated(const char *symbol, int fd, off64_t length) {
    int (*call)(int, off64_t) = next(symbol);
    char path[PATH_MAX];
    pthread_mutex_lock(&lock);
    int result = call(fd, length);
    if (!result && path_of(fd, path)) record('T', path, length, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate(int fd, off_t length) { return truncated("ftruncate", fd, length); }
int ftruncate64(int fd, off64_t length) { return truncated("ftruncate64", fd, length); }

static int synced(const char *symbol, int fd) {
    int (*call)(int) = next(symbol);
    char path[PATH_MAX];
    pthread_mutex_lock(&lock);
    int result = call(fd);
    if (!result && path_of(fd, path)) record('S', path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }

int mkdir(const char *given, mode_t mode) {
    int (*call)(const char *, mode_t) = next("mkdir");
    pthread_mutex_lock(&lock);
    int result = call(given, mode);
    if (!result && under_root(given)) record('D', given, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int rename(const char *from, const char *to) {
    int (*call)(const char *, const char *) = next("rename");
    pthread_mutex_lock(&lock);
    int result = call(from, to);
    if (!result && under_root(from)) record('R', from, 0, to, strlen(to));
    pthread_mutex_unlock(&lock);
    return result;
}

int unlink(const char *given) {
    int (*call)(const char *) = next("unlink");
    pthread_mutex_lock(&lock);
    int result = call(given);
    if (!result && under_root(given)) record('U', given, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int rmdir(const char *given) {
    int (*call)(const char *) = next("rmdir");
    pthread_mutex_lock(&lock);
    int result = call(given);
    if (!result && under_root(given)) record('X', given, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int unlinkat(int dir, const char *given, int flags) {
    int (*call)(int, const char *, int) = next("unlinkat");
    char path[PATH_MAX];
    pthread_mutex_lock(&lock);
    int ours = resolve(dir, given, path);
    int result = call(dir, given, flags);
    if (!result && ours) record(flags & AT_REMOVEDIR ? 'X' : 'U', path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
