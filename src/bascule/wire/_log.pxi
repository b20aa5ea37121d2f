# Log: walking records that are already written: verifying, finding, seeking, reversing, indexing.

cdef enum:
    MIN_RECORD = TRAILER_BYTES + 2
    LOG_END = 0
    LOG_INCOMPLETE = 1
    LOG_BAD = 2

cdef struct Record:
    const uint8_t *next  # just after it
    int64_t offset
    const uint8_t *fields  # after the offset
    const uint8_t *trailer


cdef inline int read_record(const uint8_t *at, const uint8_t *end, Record *record) noexcept nogil:
    # Everything but the CRC. Gives LOG_END if a whole, well-formed record stands at `at`.
    cdef uint64_t length
    cdef uint64_t offset = 0
    cdef uint64_t left = <uint64_t>(end - at)
    memset(record, 0, sizeof(Record))
    if left < 5:
        return LOG_INCOMPLETE
    length = get_be32(at + 1)
    if at[0] != 0 or length < MIN_RECORD or length > MAX_RECORD:
        return LOG_BAD
    if length > left - 5:
        return LOG_INCOMPLETE
    record.next = at + 5 + length
    record.trailer = record.next - TRAILER_BYTES
    if at[5] != 0x08 or record.trailer[0] != 0x82 or record.trailer[1] != 0x7D or record.trailer[2] != 0x0C:
        return LOG_BAD
    record.fields = read_varint(at + 6, record.trailer, &offset)
    if record.fields == NULL or offset >= 0x7FFFFFFFFFFFFFFFULL:  # after the largest there is no next one
        return LOG_BAD
    record.offset = <int64_t>offset
    return LOG_END


cdef inline bint record_crc_matches(const uint8_t *at, const Record *record) noexcept nogil:
    cdef const uint8_t *stored = record.next - 4
    return crc_extend(0, at + 5, <size_t>(stored - at - 5)) == get_le32(stored)


cdef inline int64_t record_timestamp(const Record *record) noexcept nogil:
    # The field after key and value; 0 if the fields do not stand as we write them.
    cdef const uint8_t *at = record.fields
    cdef uint64_t value = 0
    if at < record.trailer and at[0] == 0x12:
        at = read_size(at + 1, record.trailer, &value)
        if at == NULL:
            return 0
        at += value
    if at < record.trailer and at[0] == 0x1A:
        at = read_size(at + 1, record.trailer, &value)
        if at == NULL:
            return 0
        at += value
    if at < record.trailer and at[0] == 0x20 and read_varint(at + 1, record.trailer, &value) != NULL:
        return <int64_t>value
    return 0


# --- verifying --------------------------------------------------------------------------------------------

cdef struct Scan:
    const uint8_t *at
    int64_t min_offset
    uint64_t count
    int64_t first_offset
    int64_t last_timestamp
    uint64_t last_epoch
    int status


cdef void scan(Scan *state, const uint8_t *end) noexcept nogil:
    cdef Record record
    cdef Record last
    memset(&last, 0, sizeof(Record))
    while state.at < end:
        state.status = read_record(state.at, end, &record)
        if state.status == LOG_END and (
            record.offset < state.min_offset or not record_crc_matches(state.at, &record)
        ):
            state.status = LOG_BAD
        if state.status != LOG_END:
            break
        if state.count == 0:
            state.first_offset = record.offset
        state.count += 1
        state.min_offset = record.offset + 1
        state.at = record.next
        last = record
    if state.count:
        state.last_timestamp = record_timestamp(&last)
        state.last_epoch = get_le64(last.trailer + 3)


def scan_records(object buffer, Py_ssize_t start, Py_ssize_t end, int64_t min_offset):
    """Verifies records -> (position, count, first_offset, next_offset, last_timestamp, last_epoch, status)."""
    cdef Py_buffer view
    cdef Scan state
    cdef const uint8_t *base
    open_range(&view, buffer, start, end)
    try:
        base = <const uint8_t *>view.buf
        memset(&state, 0, sizeof(Scan))
        state.at = base + start
        state.min_offset = min_offset
        state.first_offset = -1
        if end - start >= UNLOCK_FROM_BYTES:
            with nogil:
                scan(&state, base + end)
        else:
            scan(&state, base + end)
        return (
            <Py_ssize_t>(state.at - base), state.count, state.first_offset, state.min_offset,
            state.last_timestamp, state.last_epoch, state.status,
        )
    finally:
        PyBuffer_Release(&view)


