# NATS: one socket read into batches per subscription.
#
# Two walks. The first, without the interpreter lock, finds every whole item and how many bytes each subscription
# gets; the second copies the messages into bytes objects of exactly that size.

cdef struct Delivery:
    uint64_t group
    Span subject
    Span reply
    Span payload

cdef struct Control:
    uint32_t verb  # index into VERBS
    Span argument

cdef enum:
    NATS_FINE = 0
    NATS_VERB = 1
    NATS_LONG = 2
    NATS_ARGUMENTS = 3
    NATS_NUMBER = 4
    NATS_LARGE = 5
    NATS_HEADERS = 6
    NATS_END = 7
    NATS_SUBJECT = 8

cdef tuple VERBS = (b"INFO", b"PING", b"PONG", b"+OK", b"-ERR")
cdef dict NATS_PROBLEMS = {
    NATS_VERB: "an unknown verb",
    NATS_LONG: "a line without an end",
    NATS_ARGUMENTS: "the wrong number of arguments",
    NATS_NUMBER: "a bad number",
    NATS_LARGE: "a payload over the limit",
    NATS_HEADERS: "headers longer than the whole message",
    NATS_END: "a payload that does not end where its length says",
    NATS_SUBJECT: "a subject or reply over 65535 bytes",
}

cdef struct Reader:
    const uint8_t *at
    const uint8_t *end
    uint64_t max_line
    uint64_t max_payload
    uint64_t needed
    int problem
    Groups groups
    Delivery *deliveries
    uint64_t delivery_count
    uint64_t delivery_room
    Control *controls
    uint64_t control_count
    uint64_t control_room


cdef inline bint is_blank(uint8_t byte) noexcept nogil:
    return byte == 32 or byte == 9


cdef inline bint read_decimal(const Span *text, uint64_t *value) noexcept nogil:
    cdef uint64_t result = 0
    cdef uint64_t position
    cdef uint8_t digit
    if text.size == 0 or text.size > 18:
        return False
    for position in range(text.size):
        digit = <uint8_t>(text.data[position] - 48)
        if digit > 9:
            return False
        result = result * 10 + digit
    value[0] = result
    return True


cdef inline int split_arguments(const uint8_t *at, const uint8_t *end, Span *arguments, int most) noexcept nogil:
    # Arguments between runs of blanks; `most` + 1 if there are more than that.
    cdef int count = 0
    while True:
        while at < end and is_blank(at[0]):
            at += 1
        if at == end:
            return count
        if count == most:
            return most + 1
        arguments[count].data = at
        while at < end and not is_blank(at[0]):
            at += 1
        arguments[count].size = <uint64_t>(at - arguments[count].data)
        count += 1


cdef int grow_array(void **items, uint64_t *room, uint64_t item_size) except -1 nogil:
    cdef uint64_t more = 2 * room[0] if room[0] else 64
    cdef void *moved = realloc(items[0], more * item_size)
    if moved == NULL:
        with gil:
            raise MemoryError("no memory to parse what NATS sent")
    items[0] = moved
    room[0] = more
    return 0


cdef int read_delivery(Reader *reader, const uint8_t *line, const uint8_t *stop, bint headers) except -1 nogil:
    # A MSG or HMSG whose arguments stand in line..stop; reader.at is just after the line. Gives 1 if the payload is
    # not whole yet; says what is wrong in reader.problem.
    cdef Span arguments[5]
    cdef int most = 5 if headers else 4
    cdef int count = split_arguments(line, stop, arguments, most)
    cdef uint64_t sid = 0
    cdef uint64_t total = 0
    cdef uint64_t skipped = 0
    cdef Group *group
    cdef Delivery *delivery
    if count > most or count < most - 1:
        reader.problem = NATS_ARGUMENTS
        return 0
    if not read_decimal(&arguments[1], &sid) or not read_decimal(&arguments[count - 1], &total):
        reader.problem = NATS_NUMBER
        return 0
    if headers and not read_decimal(&arguments[count - 2], &skipped):
        reader.problem = NATS_NUMBER
        return 0
    if total > reader.max_payload or total > 0xFFFFFFFFU:
        reader.problem = NATS_LARGE
        return 0
    if skipped > total:
        reader.problem = NATS_HEADERS
        return 0
    if arguments[0].size > 0xFFFF or (count == most and arguments[2].size > 0xFFFF):
        reader.problem = NATS_SUBJECT
        return 0
    if <uint64_t>(reader.end - reader.at) < total + 2:
        reader.needed = total + 2
        return 1
    if reader.at[total] != 13 or reader.at[total + 1] != 10:
        reader.problem = NATS_END
        return 0
    if reader.delivery_count == reader.delivery_room:
        grow_array(<void **>&reader.deliveries, &reader.delivery_room, sizeof(Delivery))
    delivery = &reader.deliveries[reader.delivery_count]
    reader.delivery_count += 1
    delivery.subject = arguments[0]
    if count == most:
        delivery.reply = arguments[2]
    else:
        delivery.reply.data = stop
        delivery.reply.size = 0
    delivery.payload.data = reader.at + skipped
    delivery.payload.size = total - skipped
    reader.at += total + 2
    group = groups_find(&reader.groups, sid, NULL)
    group.count += 1
    group.size += 8 + delivery.subject.size + delivery.reply.size + delivery.payload.size
    delivery.group = reader.groups.last
    return 0


