# Protobuf: accepts what upb accepts, for messages of at most 15 fields.
#
# A message is described by the kinds of its fields, indexed by number. Field 2001, of a producer, has the last place
# where the first one, which no field has, is not 0. Parsing fills one Span per known field, the
# last one of a field wins, and checks everything else on the way: so a second walk over the same bytes, for the
# headers, cannot fail. Facts about upb that are easy to miss: a known field with another wire type is an unknown
# field; tags and sizes have at most five bytes, other varints ten, with the bits past 64 dropped; field number 0 is
# invalid, except inside a skipped group; groups nest at most 100 deep, in a map entry 99.

cdef enum Kind:
    UNKNOWN = 0
    NUMBER = 1
    BYTES = 2
    STRING = 3
    ENTRY = 4  # map<string, bytes>

cdef enum:
    MAX_FIELDS = 16
    PRODUCER_NUMBER = 2001
    PRODUCER = 15  # its place
    MAX_DEPTH = 100

cdef uint8_t *MESSAGE = [1, 1, 2, 2, 1, 3, 1, 3, 3, 4, 3, 3, 1, 0, 0, 0]
cdef uint8_t *PUBLISH_REQUEST = [1, 2, 2, 3, 1, 4, 3, 3, 1, 1, 0, 0, 0, 0, 0, 0]
cdef uint8_t *ACK = [0, 3, 3, 3, 1, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0]
cdef uint8_t *HEADER = [0, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]

cdef struct Parsed:
    Span fields[MAX_FIELDS]
    uint64_t entries  # how many map entries there are


cdef const uint8_t *read_varint_slow(
    const uint8_t *at, const uint8_t *end, uint64_t *value, uint64_t most
) noexcept nogil:
    cdef uint64_t result = 0
    cdef uint64_t count = 0
    while at < end and count < most:
        result |= <uint64_t>(at[0] & 0x7F) << (7 * count)
        count += 1
        if at[0] < 0x80:
            value[0] = result
            return at + 1
        at += 1
    return NULL


cdef inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) noexcept nogil:
    # Every reader here gives the position after what it read, or NULL if it is not there or not valid.
    if at < end and at[0] < 0x80:
        value[0] = at[0]
        return at + 1
    return read_varint_slow(at, end, value, 10)


cdef inline const uint8_t *read_tag(const uint8_t *at, const uint8_t *end, uint32_t *tag) noexcept nogil:
    cdef uint64_t value = 0
    if at < end and at[0] < 0x80:
        tag[0] = at[0]
        return at + 1
    at = read_varint_slow(at, end, &value, 5)
    tag[0] = <uint32_t>value
    return at if value <= 0xFFFFFFFFU else NULL


cdef inline const uint8_t *read_size(const uint8_t *at, const uint8_t *end, uint64_t *size) noexcept nogil:
    # Also checks that so many bytes follow.
    if at < end and at[0] < 0x80:
        size[0] = at[0]
        at += 1
    elif end - at >= 2 and at[1] < 0x80:
        size[0] = (<uint64_t>at[1] << 7) | (at[0] & 0x7F)
        at += 2
    else:
        at = read_varint_slow(at, end, size, 5)
        if at == NULL or size[0] > 0x7FFFFFFFU:
            return NULL
    return at if size[0] <= <uint64_t>(end - at) else NULL


cdef const uint8_t *skip_plain(const uint8_t *at, const uint8_t *end, uint32_t wire) noexcept nogil:
    # Over a value that is not a group.
    cdef uint64_t value = 0
    if wire == 0:
        return read_varint(at, end, &value)
    if wire == 1:
        return at + 8 if end - at >= 8 else NULL
    if wire == 5:
        return at + 4 if end - at >= 4 else NULL
    if wire == 2:
        at = read_size(at, end, &value)
        return at + value if at != NULL else NULL
    return NULL


cdef const uint8_t *skip_group(
    const uint8_t *at, const uint8_t *end, uint32_t number, int depth
) noexcept nogil:
    # Over a group whose start was read, with everything inside; at most `depth` groups may be open at once.
    cdef uint32_t opened[MAX_DEPTH]
    cdef int count = 1
    cdef uint32_t tag = 0
    opened[0] = number
    while at != NULL and at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            return NULL
        if tag & 7 == 3:
            if count == depth:
                return NULL
            opened[count] = tag >> 3
            count += 1
        elif tag & 7 == 4:
            count -= 1
            if opened[count] != tag >> 3:
                return NULL
            if count == 0:
                return at
        else:
            at = skip_plain(at, end, tag & 7)
    return NULL


