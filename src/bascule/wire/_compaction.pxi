# Compaction: which record of each key is the newest, and records without those that newer ones supersede.
#
# Keys are told apart by a keyed hash of 128 bits (SipHash-2-4): whoever does not know the secret cannot make two keys
# with the same hash, and by chance it does not happen.

cdef extern from *:
    """
    #define SIP_ROTATE(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
    #define SIP_ROUND(v) do { \
        v[0] += v[1]; v[1] = SIP_ROTATE(v[1], 13); v[1] ^= v[0]; v[0] = SIP_ROTATE(v[0], 32); \
        v[2] += v[3]; v[3] = SIP_ROTATE(v[3], 16); v[3] ^= v[2]; \
        v[0] += v[3]; v[3] = SIP_ROTATE(v[3], 21); v[3] ^= v[0]; \
        v[2] += v[1]; v[1] = SIP_ROTATE(v[1], 17); v[1] ^= v[2]; v[2] = SIP_ROTATE(v[2], 32); \
    } while (0)

    static inline void sip_hash(const uint8_t *at, uint64_t size, const uint64_t *secret, uint64_t *hash) {
        const uint8_t *end = at + (size & ~(uint64_t)7);
        uint64_t v[4] = {
            secret[0] ^ 0x736f6d6570736575ULL, secret[1] ^ 0x646f72616e646f6dULL ^ 0xee,
            secret[0] ^ 0x6c7967656e657261ULL, secret[1] ^ 0x7465646279746573ULL,
        };
        uint64_t word = size << 56;
        uint64_t left = size & 7;
        uint64_t each;
        for (; at < end; at += 8) {
            each = get_le64(at);
            v[3] ^= each; SIP_ROUND(v); SIP_ROUND(v); v[0] ^= each;
        }
        while (left) { left--; word |= (uint64_t)at[left] << (8 * left); }
        v[3] ^= word; SIP_ROUND(v); SIP_ROUND(v); v[0] ^= word;
        v[2] ^= 0xee; SIP_ROUND(v); SIP_ROUND(v); SIP_ROUND(v); SIP_ROUND(v);
        hash[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
        v[1] ^= 0xdd; SIP_ROUND(v); SIP_ROUND(v); SIP_ROUND(v); SIP_ROUND(v);
        hash[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
    }
    """
    void sip_hash(const uint8_t *at, uint64_t size, const uint64_t *secret, uint64_t *hash) noexcept nogil

cdef enum:
    LEAST_KEY_SLOTS = 8
    PINNED = 1  # an earlier record of the key was met: its tombstone stays
    HELD = 2  # one that stays, and is not the last of a leader epoch: the log is not cleared of it

cdef struct KeySlot:
    uint64_t hash[2]
    uint64_t newest  # 4 * (offset + 1), and PINNED and HELD; 0: no key

cdef struct Keys:
    KeySlot *slots
    uint64_t room
    uint64_t size
    uint64_t most
    uint64_t secret[2]
    bint pins_all

cdef struct Compacted:
    Out out
    const uint8_t *protected  # offsets of records that stay, i64 little-endian, ascending
    const uint8_t *protected_end
    const uint8_t *epoch_ends  # others, likewise
    const uint8_t *epoch_ends_end
    int64_t tombstones_until
    int64_t tombstones_end
    int64_t held
    uint64_t count
    uint64_t superseded
    uint64_t tombstones
    uint64_t waiting


cdef KeySlot *find_key(Keys *keys, const uint64_t *hash) noexcept nogil:
    # Its slot, or the free one where it belongs.
    cdef uint64_t number = hash[0] % keys.room
    cdef KeySlot *slot = &keys.slots[number]
    while slot.newest and (slot.hash[0] != hash[0] or slot.hash[1] != hash[1]):
        number += 1
        if number == keys.room:
            number = 0
        slot = &keys.slots[number]
    return slot


cdef inline void take_slot(Keys *keys, KeySlot *slot, const uint64_t *hash) noexcept nogil:
    slot.hash[0] = hash[0]
    slot.hash[1] = hash[1]
    keys.size += 1


