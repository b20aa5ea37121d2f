# Acks: what is pending into Ack envelopes on NATS, and into answers of gRPC calls that wait in this broker.
#
# The answer to a PublishAsync call is a PublishResponse; a unary call (its token starts with "u") gets the Ack alone.
# Counted are the acks that somebody waits for: an error ack of a message with policy NONE goes along uncounted.

cdef enum:
    ENVELOPE_BYTES = 8
    FRAME_BYTES = 5

cdef uint8_t *ACK_ENVELOPE = [0xB9, 0x0E, 0x43, 0xB4, 0x00, 0x08, 0x00, 0x01]

cdef struct Failure:
    uint8_t code  # PublishAsyncError.Code; 0 is not written
    const char *text
    uint64_t size

cdef struct Pending:
    uint64_t offset
    uint64_t reception
    uint64_t committed
    uint8_t policy
    uint8_t error
    Span inbox
    Span subject
    Span correlation


cdef const uint8_t *next_pending(const uint8_t *at, const uint8_t *end, Pending *pending) noexcept nogil:
    # The next entry; NULL if it is truncated.
    cdef uint64_t left = <uint64_t>(end - at)
    if left < PENDING_BYTES:
        return NULL
    pending.offset = get_le64(at)
    pending.reception = get_le64(at + 8)
    pending.policy = at[16]
    pending.error = at[17]
    pending.inbox.size = get_le16(at + 18)
    pending.subject.size = get_le16(at + 20)
    pending.correlation.size = get_le32(at + 22)
    if left - PENDING_BYTES < pending.inbox.size + pending.subject.size + pending.correlation.size:
        return NULL
    pending.inbox.data = at + PENDING_BYTES
    pending.subject.data = pending.inbox.data + pending.inbox.size
    pending.correlation.data = pending.subject.data + pending.subject.size
    return pending.correlation.data + pending.correlation.size


cdef uint64_t ack_size(const Pending *pending, const Span *prefix) noexcept nogil:
    cdef uint64_t size = prefix.size + field_size(pending.subject.size) + field_size(pending.inbox.size)
    if pending.offset:
        size += 1 + varint_size(pending.offset)
    if pending.correlation.size:
        size += field_size(pending.correlation.size)
    if pending.policy:
        size += 1 + varint_size(pending.policy)
    size += 1 + varint_size(pending.reception)
    if pending.error != ERROR_TOO_LARGE:
        size += 1 + varint_size(pending.committed)
    if pending.error:
        size += 1 + varint_size(pending.error)
    return size


cdef uint8_t *put_ack(uint8_t *to, const Pending *pending, const Span *prefix) noexcept nogil:
    to = put(to, prefix)
    to = put_field(to, 0x1A, &pending.subject)
    if pending.offset:
        to = put_number(to, 0x20, pending.offset)
    to = put_field(to, 0x2A, &pending.inbox)
    if pending.correlation.size:
        to = put_field(to, 0x32, &pending.correlation)
    if pending.policy:
        to = put_number(to, 0x38, pending.policy)
    to = put_number(to, 0x40, pending.reception)
    if pending.error != ERROR_TOO_LARGE:
        to = put_number(to, 0x48, pending.committed)
    if pending.error:
        to = put_number(to, 0x50, pending.error)
    return to


# --- answers to gRPC calls --------------------------------------------------------------------------------

