/*
 * Preloaded into a process: a disk that can lose what was not synced, and that fails.
 *
 * It covers the files from FAULTS_ROOT down, and keeps its own in FAULTS_SIDE, a directory on the same file
 * system. These outlive the process, so that after its end all that it had not synced can still be undone
 * (disk.rs does), also when other processes have used the files since.
 *
 *   control   numbers of 32 bits, shared with the driver: enum control
 *   names     the changes of names that are not durable yet, oldest first, a line each. A directory is its
 *             inode, for it may be renamed itself:
 *               C/directory/name                          made
 *               U/directory/name/number                   removed; it is t<number> here
 *               R/directory/name/directory/name/number    renamed; t<number> had the new name before, if not 0
 *   u<inode>  what the device has of a file where that differs: a page with struct header, and records of
 *             a page as it is on the device and a word: the number of the page times 4, plus its state
 *
 * The file itself always has what a process sees: the page cache. A page's old content is saved before its
 * first change. A sync forgets it. After a failed sync the page is lost: it is there to be read, and no
 * later sync writes it, unless it is written to again. When a process asks the system to forget the cached
 * pages, lost ones get the content of the device.
 *
 * A name is durable when its directory is synced. A failed sync of a directory only leaves its names as they
 * were, as a later one can make them durable.
 *
 * Nothing here uses the heap or looks symbols up, as an allocator may call these functions.
 */
#define _GNU_SOURCE
#if __SIZEOF_LONG__ != 8
#error "only for systems of 64 bits"
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, RECORD = PAGE + 8, BATCH = 8, FILES_MAX = 1 << 14, NAMES_MAX = 64 << 10 };

/* FAIL_*: how many of the next calls fail. The rest counts what happened. */
enum control { FAIL_SYNCS, FAIL_READS, NO_SPACE, KEEP, SYNCS_FAILED, READS_FAILED, REFUSED, SEQUENCE, CONTROLS };
/* NO_SPACE: files cannot be made or get longer, or no write succeeds at all. */
enum { GROWTH = 1, WRITES = 2 };
/* The states of a record. */
enum { FREE, UNSYNCED, LOST };

struct header {
    uint64_t length;  /* of the file on the device */
    uint64_t count;   /* of records */
    uint64_t differs; /* whether this holds at all */
};

struct file {
    ino_t inode;
    int used;
    int keeps; /* its pages stay cached while control has KEEP */
    int undo;  /* u<inode>, or -1 */
    struct header *header;
    uint64_t *words; /* of all records */
    size_t words_bytes;
    uint32_t *record_of; /* by page: the number of its record plus one */
    size_t record_of_bytes;
    uint64_t lost;
    pthread_mutex_t lock;
};

static char root[PATH_MAX], side[PATH_MAX], keep[NAME_MAX];
static dev_t device;
static uint32_t *control;
static struct file files[FILES_MAX];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static char journal[4 * NAMES_MAX], kept[4 * NAMES_MAX];

static void fail(const char *what) {
    dprintf(2, "disk_faults: %s: %s\n", what, strerror(errno));
    abort();
}

