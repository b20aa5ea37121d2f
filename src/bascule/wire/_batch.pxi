# Several messages that are stored together: framed ones of a bulk write, and an atomic batch from NATS.

cdef enum:
    MESSAGES_STORED = -1  # by the same producer, before
    MESSAGES_WHOLE = 0
    MESSAGES_TORN = 1
    MESSAGES_NOT_PROTOBUF = 2
    MESSAGES_TOO_LARGE = 3
    MESSAGES_TOO_MANY = 4
    MESSAGES_TOO_MANY_HEADERS = 5
    MESSAGES_TOGETHER_TOO_LARGE = 6
    MESSAGES_TOO_FEW = 7
    MESSAGES_NOT_NUMBERED = 8


cdef inline int64_t max_signed(int64_t one, int64_t other) noexcept nogil:
    return one if one > other else other


cdef int64_t count_framed(const Span *frames) noexcept nogil:
    # How many messages there are, or -1 if the last one is torn.
    cdef const uint8_t *at = frames.data
    cdef const uint8_t *end = frames.data + frames.size
    cdef int64_t count = 0
    while at < end:
        if end - at < 5 or get_be32(at + 1) > <uint64_t>(end - at - 5):
            return -1
        at += 5 + get_be32(at + 1)
        count += 1
    return count


cdef int encode_framed(
    Encoder *encoder, const Delivered *message, const Span *frames, uint64_t most, const Span *producer, uint64_t sequence
) except -1 nogil:
    # All framed messages, or up to the first that is refused; gives why. They say of their producer what `producer`
    # does, unless it is NULL, with sequences from `sequence` on. The size of an atomic batch is counted without what
    # only records of this stream have (its name, offsets, numbers): all streams that listen on a subject take a batch,
    # or none does.
    cdef Parsed parsed
    cdef Span body
    cdef uint8_t content[MAX_PRODUCER_FIELD]
    cdef Span said
    cdef uint64_t headers = 0
    cdef uint64_t counted = 0
    cdef uint64_t of_each = 5 + common_size(&message.subject, &message.reply) + ATOMIC_MESSAGE
    cdef uint64_t count = 0
    cdef const uint8_t *at = frames.data
    cdef const uint8_t *end = frames.data + frames.size
    if producer != NULL:
        memcpy(content, producer.data, producer.size)
        said.data = content
        said.size = producer.size
    while at < end:
        if count == most:
            return MESSAGES_TOO_MANY
        if end - at < 5 or at[0] != 0:
            return MESSAGES_TORN
        body.data = at + 5
        body.size = get_be32(at + 1)
        if body.size > <uint64_t>(end - body.data):
            return MESSAGES_TORN
        if <int64_t>body.size > encoder.max_bytes:
            return MESSAGES_TOO_LARGE
        if not parse(&body, MESSAGE, &parsed, MAX_DEPTH):
            return MESSAGES_NOT_PROTOBUF
        headers += parsed.entries
        if parsed.entries > MAX_HEADERS or headers > MAX_BATCH_HEADERS:
            return MESSAGES_TOO_MANY_HEADERS
        encoder.last_timestamp = max_signed(<int64_t>(<uint64_t>encoder.last_timestamp + 1), encoder.now)
        encoder.index = <uint32_t>(count & 0xFFFF)
        if producer != NULL:
            put_le64(content + said.size - 8, sequence + count)
        if not put_record(
            encoder, message, &parsed.fields[2], &parsed.fields[3], &body if parsed.entries else NULL,
            &said if producer != NULL else NULL, encoder.last_timestamp,
        ):
            return MESSAGES_TOO_LARGE
        counted += body.size + of_each
        if encoder.batch and <int64_t>counted > encoder.max_bytes:
            return MESSAGES_TOGETHER_TOO_LARGE
        encoder.next_offset += 1
        encoder.count += 1
        count += 1
        at = body.data + body.size
    return MESSAGES_WHOLE


cdef int observe_batch(Encoder *encoder, Numbered *numbered, uint64_t count) except -1 nogil:
    # The last records that are encoded, so many, are of this producer.
    cdef uint64_t index
    cdef int64_t before = <int64_t>count
    for index in range(count):
        observe_numbered(encoder.producers, numbered, encoder.next_offset - before, encoder.last_timestamp - before + 1)
        numbered.sequence += 1
        before -= 1
    return 0


