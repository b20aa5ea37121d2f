# Envelopes: a column of NATS payloads as the columns of the Messages in them, and rows as payloads.

cdef enum:
    ENVELOPE_BUFFERS = 19
    ENVELOPE_PLAIN = 0
    ENVELOPE_MESSAGE = 1
    ENVELOPE_OTHER = 2
    ENVELOPE_DAMAGED = 3


cdef inline int put_byte(Out *out, uint8_t value) except -1 nogil:
    out_reserve(out, 1)
    out.data[out.size] = value
    out.size += 1
    return 0


cdef int look_into(const Span *payload, Span *body, Parsed *parsed) noexcept nogil:
    # What the payload is. `body` is what it carries.
    memset(parsed, 0, sizeof(Parsed))
    body[0] = payload[0]
    if payload.size < ENVELOPE_BYTES or memcmp(payload.data, MAGIC, 4) != 0 or payload.data[4] != 0:
        return ENVELOPE_PLAIN
    if not open_envelope(payload, payload.data[7], body):
        return ENVELOPE_DAMAGED
    if payload.data[7] != TYPE_PUBLISH:
        return ENVELOPE_OTHER
    return ENVELOPE_MESSAGE if parse(body, MESSAGE, parsed, MAX_DEPTH) else ENVELOPE_DAMAGED


cdef int put_envelope_row(Out *out, const Span *payload, uint64_t row) except -1:
    cdef Parsed parsed
    cdef Span body
    cdef Span nothing
    cdef int status = look_into(payload, &body, &parsed)
    nothing.data = NULL
    nothing.size = 0
    if status == ENVELOPE_DAMAGED:
        memset(&parsed, 0, sizeof(Parsed))
    put_byte(&out[0], <uint8_t>status)
    put_byte(&out[1], payload.data[7] if status != ENVELOPE_PLAIN else 0)
    put_byte(&out[2], payload.data[6] & 1 if status != ENVELOPE_PLAIN else 0)
    out_reserve(&out[3], 4)
    put_le32(out[3].data + out[3].size, <uint32_t>parsed.fields[12].size)
    out[3].size += 4
    put_text(&out[4], &out[5], &parsed.fields[2])
    put_validity(&out[6], row, parsed.fields[2].size > 0)
    if status == ENVELOPE_MESSAGE:
        put_text(&out[7], &out[8], &parsed.fields[3])
        if parsed.entries:
            put_header_columns(&out[10], &body, NULL, parsed.entries, False)
    else:
        put_text(&out[7], &out[8], &nothing if status == ENVELOPE_DAMAGED else &body)
    put_validity(&out[9], row, status != ENVELOPE_DAMAGED)
    put_end(&out[10], out[11].size // 4 - 1)
    put_text(&out[15], &out[16], &parsed.fields[10])
    put_text(&out[17], &out[18], &parsed.fields[11])
    return 0


def envelope_columns(uint64_t count, object ends, object content):
    """A column of payloads, as Arrow has it, into the buffers of columns; see `wire.columns` for their form."""
    cdef Py_buffer views[2]
    cdef Out out[ENVELOPE_BUFFERS]
    cdef Texts payloads
    cdef Span payload
    cdef uint64_t row
    cdef int opened = 0
    cdef int each
    if count > 0x7FFFFFFF:
        raise ValueError("these are no rows")
    memset(out, 0, sizeof(out))
    try:
        for given in (ends, content):
            PyObject_GetBuffer(given, &views[opened], PyBUF_SIMPLE)
            opened += 1
        payloads.ends.data, payloads.ends.size = <const uint8_t *>views[0].buf, <uint64_t>views[0].len
        payloads.content.data, payloads.content.size = <const uint8_t *>views[1].buf, <uint64_t>views[1].len
        check_ends(&payloads.ends, count, payloads.content.size)
        for each in (4, 7, 10, 11, 13, 15, 17):
            put_end(&out[each], 0)
        for row in range(count):
            payload = text_at(&payloads, row)
            put_envelope_row(out, &payload, row)
        return tuple([out_take(&out[each]) for each in range(ENVELOPE_BUFFERS)])
    finally:
        for each in range(ENVELOPE_BUFFERS):
            out_drop(&out[each])
        while opened:
            opened -= 1
            PyBuffer_Release(&views[opened])


cdef int put_enveloped(Out *out, Out *ends, const Rows *rows, uint64_t row, bint checked) except -1 nogil:
    cdef uint64_t head = 12 if checked else ENVELOPE_BYTES
    cdef uint64_t begin = out.size
    cdef uint64_t size
    cdef Span key = text_at(&rows.keys, row)
    cdef uint8_t *to
    out_reserve(out, head)
    out.size += head - FRAME_BYTES
    put_framed(out, rows, row, &key)
    to = out.data + begin
    size = out.size - begin - head
    memcpy(to, PUBLISH_ENVELOPE, ENVELOPE_BYTES)
    if checked:
        to[5] = 12
        to[6] = 1
        put_be32(to + 8, crc_extend(0, to + head, size))
    if out.size > 0x7FFFFFFF:
        with gil:
            raise ValueError("a column of Arrow has at most 2 GiB: give fewer rows at a time")
    return put_end(ends, out.size)


def envelope_rows(uint64_t count, tuple buffers not None, bint checked):
    """Columns into Messages in envelopes -> (ends, contents). `buffers`: as `frame_rows` takes them."""
    cdef Py_buffer views[ROW_BUFFERS]
    cdef Rows rows
    cdef Out out
    cdef Out ends
    cdef uint64_t row
    cdef int opened = 0
    if len(buffers) != ROW_BUFFERS or count > 0x7FFFFFFF:
        raise ValueError("these are no rows")
    memset(&out, 0, sizeof(Out))
    memset(&ends, 0, sizeof(Out))
    try:
        for each in buffers:
            PyObject_GetBuffer(each, &views[opened], PyBUF_SIMPLE)
            opened += 1
        open_rows(&rows, views, count)
        put_end(&ends, 0)
        with nogil:
            for row in range(count):
                put_enveloped(&out, &ends, &rows, row, checked)
        return out_take(&ends), out_take(&out)
    finally:
        out_drop(&out)
        out_drop(&ends)
        while opened:
            opened -= 1
            PyBuffer_Release(&views[opened])
