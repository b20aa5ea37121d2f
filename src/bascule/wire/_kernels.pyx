# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: overflowcheck=False, freethreading_compatible=False
"""The compiled twin of the kernels: the same functions as `_pure`, with no Python object per message.

How it works. Every function opens its input once as a flat buffer, walks it with pointers, writes into growable
`bytes` objects that nobody else sees yet (`Out`), and gives them away shrunk to size: no message is copied twice.
Loops that touch no Python object drop the interpreter lock when the input is large enough to make it worth it.

Rules. Input is hostile: every read is checked against the end of its buffer before it happens, lengths are
unsigned 64-bit while they are added, nothing recurses. `kernels` describes the packed formats;
which protobuf is accepted follows upb, the parser behind the `protobuf` package.

The parts, in the order they build on each other: bytes, CRC, protobuf, groups (messages sorted by key); then the
kernels in the order the bytes travel: NATS, producers, record, batch, log (scanning records), compaction, ack,
publish, decode, columns, rows, envelopes, HTTP/2.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

from bascule import limits
from bascule.errors import NatsProtocolError

cdef uint64_t MAX_SUBJECT = limits.MAX_SUBJECT_BYTES
cdef uint64_t MAX_CORRELATION_ID = limits.MAX_CORRELATION_ID_BYTES
cdef uint64_t MAX_RECORD = limits.MAX_RECORD_BYTES
cdef uint64_t MAX_HEADERS = limits.MAX_MESSAGE_FIELDS
cdef uint64_t MAX_BATCH_HEADERS = limits.BULK_WRITE_HEADERS
cdef uint64_t MAX_BATCH = limits.BULK_WRITE_MESSAGES
cdef uint64_t ATOMIC_MESSAGE = limits.ATOMIC_MESSAGE_BYTES
cdef enum:
    # Below this much input the interpreter lock is not released: that costs more than the work.
    UNLOCK_FROM_BYTES = 32768

include "_bytes.pxi"
include "_crc.pxi"
include "_protobuf.pxi"
include "_groups.pxi"
include "_nats.pxi"
include "_producers.pxi"
include "_flatbuffers.pxi"
include "_record.pxi"
include "_batch.pxi"
include "_log.pxi"
include "_compaction.pxi"
include "_ack.pxi"
include "_publish.pxi"
include "_decode.pxi"
include "_columns.pxi"
include "_rows.pxi"
include "_envelopes.pxi"
include "_http2.pxi"
