/*
 * A simulated operating system behind the store's door: every file has a live image (the real directory) and a durable
 * one (here).
 *
 * It must never sync anything for real, and never let a page, a length or a name count as durable unless the call that
 * the store made promises it. A part of the extension mqfast.sim.simulated_os; the calls that the table had before do
 * the work on the live image.
 *
 * What is durable, as Linux and POSIX promise it: fsync and fdatasync make the contents and the length of a file
 * durable, stores through mappings included; msync the pages of its range and the length; a name (created, renamed,
 * removed, directories too) only sync_directory of the directory that holds it. A sync that failed marks the pages of
 * its range clean: a later sync does not write them unless they changed again. An image of a crash takes or leaves
 * whatever is live and not durable: pages are kept, dropped or torn at 512 bytes, lengths old or new, names by a
 * prefix or a random subset of the changes of each directory.
 *
 * Faults: the n-th call of one kind fails once or for ever. A full disk: from the n-th call on that asks for space
 * none gets any. One lock orders all calls.
 */
#define _GNU_SOURCE
#include "os_api.h"
#include "system_stat.h"

#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, SECTOR = 512, MOST_FDS = 4096, MOST_MAPS = 4096, PATH_BYTES = 4096 };
enum { SHORT_COUNT = 100000 }; /* a "fault" that does half of a read or write */

enum kind {
    K_OPEN,
    K_CLOSE,
    K_FALLOCATE,
    K_FTRUNCATE,
    K_FSTAT,
    K_STAT,
    K_MMAP,
    K_MUNMAP,
    K_MADVISE,
    K_MLOCK,
    K_MUNLOCK,
    K_MSYNC,
    K_SEEK_DATA,
    K_PREAD,
    K_PWRITE,
    K_FDATASYNC,
    K_FSYNC,
    K_RENAME,
    K_UNLINK,
    K_MKDIR,
    K_RMDIR,
    K_SYNC_DIRECTORY,
    K_STATVFS,
    K_LOCK_BYTE,
    K_CLOCK_MS,
    K_MONOTONIC_NS,
    K_SYNC_FILESYSTEM,
    K_UNLOCK_BYTE,
    K_LOCK_DIRECTORY,
    KINDS
};

typedef struct node node;
typedef struct {
    char *name;
    node *to;
} entry;
typedef struct {
    entry *at;
    int count, room;
} entries;

struct node {
    int directory, fd; /* fd: our own, so that the live bytes outlive their name */
    int64_t device, inode;
    uint8_t *durable;      /* capacity bytes, zeros behind the durable length */
    uint8_t *lost;         /* what pages held when a sync of them failed */
    uint8_t *lost_map;     /* one byte per page: is lost[page] valid? */
    uint8_t *filled;       /* one byte per page: may durable[page] be other than zeros? */
    int64_t capacity;      /* whole pages */
    int64_t bytes, least;  /* durable length; smallest length since the last sync */
    entries names, shadow; /* durable names of a directory; those of the image under way */
    node *next;
};

typedef struct {
    enum { LINK, UNLINK, RENAME } what;
    node *dir, *dir2, *to;
    char *name, *name2;
} change;

typedef struct {
    uint8_t *address;
    int64_t bytes;
    node *file; /* NULL: anonymous */
    int64_t offset;
} mapping;

typedef struct {
    int64_t call;
    int32_t mark, mode;
    uint64_t seed;
} image;

typedef struct {
    mq_os real_calls, *real;
    pthread_mutex_t lock;
    node *nodes, *root;
    change *changes;
    int change_count, change_room;
    node *fds[MOST_FDS];
    uint8_t fd_used[MOST_FDS];
    mapping maps[MOST_MAPS];
    int map_count;
    int64_t calls, count[KINDS];
    int32_t mark, frozen, real_clocks;
    int64_t now_us, tick_us, mono_ns;
    int32_t stands_still; /* both clocks, between two calls of sim_time */
    /* images */
    int64_t first, last;
    uint32_t kinds;
    int32_t per_call, image_count, image_room;
    int32_t only_mode; /* of images; -1: drawn */
    uint64_t seed;
    char *target;
    image *images;
    /* faults */
    int32_t fault_kind, fault_errno, fault_for_ever;
    int64_t fault_at, fault_hits, resyncs;
    int32_t sync_failed;
    int64_t full_at, full_seen; /* 0: the disk has space */
} sim;

