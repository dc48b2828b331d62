"""PUT: what the interpreter calls for ``store.put``. It finds the arguments by place and by the names' identity.

Cython makes a dict for each call of a function that takes ``**options``, looks the names up, and lets go of all of it again: 250 instructions of a put
by keyword. Names in a call are interned, so that a pointer tells which one it is. A call with anything but topic, body, queue, tags and keys, or with
a name that is not interned, goes to PutPath.put, which checks everything and says what is wrong.

It must never keep an argument: the caller's references are the only ones.
"""

from cpython.object cimport PyObject
from mqfast.store.put._put cimport PutPath

from mqfast.store.put import _put

cdef extern from "Python.h":
    enum:
        METH_FASTCALL
        METH_KEYWORDS
    ctypedef PyObject *(*PyCFunction)(PyObject *, PyObject *)
    ctypedef struct PyMethodDef:
        const char *ml_name
        PyCFunction ml_meth
        int ml_flags
        const char *ml_doc
    ctypedef struct PyTypeObject
    object PyDescr_NewMethod(PyTypeObject *owner, PyMethodDef *method)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *of)
    PyObject *PyTuple_GET_ITEM(PyObject *of, Py_ssize_t index)

cdef object general = _put.PutPath.put
cdef object NOTHING = None
cdef object ZERO = 0
# Literals are interned, as the names in a call are.
cdef object QUEUE_ID = "queue_id"
cdef object TAGS = "tags"
cdef object KEYS = "keys"


cdef object put(PyObject *path, PyObject **args, Py_ssize_t given, PyObject *names):
    """A METH_FASTCALL function: `given` arguments by place, behind them those by name."""
    cdef PyObject *queue_id = <PyObject *> ZERO
    cdef PyObject *tags = <PyObject *> NOTHING
    cdef PyObject *keys = <PyObject *> NOTHING
    cdef PyObject *name
    cdef Py_ssize_t k, named = PyTuple_GET_SIZE(names) if names != NULL else 0
    if given < 2 or given > 5:
        return put_any(path, args, given, names, named)
    if given > 2:
        queue_id = args[2]
    if given > 3:
        tags = args[3]
    if given > 4:
        keys = args[4]
    for k in range(named):
        name = PyTuple_GET_ITEM(names, k)
        if name == <PyObject *> TAGS and given < 4:
            tags = args[given + k]
        elif name == <PyObject *> KEYS and given < 5:
            keys = args[given + k]
        elif name == <PyObject *> QUEUE_ID and given < 3:
            queue_id = args[given + k]
        else:
            return put_any(path, args, given, names, named)
    return (<PutPath> path).put_plain(<object> args[0], <object> args[1], <object> queue_id, <object> tags, <object> keys)


cdef object put_any(PyObject *path, PyObject **args, Py_ssize_t given, PyObject *names, Py_ssize_t named):
    cdef Py_ssize_t k
    return general(<object> path, *[<object> args[k] for k in range(given)],
                   **{<object> PyTuple_GET_ITEM(names, k): <object> args[given + k] for k in range(named)})


cdef bytes doc = ("put($self, topic, body, queue_id=0, tags=None, keys=None, properties=None, **options)\n--\n\n"
                  + general.__doc__.partition("\n\n")[2]).encode()
cdef PyMethodDef method = [b"put", <PyCFunction> put, METH_FASTCALL | METH_KEYWORDS, doc]

PUT = PyDescr_NewMethod(<PyTypeObject *> PutPath, &method)
