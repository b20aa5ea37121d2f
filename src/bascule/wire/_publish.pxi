# Publish: gRPC-framed PublishRequests into PUB commands that carry Message envelopes.
#
# Where a message goes is looked up in a Python dict, so the results are cached for the length of a call: the last one
# in front, the others in a small table that a stream and partition are hashed into.

cdef enum:
    ROUTE_SLOTS = 64
    NO_ROUTE = -1
    PROBLEM_PROTOBUF = 1
    PROBLEM_TOO_LARGE = 2
    PROBLEM_COMPRESSED = 3

cdef uint8_t *PUBLISH_ENVELOPE = [0xB9, 0x0E, 0x43, 0xB4, 0x00, 0x08, 0x00, 0x00]

cdef struct Route:
    Span stream
    int32_t partition
    int32_t flags  # NO_ROUTE if there is none
    Span subject
    uint64_t subject_size  # once repaired
    Span suffix  # of the ack inbox: which stream is asked
    uint64_t creation  # of that stream: numbers of producers are about it

cdef struct Router:
    Span inbox
    uint64_t max_payload
    Out commands
    uint64_t published
    uint64_t awaiting
    Route *last
    Route routes[ROUTE_SLOTS]


cdef int find_route(Route *route, dict routes) except -1:
    # Asks the dict. The pointers stay valid: nothing else runs, and so nothing is freed, before the call ends.
    cdef PyObject *found
    cdef object partitions
    cdef object entry
    cdef bytes subject
    cdef bytes suffix
    cdef long flags
    route.flags = NO_ROUTE
    found = PyDict_GetItemWithError(routes, route.stream.data[: route.stream.size])
    if found == NULL:
        return 0
    partitions = <object>found
    if route.partition < 0 or route.partition >= len(<list?>partitions):
        return 0
    entry = (<list>partitions)[route.partition]
    if entry is None:
        return 0
    subject = (<tuple?>entry)[0]
    flags = entry[1]
    route.flags = <int32_t>(flags if 0 <= flags <= 2 else 2)
    route.subject = span_of(subject)
    route.subject_size = repaired_size(&route.subject)
    suffix = entry[2]
    route.suffix = span_of(suffix)
    route.creation = entry[3]
    return 0


cdef inline Route *route_of(Router *router, const Span *stream, int32_t partition, dict routes) except NULL:
    cdef Route *route = router.last
    cdef uint64_t slot
    if route != NULL and route.partition == partition and same(&route.stream, stream):
        return route
    slot = (hash_bytes(stream.data, stream.size) + <uint32_t>partition) % ROUTE_SLOTS
    route = &router.routes[slot]
    if route.stream.data == NULL or route.partition != partition or not same(&route.stream, stream):
        route.stream = stream[0]
        route.partition = partition
        find_route(route, routes)
    router.last = route
    return route


cdef uint64_t headers_size(const Span *body, uint32_t field) noexcept nogil:
    cdef Header header
    cdef uint64_t total = 0
    cdef const uint8_t *at = body.data
    while True:
        at = next_header(at, body.data + body.size, field, &header)
        if at == NULL:
            return total
        total += header_size(&header)


cdef uint8_t *put_headers(uint8_t *to, const Span *body, uint32_t field) noexcept nogil:
    cdef Header header
    cdef const uint8_t *at = body.data
    while True:
        at = next_header(at, body.data + body.size, field, &header)
        if at == NULL:
            return to
        to = put_header(to, &header)