static uint64_t mix(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void *checked(void *p) {
    if (p == NULL) abort();
    return p;
}

/* --- nodes and names ---------------------------------------------------------------------------------------------- */

static node *find_node(sim *s, const struct stat *st) {
    for (node *n = s->nodes; n != NULL; n = n->next)
        if (n->inode == (int64_t)st->st_ino && n->device == (int64_t)st->st_dev) return n;
    return NULL;
}

static node *node_of_path(sim *s, const char *path) {
    struct stat st;
    return stat_path(path, &st) == 0 ? find_node(s, &st) : NULL;
}

static node *new_node(sim *s, const char *path) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || stat_fd(fd, &st) < 0) abort();
    node *n = checked(calloc(1, sizeof *n));
    n->directory = S_ISDIR(st.st_mode);
    n->fd = fd;
    n->device = (int64_t)st.st_dev;
    n->inode = (int64_t)st.st_ino;
    n->next = s->nodes;
    s->nodes = n;
    return n;
}

static void grow(node *n, int64_t bytes) {
    int64_t capacity = (bytes + PAGE - 1) / PAGE * PAGE;
    if (capacity <= n->capacity) return;
    uint8_t *durable = checked(calloc(1, (size_t)capacity)); /* untouched pages of large files need no memory */
    for (int64_t p = 0; p < n->capacity / PAGE; p++)
        if (n->filled[p]) memcpy(durable + p * PAGE, n->durable + p * PAGE, PAGE);
    free(n->durable);
    n->durable = durable;
    n->filled = checked(realloc(n->filled, (size_t)(capacity / PAGE)));
    memset(n->filled + n->capacity / PAGE, 0, (size_t)((capacity - n->capacity) / PAGE));
    n->lost = checked(realloc(n->lost, (size_t)capacity));
    n->lost_map = checked(realloc(n->lost_map, (size_t)(capacity / PAGE)));
    memset(n->lost_map + n->capacity / PAGE, 0, (size_t)((capacity - n->capacity) / PAGE));
    n->capacity = capacity;
}

static int64_t live_bytes(node *n) {
    struct stat st;
    if (stat_fd(n->fd, &st) < 0) abort();
    return (int64_t)st.st_size;
}

static void read_page(node *n, int64_t page, uint8_t *to) {
    ssize_t got = pread(n->fd, to, PAGE, page * PAGE);
    if (got < 0) got = 0;
    memset(to + got, 0, (size_t)(PAGE - got));
}

/* A run of live pages that may be other than zeros; pages in front of it are a hole. */
typedef struct {
    int64_t first, end;
} extent;

/* Are the live and the durable page all zeros, without a look at the page? Pages are asked for in rising order. */
static int is_empty(node *n, int64_t page, extent *e) {
    if (page >= e->end) {
        off_t data = lseek(n->fd, page * PAGE, SEEK_DATA);
        off_t hole = data < 0 ? -1 : lseek(n->fd, data, SEEK_HOLE);
        if (data < 0 && errno == ENXIO) {
            e->first = e->end = INT64_MAX;
        } else if (hole < 0) { /* a file system that does not say */
            e->first = page, e->end = INT64_MAX;
        } else {
            e->first = data / PAGE, e->end = (hole + PAGE - 1) / PAGE;
        }
    }
    return page < e->first && !(page < n->capacity / PAGE && (n->filled[page] || n->lost_map[page]));
}

/* Pages [from, to) and the length become durable, except pages that an earlier failed sync dropped and that did not
 * change since. */
static void make_durable(node *n, int64_t from, int64_t to) {
    uint8_t page[PAGE];
    int64_t size = live_bytes(n), pages = (size + PAGE - 1) / PAGE;
    if (n->least < n->bytes) { /* it was cut meanwhile: what stood behind the cut is gone */
        memset(n->durable + n->least, 0, (size_t)(n->capacity - n->least));
        n->bytes = n->least;
    }
    grow(n, size);
    extent e = {0, 0};
    for (int64_t p = from; p < to && p < pages; p++) {
        if (is_empty(n, p, &e)) continue;
        read_page(n, p, page);
        if (n->lost_map[p] && memcmp(page, n->lost + p * PAGE, PAGE) == 0) continue;
        n->lost_map[p] = 0;
        memcpy(n->durable + p * PAGE, page, PAGE);
        n->filled[p] = 1;
    }
    n->bytes = n->least = size;
}

static void lose(node *n, int64_t from, int64_t to) {
    int64_t size = live_bytes(n), pages = (size + PAGE - 1) / PAGE;
    grow(n, size);
    for (int64_t p = from; p < to && p < pages; p++) {
        read_page(n, p, n->lost + p * PAGE);
        n->lost_map[p] = memcmp(n->lost + p * PAGE, n->durable + p * PAGE, PAGE) != 0;
    }
}

