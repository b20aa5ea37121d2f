# Decode: records, and the acks of PublishAsync, into Python values, for clients. The only kernels that make an object
# per message.

cdef struct Text:
    # The last value of a string field: most records of a partition repeat it.
    Span raw
    PyObject *text


cdef str decode_text(const Span *raw, Text *last):
    cdef str text
    if raw.size == 0:
        return ""
    if last.text != NULL and same(raw, &last.raw):
        return <str><object>last.text
    text = raw.data[: raw.size].decode("utf-8")
    drop(last.text)
    Py_INCREF(text)
    last.text = <PyObject *>text
    last.raw = raw[0]
    return text


cdef inline bytes decode_bytes(const Span *raw):
    if raw.size == 0:
        return b""
    return raw.data[: raw.size]


cdef inline bint is_brokers_own(const Span *name) noexcept nogil:
    # The broker writes these headers itself, and drops those that it is given.
    return (name.size == 7 and memcmp(name.data, <const char *>"subject", 7) == 0) or (
        name.size == 5 and memcmp(name.data, <const char *>"reply", 5) == 0
    )


cdef dict decode_headers(const Span *body, bint user_only):
    cdef dict headers = {}
    cdef Header header
    cdef const uint8_t *at = body.data
    cdef str key
    while True:
        at = next_header(at, body.data + body.size, 9, &header)
        if at == NULL:
            return headers
        if header.key.size == 7 and memcmp(header.key.data, b"subject", 7) == 0:
            if user_only:
                continue
            key = "subject"
        elif header.key.size == 5 and memcmp(header.key.data, b"reply", 5) == 0:
            if user_only:
                continue
            key = "reply"
        else:
            key = header.key.data[: header.key.size].decode("utf-8")
        headers[key] = header.value.data[: header.value.size]


cdef tuple decode_one(const Span *body, Text *texts, bint user_only):
    cdef Parsed parsed
    cdef Span *fields = parsed.fields
    if not parse(body, MESSAGE, &parsed, MAX_DEPTH):
        raise ValueError("a frame holds no valid Message: it is truncated, damaged, or of another type")
    return (
        <int64_t>fields[1].size,
        decode_bytes(&fields[2]),
        decode_bytes(&fields[3]),
        <int64_t>fields[4].size,
        decode_text(&fields[5], &texts[0]),
        <int32_t>fields[6].size,
        decode_text(&fields[7], &texts[1]),
        decode_text(&fields[8], &texts[2]),
        decode_headers(body, user_only) if parsed.entries else {},
    )


def decode_records(object buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t limit, bint user_only=False):
    """At most `limit` framed Messages -> (position, [(offset, key, value, timestamp, stream, partition, subject,
    reply, headers)]); of headers those of users alone, if asked for: without `subject` and `reply`."""
    cdef Py_buffer view
    cdef Text texts[3]
    cdef Span body
    cdef const uint8_t *at
    cdef const uint8_t *stop
    cdef list messages = []
    open_range(&view, buffer, start, end)
    memset(texts, 0, sizeof(texts))
    try:
        at = <const uint8_t *>view.buf + start
        stop = <const uint8_t *>view.buf + end
        while limit > 0 and stop - at >= FRAME_BYTES:
            body.data = at + FRAME_BYTES
            body.size = get_be32(at + 1)
            if at[0] != 0:
                raise ValueError(f"frame flag {at[0]} instead of 0: compressed messages are not supported here")
            if body.size > <uint64_t>(stop - body.data):
                break
            messages.append(decode_one(&body, texts, user_only))
            at = body.data + body.size
            limit -= 1
        return <Py_ssize_t>(at - <const uint8_t *>view.buf), messages
    finally:
        drop(texts[0].text)
        drop(texts[1].text)
        drop(texts[2].text)
        PyBuffer_Release(&view)


# --- acks -------------------------------------------------------------------------------------------------

cdef enum:
    MAX_DIGITS = 15  # of a correlation id that is a number


cdef bint read_digits(const Span *text, uint64_t *number) noexcept nogil:
    cdef uint64_t index
    cdef uint64_t value = 0
    if text.size == 0 or text.size > MAX_DIGITS:
        return False
    for index in range(text.size):
        if text.data[index] < 48 or text.data[index] > 57:
            return False
        value = 10 * value + (text.data[index] - 48)
    number[0] = value
    return True


cdef bint is_plain_ack(const uint8_t *at, const uint8_t *end, Parsed *ack, uint64_t *number) noexcept nogil:
    # A PublishResponse of an ack and its correlation id, which is a number, and of nothing else.
    cdef Span body
    cdef Span outer
    if at == end or at[0] != 0x0A:
        return False
    body.data = read_size(at + 1, end, &body.size)
    if body.data == NULL or not parse(&body, ACK, ack, MAX_DEPTH - 1):
        return False
    if ack.fields[10].size or ack.fields[7].size > 2 or not read_digits(&ack.fields[6], number):
        return False
    at = body.data + body.size
    if at == end:
        return True
    if at[0] != 0x1A:
        return False
    outer.data = read_size(at + 1, end, &outer.size)
    return outer.data != NULL and outer.data + outer.size == end and same(&outer, &ack.fields[6])


def decode_responses(object data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_message):
    """Framed PublishResponses -> (consumed, answers, how many are bytes, oversized). An answer is (correlation id as a
    number, stream, offset, subject, policy, reception, commit) of a plain ack, and the bytes of any other message."""
    cdef Py_buffer view
    cdef Text texts[2]
    cdef Parsed ack
    cdef Span *fields = ack.fields
    cdef uint64_t length
    cdef uint64_t number = 0
    cdef uint64_t others = 0
    cdef uint64_t oversized = 0
    cdef const uint8_t *at
    cdef const uint8_t *stop
    cdef list answers = []
    open_range(&view, data, start, end)
    memset(texts, 0, sizeof(texts))
    try:
        at = <const uint8_t *>view.buf + start
        stop = <const uint8_t *>view.buf + end
        while stop - at >= FRAME_BYTES:
            length = get_be32(at + 1)
            if <int64_t>length > max_message:
                oversized = length
                break
            if length > <uint64_t>(stop - at) - FRAME_BYTES:
                break
            if is_plain_ack(at + FRAME_BYTES, at + FRAME_BYTES + length, &ack, &number):
                answers.append(
                    (
                        number,
                        decode_text(&fields[1], &texts[0]),
                        <int64_t>fields[4].size,
                        decode_text(&fields[3], &texts[1]),
                        fields[7].size,
                        <int64_t>fields[8].size,
                        <int64_t>fields[9].size,
                    )
                )
            else:
                answers.append((at + FRAME_BYTES)[:length])
                others += 1
            at += FRAME_BYTES + length
        return <Py_ssize_t>(at - <const uint8_t *>view.buf), answers, others, oversized
    finally:
        drop(texts[0].text)
        drop(texts[1].text)
        PyBuffer_Release(&view)