cdef bint record_key(const Record *record, Span *key, bint *no_value, const uint8_t **rest) noexcept nogil:
    # False if it has none. `rest`: what stands behind the value.
    cdef const uint8_t *at = record.fields
    if at >= record.trailer or at[0] != 0x12:
        return False
    at = read_size(at + 1, record.trailer, &key.size)
    if at == NULL or key.size == 0:
        return False
    key.data = at
    at += key.size
    no_value[0] = at >= record.trailer or at[0] != 0x1A
    rest[0] = at
    return True


cdef bint has_tombstone_header(const uint8_t *at, const uint8_t *end) noexcept nogil:
    cdef Header header
    at = next_header(at, end, 9, &header)
    while at != NULL:
        if header.key.size == 17 and memcmp(header.key.data, b"bascule-tombstone", 17) == 0:
            return True
        at = next_header(at, end, 9, &header)
    return False


cdef const uint8_t *add_keys(Keys *keys, const uint8_t *at, const uint8_t *end, int64_t limit) noexcept nogil:
    # How far it came.
    cdef Record record
    cdef Span key
    cdef bint no_value = False
    cdef const uint8_t *rest = NULL
    cdef uint64_t hash[2]
    cdef uint64_t newest
    cdef KeySlot *slot
    while at < end:
        if read_record(at, end, &record) != LOG_END or record.offset >= limit:
            break
        if record_key(&record, &key, &no_value, &rest):
            sip_hash(key.data, key.size, keys.secret, hash)
            slot = find_key(keys, hash)
            newest = <uint64_t>(record.offset + 1) << 2
            if slot.newest == 0:
                if keys.size >= keys.most:
                    break
                take_slot(keys, slot, hash)
                slot.newest = newest
            elif newest > slot.newest:
                slot.newest = newest | (slot.newest & (PINNED | HELD))
        at = record.next
    return at


cdef void pin_key(Keys *keys, const uint64_t *hash, int64_t offset, uint64_t bits) noexcept nogil:
    cdef KeySlot *slot = find_key(keys, hash)
    if slot.newest == 0:
        if keys.size + 1 >= keys.room:
            keys.pins_all = True  # one slot stays free: a search ends there
            return
        take_slot(keys, slot, hash)
        slot.newest = <uint64_t>(offset + 1) << 2
    slot.newest |= bits


cdef inline bint is_among(const uint8_t **at, const uint8_t *end, int64_t offset) noexcept nogil:
    while at[0] < end and <int64_t>get_le64(at[0]) < offset:
        at[0] += 8
    return at[0] < end and <int64_t>get_le64(at[0]) == offset


cdef bint stays(Keys *keys, Compacted *state, const Record *record) noexcept nogil:
    cdef Span key
    cdef bint no_value = False
    cdef const uint8_t *rest = NULL
    cdef uint64_t hash[2]
    cdef KeySlot *slot
    cdef bint is_protected
    cdef bint ends_epoch
    if not record_key(record, &key, &no_value, &rest):
        return True
    ends_epoch = is_among(&state.epoch_ends, state.epoch_ends_end, record.offset)
    is_protected = is_among(&state.protected, state.protected_end, record.offset)
    sip_hash(key.data, key.size, keys.secret, hash)
    slot = find_key(keys, hash)
    if (
        no_value and state.held < 0 and (keys.pins_all or slot.newest & HELD)
        and (is_protected or ends_epoch or <int64_t>(slot.newest >> 2) - 1 <= record.offset)
        and has_tombstone_header(rest, record.trailer)
    ):
        state.held = record.offset
    if is_protected or ends_epoch:
        pin_key(keys, hash, record.offset, PINNED if ends_epoch else PINNED | HELD)
        return True
    if slot.newest and <int64_t>(slot.newest >> 2) - 1 > record.offset:
        slot.newest |= PINNED
        state.superseded += 1
        return False
    if (
        no_value and state.tombstones_until >= 0
        and slot.newest >> 2 == <uint64_t>(record.offset + 1)
        and has_tombstone_header(rest, record.trailer)
    ):
        if (
            record_timestamp(record) <= state.tombstones_until and record.offset < state.tombstones_end
            and not slot.newest & PINNED and not keys.pins_all
        ):
            state.tombstones += 1
            return False
        state.waiting += 1
    return True