/* Would a sync of these pages be the second one after a failure? */
static int was_lost(node *n, int64_t from, int64_t to) {
    uint8_t page[PAGE];
    for (int64_t p = from; p < to && p < n->capacity / PAGE; p++) {
        if (!n->lost_map[p]) continue;
        read_page(n, p, page);
        if (memcmp(page, n->lost + p * PAGE, PAGE) == 0) return 1;
    }
    return 0;
}

static void name_set(entries *e, const char *name, node *to) {
    for (int i = 0; i < e->count; i++)
        if (strcmp(e->at[i].name, name) == 0) {
            e->at[i].to = to;
            return;
        }
    if (e->count == e->room) {
        e->room = e->room ? e->room * 2 : 8;
        e->at = checked(realloc(e->at, (size_t)e->room * sizeof(entry)));
    }
    e->at[e->count].name = checked(strdup(name));
    e->at[e->count++].to = to;
}

static void name_drop(entries *e, const char *name) {
    for (int i = 0; i < e->count; i++)
        if (strcmp(e->at[i].name, name) == 0) {
            free(e->at[i].name);
            e->at[i] = e->at[--e->count];
            return;
        }
}

static void names_clear(entries *e) {
    while (e->count > 0) free(e->at[--e->count].name);
}

/* Register what is there as durable. */
static node *take_tree(sim *s, const char *path) {
    node *n = new_node(s, path);
    if (!n->directory) {
        make_durable(n, 0, (live_bytes(n) + PAGE - 1) / PAGE);
        return n;
    }
    DIR *d = checked(opendir(path));
    struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        char below[PATH_BYTES];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        name_set(&n->names, e->d_name, take_tree(s, below));
    }
    closedir(d);
    return n;
}

static node *split(sim *s, const char *path, const char **name) {
    char parent[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    if (slash == NULL || (size_t)(slash - path) >= sizeof parent) abort(); /* the harness gives absolute paths only */
    memcpy(parent, path, (size_t)(slash - path));
    parent[slash - path] = 0;
    *name = slash + 1;
    return node_of_path(s, parent);
}

static void note(sim *s, int what, node *dir, const char *name, node *dir2, const char *name2, node *to) {
    if (dir == NULL) return; /* outside the simulated tree */
    if (s->change_count == s->change_room) {
        s->change_room = s->change_room ? s->change_room * 2 : 64;
        s->changes = checked(realloc(s->changes, (size_t)s->change_room * sizeof(change)));
    }
    change *c = &s->changes[s->change_count++];
    c->what = what, c->dir = dir, c->dir2 = dir2, c->to = to;
    c->name = checked(strdup(name));
    c->name2 = name2 ? checked(strdup(name2)) : NULL;
}

static void apply(const change *c, int shadow) {
    entries *e = shadow ? &c->dir->shadow : &c->dir->names;
    if (c->what == LINK) name_set(e, c->name, c->to);
    if (c->what == UNLINK) name_drop(e, c->name);
    if (c->what == RENAME) {
        name_drop(e, c->name);
        name_set(shadow ? &c->dir2->shadow : &c->dir2->names, c->name2, c->to);
    }
}

/* --- images --- */

/* 0: the process was killed. 1: power cut, nothing unsynced reached the disk. 2: any mixture. 3: names and lengths
 * only. 4: contents only. */
enum { KILLED, STRICT, MIXED, NAMES_ONLY, CONTENTS_ONLY };

static void write_file_image(node *n, const char *path, int mode, uint64_t *r) {
    static const uint8_t zeros[PAGE];
    uint8_t live[PAGE], out[PAGE];
    int64_t now = live_bytes(n), size = now;
    int keep_size = mode == KILLED || mode == NAMES_ONLY || (mode == MIXED && (mix(r) & 1));
    if (!keep_size) size = n->bytes;
    unsigned chance = (unsigned)(mix(r) % 5) * 64; /* of 256: none, a quarter, a half, most, all pages of this file */
    int tearing = mix(r) % 3 == 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 || (size > 0 && ftruncate(fd, size) < 0)) abort();
    extent e = {0, 0};
    for (int64_t p = 0; p * PAGE < size; p++) {
        if (is_empty(n, p, &e)) continue;
        const uint8_t *old = zeros, *page = out;
        uint8_t cut[PAGE];
        if (p * PAGE < n->capacity) old = n->durable + p * PAGE;
        if (keep_size && n->least < (p + 1) * PAGE &&
            old != zeros) { /* behind the cut of an unsynced truncation stands nothing */
            int64_t kept = n->least > p * PAGE ? n->least - p * PAGE : 0;
            memset(cut, 0, PAGE);
            memcpy(cut, old, (size_t)kept);
            old = cut;
        }
        read_page(n, p, live);
        if (memcmp(live, old, PAGE) == 0 || mode == KILLED) {
            page = live;
        } else if (mode == STRICT || mode == NAMES_ONLY) {
            page = old;
        } else if (mode == CONTENTS_ONLY) {
            page = live;
        } else if ((mix(r) & 255) < chance) {
            page = live;
            if (tearing && (mix(r) & 1)) {
                uint64_t bits = mix(r);
                for (int i = 0; i < PAGE / SECTOR; i++)
                    memcpy(out + i * SECTOR, (bits >> i & 1 ? live : old) + i * SECTOR, SECTOR);
                page = out;
            }
        } else {
            page = old;
        }
        int64_t left = size - p * PAGE < PAGE ? size - p * PAGE : PAGE;
        if (memcmp(page, zeros, (size_t)left) != 0 && pwrite(fd, page, (size_t)left, p * PAGE) != left) abort();
    }
    close(fd);
}