cdef bint parse_fields(
    const uint8_t *at, const uint8_t *end, const uint8_t *kinds, Span *fields, uint64_t *entries, int depth
) noexcept nogil:
    # The fields of one message into `fields`, which the caller has zeroed. False if upb would refuse it.
    cdef uint32_t tag = 0
    cdef uint32_t number
    cdef uint64_t value = 0
    cdef uint8_t kind
    cdef Span header[3]
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            return False
        number = tag >> 3
        if number == 0:
            return False
        if number < MAX_FIELDS:
            kind = kinds[number]
        elif number == PRODUCER_NUMBER and kinds[0]:
            kind = <uint8_t>BYTES if tag & 7 == 2 else <uint8_t>UNKNOWN
            number = PRODUCER
        else:
            kind = <uint8_t>UNKNOWN
        if tag & 7 == 2:
            at = read_size(at, end, &value)
            if at == NULL:
                return False
            if kind >= BYTES:
                if kind == STRING and not is_utf8(at, value):
                    return False
                if kind == ENTRY:
                    if not parse_fields(at, at + value, HEADER, header, entries, depth - 1):
                        return False
                    entries[0] += 1
                fields[number].data = at
                fields[number].size = value
            at += value
        elif tag & 7 == 0:
            at = read_varint(at, end, &value)
            if at == NULL:
                return False
            if kind == NUMBER:
                fields[number].size = value
        elif tag & 7 == 3:
            at = skip_group(at, end, tag >> 3, depth)
            if at == NULL:
                return False
        else:
            at = skip_plain(at, end, tag & 7)
            if at == NULL:
                return False
    return True


cdef inline bint parse(const Span *body, const uint8_t *kinds, Parsed *parsed, int depth) noexcept nogil:
    # `depth` is how deep groups may nest: MAX_DEPTH, less one for each message this one will be put into.
    memset(parsed, 0, sizeof(Parsed))
    return parse_fields(body.data, body.data + body.size, kinds, parsed.fields, &parsed.entries, depth)


# --- headers ----------------------------------------------------------------------------------------------

cdef struct Header:
    Span key
    Span value


cdef const uint8_t *next_header(
    const uint8_t *at, const uint8_t *end, uint32_t field, Header *header
) noexcept nogil:
    # The next map entry of a message that was parsed before; NULL if there is no further one.
    cdef uint32_t tag = 0
    cdef uint64_t size = 0
    cdef uint64_t entries = 0
    cdef Span fields[3]
    while at != NULL and at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            return NULL
        if tag == (field << 3 | 2):
            at = read_size(at, end, &size)
            if at == NULL:
                return NULL
            memset(fields, 0, sizeof(fields))
            parse_fields(at, at + size, HEADER, fields, &entries, MAX_DEPTH - 1)
            # An absent key or value has no address; give it one, so that copying nothing from it is defined.
            header.key.data = fields[1].data if fields[1].data != NULL else at
            header.key.size = fields[1].size
            header.value.data = fields[2].data if fields[2].data != NULL else at
            header.value.size = fields[2].size
            return at + size
        if tag & 7 == 3:
            at = skip_group(at, end, tag >> 3, MAX_DEPTH)
        else:
            at = skip_plain(at, end, tag & 7)
    return NULL


cdef inline uint64_t header_body_size(const Header *header) noexcept nogil:
    return (
        2 + varint_size(header.key.size) + header.key.size + varint_size(header.value.size) + header.value.size
    )


cdef inline uint64_t header_size(const Header *header) noexcept nogil:
    # As a map entry: tag, size, key, value, both written even if empty.
    cdef uint64_t body = header_body_size(header)
    return 1 + varint_size(body) + body


cdef uint8_t *put_header(uint8_t *to, const Header *header) noexcept nogil:
    # As field 9 of a Message.
    to[0] = 0x4A
    to = put_varint(to + 1, header_body_size(header))
    to[0] = 0x0A
    to = put(put_varint(to + 1, header.key.size), &header.key)
    to[0] = 0x12
    return put(put_varint(to + 1, header.value.size), &header.value)


cdef inline uint64_t field_size(uint64_t size) noexcept nogil:
    # A length-delimited field with a tag of one byte.
    return 1 + varint_size(size) + size


cdef inline uint8_t *put_field(uint8_t *to, uint8_t tag, const Span *span) noexcept nogil:
    to[0] = tag
    return put(put_varint(to + 1, span.size), span)


cdef inline uint8_t *put_number(uint8_t *to, uint8_t tag, uint64_t value) noexcept nogil:
    to[0] = tag
    return put_varint(to + 1, value)
