"""Locks of the client that know their threads, and checks whether a call may wait.

A signal handler, a finalizer or a callback of a weak reference runs in the middle of another call of its thread. Such a
call cannot wait for a lock that the interrupted frame holds, nor for another thread that waits for that lock. So each
lock that callers take is a ``Guard``, guards are counted for each thread, and a call that has to wait for another
thread begins with ``check_may_wait``. A request over the caller's own socket only checks with ``ASKING`` whether the
thread is inside of another request. The thread that serves all sync clients must never wait for a sync client.

No wait exceeds the caller's limit. In this file nothing can interrupt the frame between the taking of a lock and the
note of its owner: compiled code does not check for signals.
"""

from _thread import allocate_lock

from cpython.pythread cimport PyThread_get_thread_ident

cimport cython

from mqfast.errors import ClientError, ClientNested

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #define MQ_OF_THREAD static __declspec(thread)
    #else
    #define MQ_OF_THREAD static __thread
    #endif
    MQ_OF_THREAD int mq_guards_held;
    MQ_OF_THREAD int mq_asking;
    MQ_OF_THREAD int mq_serves;
    """
    int mq_guards_held
    int mq_asking
    int mq_serves

cdef unsigned long _generation = 0  # of guards: a child of a fork begins another one


@cython.final
cdef class Guard:
    """A lock that refuses the thread that holds it already: ``with guard:``.

    Args: brief: held for moments only, in which its thread may not wait for other threads. nests: its thread may
        acquire the lock again; callers then begin with ``check_may_wait``.
    Thread: any; the owner releases the lock. ``threading.Condition(guard)`` works. Raises: ClientNested.
    """

    cdef object _lock
    cdef unsigned long _owner
    cdef unsigned long _born
    cdef int _depth
    cdef bint _brief
    cdef bint _nests

    def __init__(self, *, bint brief=True, bint nests=False):
        self._lock = allocate_lock()
        self._owner = 0
        self._born = _generation
        self._depth = 0
        self._brief = brief
        self._nests = nests

    def __enter__(self):
        self._take(True, -1)
        return True

    def __exit__(self, kind, value, trace):
        self._give()

    def acquire(self, bint blocking=True, double timeout=-1):
        """Acquire the lock. Returns: whether the lock was free in time. Raises: ClientNested."""
        return self._take(blocking, timeout)

    def release(self):
        """Release the lock. Raises: RuntimeError for a thread that does not hold the lock."""
        if self._owner != PyThread_get_thread_ident():
            raise RuntimeError("cannot release a guard of another thread")
        self._give()

    cdef bint _take(self, bint blocking, double timeout) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        if self._owner == me:
            if not self._nests:
                raise nested()
            self._depth += 1
            return True
        if not self._lock.acquire(False) and (not blocking or not self._lock.acquire(True, timeout)):
            return False
        self._owner = me
        self._depth = 1
        if self._brief and self._born == _generation:
            self._hold(1)
        return True

    cdef int _give(self) except -1:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            if self._brief and self._born == _generation:
                self._hold(-1)
            self._lock.release()
        return 0

    cdef void _hold(self, int more) noexcept:
        global mq_guards_held
        mq_guards_held += more

    # Methods that threading.Condition needs of its lock.

    def _is_owned(self):
        return self._owner == PyThread_get_thread_ident()

    def _release_save(self):
        depth = self._depth
        self._depth = 1
        self._give()
        return depth

    def _acquire_restore(self, depth):
        raised = None
        while self._owner != PyThread_get_thread_ident():
            try:
                self._take(True, -1)
            except BaseException as error:  # of a signal handler: the block that waited is left with its guard
                raised = error
        self._depth = depth
        if raised is not None:
            raise raised


def nested():
    """Return the error of a call that cannot wait for the frame that it interrupted."""
    return ClientNested(
        "called inside of another call of a client by the same thread, which a signal handler, a finalizer or a "
        "callback interrupted: nothing was done; set a flag there, and call the client behind the interrupted call"
    )


def refuse_nested():
    """Refuse a call inside of a call that has a guard. Raises: ClientNested."""
    if mq_guards_held:
        raise nested()


def check_may_wait():
    """Check that this thread may wait for others.

    Raises: ClientNested inside of a call that has a guard; ClientError in the thread that serves sync clients, to
        ``on_done`` for example.
    """
    if mq_guards_held:
        raise nested()
    if mq_serves:
        raise ClientError(
            "a sync client was called in the thread that serves sync clients (by on_done, a hook or a finalizer): it "
            "would wait for ever; use send_future there, or hand the work to another thread"
        )


def serve_here():
    """Mark the calling thread as the one that serves sync clients: it may not wait for a sync client."""
    global mq_serves
    mq_serves = 1


def serves_here():
    """Return whether the calling thread serves sync clients."""
    return bool(mq_serves)


def begin_anew():
    """Reset the state in a child of a fork: requests and guards of the parent do not count."""
    global mq_guards_held, mq_asking, mq_serves, _generation
    mq_guards_held = mq_asking = mq_serves = 0
    _generation += 1


@cython.final
cdef class _HalfDone:
    """``with HALF_DONE``: other threads use what the calling thread is about to finish; a call inside of the block may
    not wait for them.
    """

    def __enter__(self):
        global mq_guards_held
        mq_guards_held += 1

    def __exit__(self, kind, value, trace):
        global mq_guards_held
        if mq_guards_held:
            mq_guards_held -= 1


@cython.final
cdef class _Asking:
    """``with ASKING as inside``: a request of the calling thread. Returns: whether it is inside of another one.

    Raises: ClientError in the thread that serves sync clients.
    """

    def __enter__(self):
        global mq_asking
        if mq_serves:
            check_may_wait()
        mq_asking += 1
        return mq_asking > 1

    def __exit__(self, kind, value, trace):
        global mq_asking
        if mq_asking:
            mq_asking -= 1


ASKING = _Asking()
HALF_DONE = _HalfDone()