static void write_tree(node *n, const char *path, int mode, uint64_t *r) {
    if (mkdir(path, 0755) < 0) abort();
    for (int i = 0; i < n->shadow.count; i++) {
        char below[PATH_BYTES];
        snprintf(below, sizeof below, "%s/%s", path, n->shadow.at[i].name);
        node *to = n->shadow.at[i].to;
        if (to->directory)
            write_tree(to, below, mode, r);
        else
            write_file_image(to, below, mode, r);
    }
}

static void write_image(sim *s, const char *path, int mode, uint64_t seed) {
    uint64_t r = seed;
    for (node *n = s->nodes; n != NULL; n = n->next) {
        if (!n->directory) continue;
        names_clear(&n->shadow);
        for (int i = 0; i < n->names.count; i++) name_set(&n->shadow, n->names.at[i].name, n->names.at[i].to);
    }
    for (node *d = s->nodes; d != NULL; d = d->next) {
        if (!d->directory) continue;
        int total = 0, subset = (int)(mix(&r) & 1), seen = 0;
        for (int i = 0; i < s->change_count; i++) total += s->changes[i].dir == d;
        if (total == 0) continue;
        int prefix = (int)(mix(&r) % (uint64_t)(total + 1));
        for (int i = 0; i < s->change_count; i++) {
            if (s->changes[i].dir != d) continue;
            int take = mode == KILLED || mode == NAMES_ONLY;
            if (mode == MIXED) take = subset ? (int)(mix(&r) & 1) : seen < prefix;
            seen++;
            if (take) apply(&s->changes[i], 1);
        }
    }
    write_tree(s->root, path, mode, &r);
}

static void take_images(sim *s) {
    static const int modes[] = {KILLED, STRICT, MIXED, MIXED, MIXED, NAMES_ONLY, MIXED, CONTENTS_ONLY};
    for (int j = 0; j < s->per_call; j++) {
        char path[PATH_BYTES];
        uint64_t seed = s->seed * 0x100000001B3u + (uint64_t)s->calls * 31 + (uint64_t)j;
        int mode = modes[mix(&seed) % 8];
        if (s->only_mode >= 0) mode = s->only_mode;
        if (s->image_count == s->image_room) {
            s->image_room = s->image_room ? s->image_room * 2 : 256;
            s->images = checked(realloc(s->images, (size_t)s->image_room * sizeof(image)));
        }
        s->images[s->image_count] = (image){s->calls, s->mark, mode, seed};
        snprintf(path, sizeof path, "%s/%d", s->target, s->image_count++);
        write_image(s, path, mode, seed);
    }
}

/* --- every call --- */

/* Takes the lock; returns 0, or the fault that this call meets (negative errno, or SHORT_COUNT). */
static int enter(sim *s, enum kind kind) {
    pthread_mutex_lock(&s->lock);
    if (s->frozen) return 0;
    s->calls++;
    s->count[kind]++;
    if (s->calls >= s->first && s->calls < s->last && (s->kinds >> kind & 1)) take_images(s);
    if (s->fault_kind == (int)kind &&
        (s->count[kind] == s->fault_at || (s->fault_for_ever && s->count[kind] > s->fault_at))) {
        s->fault_hits++;
        return s->fault_errno == SHORT_COUNT ? SHORT_COUNT : -s->fault_errno;
    }
    return 0;
}