cdef int compact(Keys *keys, Compacted *state, const uint8_t *at, const uint8_t *end) except -1 nogil:
    cdef Record record
    cdef const uint8_t *run = at
    while at < end:
        if read_record(at, end, &record) != LOG_END:
            break
        if stays(keys, state, &record):
            state.count += 1
        else:
            put_run(&state.out, run, at)
            run = record.next
        at = record.next
    put_run(&state.out, run, at)
    return at == end


cdef inline int put_run(Out *out, const uint8_t *start, const uint8_t *end) except -1 nogil:
    if start < end:
        out_reserve(out, <uint64_t>(end - start))
        memcpy(out.data + out.size, start, <size_t>(end - start))
        out.size += <uint64_t>(end - start)
    return 0


cdef class KeyMap:
    """The newest offset of each key, of as many keys as fit into so many bytes. `secret`: 16 random bytes."""

    cdef Keys keys
    cdef readonly int64_t held
    """Of the last call of `compact`: the first tombstone of a key of which an earlier record stays that is not the last
    of a leader epoch; -1: none. The log is cleared up to there, and no further."""

    def __cinit__(self, bytes secret not None, uint64_t max_bytes):
        if len(secret) != 16:
            raise ValueError("the secret of a key map has 16 bytes")
        memset(&self.keys, 0, sizeof(Keys))
        self.held = -1
        self.keys.secret[0] = get_le64(<const uint8_t *>bytes_data(<PyObject *>secret))
        self.keys.secret[1] = get_le64(<const uint8_t *>bytes_data(<PyObject *>secret) + 8)
        self.keys.room = max(max_bytes // sizeof(KeySlot), <uint64_t>LEAST_KEY_SLOTS)
        self.keys.most = self.keys.room // 4 * 3
        self.keys.slots = <KeySlot *>calloc(self.keys.room, sizeof(KeySlot))
        if self.keys.slots == NULL:
            raise MemoryError("the key map of a compaction does not fit into memory")

    def __dealloc__(self):
        free(self.keys.slots)

    def __len__(self):
        return self.keys.size

    def add(self, object records, Py_ssize_t start, Py_ssize_t end, int64_t limit):
        """Notes the keys of whole records with offsets below `limit` -> the position it came to. Before `end`, and not
        because of the limit, the map is full: it has no room for the key of the record there."""
        cdef Py_buffer view
        cdef const uint8_t *base
        cdef const uint8_t *at
        open_range(&view, records, start, end)
        try:
            base = <const uint8_t *>view.buf
            with nogil:
                at = add_keys(&self.keys, base + start, base + end, limit)
            return <Py_ssize_t>(at - base)
        finally:
            PyBuffer_Release(&view)

    def compact(
        self, object records, Py_ssize_t start, Py_ssize_t end, bytes protected not None, int64_t tombstones_until,
        int64_t tombstones_end=0x7FFFFFFFFFFFFFFF, bytes epoch_ends not None=b"",
    ):
        """Whole records without those that newer ones supersede, and without tombstones that the map knows as the newest
        of their keys, that are no younger than `tombstones_until` (-1: all stay), and below `tombstones_end` -> (records,
        count, superseded, tombstones, waiting): the last is how many tombstones stay that the map knows as the newest.

        The offsets in `protected` and `epoch_ends` (i64, little-endian, ascending) stay. A log is passed from its start on: the tombstone of
        a key of which an earlier record was met, staying or not, stays in all later calls."""
        cdef Py_buffer view
        cdef const uint8_t *base
        cdef Compacted state
        cdef int whole = 0
        open_range(&view, records, start, end)
        memset(&state, 0, sizeof(Compacted))
        try:
            base = <const uint8_t *>view.buf
            state.protected = <const uint8_t *>bytes_data(<PyObject *>protected)
            state.protected_end = state.protected + len(protected) // 8 * 8
            state.epoch_ends = <const uint8_t *>bytes_data(<PyObject *>epoch_ends)
            state.epoch_ends_end = state.epoch_ends + len(epoch_ends) // 8 * 8
            state.tombstones_until = tombstones_until
            state.tombstones_end = tombstones_end
            state.held = -1
            with nogil:
                whole = compact(&self.keys, &state, base + start, base + end)
            if not whole:
                raise ValueError("these are not whole records")
            self.held = state.held
            return out_take(&state.out), state.count, state.superseded, state.tombstones, state.waiting
        finally:
            out_drop(&state.out)
            PyBuffer_Release(&view)