cdef bint put_publish(Router *router, const Route *route, const Span *body, const Parsed *parsed) except -1:
    # One PUB command; False if its envelope would be over max_payload.
    cdef const Span *key = &parsed.fields[1]
    cdef const Span *value = &parsed.fields[2]
    cdef const Span *correlation = &parsed.fields[7]
    cdef const Span *producer = &parsed.fields[PRODUCER]
    cdef uint64_t policy = <uint64_t><int64_t><int32_t>parsed.fields[8].size
    cdef uint64_t expected = parsed.fields[9].size
    cdef Out *out = &router.commands
    cdef uint8_t *to
    cdef uint64_t inbox = router.inbox.size + route.suffix.size
    cdef uint64_t size = ENVELOPE_BYTES + field_size(route.stream.size)
    size += field_size(route.subject_size) + field_size(inbox)
    if expected:
        size += 1 + varint_size(expected)
    if key.size:
        size += field_size(key.size)
    if value.size:
        size += field_size(value.size)
    if parsed.entries:
        size += headers_size(body, 5)
    if correlation.size:
        size += field_size(correlation.size)
    if policy:
        size += 1 + varint_size(policy)
    if producer.size:
        size += 1 + field_size(producer.size)
    if size > router.max_payload:
        return False
    out_reserve(out, 32 + route.subject.size + size)
    to = out.data + out.size
    memcpy(to, b"PUB ", 4)
    to = put(to + 4, &route.subject)
    to[0] = 32
    to = put_decimal(to + 1, size)
    to[0] = 13
    to[1] = 10
    memcpy(to + 2, PUBLISH_ENVELOPE, ENVELOPE_BYTES)
    to += 2 + ENVELOPE_BYTES
    if expected:
        to = put_number(to, 0x08, expected)
    if key.size:
        to = put_field(to, 0x12, key)
    if value.size:
        to = put_field(to, 0x1A, value)
    to = put_field(to, 0x2A, &route.stream)
    to[0] = 0x3A
    to = put_repaired(put_varint(to + 1, route.subject_size), &route.subject, route.subject_size)
    if parsed.entries:
        to = put_headers(to, body, 5)
    to[0] = 0x52
    to = put(put(put_varint(to + 1, inbox), &router.inbox), &route.suffix)
    if correlation.size:
        to = put_field(to, 0x5A, correlation)
    if policy:
        to = put_number(to, 0x60, policy)
    if producer.size:
        to[0] = 0x8A
        to = put_field(to + 1, 0x7D, producer)
    to[0] = 13
    to[1] = 10
    out.size = <uint64_t>(to + 2 - out.data)
    return True


cdef bint route_one(Router *router, const Span *body, const Parsed *parsed, dict routes) except -1:
    # False if Python has to handle the request.
    cdef Span stream = parsed.fields[3]
    cdef int32_t policy = <int32_t>parsed.fields[8].size
    cdef bint awaited = policy == 0 or policy == 1
    cdef const Span *producer = &parsed.fields[PRODUCER]
    cdef Numbered numbered
    cdef Route *route
    if stream.data == NULL:
        stream.data = body.data
    route = route_of(router, &stream, <int32_t>parsed.fields[4].size, routes)
    if route.flags == NO_ROUTE or route.flags >= 2 or (route.flags == 1 and not awaited):
        return False
    if parsed.fields[7].size > MAX_CORRELATION_ID:
        return False
    if producer.size and not (
        read_numbered(producer, &numbered)
        and numbered.creation == route.creation
        and numbered.partition == <uint64_t>route.partition
    ):
        return False
    if not put_publish(router, route, body, parsed):
        return False
    router.published += 1
    router.awaiting += awaited
    return True


def route_publishes(
    object data, Py_ssize_t start, Py_ssize_t end, dict routes not None, bytes inbox not None,
    Py_ssize_t max_payload, Py_ssize_t max_message,
):
    """Framed PublishRequests -> (consumed, NATS commands, published, awaiting, exceptions, problem)."""
    cdef Py_buffer view
    cdef Router router
    cdef Parsed parsed
    cdef Span body
    cdef const uint8_t *at
    cdef const uint8_t *stop
    cdef list exceptions = []
    cdef int problem = 0
    open_range(&view, data, start, end)
    memset(&router, 0, sizeof(Router))
    try:
        at = <const uint8_t *>view.buf + start
        stop = <const uint8_t *>view.buf + end
        router.inbox = span_of(inbox)
        router.max_payload = <uint64_t>max_payload if max_payload > 0 else 0
        while stop - at >= FRAME_BYTES:
            body.data = at + FRAME_BYTES
            body.size = get_be32(at + 1)
            if <int64_t>body.size > max_message:
                problem = PROBLEM_TOO_LARGE
                break
            if at[0] != 0:
                problem = PROBLEM_COMPRESSED
                break
            if body.size > <uint64_t>(stop - body.data):
                break
            if not parse(&body, PUBLISH_REQUEST, &parsed, MAX_DEPTH):
                problem = PROBLEM_PROTOBUF
                break
            if router.commands.owner == NULL:
                out_reserve(&router.commands, <uint64_t>(stop - at) + <uint64_t>(stop - at) // 2)
            if not route_one(&router, &body, &parsed, routes):
                exceptions.append(body.data[: body.size])
            at = body.data + body.size
        return (
            <Py_ssize_t>(at - <const uint8_t *>view.buf), out_take(&router.commands), router.published,
            router.awaiting, exceptions, problem,
        )
    finally:
        out_drop(&router.commands)
        PyBuffer_Release(&view)