static int leave(sim *s, int rc) {
    pthread_mutex_unlock(&s->lock);
    return rc;
}

#define ENTER(kind)                                                                                                    \
    sim *s = os->state;                                                                                                \
    int fault = enter(s, kind);                                                                                        \
    if (fault < 0) return leave(s, fault)

/* A call that asks for space: has the disk none? */
static int is_full(sim *s) { return s->full_at != 0 && ++s->full_seen >= s->full_at; }

static int sim_open(mq_os *os, const char *path, int flags) {
    ENTER(K_OPEN);
    struct stat st;
    int there = stat_path(path, &st) == 0;
    if (!there && flags & MQ_OPEN_CREATE && is_full(s)) return leave(s, -ENOSPC);
    int fd = s->real->open(s->real, path, flags);
    if (fd < 0) return leave(s, fd);
    if (fd >= MOST_FDS) { /* a run with very many lives of a machine */
        s->real->close(s->real, fd);
        return leave(s, -EMFILE);
    }
    const char *name;
    node *dir = split(s, path, &name), *n = there ? find_node(s, &st) : NULL;
    if (!there && dir != NULL) {
        n = new_node(s, path);
        note(s, LINK, dir, name, NULL, NULL, n);
    }
    if (n != NULL && flags & MQ_OPEN_TRUNCATE) n->least = 0;
    s->fds[fd] = n;
    s->fd_used[fd] = 1;
    return leave(s, fd);
}

static int sim_close(mq_os *os, int fd) {
    ENTER(K_CLOSE);
    s->fds[fd] = NULL;
    s->fd_used[fd] = 0;
    return leave(s, s->real->close(s->real, fd));
}

static int sim_fallocate(mq_os *os, int fd, int64_t offset, int64_t bytes) {
    ENTER(K_FALLOCATE);
    struct stat st; /* what has blocks needs none */
    int has = stat_fd(fd, &st) == 0 && (int64_t)st.st_blocks * 512 >= offset + bytes;
    if (!has && is_full(s)) return leave(s, -ENOSPC);
    return leave(s, s->real->fallocate(s->real, fd, offset, bytes));
}

static int sim_ftruncate(mq_os *os, int fd, int64_t bytes) {
    ENTER(K_FTRUNCATE);
    int rc = s->real->ftruncate(s->real, fd, bytes);
    if (rc >= 0 && s->fds[fd] != NULL && bytes < s->fds[fd]->least) s->fds[fd]->least = bytes;
    return leave(s, rc);
}

static int sim_fstat(mq_os *os, int fd, mq_stat *out) {
    ENTER(K_FSTAT);
    return leave(s, s->real->fstat(s->real, fd, out));
}

static int sim_stat(mq_os *os, const char *path, mq_stat *out) {
    ENTER(K_STAT);
    return leave(s, s->real->stat(s->real, path, out));
}

static int sim_mmap(mq_os *os, int fd, int64_t bytes, int protection, void **out) {
    ENTER(K_MMAP);
    int rc = s->real->mmap(s->real, fd, bytes, protection, out);
    if (rc >= 0) {
        if (s->map_count == MOST_MAPS) abort();
        s->maps[s->map_count++] = (mapping){*out, bytes, fd < 0 ? NULL : s->fds[fd], 0};
    }
    return leave(s, rc);
}

static mapping *mapping_at(sim *s, const void *address) {
    for (int i = 0; i < s->map_count; i++)
        if ((const uint8_t *)address >= s->maps[i].address &&
            (const uint8_t *)address < s->maps[i].address + s->maps[i].bytes)
            return &s->maps[i];
    return NULL;
}

static int sim_munmap(mq_os *os, void *address, int64_t bytes) {
    ENTER(K_MUNMAP);
    mapping *m = mapping_at(s, address);
    if (m == NULL || m->address != address || bytes > m->bytes)
        abort(); /* the store unmaps from the front, and only what is its own */
    m->address += bytes, m->offset += bytes, m->bytes -= bytes;
    if (m->bytes == 0) *m = s->maps[--s->map_count];
    return leave(s, s->real->munmap(s->real, address, bytes));
}

static int sim_madvise(mq_os *os, void *address, int64_t bytes, int advice) {
    ENTER(K_MADVISE);
    mapping *m = mapping_at(s, address);
    if (advice == MQ_ADVISE_POPULATE_WRITE && m != NULL && m->file != NULL) { /* dirty from now on */
        int64_t from = ((uint8_t *)address - m->address + m->offset) / PAGE, to = from + (bytes + PAGE - 1) / PAGE;
        for (int64_t p = from; p < to && p < m->file->capacity / PAGE; p++) m->file->lost_map[p] = 0;
    }
    return leave(s, s->real->madvise(s->real, address, bytes, advice));
}

