# Rows: Arrow columns as framed Messages, by the partition that each one goes to.

cdef enum:
    ROW_BUFFERS = 9

cdef extern from *:
    """
    /* CRC-32 (IEEE), as zlib has it: keys choose partitions by it. */
    static uint32_t ieee_table[256];
    static void ieee_prepare(void) {
        uint32_t n, c; int k;
        for (n = 0; n < 256; n++) {
            c = n;
            for (k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
            ieee_table[n] = c;
        }
    }
    static uint32_t ieee_crc(const uint8_t *data, uint64_t size) {
        uint32_t crc = 0xFFFFFFFFu;
        while (size--) crc = ieee_table[(crc ^ *data++) & 0xFF] ^ (crc >> 8);
        return ~crc;
    }
    """
    void ieee_prepare() noexcept
    uint32_t ieee_crc(const uint8_t *data, uint64_t size) noexcept nogil

ieee_prepare()

cdef struct Texts:
    # A column of texts, as Arrow has it; no ends: all are empty.
    Span ends
    Span content

cdef struct Rows:
    Texts values
    Texts keys
    Texts header_names
    Texts header_values
    Span header_ends
    Span partitions


cdef inline Span text_at(const Texts *texts, uint64_t row) noexcept nogil:
    cdef Span text
    cdef uint32_t begin
    text.data = texts.content.data
    text.size = 0
    if texts.ends.size:
        begin = get_le32(texts.ends.data + 4 * row)
        text.data += begin
        text.size = get_le32(texts.ends.data + 4 * row + 4) - begin
    return text


cdef int check_ends(const Span *ends, uint64_t count, uint64_t most) except -1:
    # Ends that rise, as many as the rows need, of a content of `most`; or none at all.
    cdef uint64_t row
    if ends.size == 0:
        return 0
    if ends.size < 4 * (count + 1) or get_le32(ends.data + 4 * count) > most:
        raise ValueError("a column is shorter than its rows say")
    for row in range(count):
        if get_le32(ends.data + 4 * row) > get_le32(ends.data + 4 * row + 4):
            raise ValueError("the ends of a column go back")
    return 0


cdef int put_framed(Out *out, const Rows *rows, uint64_t row, const Span *key) except -1 nogil:
    cdef Span value = text_at(&rows.values, row)
    cdef Header header
    cdef uint64_t size = 1 + varint_size(value.size) + value.size
    cdef uint64_t each
    cdef uint64_t first = 0
    cdef uint64_t end = 0
    cdef uint8_t *to
    if key.size:
        size += 1 + varint_size(key.size) + key.size
    if rows.header_ends.size:
        first = get_le32(rows.header_ends.data + 4 * row)
        end = get_le32(rows.header_ends.data + 4 * row + 4)
    for each in range(first, end):
        header.key = text_at(&rows.header_names, each)
        header.value = text_at(&rows.header_values, each)
        if not is_brokers_own(&header.key):
            size += header_size(&header)
    out_reserve(out, 5 + size)
    to = out.data + out.size
    to[0] = 0
    put_be32(to + 1, <uint32_t>size)
    to += 5
    if key.size:
        to = put_field(to, 0x12, key)
    to = put_field(to, 0x1A, &value)
    for each in range(first, end):
        header.key = text_at(&rows.header_names, each)
        header.value = text_at(&rows.header_values, each)
        if not is_brokers_own(&header.key):
            to = put_header(to, &header)
    out.size += 5 + size
    return 0


cdef int64_t frame_all(
    const Rows *rows, uint64_t count, Out *outs, uint64_t *counts, uint32_t choices, uint64_t *turn
) except -1 nogil:
    # How many rows are framed: up to the first one whose partition is none of these.
    cdef uint64_t row
    cdef int32_t wanted
    cdef uint32_t choice
    cdef Span key
    for row in range(count):
        key = text_at(&rows.keys, row)
        wanted = <int32_t>get_le32(rows.partitions.data + 4 * row) if rows.partitions.size else -1
        if wanted >= 0:
            if <uint32_t>wanted >= choices:
                return <int64_t>row
            choice = <uint32_t>wanted
        elif wanted != -1:
            return <int64_t>row
        elif key.size:
            choice = ieee_crc(key.data, key.size) % choices
        else:
            choice = <uint32_t>(turn[0] % choices)
            turn[0] += 1
        put_framed(&outs[choice], rows, row, &key)
        counts[choice] += 1
    return <int64_t>count


