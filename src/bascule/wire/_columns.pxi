# Columns: verified records as the buffers of Arrow columns, without a Python object per message.

cdef enum:
    COLUMN_KEYS = 1
    COLUMN_VALUES = 2
    COLUMN_SUBJECTS = 4
    COLUMN_REPLIES = 8
    COLUMN_HEADERS = 16
    COLUMN_BUFFERS = 18

cdef struct Columns:
    uint64_t count
    Out buffers[COLUMN_BUFFERS]


cdef inline int put_end(Out *ends, uint64_t end) except -1 nogil:
    out_reserve(ends, 4)
    put_le32(ends.data + ends.size, <uint32_t>end)
    ends.size += 4
    return 0


cdef inline int put_text(Out *ends, Out *content, const Span *span) except -1 nogil:
    # Arrow's binary layout: the content back to back, and where each one ends.
    if span.size:
        out_reserve(content, span.size)
        memcpy(content.data + content.size, span.data, span.size)
        content.size += span.size
    return put_end(ends, content.size)


cdef inline int put_validity(Out *bits, uint64_t row, bint valid) except -1 nogil:
    if row & 7 == 0:
        out_reserve(bits, 1)
        bits.data[bits.size] = 0
        bits.size += 1
    if valid:
        bits.data[bits.size - 1] |= <uint8_t>(1 << (row & 7))
    return 0


cdef inline int put_long(Out *out, uint64_t value) except -1 nogil:
    out_reserve(out, 8)
    put_le64(out.data + out.size, value)
    out.size += 8
    return 0


cdef inline const uint8_t *own_header(const uint8_t *at, const uint8_t *end, Header *header) noexcept nogil:
    # A header as `put_header` writes it, after its tag; NULL if it is written in another way.
    cdef uint64_t size = 0
    cdef const uint8_t *stop
    at = read_size(at, end, &size)
    if at == NULL:
        return NULL
    stop = at + size
    if at == stop or at[0] != 0x0A:
        return NULL
    at = read_size(at + 1, stop, &header.key.size)
    if at == NULL or not is_utf8(at, header.key.size):
        return NULL
    header.key.data = at
    at += header.key.size
    if at == stop or at[0] != 0x12:
        return NULL
    at = read_size(at + 1, stop, &header.value.size)
    if at == NULL or at + header.value.size != stop:
        return NULL
    header.value.data = at
    return stop


cdef inline const uint8_t *own_field(const uint8_t *at, const uint8_t *end, uint8_t tag, Span *field) noexcept nogil:
    # The field with this tag, if it is the next one.
    if at == NULL or at >= end or at[0] != tag:
        return at
    at = read_size(at + 1, end, &field.size)
    if at == NULL:
        return NULL
    field.data = at
    return at + field.size


cdef inline const uint8_t *own_number(const uint8_t *at, const uint8_t *end, uint8_t tag, Span *field) noexcept nogil:
    if at == NULL or at >= end or at[0] != tag:
        return at
    return read_varint(at + 1, end, &field.size)


cdef bint parse_own(const Record *record, Parsed *parsed, const uint8_t **headers) noexcept nogil:
    # The fields of a record in the order in which we write them, which is all that a log of ours holds. False for
    # any other order: `parse` then reads it.
    cdef Span *fields = parsed.fields
    cdef const uint8_t *at = record.fields
    cdef const uint8_t *end = record.trailer
    cdef Header header
    memset(parsed, 0, sizeof(Parsed))
    at = own_field(at, end, 0x12, &fields[2])
    at = own_field(at, end, 0x1A, &fields[3])
    at = own_number(at, end, 0x20, &fields[4])
    at = own_field(at, end, 0x2A, &fields[5])
    at = own_number(at, end, 0x30, &fields[6])
    at = own_field(at, end, 0x3A, &fields[7])
    at = own_field(at, end, 0x42, &fields[8])
    if at == NULL or not (
        is_utf8(fields[5].data, fields[5].size)
        and is_utf8(fields[7].data, fields[7].size)
        and is_utf8(fields[8].data, fields[8].size)
    ):
        return False
    headers[0] = at
    while at != NULL and at < end and at[0] == 0x4A:
        at = own_header(at + 1, end, &header)
        parsed.entries += 1
    return at == end


cdef enum:
    FEW_HEADERS = 16  # so many are compared with each other


cdef struct Ordered:
    Header *header
    uint64_t number


cdef int by_key(const void *one, const void *other) noexcept nogil:
    # Those with one key follow each other, in their order.
    cdef const Ordered *left = <const Ordered *>one
    cdef const Ordered *right = <const Ordered *>other
    cdef uint64_t size = min(left.header.key.size, right.header.key.size)
    cdef int found = memcmp(left.header.key.data, right.header.key.data, size) if size else 0
    if found:
        return found
    if left.header.key.size != right.header.key.size:
        return -1 if left.header.key.size < right.header.key.size else 1
    return -1 if left.number < right.number else 1


cdef uint64_t once_each(Header *headers, uint64_t count) except? 0xFFFFFFFFFFFFFFFF:
    # How many are left: each key where it came first, with the value that came last.
    cdef Ordered *ordered = <Ordered *>malloc(count * sizeof(Ordered))
    cdef uint8_t *repeated = <uint8_t *>calloc(count, 1)
    cdef Header *first
    cdef uint64_t number
    cdef uint64_t left = 0
    try:
        if ordered == NULL or repeated == NULL:
            raise MemoryError("a message has too many headers for the memory that is left")
        for number in range(count):
            ordered[number].header = &headers[number]
            ordered[number].number = number
        qsort(ordered, count, sizeof(Ordered), by_key)
        first = ordered[0].header
        for number in range(1, count):
            if same(&first.key, &ordered[number].header.key):
                first.value = ordered[number].header.value
                repeated[ordered[number].number] = 1
            else:
                first = ordered[number].header
        for number in range(count):
            if not repeated[number]:
                headers[left] = headers[number]
                left += 1
        return left
    finally:
        free(ordered)
        free(repeated)


