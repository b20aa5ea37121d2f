# HTTP/2: frames out of a read, DATA frames for a write, and the gRPC messages inside.

cdef enum:
    FRAME_HEADER_BYTES = 9
    FLAG_END_STREAM = 0x1
    FLAG_PADDED = 0x8
    MARK_BAD_PADDING = 0xFF

cdef struct Piece:
    uint64_t group
    Span data

cdef struct Frames:
    # DATA frames since the last frame of another type, and their pieces by stream.
    Groups groups
    Piece *pieces
    uint64_t count
    uint64_t room


cdef int add_data(Frames *frames, uint32_t stream_id, const Span *data, uint64_t flow, bint last) except -1:
    cdef Group *group = groups_find(&frames.groups, stream_id, NULL)
    cdef Piece *piece
    if group.closed:
        groups_add(&frames.groups, group.hash, stream_id, NULL)
        group = &frames.groups.items[frames.groups.last]
    group.closed = last
    group.count += flow
    group.size += data.size
    if data.size:
        if frames.count == frames.room:
            grow_array(<void **>&frames.pieces, &frames.room, sizeof(Piece))
        piece = &frames.pieces[frames.count]
        frames.count += 1
        piece.group = frames.groups.last
        piece.data = data[0]
    return 0


cdef int end_run(Frames *frames, list events) except -1:
    # One event for each stream of the run.
    cdef uint64_t index
    cdef Group *group
    cdef Out *out
    if frames.groups.size == 0:
        return 0
    for index in range(frames.groups.size):
        group_allocate(&frames.groups.items[index])
    for index in range(frames.count):
        out = &frames.groups.items[frames.pieces[index].group].out
        put(out.data + out.size, &frames.pieces[index].data)
        out.size += frames.pieces[index].data.size
    for index in range(frames.groups.size):
        group = &frames.groups.items[index]
        events.append((0, 1 if group.closed else 0, group.number, out_take(&group.out), group.count))
    groups_clear(&frames.groups)
    frames.count = 0
    return 0


cdef bint cut_padding(Span *data) noexcept nogil:
    cdef uint64_t padding
    if data.size == 0:
        return False
    padding = data.data[0]
    if padding >= data.size:
        return False
    data.data += 1
    data.size -= 1 + padding
    return True


def scan_frames(object buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_frame):
    """HTTP/2 frames -> (consumed, [(type, flags, stream id, payload, flow)], oversized)."""
    cdef Py_buffer view
    cdef Frames frames
    cdef Span data
    cdef uint32_t stream_id
    cdef uint64_t length
    cdef uint64_t oversized = 0
    cdef const uint8_t *at
    cdef const uint8_t *stop
    cdef list events = []
    open_range(&view, buffer, start, end)
    memset(&frames, 0, sizeof(Frames))
    try:
        at = <const uint8_t *>view.buf + start
        stop = <const uint8_t *>view.buf + end
        while stop - at >= FRAME_HEADER_BYTES:
            length = get_be32(at) >> 8
            if <int64_t>length > max_frame:
                oversized = length
                break
            if length > <uint64_t>(stop - at) - FRAME_HEADER_BYTES:
                break
            stream_id = get_be32(at + 5) & 0x7FFFFFFFU
            data.data = at + FRAME_HEADER_BYTES
            data.size = length
            if at[3] != 0:
                end_run(&frames, events)
                events.append((at[3], at[4], stream_id, data.data[: data.size], 0))
            elif at[4] & FLAG_PADDED and not cut_padding(&data):
                end_run(&frames, events)
                events.append((0, <int>MARK_BAD_PADDING, stream_id, b"", 0))
                at += FRAME_HEADER_BYTES + length
                break
            else:
                add_data(&frames, stream_id, &data, length, at[4] & FLAG_END_STREAM != 0)
            at += FRAME_HEADER_BYTES + length
        end_run(&frames, events)
        return <Py_ssize_t>(at - <const uint8_t *>view.buf), events, oversized
    finally:
        groups_free(&frames.groups)
        free(frames.pieces)
        PyBuffer_Release(&view)


def frame_data(uint32_t stream_id, object data, Py_ssize_t max_frame, bint end_stream):
    """DATA frames of at most `max_frame` bytes; the last one carries END_STREAM if asked."""
    cdef Py_buffer view
    cdef Py_ssize_t frames
    cdef Py_ssize_t left
    cdef Py_ssize_t size
    cdef const uint8_t *source
    cdef uint8_t *to
    cdef object result
    if max_frame < 1 or max_frame > 0xFFFFFF:
        raise ValueError(f"a frame of {max_frame} bytes cannot be: HTTP/2 allows 1 to 16777215")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        source = <const uint8_t *>view.buf
        left = view.len
        frames = left // max_frame + (left % max_frame != 0)
        if left == 0 and end_stream:
            frames = 1
        result = <object>new_bytes(NULL, left + frames * FRAME_HEADER_BYTES)
        Py_DECREF(result)
        to = <uint8_t *>bytes_data(<PyObject *>result)
        while frames:
            frames -= 1
            size = max_frame if frames else left
            put_be32(to, <uint32_t>size << 8)
            to[4] = FLAG_END_STREAM if end_stream and frames == 0 else 0
            put_be32(to + 5, stream_id)
            if size:
                memcpy(to + FRAME_HEADER_BYTES, source, <size_t>size)
            to += FRAME_HEADER_BYTES + size
            source += size
            left -= size
        return result
    finally:
        PyBuffer_Release(&view)


def split_messages(object data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_message):
    """Length-prefixed gRPC messages -> (consumed, [(flag, message)], oversized)."""
    cdef Py_buffer view
    cdef uint64_t length
    cdef uint64_t oversized = 0
    cdef const uint8_t *at
    cdef const uint8_t *stop
    cdef list messages = []
    open_range(&view, data, start, end)
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
            messages.append((at[0], (at + FRAME_BYTES)[:length]))
            at += FRAME_BYTES + length
        return <Py_ssize_t>(at - <const uint8_t *>view.buf), messages, oversized
    finally:
        PyBuffer_Release(&view)
