# Bytes: views of input, growable output, integers on the wire, UTF-8, and what counts as a usable subject.

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static inline uint32_t get_be32(const uint8_t *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline uint32_t get_le32(const uint8_t *p) {
        return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
    }
    static inline uint32_t get_le16(const uint8_t *p) { return (uint32_t)p[1] << 8 | p[0]; }
    static inline uint64_t get_le64(const uint8_t *p) {
        return (uint64_t)get_le32(p + 4) << 32 | get_le32(p);
    }
    static inline void put_be32(uint8_t *p, uint32_t v) {
        p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v;
    }
    static inline void put_le16(uint8_t *p, uint32_t v) { p[0] = v; p[1] = v >> 8; }
    static inline void put_le32(uint8_t *p, uint32_t v) {
        p[0] = v; p[1] = v >> 8; p[2] = v >> 16; p[3] = v >> 24;
    }
    static inline void put_le64(uint8_t *p, uint64_t v) { put_le32(p, v); put_le32(p + 4, v >> 32); }

    /* Any order of bytes will do for these two: they only ask whether some byte has its high bit set. */
    static inline uint64_t any64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
    static inline uint32_t any32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }

    /* Shortens a bytes object that only we hold, without giving memory back. */
    static inline void bytes_end_here(PyObject *owner, Py_ssize_t size) {
        Py_SET_SIZE((PyVarObject *)owner, size);
        PyBytes_AS_STRING(owner)[size] = 0;
    }

    static inline uint32_t varint_size(uint64_t v) {
        return (9 * (64 - (uint32_t)__builtin_clzll(v | 1)) + 64) >> 6;
    }
    """
    uint32_t get_be32(const uint8_t *p) noexcept nogil
    uint32_t get_le32(const uint8_t *p) noexcept nogil
    uint32_t get_le16(const uint8_t *p) noexcept nogil
    uint64_t get_le64(const uint8_t *p) noexcept nogil
    void put_be32(uint8_t *p, uint32_t v) noexcept nogil
    void put_le16(uint8_t *p, uint32_t v) noexcept nogil
    void put_le32(uint8_t *p, uint32_t v) noexcept nogil
    void put_le64(uint8_t *p, uint64_t v) noexcept nogil
    uint64_t any64(const uint8_t *p) noexcept nogil
    uint32_t any32(const uint8_t *p) noexcept nogil
    uint32_t varint_size(uint64_t v) noexcept nogil
    void bytes_end_here(PyObject *owner, Py_ssize_t size) noexcept

cdef extern from "Python.h":
    PyObject *new_bytes "PyBytes_FromStringAndSize" (const char *source, Py_ssize_t size) except NULL
    int resize_bytes "_PyBytes_Resize" (PyObject **owner, Py_ssize_t size) except -1
    char *bytes_data "PyBytes_AS_STRING" (PyObject *owner) noexcept nogil
    void drop "Py_XDECREF" (PyObject *owner) noexcept
    const Py_ssize_t PY_SSIZE_T_MAX


# --- input ------------------------------------------------------------------------------------------------

cdef struct Span:
    # Some bytes of an input that outlives the span. For a number read from protobuf, `size` is the number.
    const uint8_t *data
    uint64_t size


cdef inline Span span_of(bytes source) noexcept:
    cdef Span span
    span.data = <const uint8_t *>(<char *>source)
    span.size = <uint64_t>len(source)
    return span


cdef inline bint same(const Span *one, const Span *other) noexcept nogil:
    return one.size == other.size and memcmp(one.data, other.data, one.size) == 0


cdef inline bint starts_with(const Span *whole, const Span *prefix) noexcept nogil:
    return whole.size >= prefix.size and memcmp(whole.data, prefix.data, prefix.size) == 0


cdef int open_range(Py_buffer *view, object source, Py_ssize_t start, Py_ssize_t end) except -1:
    # Opens `source` and checks that start..end lies inside it. The caller releases the view.
    PyObject_GetBuffer(source, view, PyBUF_SIMPLE)
    if start < 0 or end < start or end > view.len:
        size = view.len
        PyBuffer_Release(view)
        raise ValueError(f"range {start}..{end} is not inside a buffer of {size} bytes")
    return 0


# --- output -----------------------------------------------------------------------------------------------

cdef enum:
    # From this size on, up to half as much again is left allocated behind the end. Giving it back would make the C
    # library map and unmap every large output anew (it learns sizes from what is freed): 120 ns a message.
    KEEP_ROOM_FROM_BYTES = 65536

cdef struct Out:
    # A bytes object being filled. All zero is a valid, empty one.
    PyObject *owner
    uint8_t *data
    uint64_t size
    uint64_t room


cdef int out_grow(Out *out, uint64_t more) except -1 with gil:
    cdef uint64_t room
    if more > <uint64_t>PY_SSIZE_T_MAX // 4 or out.size > <uint64_t>PY_SSIZE_T_MAX // 4:
        raise MemoryError("a kernel's output would not fit into memory")
    room = out.size + more
    if room < 2 * out.room:
        room = 2 * out.room
    if room < 256:
        room = 256
    if out.owner == NULL:
        out.owner = new_bytes(NULL, <Py_ssize_t>room)
    else:
        resize_bytes(&out.owner, <Py_ssize_t>room)
    out.data = <uint8_t *>bytes_data(out.owner)
    out.room = room
    return 0


cdef inline int out_reserve(Out *out, uint64_t more) except -1 nogil:
    # Makes room for `more` bytes after out.size; writers then store without looking.
    if out.room - out.size < more:
        out_grow(out, more)
    return 0


cdef bytes out_take(Out *out):
    # Gives the bytes away; the Out is empty again.
    cdef object result
    if out.size == 0:
        out_drop(out)
        return b""
    if out.room >= KEEP_ROOM_FROM_BYTES and out.room - out.size <= out.size // 2:
        bytes_end_here(out.owner, <Py_ssize_t>out.size)
    elif out.size != out.room:
        resize_bytes(&out.owner, <Py_ssize_t>out.size)
    result = <object>out.owner
    Py_DECREF(result)
    memset(out, 0, sizeof(Out))
    return <bytes>result


cdef void out_drop(Out *out) noexcept:
    drop(out.owner)
    memset(out, 0, sizeof(Out))


cdef inline uint8_t *put(uint8_t *to, const Span *span) noexcept nogil:
    memcpy(to, span.data, span.size)
    return to + span.size


cdef inline uint8_t *put_varint(uint8_t *to, uint64_t value) noexcept nogil:
    while value >= 0x80:
        to[0] = <uint8_t>(value | 0x80)
        value >>= 7
        to += 1
    to[0] = <uint8_t>value
    return to + 1


cdef inline uint8_t *put_decimal(uint8_t *to, uint64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int count = 0
    while True:
        digits[count] = <uint8_t>(48 + value % 10)
        count += 1
        value //= 10
        if value == 0:
            break
    while count:
        count -= 1
        to[0] = digits[count]
        to += 1
    return to


cdef inline uint32_t decimal_size(uint64_t value) noexcept nogil:
    cdef uint32_t count = 1
    while value >= 10:
        value //= 10
        count += 1
    return count


# --- UTF-8 ------------------------------------------------------------------------------------------------

cdef inline bint is_ascii(const uint8_t *data, uint64_t size) noexcept nogil:
    cdef uint64_t position
    if size >= 8:
        position = 0
        while position + 8 <= size:
            if any64(data + position) & 0x8080808080808080ULL:
                return False
            position += 8
        return (any64(data + size - 8) & 0x8080808080808080ULL) == 0
    if size >= 4:
        return ((any32(data) | any32(data + size - 4)) & 0x80808080U) == 0
    for position in range(size):
        if data[position] & 0x80:
            return False
    return True


cdef inline uint64_t character_size(const uint8_t *data, uint64_t size, bint *good) noexcept nogil:
    # The bytes of the character at data[0] (size > 0). If it is not one, `good` is false and the result is the
    # number of bytes a decoder replaces by one U+FFFD: the longest start of a character that stands there.
    cdef uint8_t lead = data[0]
    cdef uint8_t low = 0x80
    cdef uint8_t high = 0xBF
    cdef uint64_t wanted
    cdef uint64_t have = 1
    good[0] = True
    if lead < 0x80:
        return 1
    good[0] = False
    if lead < 0xC2 or lead > 0xF4:
        return 1
    if lead < 0xE0:
        wanted = 2
    elif lead < 0xF0:
        wanted = 3
        if lead == 0xE0:
            low = 0xA0
        elif lead == 0xED:
            high = 0x9F
    else:
        wanted = 4
        if lead == 0xF0:
            low = 0x90
        elif lead == 0xF4:
            high = 0x8F
    while have < wanted:
        if have == size or data[have] < low or data[have] > high:
            return have
        low = 0x80
        high = 0xBF
        have += 1
    good[0] = True
    return have


cdef bint is_utf8_slow(const uint8_t *data, uint64_t size) noexcept nogil:
    cdef uint64_t position = 0
    cdef bint good = True
    while position < size:
        position += character_size(data + position, size - position, &good)
        if not good:
            return False
    return True


cdef inline bint is_utf8(const uint8_t *data, uint64_t size) noexcept nogil:
    return is_ascii(data, size) or is_utf8_slow(data, size)


cdef uint64_t repaired_size(const Span *text) noexcept nogil:
    # How long `text` is once every bad part of it has become U+FFFD.
    cdef uint64_t position = 0
    cdef uint64_t total = 0
    cdef uint64_t step
    cdef bint good = True
    if is_utf8(text.data, text.size):
        return text.size
    while position < text.size:
        step = character_size(text.data + position, text.size - position, &good)
        total += step if good else 3
        position += step
    return total


cdef uint8_t *put_repaired(uint8_t *to, const Span *text, uint64_t size) noexcept nogil:
    # Writes `text` repaired; `size` is its repaired_size.
    cdef uint64_t position = 0
    cdef uint64_t step
    cdef bint good = True
    if size == text.size and is_utf8(text.data, text.size):
        return put(to, text)
    while position < text.size:
        step = character_size(text.data + position, text.size - position, &good)
        if good:
            memcpy(to, text.data + position, step)
            to += step
        else:
            to[0] = 0xEF
            to[1] = 0xBF
            to[2] = 0xBD
            to += 3
        position += step
    return to


# --- subjects ---------------------------------------------------------------------------------------------

cdef bint is_usable_subject(const Span *subject) noexcept nogil:
    # May this be written into a PUB line? Not if it could end the line, name many subjects, or be refused.
    cdef uint64_t position
    cdef uint8_t byte
    cdef uint8_t before = 46
    if subject.size == 0 or subject.size > MAX_SUBJECT:
        return False
    for position in range(subject.size):
        byte = subject.data[position]
        if byte <= 0x20 or byte == 0x7F or byte == 42 or byte == 62:
            return False
        if byte == 46 and before == 46:
            return False
        before = byte
    return before != 46