static int sim_mlock(mq_os *os, void *address, int64_t bytes) {
    ENTER(K_MLOCK);
    (void)address, (void)bytes; /* the limit of this machine is no part of the simulation */
    return leave(s, 0);
}

static int sim_munlock(mq_os *os, void *address, int64_t bytes) {
    ENTER(K_MUNLOCK);
    (void)address, (void)bytes;
    return leave(s, 0);
}

static int sync_pages(sim *s, node *n, int64_t from, int64_t to, int fault) {
    if (n == NULL) return fault;
    if (was_lost(n, from, to)) s->resyncs++;
    if (fault < 0) {
        lose(n, from, to);
        return fault;
    }
    make_durable(n, from, to);
    return 0;
}

static int sim_msync(mq_os *os, void *address, int64_t bytes) {
    sim *s = os->state;
    int fault = enter(s, K_MSYNC);
    if (s->frozen) return leave(s, 0);
    mapping *m = mapping_at(s, address);
    if (m == NULL || (uintptr_t)address % PAGE ||
        (uint8_t *)address + bytes > m->address + (m->bytes + PAGE - 1) / PAGE * PAGE)
        abort();
    int64_t from = ((uint8_t *)address - m->address + m->offset) / PAGE;
    return leave(s, sync_pages(s, m->file, from, from + (bytes + PAGE - 1) / PAGE, fault));
}

static int whole_sync(mq_os *os, int fd, enum kind kind) {
    sim *s = os->state;
    int fault = enter(s, kind);
    node *n = s->fds[fd];
    if (s->frozen || n == NULL) return leave(s, fault);
    return leave(s, sync_pages(s, n, 0, (live_bytes(n) + PAGE - 1) / PAGE, fault));
}

static int sim_fdatasync(mq_os *os, int fd) { return whole_sync(os, fd, K_FDATASYNC); }
static int sim_fsync(mq_os *os, int fd) { return whole_sync(os, fd, K_FSYNC); }

static int64_t sim_seek_data(mq_os *os, int fd, int64_t offset) {
    sim *s = os->state;
    int fault = enter(s, K_SEEK_DATA);
    int64_t rc = fault < 0 ? fault : s->real->seek_data(s->real, fd, offset);
    leave(s, 0);
    return rc;
}

static int64_t sim_pread(mq_os *os, int fd, void *to, int64_t bytes, int64_t offset) {
    sim *s = os->state;
    int fault = enter(s, K_PREAD);
    if (fault == SHORT_COUNT && bytes > 1) bytes /= 2;
    int64_t rc = fault < 0 ? fault : s->real->pread(s->real, fd, to, bytes, offset);
    leave(s, 0);
    return rc;
}

static int64_t sim_pwrite(mq_os *os, int fd, const void *from, int64_t bytes, int64_t offset) {
    sim *s = os->state;
    int fault = enter(s, K_PWRITE);
    if (fault == SHORT_COUNT && bytes > 1) bytes /= 2;
    struct stat st; /* in place there are blocks */
    if (fault >= 0 && stat_fd(fd, &st) == 0 && offset + bytes > (int64_t)st.st_size && is_full(s)) fault = -ENOSPC;
    int64_t rc = fault < 0 ? fault : s->real->pwrite(s->real, fd, from, bytes, offset);
    for (int64_t p = offset / PAGE; rc > 0 && s->fds[fd] != NULL && p * PAGE < offset + rc; p++)
        if (p < s->fds[fd]->capacity / PAGE) s->fds[fd]->lost_map[p] = 0; /* written again, be it with the same bytes */
    leave(s, 0);
    return rc;
}

static int sim_rename(mq_os *os, const char *from, const char *to) {
    ENTER(K_RENAME);
    const char *name, *name2;
    node *n = node_of_path(s, from), *dir = split(s, from, &name), *dir2 = split(s, to, &name2);
    int rc = s->real->rename(s->real, from, to);
    if (rc >= 0 && n != NULL && dir2 != NULL) note(s, RENAME, dir, name, dir2, name2, n);
    return leave(s, rc);
}

static int sim_unlink(mq_os *os, const char *path) {
    ENTER(K_UNLINK);
    const char *name;
    node *dir = split(s, path, &name);
    int rc = s->real->unlink(s->real, path);
    if (rc >= 0) note(s, UNLINK, dir, name, NULL, NULL, NULL);
    return leave(s, rc);
}