cdef inline bint is_word(const uint8_t *at, uint64_t size, const char *upper, uint64_t length) noexcept nogil:
    cdef uint64_t position
    cdef uint8_t byte
    if size != length:
        return False
    for position in range(length):
        byte = at[position]
        if 97 <= byte <= 122:
            byte -= 32
        if byte != <uint8_t>upper[position]:
            return False
    return True


cdef int read_control(Reader *reader, const uint8_t *line, uint64_t verb_size, const uint8_t *stop) except -1 nogil:
    cdef uint32_t verb
    cdef const uint8_t *argument = line + verb_size
    cdef Control *control
    if is_word(line, verb_size, b"INFO", 4):
        verb = 0
    elif is_word(line, verb_size, b"PING", 4):
        verb = 1
    elif is_word(line, verb_size, b"PONG", 4):
        verb = 2
    elif is_word(line, verb_size, b"+OK", 3):
        verb = 3
    elif is_word(line, verb_size, b"-ERR", 4):
        verb = 4
    else:
        reader.problem = NATS_VERB
        return 0
    while argument < stop and is_blank(argument[0]):
        argument += 1
    while stop > argument and is_blank((stop - 1)[0]):
        stop -= 1
    if reader.control_count == reader.control_room:
        grow_array(<void **>&reader.controls, &reader.control_room, sizeof(Control))
    control = &reader.controls[reader.control_count]
    reader.control_count += 1
    control.verb = verb
    control.argument.data = argument
    control.argument.size = <uint64_t>(stop - argument)
    return 0


cdef int read_items(Reader *reader) except -1 nogil:
    # Every whole item; reader.at stops at the first byte of what is incomplete or wrong.
    cdef const uint8_t *line
    cdef const uint8_t *stop
    cdef const uint8_t *verb_end
    cdef uint64_t verb_size
    while reader.at < reader.end:
        line = reader.at
        stop = <const uint8_t *>memchr(line, 10, <size_t>(reader.end - line))
        if stop == NULL:
            if <uint64_t>(reader.end - line) > reader.max_line:
                reader.problem = NATS_LONG
            return 0
        reader.at = stop + 1
        if stop > line and (stop - 1)[0] == 13:
            stop -= 1
        verb_end = line
        while verb_end < stop and not is_blank(verb_end[0]):
            verb_end += 1
        verb_size = <uint64_t>(verb_end - line)
        if is_word(line, verb_size, b"MSG", 3):
            if read_delivery(reader, verb_end, stop, False):
                reader.needed += <uint64_t>(reader.at - line)
                reader.at = line
                return 0
        elif is_word(line, verb_size, b"HMSG", 4):
            if read_delivery(reader, verb_end, stop, True):
                reader.needed += <uint64_t>(reader.at - line)
                reader.at = line
                return 0
        else:
            read_control(reader, line, verb_size, stop)
        if reader.problem:
            reader.at = line
            return 0
    return 0


cdef void copy_deliveries(Reader *reader) noexcept nogil:
    cdef uint64_t index
    cdef Delivery *delivery
    cdef Out *out
    cdef uint8_t *to
    for index in range(reader.delivery_count):
        delivery = &reader.deliveries[index]
        out = &reader.groups.items[delivery.group].out
        to = out.data + out.size
        put_le16(to, <uint32_t>delivery.subject.size)
        put_le16(to + 2, <uint32_t>delivery.reply.size)
        put_le32(to + 4, <uint32_t>delivery.payload.size)
        to = put(to + 8, &delivery.subject)
        if delivery.reply.size:
            to = put(to, &delivery.reply)
        to = put(to, &delivery.payload)
        out.size = <uint64_t>(to - out.data)


cdef tuple reader_result(Reader *reader, const uint8_t *base):
    cdef list batches = []
    cdef list controls = []
    cdef uint64_t index
    cdef Group *group
    cdef Control *control
    if reader.problem:
        start = bytes(reader.at[: min(64, reader.end - reader.at)])
        raise NatsProtocolError(
            f"the NATS server sent {NATS_PROBLEMS[reader.problem]}: {start!r}; the connection is closed and made anew"
        )
    for index in range(reader.groups.size):
        group_allocate(&reader.groups.items[index])
    copy_deliveries(reader)
    for index in range(reader.groups.size):
        group = &reader.groups.items[index]
        batches.append((<int64_t>group.number, group.count, out_take(&group.out)))
    for index in range(reader.control_count):
        control = &reader.controls[index]
        controls.append((VERBS[control.verb], control.argument.data[: control.argument.size]))
    return <Py_ssize_t>(reader.at - base), reader.needed, batches, controls


def split_nats(object buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_line, Py_ssize_t max_payload):
    """Server-to-client NATS protocol in buffer[start:end] -> (consumed, needed, batches, controls)."""
    cdef Py_buffer view
    cdef Reader reader
    open_range(&view, buffer, start, end)
    memset(&reader, 0, sizeof(Reader))
    try:
        reader.at = <const uint8_t *>view.buf + start
        reader.end = <const uint8_t *>view.buf + end
        reader.max_line = <uint64_t>max_line
        reader.max_payload = <uint64_t>max_payload
        if end - start >= UNLOCK_FROM_BYTES:
            with nogil:
                read_items(&reader)
        else:
            read_items(&reader)
        return reader_result(&reader, <const uint8_t *>view.buf)
    finally:
        groups_free(&reader.groups)
        free(reader.deliveries)
        free(reader.controls)
        PyBuffer_Release(&view)