static int open_raw(int dir, const char *path, int flags, mode_t mode) {
    return syscall(SYS_openat, dir, path, flags | O_CLOEXEC, mode);
}
static int rename_raw(const char *from, const char *to) {
    return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
static int unlink_raw(const char *path, int flags) { return syscall(SYS_unlinkat, AT_FDCWD, path, flags); }
static void close_raw(int fd) { syscall(SYS_close, fd); }

static void read_all(int fd, void *data, size_t length, off_t offset) {
    while (length) {
        ssize_t done = syscall(SYS_pread64, fd, data, length, offset);
        if (done < 0 && errno != EINTR) fail("reading");
        if (!done) memset(data, 0, length);
        if (!done) return;
        if (done > 0) data = (char *)data + done, length -= done, offset += done;
    }
}

/* Fails only if there is no space. */
static int write_all(int fd, const void *data, size_t length, off_t offset) {
    while (length) {
        ssize_t done = syscall(SYS_pwrite64, fd, data, length, offset);
        if (done < 0 && errno == ENOSPC) return -1;
        if (done < 0 && errno != EINTR) fail("writing");
        if (done > 0) data = (const char *)data + done, length -= done, offset += done;
    }
    return 0;
}

static void side_path(char path[PATH_MAX], char kind, uint64_t number) {
    if (snprintf(path, PATH_MAX, "%s/%c%lu", side, kind, (unsigned long)number) >= PATH_MAX) fail("path");
}

static size_t read_names(int fd) {
    struct stat status;
    fstat(fd, &status);
    if ((size_t)status.st_size > sizeof journal) fail("too many names");
    read_all(fd, journal, status.st_size, 0);
    return status.st_size;
}

__attribute__((constructor)) static void begin(void) {
    const char *given = getenv("FAULTS_ROOT"), *beside = getenv("FAULTS_SIDE"), *keeps = getenv("FAULTS_KEEP");
    if (!given || !beside) return;
    char path[PATH_MAX];
    struct stat status;
    snprintf(side, sizeof side, "%s", beside);
    snprintf(keep, sizeof keep, "%s", keeps ? keeps : "");
    snprintf(path, sizeof path, "%s/control", beside);
    int fd = open_raw(AT_FDCWD, path, O_RDWR, 0);
    if (fd < 0 || stat(given, &status)) fail(path);
    control = mmap(NULL, CONTROLS * 4, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) fail("mapping control");
    close_raw(fd);
    device = status.st_dev;
    /* The end of the last process may have torn its last line. */
    snprintf(path, sizeof path, "%s/names", side);
    fd = open_raw(AT_FDCWD, path, O_RDWR, 0);
    if (fd >= 0) {
        size_t length = read_names(fd);
        while (length && journal[length - 1] != '\n') length--;
        if (syscall(SYS_ftruncate, fd, length)) fail(path);
        close_raw(fd);
    }
    snprintf(root, sizeof root, "%s", given);
}

/* Takes one of the faults that are ordered. */
static int taken(enum control fault, enum control counter) {
    uint32_t left = __atomic_load_n(&control[fault], __ATOMIC_SEQ_CST);
    while (left && !__atomic_compare_exchange_n(&control[fault], &left, left - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    if (left) __atomic_add_fetch(&control[counter], 1, __ATOMIC_SEQ_CST);
    return left != 0;
}

static int refused(int wanted) {
    if (control[NO_SPACE] < (uint32_t)wanted) return 0;
    __atomic_add_fetch(&control[REFUSED], 1, __ATOMIC_SEQ_CST);
    errno = ENOSPC;
    return 1;
}

/* The absolute form of a path, if it is under the root. */
static int resolve(int dir, const char *given, char path[PATH_MAX]) {
    if (!*root) return 0;
    int length = 0;
    if (given[0] != '/') {
        char link[64];
        if (dir == AT_FDCWD) return 0;
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        length = readlink(link, path, PATH_MAX - 2);
        if (length < 0) return 0;
        path[length++] = '/';
    }
    if (snprintf(path + length, PATH_MAX - length, "%s", given) >= PATH_MAX - length) return 0;
    length = strlen(path);
    while (length > 1 && path[length - 1] == '/') path[--length] = 0;
    size_t prefix = strlen(root);
    return !strncmp(path, root, prefix) && (path[prefix] == '/' || !path[prefix]);
}

/* ---- Content ---- */

static size_t round_up(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static void *grown(void *memory, size_t *bytes, size_t needed) {
    if (needed <= *bytes) return memory;
    size_t size = round_up(needed > 2 * *bytes ? needed : 2 * *bytes);
    memory = *bytes ? mremap(memory, *bytes, size, MREMAP_MAYMOVE)
                    : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("memory");
    *bytes = size;
    return memory;
}

static void index_record(struct file *file, uint64_t number, uint64_t word) {
    file->words = grown(file->words, &file->words_bytes, (number + 1) * 8);
    file->words[number] = word;
    if (word % 4 == FREE) return;
    file->record_of = grown(file->record_of, &file->record_of_bytes, (word / 4 + 1) * 4);
    file->record_of[word / 4] = number + 1;
    file->lost += word % 4 == LOST;
}

static void set_state(struct file *file, uint64_t number, int state) {
    uint64_t word = file->words[number] / 4 * 4 + state;
    file->lost += (state == LOST) - (file->words[number] % 4 == LOST);
    file->words[number] = word;
    if (state == FREE) file->record_of[word / 4] = 0;
    write_all(file->undo, &word, 8, PAGE + number * RECORD + PAGE);
}

/* Opens the record of a file's differences, and makes it if there is none. */
static int open_undo(struct file *file, int make) {
    if (file->undo >= 0) return 0;
    char path[PATH_MAX];
    side_path(path, 'u', file->inode);
    int fd = open_raw(AT_FDCWD, path, O_RDWR | (make ? O_CREAT : 0), 0600);
    if (fd < 0) return -1;
    struct stat status;
    fstat(fd, &status);
    static const char zeros[PAGE];
    if (status.st_size < PAGE && write_all(fd, zeros, PAGE, 0)) return close_raw(fd), errno = ENOSPC, -1;
    file->header = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file->header == MAP_FAILED) fail("mapping a header");
    file->undo = fd;
    for (uint64_t number = 0; file->header->differs && number < file->header->count; number++) {
        uint64_t word;
        read_all(fd, &word, 8, PAGE + number * RECORD + PAGE);
        index_record(file, number, word);
    }
    return 0;
}

static void forget_records(struct file *file) {
    for (uint64_t number = 0; number < file->header->count; number++)
        if (file->words[number] % 4 != FREE) file->record_of[file->words[number] / 4] = 0;
    file->lost = 0;
    file->header->count = 0;
}

static void release(struct file *file) {
    char path[PATH_MAX];
    side_path(path, 'u', file->inode);
    unlink_raw(path, 0);
    if (file->undo >= 0) {
        close_raw(file->undo);
        munmap(file->header, PAGE);
    }
    if (file->words_bytes) munmap(file->words, file->words_bytes);
    if (file->record_of_bytes) munmap(file->record_of, file->record_of_bytes);
    file->words_bytes = file->record_of_bytes = file->lost = 0;
    file->words = NULL;
    file->record_of = NULL;
    file->undo = -1;
}

/* The file with this inode. A file that is `made` has nothing of an earlier one. */
static struct file *with_inode(ino_t inode, int add, int made, const char *path) {
    pthread_mutex_lock(&table_lock);
    size_t place = inode % FILES_MAX, tries = 0;
    while (files[place].inode && files[place].inode != inode) {
        place = (place + 1) % FILES_MAX;
        if (++tries == FILES_MAX) fail("too many files");
    }
    struct file *file = &files[place];
    if (add && (!file->used || made)) {
        if (!file->inode) {
            pthread_mutex_init(&file->lock, NULL);
            file->undo = -1;
            file->inode = inode;
        }
        if (made) release(file);
        file->keeps = *keep && strstr(path, keep);
        file->used = 1;
        open_undo(file, 0);
    }
    pthread_mutex_unlock(&table_lock);
    return file->used ? file : NULL;
}

/* Forgets a file that is gone from the device as well. */
static void forget(ino_t inode) {
    struct file *file = with_inode(inode, 0, 0, "");
    if (!file) return;
    pthread_mutex_lock(&file->lock);
    release(file);
    file->used = 0;
    pthread_mutex_unlock(&file->lock);
}

/* The locked file that is open here, if it is covered. */
static struct file *covered(int fd, struct stat *status) {
    if (!*root) return NULL;
    int saved = errno;
    int found = !fstat(fd, status) && S_ISREG(status->st_mode) && status->st_dev == device;
    errno = saved;
    struct file *file = found ? with_inode(status->st_ino, 0, 0, "") : NULL;
    if (file) {
        pthread_mutex_lock(&file->lock);
        /* Another thread may have written meanwhile, or removed the file. */
        fstat(fd, status);
        if (!file->used) return pthread_mutex_unlock(&file->lock), NULL;
    }
    return file;
}

/* Notes that the file will differ from the device. */
static int differ(struct file *file, uint64_t length) {
    if (open_undo(file, 1)) return -1;
    if (!file->header->differs) {
        file->header->length = length;
        file->header->count = 0;
        __atomic_store_n(&file->header->differs, 1, __ATOMIC_SEQ_CST);
    }
    return 0;
}

/* Saves what is between two places, which will be changed. Fails if there is no space. */
static int save(struct file *file, int fd, uint64_t length, uint64_t from, uint64_t to) {
    char records[BATCH * RECORD];
    if (differ(file, length)) return -1;
    if (from >= to) return 0;
    uint64_t page = from / PAGE, end = (to - 1) / PAGE + 1;
    file->record_of = grown(file->record_of, &file->record_of_bytes, end * 4);
    while (page < end) {
        uint64_t batch = 0, first = file->header->count;
        for (; page < end && batch < BATCH; page++) {
            uint32_t known = file->record_of[page];
            if (known) {
                if (file->words[known - 1] % 4 == LOST) set_state(file, known - 1, UNSYNCED);
                continue;
            }
            char *record = records + batch * RECORD;
            uint64_t word = page * 4 + UNSYNCED;
            if (page * PAGE < length) read_all(fd, record, PAGE, page * PAGE);
            else memset(record, 0, PAGE);
            memcpy(record + PAGE, &word, 8);
            batch++;
        }
        if (write_all(file->undo, records, batch * RECORD, PAGE + first * RECORD)) return -1;
        for (uint64_t number = 0; number < batch; number++) {
            uint64_t word;
            memcpy(&word, records + number * RECORD + PAGE, 8);
            index_record(file, first + number, word);
        }
        __atomic_store_n(&file->header->count, first + batch, __ATOMIC_SEQ_CST);
    }
    return 0;
}

static void synced(struct file *file, uint64_t length) {
    if (file->undo < 0 || !file->header->differs) return;
    if (file->lost) {
        for (uint64_t number = 0; number < file->header->count; number++)
            if (file->words[number] % 4 == UNSYNCED) set_state(file, number, FREE);
        file->header->length = length;
        return;
    }
    __atomic_store_n(&file->header->differs, 0, __ATOMIC_SEQ_CST);
    int large = file->header->count > 1024;
    forget_records(file);
    if (large && syscall(SYS_ftruncate, file->undo, PAGE)) fail("shortening");
}

static void lose(struct file *file) {
    if (file->undo < 0 || !file->header->differs) return;
    for (uint64_t number = 0; number < file->header->count; number++)
        if (file->words[number] % 4 == UNSYNCED) set_state(file, number, LOST);
}

/* Lost pages get the content of the device, as when the system reads them again. */
static void evict(struct file *file, int fd, uint64_t length) {
    char link[64], page[PAGE];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int writable = open_raw(AT_FDCWD, link, O_RDWR, 0);
    if (writable < 0) return;
    for (uint64_t number = 0; number < file->header->count; number++) {
        uint64_t word = file->words[number], offset = word / 4 * PAGE;
        if (word % 4 != LOST) continue;
        read_all(file->undo, page, PAGE, PAGE + number * RECORD);
        if (offset < length) write_all(writable, page, length - offset < PAGE ? length - offset : PAGE, offset);
        set_state(file, number, FREE);
    }
    close_raw(writable);
}

/* ---- Names ---- */

/* The directory and the name of a path, as in a line. */
static int name_text(const char *path, char text[NAME_MAX + 32]) {
    char parent[PATH_MAX];
    struct stat status;
    const char *slash = strrchr(path, '/');
    snprintf(parent, sizeof parent, "%.*s", (int)(slash - path), path);
    if (stat(parent, &status)) return -1;
    snprintf(text, NAME_MAX + 32, "%lu/%s", (unsigned long)status.st_ino, slash + 1);
    return 0;
}

/* Makes lines durable: those of a directory, or the first bytes. Removes for good what they had removed. */
static void commit(int fd, uint64_t directory, size_t first) {
    char path[PATH_MAX], fresh[PATH_MAX];
    size_t length = read_names(fd), kept_length = 0;
    char *end = journal + length;
    for (int removing = 0; removing < 2; removing++) {
        for (char *line = journal, *next; line < end; line = next) {
            char *newline = memchr(line, '\n', end - line);
            if (!newline) break;
            next = newline + 1;
            unsigned long one = 0, two = 0, number = 0;
            char kind = *line;
            *newline = 0;
            if (kind == 'C') sscanf(line, "C/%lu/", &one);
            if (kind == 'U') sscanf(line, "U/%lu/%*[^/]/%lu", &one, &number);
            if (kind == 'R') sscanf(line, "R/%lu/%*[^/]/%lu/%*[^/]/%lu", &one, &two, &number);
            *newline = '\n';
            int durable = (size_t)(line - journal) < first || (directory && (one == directory || two == directory));
            if (!durable && !removing) {
                memcpy(kept + kept_length, line, next - line);
                kept_length += next - line;
            } else if (durable && removing && number) {
                struct stat status;
                side_path(path, 't', number);
                int found = !lstat(path, &status);
                unlink_raw(path, found && S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0);
                if (found && S_ISREG(status.st_mode) && status.st_nlink == 1) forget(status.st_ino);
            }
        }
        if (removing || kept_length == length) return;
        snprintf(path, sizeof path, "%s/names", side);
        snprintf(fresh, sizeof fresh, "%s/names.tmp", side);
        int new = open_raw(AT_FDCWD, fresh, O_RDWR | O_CREAT | O_TRUNC, 0600);
        /* Without space, the names stay as they are: not durable. */
        if (new < 0) return;
        int failed = write_all(new, kept, kept_length, 0);
        close_raw(new);
        if (failed) return;
        if (rename_raw(fresh, path)) fail("names");
    }
}

static int open_names(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/names", side);
    return open_raw(AT_FDCWD, path, O_RDWR | O_CREAT, 0600);
}

/* Notes a change of names, before it is made. */
static int note(const char *line) {
    int fd = open_names(), failed = fd < 0;
    struct stat status;
    if (failed) return -1;
    fstat(fd, &status);
    if (status.st_size > NAMES_MAX) {
        /* Systems make names durable after some time. */
        commit(fd, 0, status.st_size / 2);
        close_raw(fd);
        fd = open_names();
        fstat(fd, &status);
    }
    failed = write_all(fd, line, strlen(line), status.st_size);
    /* A part of a line must not be in the way of the next one. */
    if (failed && syscall(SYS_ftruncate, fd, status.st_size)) fail("names");
    close_raw(fd);
    return failed ? -1 : 0;
}

static int note_made(const char *path) {
    char name[NAME_MAX + 32], line[NAME_MAX + 64];
    if (name_text(path, name)) return -1;
    snprintf(line, sizeof line, "C/%s\n", name);
    return note(line);
}

static int is_empty(const char *path) {
    struct { ino64_t inode; off64_t next; unsigned short length; unsigned char type; char name[256]; } entries[8];
    int fd = open_raw(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return 0;
    int empty = 1;
    long got;
    while (empty && (got = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0)
        for (char *entry = (char *)entries; entry < (char *)entries + got; entry += ((unsigned short *)entry)[8])
            empty &= !strcmp(entry + 19, ".") || !strcmp(entry + 19, "..");
    close_raw(fd);
    return empty;
}

/* A removed name moves to FAULTS_SIDE, where it waits until its removal is durable. */
static int removed(const char *path, int directory) {
    struct stat status;
    char name[NAME_MAX + 32], line[NAME_MAX + 64], trash[PATH_MAX];
    if (lstat(path, &status)) return -1;
    if (directory && !S_ISDIR(status.st_mode)) return errno = ENOTDIR, -1;
    if (!directory && S_ISDIR(status.st_mode)) return errno = EISDIR, -1;
    if (directory && !is_empty(path)) return errno = ENOTEMPTY, -1;
    if (name_text(path, name)) return -1;
    pthread_mutex_lock(&names_lock);
    uint64_t number = ++control[SEQUENCE];
    side_path(trash, 't', number);
    snprintf(line, sizeof line, "U/%s/%lu\n", name, (unsigned long)number);
    int result = note(line) ? -1 : rename_raw(path, trash);
    pthread_mutex_unlock(&names_lock);
    return result;
}

static int renamed(const char *from, const char *to) {
    char one[NAME_MAX + 32], two[NAME_MAX + 32], line[2 * NAME_MAX + 128], trash[PATH_MAX];
    struct stat status;
    if (lstat(from, &status) || name_text(from, one) || name_text(to, two)) return -1;
    pthread_mutex_lock(&names_lock);
    uint64_t number = 0;
    int result = 0;
    if (!lstat(to, &status) && S_ISREG(status.st_mode)) {
        number = ++control[SEQUENCE];
        side_path(trash, 't', number);
        result = syscall(SYS_linkat, AT_FDCWD, to, AT_FDCWD, trash, 0);
    }
    snprintf(line, sizeof line, "R/%s/%s/%lu\n", one, two, (unsigned long)number);
    if (!result) result = note(line);
    if (!result) result = rename_raw(from, to);
    pthread_mutex_unlock(&names_lock);
    return result;
}

/* ---- The calls ---- */

static int truncated(int fd, uint64_t length) {
    struct stat status;
    struct file *file = covered(fd, &status);
    if (!file) return syscall(SYS_ftruncate, fd, length);
    uint64_t now = status.st_size;
    int result = length > now && refused(GROWTH) ? -1 : save(file, fd, now, length, now);
    if (!result) result = syscall(SYS_ftruncate, fd, length);
    pthread_mutex_unlock(&file->lock);
    return result;
}

static int opened(int dir, const char *given, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat status;
    if (!resolve(dir, given, path)) return syscall(SYS_openat, dir, given, flags, mode);
    int made = 0, cut = flags & O_TRUNC;
    if (flags & O_CREAT) {
        pthread_mutex_lock(&names_lock);
        made = lstat(path, &status) != 0;
        if (made && (refused(GROWTH) || note_made(path))) return pthread_mutex_unlock(&names_lock), -1;
    }
    if ((flags & O_ACCMODE) == O_WRONLY) flags = (flags & ~O_ACCMODE) | O_RDWR;
    int fd = syscall(SYS_openat, AT_FDCWD, path, flags & ~O_TRUNC, mode);
    if (flags & O_CREAT) pthread_mutex_unlock(&names_lock);
    if (fd < 0 || fstat(fd, &status) || !S_ISREG(status.st_mode)) return fd;
    with_inode(status.st_ino, 1, made, path);
    if (cut && !made && truncated(fd, 0)) return close_raw(fd), errno = ENOSPC, -1;
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
    return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags, flags)
    return opened(AT_FDCWD, path, flags, mode);
}
int openat(int dir, const char *path, int flags, ...) {
    MODE(flags, flags)
    return opened(dir, path, flags, mode);
}
int openat64(int dir, const char *path, int flags, ...) {
    MODE(flags, flags)
    return opened(dir, path, flags, mode);
}
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

/* A write at an offset, or where the file is if it is negative. */
static ssize_t written(int fd, const struct iovec *pieces, int count, off64_t offset) {
    struct stat status;
    struct file *file = covered(fd, &status);
    ssize_t result = -1;
    if (file) {
        uint64_t length = 0, from = offset, size = status.st_size;
        for (int piece = 0; piece < count; piece++) length += pieces[piece].iov_len;
        if (offset < 0) from = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND ? size : (uint64_t)lseek(fd, 0, SEEK_CUR);
        int grows = from + length > size;
        if (refused(grows ? GROWTH : WRITES) || save(file, fd, size, from, from + length)) goto done;
    }
    if (offset < 0) result = syscall(SYS_writev, fd, pieces, count);
    else result = syscall(SYS_pwritev, fd, pieces, count, offset, 0);
done:
    if (file) pthread_mutex_unlock(&file->lock);
    return result;
}
ssize_t write(int fd, const void *data, size_t length) {
    struct iovec piece = {(void *)data, length};
    return written(fd, &piece, 1, -1);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    struct iovec piece = {(void *)data, length};
    return written(fd, &piece, 1, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) { return pwrite(fd, data, length, offset); }
ssize_t writev(int fd, const struct iovec *pieces, int count) { return written(fd, pieces, count, -1); }
ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset) {
    return written(fd, pieces, count, offset);
}
ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t offset) {
    return written(fd, pieces, count, offset);
}

static int fails_read(int fd) {
    if (!*root || !control[FAIL_READS]) return 0;
    struct stat status;
    struct file *file = covered(fd, &status);
    if (!file) return 0;
    int failed = taken(FAIL_READS, READS_FAILED);
    pthread_mutex_unlock(&file->lock);
    if (failed) errno = EIO;
    return failed;
}
ssize_t read(int fd, void *data, size_t length) {
    return fails_read(fd) ? -1 : syscall(SYS_read, fd, data, length);
}
ssize_t pread(int fd, void *data, size_t length, off_t offset) {
    return fails_read(fd) ? -1 : syscall(SYS_pread64, fd, data, length, offset);
}
ssize_t pread64(int fd, void *data, size_t length, off64_t offset) { return pread(fd, data, length, offset); }
ssize_t readv(int fd, const struct iovec *pieces, int count) {
    return fails_read(fd) ? -1 : syscall(SYS_readv, fd, pieces, count);
}

int ftruncate(int fd, off_t length) { return truncated(fd, length); }
int ftruncate64(int fd, off64_t length) { return truncated(fd, length); }

int fallocate(int fd, int mode, off_t offset, off_t length) {
    struct stat status;
    struct file *file = covered(fd, &status);
    int grows = file && offset + length > status.st_size;
    int result = grows && refused(GROWTH) ? -1 : 0;
    if (file && !result) result = save(file, fd, status.st_size, offset, offset + length);
    if (!result) result = syscall(SYS_fallocate, fd, mode, offset, length);
    if (file) pthread_mutex_unlock(&file->lock);
    return result;
}
int fallocate64(int fd, int mode, off64_t offset, off64_t length) { return fallocate(fd, mode, offset, length); }
int posix_fallocate(int fd, off_t offset, off_t length) { return fallocate(fd, 0, offset, length) ? errno : 0; }
int posix_fallocate64(int fd, off64_t offset, off64_t length) { return posix_fallocate(fd, offset, length); }

/* These would change files unseen. A caller falls back to reading and writing. */
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t length, unsigned flags) {
    (void)in, (void)from, (void)out, (void)to, (void)length, (void)flags;
    return errno = ENOSYS, -1;
}
ssize_t sendfile(int out, int in, off_t *offset, size_t length) {
    (void)out, (void)in, (void)offset, (void)length;
    return errno = ENOSYS, -1;
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t length) { return sendfile(out, in, offset, length); }

static int synchronized(int fd, long call) {
    struct stat status;
    char path[PATH_MAX];
    struct file *file = covered(fd, &status);
    int result;
    if (file) {
        /* The lock is held meanwhile: what is written during a sync is not in it. */
        int failed = taken(FAIL_SYNCS, SYNCS_FAILED);
        result = failed ? -1 : syscall(call, fd);
        if (failed) lose(file);
        else if (!result) synced(file, status.st_size);
        pthread_mutex_unlock(&file->lock);
        if (failed) errno = EIO;
        return result;
    }
    int ours = *root && !fstat(fd, &status) && S_ISDIR(status.st_mode) && resolve(fd, "", path);
    if (!ours) return syscall(call, fd);
    if (taken(FAIL_SYNCS, SYNCS_FAILED)) return errno = EIO, -1;
    pthread_mutex_lock(&names_lock);
    result = syscall(call, fd);
    int names = result ? -1 : open_names();
    if (names >= 0) {
        commit(names, status.st_ino, 0);
        close_raw(names);
    }
    pthread_mutex_unlock(&names_lock);
    return result;
}
int fsync(int fd) { return synchronized(fd, SYS_fsync); }
int fdatasync(int fd) { return synchronized(fd, SYS_fdatasync); }

int posix_fadvise(int fd, off_t offset, off_t length, int advice) {
    struct stat status;
    struct file *file = advice == POSIX_FADV_DONTNEED ? covered(fd, &status) : NULL;
    if (file) {
        if (file->lost && !(file->keeps && control[KEEP])) evict(file, fd, status.st_size);
        pthread_mutex_unlock(&file->lock);
    }
    return syscall(SYS_fadvise64, fd, offset, length, advice) ? errno : 0;
}
int posix_fadvise64(int fd, off64_t offset, off64_t length, int advice) {
    return posix_fadvise(fd, offset, length, advice);
}

int mkdirat(int dir, const char *given, mode_t mode) {
    char path[PATH_MAX];
    struct stat status;
    if (!resolve(dir, given, path)) return syscall(SYS_mkdirat, dir, given, mode);
    if (!lstat(path, &status)) return errno = EEXIST, -1;
    if (refused(GROWTH)) return -1;
    pthread_mutex_lock(&names_lock);
    int result = note_made(path) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    pthread_mutex_unlock(&names_lock);
    return result;
}
int mkdir(const char *given, mode_t mode) { return mkdirat(AT_FDCWD, given, mode); }

int unlinkat(int dir, const char *given, int flags) {
    char path[PATH_MAX];
    if (!resolve(dir, given, path)) return syscall(SYS_unlinkat, dir, given, flags);
    return removed(path, flags & AT_REMOVEDIR);
}
int unlink(const char *given) { return unlinkat(AT_FDCWD, given, 0); }
int rmdir(const char *given) { return unlinkat(AT_FDCWD, given, AT_REMOVEDIR); }

int renameat2(int dir, const char *from, int to_dir, const char *to, unsigned flags) {
    char one[PATH_MAX], two[PATH_MAX];
    int covers = resolve(dir, from, one) + resolve(to_dir, to, two);
    if (!covers) return syscall(SYS_renameat2, dir, from, to_dir, to, flags);
    if (covers < 2 || flags) return errno = EINVAL, -1;
    return renamed(one, two);
}
int renameat(int dir, const char *from, int to_dir, const char *to) { return renameat2(dir, from, to_dir, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