cdef int put_header_columns(
    Out *out, const Span *body, const uint8_t *own, uint64_t entries, bint stored
) except -1:
    # Of what is `stored` those of users alone, without subject and reply, which brokers add: these are columns of their
    # own. A map has each key once: where it came first, with the value that came last. `own`: where headers as we write
    # them begin; NULL if they are written in another way.
    cdef Header few[FEW_HEADERS]
    cdef Header *headers = few
    cdef const uint8_t *at = body.data if own == NULL else own
    cdef const uint8_t *end = body.data + body.size
    cdef uint64_t count = 0
    cdef uint64_t number
    cdef uint64_t other
    if entries > FEW_HEADERS:
        headers = <Header *>malloc(entries * sizeof(Header))
        if headers == NULL:
            raise MemoryError("a message has too many headers for the memory that is left")
    try:
        for number in range(entries):
            at = next_header(at, end, 9, &headers[count]) if own == NULL else own_header(at + 1, end, &headers[count])
            if at == NULL:
                break
            if stored and is_brokers_own(&headers[count].key):
                continue
            for other in range(count if entries <= FEW_HEADERS else 0):
                if same(&headers[other].key, &headers[count].key):
                    headers[other].value = headers[count].value
                    break
            else:
                count += 1
        if entries > FEW_HEADERS and count:
            count = once_each(headers, count)
        for number in range(count):
            put_text(&out[1], &out[2], &headers[number].key)
            put_text(&out[3], &out[4], &headers[number].value)
    finally:
        if headers != few:
            free(headers)
    return 0


cdef int put_row(Columns *columns, const Record *record, const Span *body, int wanted) except -1:
    # 0 if the fields are not those of a Message.
    cdef Parsed parsed
    cdef Out *out = columns.buffers
    cdef const uint8_t *headers = NULL
    if not parse_own(record, &parsed, &headers):
        headers = NULL
        if not parse(body, MESSAGE, &parsed, MAX_DEPTH):
            return 0
    put_long(&out[0], <uint64_t>record.offset)
    put_long(&out[1], parsed.fields[4].size)
    put_long(&out[2], get_le64(record.trailer + 3))
    if wanted & COLUMN_KEYS:
        put_text(&out[3], &out[4], &parsed.fields[2])
        put_validity(&out[5], columns.count, parsed.fields[2].size > 0)
    if wanted & COLUMN_VALUES:
        put_text(&out[6], &out[7], &parsed.fields[3])
    if wanted & COLUMN_SUBJECTS:
        put_text(&out[8], &out[9], &parsed.fields[7])
    if wanted & COLUMN_REPLIES:
        put_text(&out[10], &out[11], &parsed.fields[8])
        put_validity(&out[12], columns.count, parsed.fields[8].size > 0)
    if wanted & COLUMN_HEADERS:
        if parsed.entries:
            put_header_columns(&out[13], body, headers, parsed.entries, True)
        put_end(&out[13], out[14].size // 4 - 1)
    columns.count += 1
    return 1


cdef int begin_columns(Columns *columns, uint64_t size, int wanted) except -1:
    # Every list of ends begins with 0. No content is larger than the records are: room for it is made once.
    cdef int each
    memset(columns, 0, sizeof(Columns))
    for each in (3, 6, 8, 10, 13, 14, 16):
        if wanted & (COLUMN_KEYS if each == 3 else COLUMN_VALUES if each == 6 else COLUMN_SUBJECTS if each == 8
                     else COLUMN_REPLIES if each == 10 else COLUMN_HEADERS):
            put_end(&columns.buffers[each], 0)
    if wanted & COLUMN_VALUES and size:
        out_reserve(&columns.buffers[7], size)
    return 0


def record_columns(object buffer, Py_ssize_t start, Py_ssize_t end, int64_t min_offset, int wanted):
    """Verifies records -> (position, count, status, buffers); see `wire.columns` for the buffers."""
    cdef Py_buffer view
    cdef Record record
    cdef Columns columns
    cdef Span body
    cdef const uint8_t *base
    cdef const uint8_t *at
    cdef int status = LOG_END
    cdef int each
    if end - start > 0x7FFFFFFF:
        raise ValueError("a column of Arrow has at most 2 GiB: give fewer records at a time")
    open_range(&view, buffer, start, end)
    memset(&columns, 0, sizeof(Columns))
    try:
        begin_columns(&columns, <uint64_t>(end - start), wanted)
        base = <const uint8_t *>view.buf
        at = base + start
        while at < base + end:
            status = read_record(at, base + end, &record)
            if status != LOG_END:
                break
            body.data = at + FRAME_BYTES
            body.size = <uint64_t>(record.next - body.data)
            if (
                record.offset < min_offset
                or not record_crc_matches(at, &record)
                or not put_row(&columns, &record, &body, wanted)
            ):
                status = LOG_BAD
                break
            min_offset = record.offset + 1
            at = record.next
        buffers = tuple([out_take(&columns.buffers[each]) for each in range(COLUMN_BUFFERS)])
        return <Py_ssize_t>(at - base), columns.count, status, buffers
    finally:
        for each in range(COLUMN_BUFFERS):
            out_drop(&columns.buffers[each])
        PyBuffer_Release(&view)