cdef int open_rows(Rows *rows, const Py_buffer *views, uint64_t count) except -1:
    # Checks that the columns hold so many rows.
    cdef Span spans[ROW_BUFFERS]
    cdef uint64_t headers
    cdef int each
    for each in range(ROW_BUFFERS):
        spans[each].data = <const uint8_t *>views[each].buf
        spans[each].size = <uint64_t>views[each].len
    memset(rows, 0, sizeof(Rows))
    rows.values.ends, rows.values.content = spans[0], spans[1]
    rows.keys.ends, rows.keys.content = spans[2], spans[3]
    rows.header_ends = spans[4]
    rows.header_names.ends, rows.header_names.content = spans[5], spans[6]
    rows.header_values.ends, rows.header_values.content = spans[7], spans[8]
    check_ends(&rows.values.ends, count, rows.values.content.size)
    check_ends(&rows.keys.ends, count, rows.keys.content.size)
    if rows.header_ends.size:
        check_ends(&rows.header_ends, count, 0x7FFFFFFF)
        headers = get_le32(rows.header_ends.data + 4 * count)
        if headers and (not rows.header_names.ends.size or not rows.header_values.ends.size):
            raise ValueError("a column is shorter than its rows say")
        check_ends(&rows.header_names.ends, headers, rows.header_names.content.size)
        check_ends(&rows.header_values.ends, headers, rows.header_values.content.size)
    return 0


def frame_rows(uint64_t count, tuple buffers not None, object partitions, uint32_t choices, uint64_t turn):
    """Columns into framed Messages -> (rows, turn, [(count, messages) of each partition]).

    `buffers`: ends and contents of values, of keys, then the ends of headers in each row, and ends and contents of
    their names and of their values; all empty for a column that is not there. `partitions` are int32, -1 for a row
    whose key chooses, or that takes its turn; empty for none. Fewer rows than there are: the next one names no
    partition."""
    cdef Py_buffer views[ROW_BUFFERS + 1]
    cdef Rows rows
    cdef Out *outs = NULL
    cdef uint64_t *counts = NULL
    cdef int opened = 0
    cdef int64_t done
    if len(buffers) != ROW_BUFFERS or not 0 < choices <= 65536 or count > 0x7FFFFFFF:
        raise ValueError("these are no rows")
    try:
        for each in (*buffers, partitions):
            PyObject_GetBuffer(each, &views[opened], PyBUF_SIMPLE)
            opened += 1
        open_rows(&rows, views, count)
        rows.partitions.data = <const uint8_t *>views[ROW_BUFFERS].buf
        rows.partitions.size = <uint64_t>views[ROW_BUFFERS].len
        if rows.partitions.size and rows.partitions.size < 4 * count:
            raise ValueError("a column is shorter than its rows say")
        outs = <Out *>calloc(choices, sizeof(Out))
        counts = <uint64_t *>calloc(choices, sizeof(uint64_t))
        if outs == NULL or counts == NULL:
            raise MemoryError("the rows of a batch do not fit into memory")
        if choices == 1:
            out_reserve(&outs[0], rows.values.content.size if count else 0)
        with nogil:
            done = frame_all(&rows, count, outs, counts, choices, &turn)
        return done, turn, [(counts[each], out_take(&outs[each])) for each in range(choices)]
    finally:
        if outs != NULL:
            for number in range(choices):
                out_drop(&outs[number])
        free(outs)
        free(counts)
        while opened:
            opened -= 1
            PyBuffer_Release(&views[opened])