cdef Failure failure_of(uint64_t error) noexcept nogil:
    cdef Failure failure
    if error == 2:
        failure.code = 5
        failure.text = b"incorrect expected offset"
        failure.size = 25
    elif error == 3:
        failure.code = 1
        failure.text = b"message exceeds max replication size"
        failure.size = 36
    elif error == 4:
        failure.code = 6
        failure.text = b"encryption failed on partition"
        failure.size = 30
    elif error == ERROR_SEQUENCE_GAP:
        failure.code = ERROR_SEQUENCE_GAP
        failure.text = b"sequence gap: messages of this producer before this one are missing"
        failure.size = 67
    elif error == ERROR_UNKNOWN_PRODUCER:
        failure.code = ERROR_UNKNOWN_PRODUCER
        failure.text = b"unknown producer: this partition has nothing of it, and it does not begin at 0"
        failure.size = 78
    elif error == ERROR_FENCED:
        failure.code = ERROR_FENCED
        failure.text = b"producer fenced: its id is in use under a higher epoch"
        failure.size = 54
    elif error == ERROR_DUPLICATE:
        failure.code = ERROR_DUPLICATE
        failure.text = b"duplicate: stored before, at an offset that is not known any more"
        failure.size = 65
    elif error == ERROR_OVERLAP:
        failure.code = ERROR_OVERLAP
        failure.text = b"sequence overlap: a part of the batch is stored, or all of it in another way than as one batch"
        failure.size = 94
    elif error == ERROR_EMPTY_BATCH:
        failure.code = ERROR_EMPTY_BATCH
        failure.text = b"empty batch: it has no message"
        failure.size = 30
    elif error == ERROR_BENT_BATCH:
        failure.code = ERROR_BENT_BATCH
        failure.text = b"a message of the batch is torn, or no proto.Message: nothing of the batch is stored"
        failure.size = 83
    elif error == ERROR_LONG_BATCH:
        failure.code = ERROR_LONG_BATCH
        failure.text = b"the batch has too many messages or headers: nothing of it is stored"
        failure.size = 67
    else:
        failure.code = 0
        failure.text = b"unknown error"
        failure.size = 13
    return failure


cdef inline uint8_t *put_frame(uint8_t *to, uint64_t size) noexcept nogil:
    to[0] = 0
    put_be32(to + 1, <uint32_t>size)
    return to + FRAME_BYTES


cdef int put_failed_response(Out *out, uint64_t error, const Span *correlation) except -1 nogil:
    # PublishResponse with an empty Ack, which old clients expect, and the asyncError.
    cdef Failure failure = failure_of(error)
    cdef Span text
    cdef uint64_t inner
    cdef uint64_t size
    cdef uint8_t *to
    text.data = <const uint8_t *>failure.text
    text.size = failure.size
    inner = field_size(text.size) + (2 if failure.code else 0)
    size = 2 + field_size(inner)
    if correlation.size:
        size += field_size(correlation.size)
    out_reserve(out, FRAME_BYTES + size)
    to = put_frame(out.data + out.size, size)
    to[0] = 0x0A
    to[1] = 0
    to[2] = 0x12
    to = put_varint(to + 3, inner)
    if failure.code:
        to = put_number(to, 0x08, failure.code)
    to = put_field(to, 0x12, &text)
    if correlation.size:
        to = put_field(to, 0x1A, correlation)
    out.size = <uint64_t>(to - out.data)
    return 0


cdef inline uint64_t response_size(uint64_t ack, const Span *correlation) noexcept nogil:
    return field_size(ack) + (field_size(correlation.size) if correlation.size else 0)


cdef inline bint wants_ack_alone(const Span *token) noexcept nogil:
    return token.size > 0 and token.data[0] == 117


cdef inline bint is_awaited(int32_t policy) noexcept nogil:
    return policy == 0 or policy == 1


cdef int put_local(Groups *groups, const Span *token, const Pending *pending, const Span *prefix) except -1 nogil:
    # A pending ack as the framed answer of the call that `token` names.
    cdef Group *group = groups_find(groups, 0, token)
    cdef Out *out = &group.out
    cdef uint64_t ack
    cdef uint64_t size
    cdef uint8_t *to
    group.count += is_awaited(pending.policy)
    if pending.error and not wants_ack_alone(token):
        return put_failed_response(out, pending.error, &pending.correlation)
    ack = ack_size(pending, prefix)
    if wants_ack_alone(token):
        out_reserve(out, FRAME_BYTES + ack)
        to = put_ack(put_frame(out.data + out.size, ack), pending, prefix)
    else:
        size = response_size(ack, &pending.correlation)
        out_reserve(out, FRAME_BYTES + size)
        to = put_frame(out.data + out.size, size)
        to[0] = 0x0A
        to = put_ack(put_varint(to + 1, ack), pending, prefix)
        if pending.correlation.size:
            to = put_field(to, 0x1A, &pending.correlation)
    out.size = <uint64_t>(to - out.data)
    return 0


cdef list take_answers(Groups *groups):
    cdef list answers = []
    cdef uint64_t index
    cdef Group *group
    for index in range(groups.size):
        group = &groups.items[index]
        answers.append((group.name.data[: group.name.size], out_take(&group.out), group.count))
    return answers


