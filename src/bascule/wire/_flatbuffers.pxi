# The FlatBuffers draft: what a PublishRequest of it says, in the places where a Message has the same.
#
# A buffer is offsets that its writer chose, and may be bent: each is checked against the end before it is followed, and
# what is taken together is no longer than the buffer, however often parts of it are referred to. Headers are written
# anew, as those of a Message, into bytes of their own.

cdef enum:
    FB_ABSENT = 0
    FB_BENT = -1
    FB_OFFSET = 0  # the fields of the draft's Message
    FB_KEY = 1
    FB_VALUE = 2
    FB_SUBJECT = 4
    FB_REPLY = 5
    FB_HEADERS = 6
    FB_ACK_INBOX = 7
    FB_CORRELATION_ID = 8
    FB_ACK_POLICY = 9

cdef struct Table:
    uint64_t at
    uint64_t size
    uint64_t vtable
    uint64_t vtable_size


cdef bint open_table(const Span *body, uint64_t at, Table *table) noexcept nogil:
    cdef int64_t vtable
    if at > body.size or body.size - at < 4:
        return False
    vtable = <int64_t>at - <int32_t>get_le32(body.data + at)
    if vtable < 0 or <uint64_t>vtable > body.size or body.size - <uint64_t>vtable < 4:
        return False
    table.at = at
    table.vtable = <uint64_t>vtable
    table.vtable_size = get_le16(body.data + vtable)
    table.size = get_le16(body.data + vtable + 2)
    if table.vtable_size < 4 or table.vtable_size & 1 or table.vtable_size > body.size - table.vtable:
        return False
    return 4 <= table.size <= body.size - at


cdef int64_t field_of(const Span *body, const Table *table, uint64_t number, uint64_t width) noexcept nogil:
    # Where it is; FB_ABSENT, or FB_BENT if it is not inside the table.
    cdef uint64_t slot = 4 + 2 * number
    cdef uint64_t offset
    if slot + 2 > table.vtable_size:
        return FB_ABSENT
    offset = get_le16(body.data + table.vtable + slot)
    if offset == 0:
        return FB_ABSENT
    if offset < 4 or offset + width > table.size:
        return FB_BENT
    return <int64_t>(table.at + offset)


cdef inline uint64_t referred(const Span *body, uint64_t at) noexcept nogil:
    # The position that the offset at this one refers to; it may be past the end.
    return at + get_le32(body.data + at)


cdef bint vector_of(const Span *body, uint64_t at, uint64_t width, Span *vector) noexcept nogil:
    # `size` is in elements.
    cdef uint64_t begin = referred(body, at)
    if begin > body.size or body.size - begin < 4:
        return False
    vector.size = get_le32(body.data + begin)
    vector.data = body.data + begin + 4
    return vector.size * width <= body.size - begin - 4


cdef int bytes_field_of(
    const Span *body, const Table *table, uint64_t number, bint is_text, Span *content
) noexcept nogil:
    # 1 if it is there, FB_ABSENT, or FB_BENT.
    cdef int64_t at = field_of(body, table, number, 4)
    content.data = body.data
    content.size = 0
    if at <= 0:
        return <int>at
    if not vector_of(body, <uint64_t>at, 1, content):
        return FB_BENT
    return FB_BENT if is_text and not is_utf8(content.data, content.size) else 1


cdef int put_draft_headers(Out *headers, const Span *body, const Table *message, uint64_t *room) except -1 nogil:
    # The headers as field 9 of a Message; 0 if they are bent, or longer than the room.
    cdef Span tables
    cdef Table table
    cdef Header header
    cdef uint64_t number
    cdef int64_t at = field_of(body, message, FB_HEADERS, 4)
    headers.size = 0
    if at == FB_ABSENT:
        return 1
    if at == FB_BENT or not vector_of(body, <uint64_t>at, 4, &tables) or tables.size > MAX_HEADERS:
        return 0
    for number in range(tables.size):
        if not open_table(body, referred(body, <uint64_t>(tables.data - body.data) + 4 * number), &table):
            return 0
        if bytes_field_of(body, &table, 0, True, &header.key) != 1:
            return 0
        if bytes_field_of(body, &table, 1, False, &header.value) != 1:
            return 0
        if header.key.size + header.value.size > room[0]:
            return 0
        room[0] -= header.key.size + header.value.size
        out_reserve(headers, header_size(&header))
        headers.size = <uint64_t>(put_header(headers.data + headers.size, &header) - headers.data)
    return 1


cdef int parse_draft(const Span *body, Parsed *parsed, Out *headers) except -1 nogil:
    # Fills `parsed` as a Message does, and `headers`; 0 if this is no PublishRequest of the draft.
    cdef Table request
    cdef Table message
    cdef Span ignored
    cdef int64_t at
    cdef uint64_t room = body.size
    memset(parsed, 0, sizeof(Parsed))
    if body.size < 4 or not open_table(body, get_le32(body.data), &request):
        return 0
    at = field_of(body, &request, 0, 4)
    if at <= 0 or not open_table(body, referred(body, <uint64_t>at), &message):
        return 0
    if (
        bytes_field_of(body, &message, FB_KEY, False, &parsed.fields[2]) == FB_BENT
        or bytes_field_of(body, &message, FB_VALUE, False, &parsed.fields[3]) == FB_BENT
        or bytes_field_of(body, &message, FB_SUBJECT, True, &ignored) == FB_BENT
        or bytes_field_of(body, &message, FB_REPLY, True, &ignored) == FB_BENT
        or bytes_field_of(body, &message, FB_ACK_INBOX, True, &parsed.fields[10]) == FB_BENT
        or bytes_field_of(body, &message, FB_CORRELATION_ID, True, &parsed.fields[11]) == FB_BENT
    ):
        return 0
    if parsed.fields[2].size + parsed.fields[3].size > room:
        return 0
    room -= parsed.fields[2].size + parsed.fields[3].size
    at = field_of(body, &message, FB_OFFSET, 8)
    if at == FB_BENT:
        return 0
    if at > 0:
        parsed.fields[1].size = get_le64(body.data + at)
    at = field_of(body, &message, FB_ACK_POLICY, 1)
    if at == FB_BENT:
        return 0
    if at > 0:
        parsed.fields[12].size = body.data[at]
    return put_draft_headers(headers, body, &message, &room)