static int sim_mkdir(mq_os *os, const char *path) {
    ENTER(K_MKDIR);
    if (is_full(s)) return leave(s, -ENOSPC);
    const char *name;
    node *dir = split(s, path, &name);
    int rc = s->real->mkdir(s->real, path);
    if (rc >= 0 && dir != NULL) note(s, LINK, dir, name, NULL, NULL, new_node(s, path));
    return leave(s, rc);
}

static int sim_rmdir(mq_os *os, const char *path) {
    ENTER(K_RMDIR);
    const char *name;
    node *dir = split(s, path, &name);
    int rc = s->real->rmdir(s->real, path);
    if (rc >= 0) note(s, UNLINK, dir, name, NULL, NULL, NULL);
    return leave(s, rc);
}

static int sim_sync_directory(mq_os *os, const char *path) {
    ENTER(K_SYNC_DIRECTORY);
    node *d = node_of_path(s, path);
    if (d == NULL && access(path, F_OK) != 0) return leave(s, -ENOENT);
    int kept = 0;
    if (s->frozen) return leave(s, 0);
    for (int i = 0; i < s->change_count; i++) {
        change c = s->changes[i];
        if (c.dir == d || c.dir2 == d) {
            apply(&c, 0);
            free(c.name);
            free(c.name2);
        } else {
            s->changes[kept++] = c;
        }
    }
    s->change_count = kept;
    return leave(s, 0);
}

static int sim_sync_filesystem(mq_os *os, int fd) {
    (void)fd;
    sim *s = os->state;
    int fault = enter(s, K_SYNC_FILESYSTEM);
    if (s->frozen) return leave(s, 0);
    if (fault == -ENOSYS) return leave(s, fault);
    for (node *n = s->nodes; n != NULL; n = n->next)
        if (!n->directory) sync_pages(s, n, 0, (live_bytes(n) + PAGE - 1) / PAGE, fault);
    if (fault < 0) return leave(s, fault);
    for (int i = 0; i < s->change_count; i++) {
        apply(&s->changes[i], 0);
        free(s->changes[i].name);
        free(s->changes[i].name2);
    }
    s->change_count = 0;
    return leave(s, 0);
}

static int sim_statvfs(mq_os *os, const char *path, int64_t *total_bytes, int64_t *available_bytes) {
    ENTER(K_STATVFS);
    if (access(path, F_OK) != 0) return leave(s, -ENOENT);
    *total_bytes = (int64_t)1 << 30; /* always half full: how full this machine is must not matter */
    *available_bytes = (int64_t)1 << 29;
    return leave(s, 0);
}

static int sim_lock_byte(mq_os *os, int fd) {
    ENTER(K_LOCK_BYTE);
    return leave(s, s->real->lock_byte(s->real, fd));
}

static int sim_unlock_byte(mq_os *os, int fd) {
    ENTER(K_UNLOCK_BYTE);
    return leave(s, s->real->unlock_byte(s->real, fd));
}

static int sim_lock_directory(mq_os *os, int fd, int hold) {
    ENTER(K_LOCK_DIRECTORY);
    return leave(s, s->real->lock_directory(s->real, fd, hold));
}

static int64_t sim_clock_ms(mq_os *os) {
    sim *s = os->state;
    enter(s, K_CLOCK_MS);
    int64_t now = s->real_clocks ? s->real->clock_ms(s->real) : (s->now_us += s->tick_us) / 1000;
    leave(s, 0);
    return now;
}

static int64_t sim_monotonic_ns(mq_os *os) {
    sim *s = os->state;
    enter(s, K_MONOTONIC_NS);
    int64_t now = s->real_clocks ? s->real->monotonic_ns(s->real) : (s->mono_ns += s->stands_still ? 0 : 1000);
    leave(s, 0);
    return now;
}

/* --- for the harness --- */

/* Simulate the tree below root (absolute; what is there counts as durable) and put the calls into the table of a
 * door. */
sim *sim_new(mq_os *table, const char *root, int64_t start_ms, int real_clocks) {
    sim *s = checked(calloc(1, sizeof *s));
    s->real_calls = *table;
    s->real = &s->real_calls;
    pthread_mutex_init(&s->lock, NULL);
    s->root = take_tree(s, root);
    s->fault_kind = -1;
    s->now_us = start_ms * 1000;
    s->tick_us = 1000;
    s->only_mode = -1;
    s->mono_ns = 1000000000;
    s->real_clocks = real_clocks;
    *table = (mq_os){sim_open,
                     sim_close,
                     sim_fallocate,
                     sim_ftruncate,
                     sim_fstat,
                     sim_stat,
                     sim_mmap,
                     sim_munmap,
                     sim_madvise,
                     sim_mlock,
                     sim_munlock,
                     sim_msync,
                     sim_seek_data,
                     sim_pread,
                     sim_pwrite,
                     sim_fdatasync,
                     sim_fsync,
                     sim_rename,
                     sim_unlink,
                     sim_mkdir,
                     sim_rmdir,
                     sim_sync_directory,
                     sim_statvfs,
                     sim_lock_byte,
                     sim_clock_ms,
                     sim_monotonic_ns,
                     sim_sync_filesystem,
                     sim_unlock_byte,
                     sim_lock_directory,
                     s,
                     0};
    return s;
}