cdef const uint8_t *find(const uint8_t *at, const uint8_t *end, int64_t min_offset) noexcept nogil:
    cdef Record record
    while end - at >= 5 + MIN_RECORD:
        at = <const uint8_t *>memchr(at, 0, <size_t>(end - at))
        if at == NULL:
            return NULL
        if (
            read_record(at, end, &record) == LOG_END
            and record.offset >= min_offset
            and record_crc_matches(at, &record)
        ):
            return at
        at += 1
    return NULL


def find_record(object buffer, Py_ssize_t start, Py_ssize_t end, int64_t min_offset):
    """The position of the first valid record at or after `start`, or -1."""
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef const uint8_t *found
    open_range(&view, buffer, start, end)
    try:
        base = <const uint8_t *>view.buf
        with nogil:
            found = find(base + start, base + end, min_offset)
        return -1 if found == NULL else <Py_ssize_t>(found - base)
    finally:
        PyBuffer_Release(&view)


# --- walking ----------------------------------------------------------------------------------------------

def seek_record(object buffer, Py_ssize_t start, Py_ssize_t end, int field, int64_t target):
    """The first record with offset (field 0) or timestamp (field 1) >= target -> (position, offset, timestamp)."""
    cdef Py_buffer view
    cdef Record record
    cdef const uint8_t *base
    cdef const uint8_t *at
    open_range(&view, buffer, start, end)
    try:
        base = <const uint8_t *>view.buf
        at = base + start
        while at < base + end and read_record(at, base + end, &record) == LOG_END:
            if (record.offset if field == 0 else record_timestamp(&record)) >= target:
                return <Py_ssize_t>(at - base), record.offset, record_timestamp(&record)
            at = record.next
        return <Py_ssize_t>(at - base), -1, -1
    finally:
        PyBuffer_Release(&view)


cdef int bad_record(const uint8_t *base, const uint8_t *at) except -1:
    raise ValueError(
        f"no whole record at position {at - base}: give only whole, verified records (see scan_records)"
    )


def reverse_records(object buffer, Py_ssize_t start, Py_ssize_t end):
    """The same records, last one first."""
    cdef Py_buffer view
    cdef Record record
    cdef const uint8_t *base
    cdef const uint8_t *at
    cdef uint8_t *to
    cdef object result
    open_range(&view, buffer, start, end)
    try:
        base = <const uint8_t *>view.buf
        at = base + start
        result = <object>new_bytes(NULL, end - start)
        Py_DECREF(result)
        to = <uint8_t *>bytes_data(<PyObject *>result) + (end - start)
        while at < base + end:
            if read_record(at, base + end, &record) != LOG_END:
                bad_record(base, at)
            to -= record.next - at
            memcpy(to, at, <size_t>(record.next - at))
            at = record.next
        return result
    finally:
        PyBuffer_Release(&view)


def index_records(object records, int64_t position, int64_t since, int64_t interval):
    """Index entries for whole records -> (entries, since)."""
    cdef Py_buffer view
    cdef Record record
    cdef const uint8_t *base
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef Out out
    memset(&out, 0, sizeof(Out))
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t *>view.buf
        at = base
        end = base + view.len
        while at < end:
            if read_record(at, end, &record) != LOG_END:
                bad_record(base, at)
            if since >= interval:
                since = 0
                out_reserve(&out, 24)
                put_le64(out.data + out.size, <uint64_t>record.offset)
                put_le64(out.data + out.size + 8, <uint64_t>(position + (at - base)))
                put_le64(out.data + out.size + 16, <uint64_t>record_timestamp(&record))
                out.size += 24
            since += record.next - at
            at = record.next
        return out_take(&out), since
    finally:
        out_drop(&out)
        PyBuffer_Release(&view)


# --- producers --------------------------------------------------------------------------------------------