cdef list take_forwarded(Groups *groups, Groups *streams):
    cdef list answers = []
    cdef uint64_t index
    cdef Group *group
    cdef Span *stream
    for index in range(groups.size):
        group = &groups.items[index]
        stream = &streams.items[group.number].name
        answers.append(
            (group.name.data[: group.name.size], stream.data[: stream.size], out_take(&group.out), group.count)
        )
    return answers


# --- the kernels ------------------------------------------------------------------------------------------

cdef struct Acker:
    Span prefix
    Span subject
    Span local_prefix
    uint64_t committed
    uint64_t max_payload
    Out commands
    Groups groups


cdef int put_command(Acker *acker, const Pending *pending) except -1 nogil:
    cdef Out *out = &acker.commands
    cdef uint64_t size = ENVELOPE_BYTES + ack_size(pending, &acker.prefix)
    cdef uint8_t *to
    if size > acker.max_payload:
        return 0
    out_reserve(out, 32 + pending.inbox.size + size)
    to = out.data + out.size
    memcpy(to, b"PUB ", 4)
    to = put(to + 4, &pending.inbox)
    to[0] = 32
    to = put_decimal(to + 1, size)
    to[0] = 13
    to[1] = 10
    memcpy(to + 2, ACK_ENVELOPE, ENVELOPE_BYTES)
    to = put_ack(to + 2 + ENVELOPE_BYTES, pending, &acker.prefix)
    to[0] = 13
    to[1] = 10
    out.size = <uint64_t>(to + 2 - out.data)
    return 0


cdef int encode_pending(Acker *acker, const uint8_t *at, const uint8_t *end) except -1 nogil:
    cdef Pending pending
    cdef Span token
    while at < end:
        at = next_pending(at, end, &pending)
        if at == NULL:
            with gil:
                raise ValueError("the pending acks are truncated: the last entry runs past the end")
        pending.committed = acker.committed
        if pending.subject.size == 0:
            pending.subject = acker.subject
        if (
            acker.local_prefix.size
            and pending.inbox.size > acker.local_prefix.size
            and starts_with(&pending.inbox, &acker.local_prefix)
        ):
            token.data = pending.inbox.data + acker.local_prefix.size
            token.size = pending.inbox.size - acker.local_prefix.size
            put_local(&acker.groups, &token, &pending, &acker.prefix)
        else:
            put_command(acker, &pending)
    return 0