/* Everything that the simulation holds, after the last object of the store that uses it is gone. */
void sim_free(sim *s) {
    while (s->nodes != NULL) {
        node *n = s->nodes;
        s->nodes = n->next;
        close(n->fd);
        names_clear(&n->names);
        names_clear(&n->shadow);
        free(n->names.at);
        free(n->shadow.at);
        free(n->durable);
        free(n->lost);
        free(n->lost_map);
        free(n->filled);
        free(n);
    }
    for (int i = 0; i < s->change_count; i++) free(s->changes[i].name), free(s->changes[i].name2);
    free(s->changes);
    free(s->images);
    free(s->target);
    free(s);
}

/* Take per_call images into target (one directory each, numbered) before every call of these kinds with first <=
 * number < last. */
void sim_images(sim *s, int64_t first, int64_t last, uint32_t kinds, int per_call, uint64_t seed, const char *target) {
    free(s->target);
    s->target = checked(strdup(target));
    s->first = first, s->last = last, s->kinds = kinds, s->per_call = per_call, s->seed = seed;
}

/* Let all images have one mode; -1: each draws its own. */
void sim_only_mode(sim *s, int mode) { s->only_mode = mode; }

/* The images of this very moment, as if a call came. */
void sim_take(sim *s) {
    pthread_mutex_lock(&s->lock);
    s->calls++;
    if (!s->frozen && s->calls >= s->first && s->calls < s->last) take_images(s);
    pthread_mutex_unlock(&s->lock);
}

void sim_image(sim *s, const char *path, int mode, uint64_t seed) {
    pthread_mutex_lock(&s->lock);
    write_image(s, path, mode, seed);
    pthread_mutex_unlock(&s->lock);
}

int sim_image_count(const sim *s) { return s->image_count; }
const image *sim_image_list(const sim *s) { return s->images; }
void sim_mark(sim *s, int mark) { s->mark = mark; }
/* Frozen: calls work, but nothing is counted, fails, is imaged or becomes durable. So a store is left as a killed
 * process leaves it. */
void sim_freeze(sim *s, int on) { s->frozen = on; }
int64_t sim_calls(const sim *s) { return s->calls; }
int64_t sim_count(const sim *s, int kind) { return s->count[kind]; }
/* Set both clocks, which then stand still. */
void sim_time(sim *s, int64_t wall_us, int64_t monotonic_ns) {
    s->now_us = wall_us, s->mono_ns = monotonic_ns, s->tick_us = 0, s->stands_still = 1;
}
void sim_clock(sim *s, int64_t start_ms, int64_t tick_us) { s->now_us = start_ms * 1000, s->tick_us = tick_us; }

/* The n-th call of a kind from now on fails with this errno, once or for ever; kind -1: none does. */
void sim_fault(sim *s, int kind, int64_t n, int error, int for_ever) {
    pthread_mutex_lock(&s->lock);
    s->fault_kind = kind;
    s->fault_at = kind < 0 ? 0 : s->count[kind] + n;
    s->fault_errno = error;
    s->fault_for_ever = for_ever;
    s->fault_hits = 0;
    pthread_mutex_unlock(&s->lock);
}

void sim_full(sim *s, int64_t n) {
    pthread_mutex_lock(&s->lock);
    s->full_at = n;
    s->full_seen = 0;
    pthread_mutex_unlock(&s->lock);
}

int64_t sim_asked_for_space(const sim *s) { return s->full_seen; }

int64_t sim_fault_hits(const sim *s) { return s->fault_hits; }
/* Syncs of pages that an earlier sync had failed on, and that did not change since. */
int64_t sim_resyncs(const sim *s) { return s->resyncs; }
int sim_open_maps(const sim *s) { return s->map_count; }

int sim_open_fds(const sim *s) {
    int n = 0;
    for (int i = 0; i < MOST_FDS; i++) n += s->fd_used[i];
    return n;
}