cdef uint8_t store_batch(
    Encoder *encoder, const Delivered *message, const Parsed *parsed, int64_t *stored
) except? 255 nogil:
    # 0 if the messages of a batch from NATS are stored, or have been; `stored` is -1 then, or their first offset. Else
    # the error.
    cdef const Span *frames = &parsed.fields[3]
    cdef const Span *producer = &parsed.fields[PRODUCER]
    cdef Numbered numbered
    cdef bint counts = False
    cdef uint64_t begin = encoder.records.size
    cdef int64_t first_offset = encoder.next_offset
    cdef int64_t last_timestamp = encoder.last_timestamp
    cdef uint64_t before = encoder.count
    cdef int64_t expected = <int64_t>parsed.fields[1].size
    cdef int64_t count
    cdef int verdict
    stored[0] = -1
    numbered.sequence = 0
    if <int64_t>message.payload.size > encoder.max_bytes:
        return ERROR_TOO_LARGE
    if frames.size == 0:
        return ERROR_EMPTY_BATCH
    count = count_framed(frames)
    if count < 0:
        return ERROR_BENT_BATCH
    if count > <int64_t>MAX_BATCH:
        return ERROR_LONG_BATCH
    if encoder.producers != NULL and producer.size:
        counts = read_numbered(producer, &numbered) and is_of(encoder.producers, &numbered)
    if counts:
        if not encoder.judges:
            return ERROR_UNKNOWN
        verdict = judge_sequence(
            encoder.producers, &numbered, <uint64_t>count,
            max_signed(<int64_t>(<uint64_t>encoder.last_timestamp + 1), encoder.now), stored,
        )
        if verdict == SEQUENCE_STORED:
            return 0
        if verdict != SEQUENCE_ACCEPTED:
            return <uint8_t>verdict
    if encoder.occ and expected != -1 and expected != encoder.next_offset:
        return ERROR_INCORRECT_OFFSET
    encoder.batch = <uint32_t>count
    verdict = encode_framed(
        encoder, message, frames, <uint64_t>count, producer if counts else NULL, numbered.sequence
    )
    encoder.batch = 0
    if verdict == MESSAGES_WHOLE:
        if counts:
            observe_batch(encoder, &numbered, <uint64_t>count)
        return 0
    encoder.records.size = begin
    encoder.next_offset = first_offset
    encoder.last_timestamp = last_timestamp
    encoder.count = before
    if verdict == MESSAGES_TOO_LARGE or verdict == MESSAGES_TOGETHER_TOO_LARGE:
        return ERROR_TOO_LARGE
    return ERROR_LONG_BATCH if verdict == MESSAGES_TOO_MANY_HEADERS else ERROR_BENT_BATCH


cdef int encode_batch(Encoder *encoder, const Delivered *message, const Parsed *parsed) except -1 nogil:
    # All messages of a batch from NATS, or none; one ack, with the first offset.
    cdef int64_t offset = encoder.next_offset
    cdef int64_t reception = encoder.now
    cdef int32_t policy = <int32_t>parsed.fields[12].size
    cdef bint owing = can_be_acked(encoder, parsed)
    cdef int64_t stored = -1
    cdef uint8_t error = store_batch(encoder, message, parsed, &stored)
    if error:
        if owing:
            put_pending(encoder, &encoder.error_pending, message, parsed, 0, encoder.now, error)
        return 0
    if stored >= 0:
        offset = stored
    else:
        encoder.taken += 1
        reception = encoder.last_timestamp
    if owing and policy == 0:
        put_pending(encoder, &encoder.leader_pending, message, parsed, offset, reception, 0)
    elif owing and policy == 1:
        put_pending(encoder, &encoder.all_pending, message, parsed, offset, reception, 0)
    return 0


def encode_messages(
    object messages, bytes subject not None, bytes tail not None, int64_t next_offset, uint64_t epoch, int64_t now,
    int64_t last_timestamp, int64_t max_bytes, uint64_t most, bint atomic, bytes producer not None=b"",
    ProducerTable producers=None,
):
    """Framed Messages into records -> (records, count, next_offset, last_timestamp, problem); all of them, or none and
    the number of the message with the problem as count. `most` of an atomic batch, all of it, fit 16 bits.

    With `producers`, field 2001 of the first message is `producer`, and there are exactly `most` of them: they are
    stored once, all together. If they were before, the problem is -1 and `count` their first offset; from 100 on it is
    the error of an ack."""
    cdef Py_buffer view
    cdef Encoder encoder
    cdef Delivered message
    cdef Span frames
    cdef Span said = span_of(producer)
    cdef Numbered numbered
    cdef int64_t stored = -1
    cdef int problem = MESSAGES_WHOLE
    cdef const Span *numbers = NULL
    memset(&encoder, 0, sizeof(Encoder))
    memset(&message, 0, sizeof(Delivered))
    memset(&numbered, 0, sizeof(Numbered))
    encoder.subject = span_of(subject)
    encoder.tail = span_of(tail)
    encoder.next_offset = next_offset
    encoder.now = now
    encoder.last_timestamp = last_timestamp
    encoder.max_bytes = max_bytes
    encoder.epoch = epoch
    encoder.batch = <uint32_t>(most & 0xFFFF) if atomic else 0
    message.subject = encoder.subject
    if producers is not None:
        encoder.producers = &producers.table
        numbers = &said
        if not read_numbered(&said, &numbered) or not is_of(encoder.producers, &numbered):
            return b"", 0, next_offset, last_timestamp, MESSAGES_NOT_NUMBERED
        problem = judge_sequence(
            encoder.producers, &numbered, most, max_signed(<int64_t>(<uint64_t>last_timestamp + 1), now), &stored
        )
        if problem != SEQUENCE_ACCEPTED:
            return b"", stored if problem == SEQUENCE_STORED else 0, next_offset, last_timestamp, problem
    PyObject_GetBuffer(messages, &view, PyBUF_SIMPLE)
    try:
        frames.data = <const uint8_t *>view.buf
        frames.size = <uint64_t>view.len
        out_reserve(&encoder.records, frames.size + min(most, frames.size // 5) * (encoder.tail.size + 47))
        if view.len >= UNLOCK_FROM_BYTES:
            with nogil:
                problem = encode_framed(&encoder, &message, &frames, most, numbers, numbered.sequence)
        else:
            problem = encode_framed(&encoder, &message, &frames, most, numbers, numbered.sequence)
        if producers is not None and not problem and encoder.count != most:
            problem = MESSAGES_TOO_FEW
        if problem:
            return b"", encoder.count, next_offset, last_timestamp, problem
        if producers is not None:
            observe_batch(&encoder, &numbered, encoder.count)
            producers.end = encoder.next_offset
        return out_take(&encoder.records), encoder.count, encoder.next_offset, encoder.last_timestamp, problem
    finally:
        out_drop(&encoder.records)
        PyBuffer_Release(&view)
