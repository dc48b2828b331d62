/*
 * malloc and its family, some of whose calls fail: preloaded into a Python that takes all its memory from malloc
 * (PYTHONMALLOC=malloc), so that Python's own allocations, those of the extensions and those of the C library are one
 * row of numbered calls.
 *
 * Room: tests. It must never fail a call outside fail_call and fail_others, and never keep a block that was freed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))

/* Python's, found in the process that this is loaded into; other processes never call it. */
extern void *PyObject_CallNoArgs(void *callable) __attribute__((weak));

static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static void (*real_free)(void *);
static int (*real_posix_memalign)(void **, size_t, size_t);
static void *(*real_aligned_alloc)(size_t, size_t);

/* What dlsym asks for while the real functions are being looked up. */
static char early[8192];
static size_t early_used;

static atomic_long live; /* blocks given out and not freed */
static atomic_long failing_others;
static atomic_long hits;
static atomic_long seen_by_others;
static _Thread_local int armed __attribute__((tls_model("initial-exec")));
static _Thread_local int spared __attribute__((tls_model("initial-exec")));
static long seen, first_failing, last_failing; /* of the armed thread */

static void find(void) {
    if (real_free) return;
    real_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    real_calloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    real_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    real_posix_memalign = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    real_aligned_alloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
    real_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
}

static void *take_early(size_t n) {
    size_t at = (early_used + 15) & ~(size_t)15;
    if (at + n > sizeof early) return NULL;
    early_used = at + n;
    return early + at;
}

static int is_early(const void *p) { return (const char *)p >= early && (const char *)p < early + sizeof early; }

/* Does this call fail? */
static int fails(void) {
    long every = atomic_load_explicit(&failing_others, memory_order_relaxed);
    if (armed) {
        seen++;
        if (seen < first_failing || seen > last_failing) return 0;
    } else if (!every || spared || atomic_fetch_add_explicit(&seen_by_others, 1, memory_order_relaxed) % every) {
        return 0;
    }
    atomic_fetch_add_explicit(&hits, 1, memory_order_relaxed);
    errno = ENOMEM;
    return 1;
}

static void *counted(void *p) {
    if (p) atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return p;
}

API void *malloc(size_t n) {
    find();
    if (!real_malloc) return take_early(n);
    return fails() ? NULL : counted(real_malloc(n));
}

API void *calloc(size_t count, size_t n) {
    if (!real_calloc) {
        static int looking;
        if (looking) return take_early(count * n);
        looking = 1;
        find();
    }
    return fails() ? NULL : counted(real_calloc(count, n));
}

API void *realloc(void *p, size_t n) {
    find();
    if (is_early(p)) {
        void *moved = malloc(n);
        if (moved)
            memcpy(moved, p,
                   n < (size_t)(early + sizeof early - (char *)p) ? n : (size_t)(early + sizeof early - (char *)p));
        return moved;
    }
    if (!p) return malloc(n);
    /* A block that shrinks stays where it is: no allocator fails there. */
    if (n > malloc_usable_size(p) && fails()) return NULL;
    void *moved = real_realloc(p, n);
    if (!moved && !n) atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    return moved;
}

API int posix_memalign(void **out, size_t alignment, size_t n) {
    find();
    if (fails()) return ENOMEM;
    int rc = real_posix_memalign(out, alignment, n);
    if (!rc) counted(*out);
    return rc;
}

API void *aligned_alloc(size_t alignment, size_t n) {
    find();
    return fails() ? NULL : counted(real_aligned_alloc(alignment, n));
}

API void free(void *p) {
    if (!p || is_early(p)) return;
    find();
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    real_free(p);
}

/* Call a Python callable; the allocations numbered first to last of this thread fail meanwhile. The GIL is held. */
API void *fail_call(void *callable, long first, long last) {
    seen = 0;
    first_failing = first;
    last_failing = last;
    atomic_store(&hits, 0);
    armed = 1;
    void *result = PyObject_CallNoArgs(callable);
    armed = 0;
    return result;
}

/* From now on every n-th allocation of all threads but this one fails; 0: none. */
API void fail_others(long every) {
    spared = 1;
    if (every) atomic_store(&hits, 0);
    atomic_store(&failing_others, every);
}

/* Allocations that failed since the last fail_call or fail_others. */
API long fail_hits(void) { return atomic_load(&hits); }

/* Allocations of the last fail_call. */
API long fail_seen(void) { return seen; }

/* Blocks that were given out and not freed. */
API long fail_live(void) { return atomic_load(&live); }

/* The Arrow C stream interface, as much of it as a consumer needs. */
struct schema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct schema **children, *dictionary;
    void (*release)(struct schema *);
    void *private_data;
};

struct array {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct array **children, *dictionary;
    void (*release)(struct array *);
    void *private_data;
};

struct stream {
    int (*get_schema)(struct stream *, struct schema *);
    int (*get_next)(struct stream *, struct array *);
    const char *(*get_last_error)(struct stream *);
    void (*release)(struct stream *);
    void *private_data;
};

extern void *PyCapsule_GetPointer(void *capsule, const char *name) __attribute__((weak));

/* Read a capsule as a consumer in C does. Returns: rows times columns of the first batch, or -1 for no memory. */
API long fail_consume(void *capsule) {
    struct stream *stream = PyCapsule_GetPointer(capsule, "arrow_array_stream");
    struct schema schema;
    struct array array;
    long cells = -1;
    if (!stream || stream->get_schema(stream, &schema)) return -1;
    if (!stream->get_next(stream, &array) && array.release) {
        cells = (long)(array.length * schema.n_children);
        array.release(&array);
    }
    schema.release(&schema);
    return cells;
}