cdef int64_t record_producer(const Record *record, Span *producer) noexcept nogil:
    # Field 2001, which stands right after the timestamp, into `producer`; gives the timestamp. Its size is 0 if there
    # is none.
    cdef const uint8_t *at = record.fields
    cdef uint64_t value = 0
    producer.size = 0
    if at < record.trailer and at[0] == 0x12:
        at = read_size(at + 1, record.trailer, &value)
        if at == NULL:
            return 0
        at += value
    if at < record.trailer and at[0] == 0x1A:
        at = read_size(at + 1, record.trailer, &value)
        if at == NULL:
            return 0
        at += value
    if at >= record.trailer or at[0] != 0x20:
        return 0
    at = read_varint(at + 1, record.trailer, &value)
    if at == NULL or record.trailer - at < 3 or at[0] != 0x8A or at[1] != 0x7D:
        return 0
    at = read_size(at + 2, record.trailer, &producer.size)
    if at == NULL:
        producer.size = 0
        return 0
    producer.data = at
    return <int64_t>value


cdef int64_t observe(
    Producers *table, const uint8_t *base, const uint8_t *at, const uint8_t *end, int64_t next_offset
) except -1 nogil:
    cdef Record record
    cdef Span producer
    cdef Numbered numbered
    cdef int64_t timestamp
    while at < end:
        if read_record(at, end, &record) != LOG_END:
            with gil:
                bad_record(base, at)
        timestamp = record_producer(&record, &producer)
        if producer.size and read_numbered(&producer, &numbered) and is_of(table, &numbered):
            observe_numbered(table, &numbered, record.offset, timestamp)
        next_offset = record.offset + 1
        at = record.next
    return next_offset


def observe_producers(ProducerTable producers not None, object records, Py_ssize_t start, Py_ssize_t end):
    """Takes in what whole, verified records say of their producers."""
    cdef Py_buffer view
    cdef const uint8_t *base
    open_range(&view, records, start, end)
    try:
        base = <const uint8_t *>view.buf
        if end - start >= UNLOCK_FROM_BYTES:
            with nogil:
                producers.end = observe(&producers.table, base, base + start, base + end, producers.end)
        else:
            producers.end = observe(&producers.table, base, base + start, base + end, producers.end)
    finally:
        PyBuffer_Release(&view)


# --- atomic batches ----------------------------------------------------------------------------------------

cdef bint record_batch(const Record *record, uint32_t *index, uint32_t *count) noexcept nogil:
    # Field 2002, which stands behind the timestamp and field 2001: the place of the record in its atomic batch, and how
    # many records that has. False if it is in none.
    cdef const uint8_t *at = record.fields
    cdef const uint8_t *end = record.trailer
    cdef uint64_t value = 0
    if at < end and at[0] == 0x12:
        at = read_size(at + 1, end, &value)
        if at == NULL:
            return False
        at += value
    if at < end and at[0] == 0x1A:
        at = read_size(at + 1, end, &value)
        if at == NULL:
            return False
        at += value
    if at >= end or at[0] != 0x20:
        return False
    at = read_varint(at + 1, end, &value)
    if at != NULL and end - at >= 3 and at[0] == 0x8A and at[1] == 0x7D:
        at = read_size(at + 2, end, &value)
        if at != NULL:
            at += value
    if at == NULL or end - at < BATCH_BYTES or at[0] != 0x92 or at[1] != 0x7D or at[2] != 0x04:
        return False
    index[0] = get_le16(at + 3)
    count[0] = get_le16(at + 5)
    return index[0] < count[0] and record.offset >= <int64_t>index[0]


def open_batch(object buffer, Py_ssize_t start, Py_ssize_t end):
    """Records -> (position, first offset, missing) of the atomic batch that they end in the middle of: where its first
    record among them is, the offset of its first record of all, and how many records are missing. (end, -1, 0) if there
    is none."""
    cdef Py_buffer view
    cdef Record record
    cdef uint32_t index = 0
    cdef uint32_t count = 0
    cdef int64_t first = -1
    cdef uint32_t missing = 0
    cdef const uint8_t *base
    cdef const uint8_t *at
    cdef const uint8_t *stop
    cdef const uint8_t *position
    open_range(&view, buffer, start, end)
    try:
        base = <const uint8_t *>view.buf
        at = base + start
        stop = position = base + end
        while at < stop and read_record(at, stop, &record) == LOG_END:
            if not record_batch(&record, &index, &count) or index + 1 == count:
                first = -1
                missing = 0
                position = stop
            else:
                missing = count - index - 1
                if record.offset - index != first:
                    first = record.offset - index
                    position = at
            at = record.next
        return <Py_ssize_t>(position - base), first, missing
    finally:
        PyBuffer_Release(&view)