def encode_acks(
    object pending, bytes prefix not None, bytes subject not None, int64_t commit_timestamp,
    bytes local_prefix not None, Py_ssize_t max_payload,
):
    """Pending acks -> (NATS commands, [(token, framed answers, count)] for calls that wait in this broker)."""
    cdef Py_buffer view
    cdef Acker acker
    cdef const uint8_t *at
    memset(&acker, 0, sizeof(Acker))
    acker.prefix = span_of(prefix)
    acker.subject = span_of(subject)
    acker.local_prefix = span_of(local_prefix)
    acker.committed = <uint64_t>commit_timestamp
    acker.max_payload = <uint64_t>max_payload if max_payload > 0 else 0
    PyObject_GetBuffer(pending, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t *>view.buf
        if view.len >= UNLOCK_FROM_BYTES:
            with nogil:
                encode_pending(&acker, at, at + view.len)
        else:
            encode_pending(&acker, at, at + view.len)
        return out_take(&acker.commands), take_answers(&acker.groups)
    finally:
        out_drop(&acker.commands)
        groups_free(&acker.groups)
        PyBuffer_Release(&view)


cdef bint is_of_gone(const Span *inbox, const Span *prefix, dict gone) except -1:
    # Does the inbox belong to a gRPC call that has ended? Its token is what follows the last dot, up to the stream.
    cdef Span token
    cdef const uint8_t *mark
    if inbox.size <= prefix.size or not starts_with(inbox, prefix):
        return False
    token.data = inbox.data + inbox.size
    while token.data > inbox.data and (token.data - 1)[0] != 46:
        token.data -= 1
    token.size = <uint64_t>(inbox.data + inbox.size - token.data)
    mark = <const uint8_t *>memchr(token.data, 45, token.size)
    if mark != NULL:
        token.size = <uint64_t>(mark - token.data)
    return PyDict_GetItemWithError(gone, token.data[: token.size]) != NULL


cdef int keep_entries(Out *remaining, const uint8_t *at, const uint8_t *end, const Span *prefix, dict gone) except -1:
    # Publishers use one inbox for many messages, so the last result is cached.
    cdef Pending entry
    cdef Span inbox
    cdef const uint8_t *following
    cdef bint over = False
    inbox.data = NULL
    inbox.size = 0
    while at < end:
        following = next_pending(at, end, &entry)
        if following == NULL:
            raise ValueError("the pending acks are truncated: the last entry runs past the end")
        if inbox.data == NULL or not same(&inbox, &entry.inbox):
            inbox = entry.inbox
            over = is_of_gone(&inbox, prefix, gone)
        if not over:
            out_reserve(remaining, <uint64_t>(following - at))
            memcpy(remaining.data + remaining.size, at, <size_t>(following - at))
            remaining.size += <uint64_t>(following - at)
        at = following
    return 0


def drop_gone(object pending, bytes prefix not None, dict gone not None):
    """Pending acks without those of calls that have ended: inboxes with `prefix`, whose token is in `gone`."""
    cdef Py_buffer view
    cdef Span start = span_of(prefix)
    cdef Out remaining
    cdef const uint8_t *at
    memset(&remaining, 0, sizeof(Out))
    PyObject_GetBuffer(pending, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t *>view.buf
        keep_entries(&remaining, at, at + view.len, &start, gone)
        return out_take(&remaining)
    finally:
        out_drop(&remaining)
        PyBuffer_Release(&view)


cdef int answer_ack(Groups *groups, Groups *streams, const Delivered *message) except -1 nogil:
    # An Ack that came over NATS; its bytes go on as they are, inside a PublishResponse. An invalid one is dropped.
    # Groups are those of a token and a stream, which is the number of its name in `streams`.
    cdef Parsed parsed
    cdef Span body
    cdef Span token
    cdef Span stream
    cdef const Span *correlation = &parsed.fields[6]
    cdef int32_t error
    cdef Out *out
    cdef Group *group
    cdef uint64_t size
    cdef uint8_t *to
    if not open_envelope(&message.payload, 1, &body) or not parse(&body, ACK, &parsed, MAX_DEPTH - 1):
        return 0
    token.data = message.subject.data + message.subject.size
    while token.data > message.subject.data and (token.data - 1)[0] != 46:
        token.data -= 1
    token.size = <uint64_t>(message.subject.data + message.subject.size - token.data)
    stream = parsed.fields[1]
    if stream.data == NULL:
        stream.data = token.data
    groups_find(streams, 0, &stream)
    group = groups_find(groups, streams.last, &token)
    group.count += is_awaited(<int32_t>parsed.fields[7].size)
    out = &group.out
    error = <int32_t>parsed.fields[10].size
    if wants_ack_alone(&token):
        out_reserve(out, FRAME_BYTES + body.size)
        to = put(put_frame(out.data + out.size, body.size), &body)
    elif error:
        return put_failed_response(out, <uint32_t>error, correlation)
    else:
        size = response_size(body.size, correlation)
        out_reserve(out, FRAME_BYTES + size)
        to = put_field(put_frame(out.data + out.size, size), 0x0A, &body)
        if correlation.size:
            to = put_field(to, 0x1A, correlation)
    out.size = <uint64_t>(to - out.data)
    return 0


def ack_responses(object batch):
    """A batch of Ack envelopes -> [(token, stream that sent them, framed answers, count)]."""
    cdef Py_buffer view
    cdef Groups groups
    cdef Groups streams
    cdef Delivered message
    cdef const uint8_t *at
    cdef const uint8_t *end
    memset(&groups, 0, sizeof(Groups))
    memset(&streams, 0, sizeof(Groups))
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t *>view.buf
        end = at + view.len
        while at < end:
            at = next_delivered(at, end, &message)
            if at == NULL:
                raise ValueError("the batch is truncated: its last entry runs past its end")
            answer_ack(&groups, &streams, &message)
        return take_forwarded(&groups, &streams)
    finally:
        groups_free(&groups)
        groups_free(&streams)
        PyBuffer_Release(&view)
