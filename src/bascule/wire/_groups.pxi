# Groups: things sorted by key (a subscription, a gRPC stream, an ack token) in the order the keys first came.
#
# A run with one key costs one comparison. Few keys are searched from the newest; many get a hash table. Keys may be
# chosen by clients, so hashes are seeded per process: nobody can pick keys that fall into one chain.

cdef extern from *:
    """
    static inline uint64_t mix64(uint64_t v) {
        v ^= v >> 32; v *= 0xD6E8FEB86659FD93ULL;
        v ^= v >> 32; v *= 0xD6E8FEB86659FD93ULL;
        return v ^ v >> 32;
    }
    """
    uint64_t mix64(uint64_t v) noexcept nogil

cdef uint64_t HASH_SEED = <uint64_t>hash(b"bascule") ^ <uint64_t>hash(b"groups") << 20

cdef enum:
    GROUPS_WITHOUT_TABLE = 8

cdef struct Group:
    uint64_t hash
    uint64_t number  # the key if it is a number
    Span name  # the key if it is bytes
    uint64_t count
    uint64_t size
    bint closed
    Out out

cdef struct Groups:
    Group *items
    uint64_t size
    uint64_t room
    uint64_t last
    uint32_t *slots  # index + 1 of the newest group with a key; 0 is free
    uint64_t slot_mask


cdef uint64_t hash_bytes(const uint8_t *data, uint64_t size) noexcept nogil:
    cdef uint64_t state = HASH_SEED ^ size
    cdef uint64_t rest = 0
    while size >= 8:
        state = mix64(state ^ any64(data))
        data += 8
        size -= 8
    while size:
        size -= 1
        rest = rest << 8 | data[size]
    return mix64(state ^ rest)


cdef inline bint group_is(const Group *group, uint64_t number, const Span *name) noexcept nogil:
    return group.number == number and (name == NULL or same(&group.name, name))


cdef int groups_link(Groups *groups, uint64_t index) noexcept nogil:
    cdef Group *group = &groups.items[index]
    cdef Group *other
    cdef uint64_t slot = group.hash & groups.slot_mask
    while groups.slots[slot]:
        other = &groups.items[groups.slots[slot] - 1]
        if other.hash == group.hash and group_is(other, group.number, &group.name if group.name.data else NULL):
            break
        slot = (slot + 1) & groups.slot_mask
    groups.slots[slot] = <uint32_t>(index + 1)
    return 0


cdef int groups_add(Groups *groups, uint64_t hashed, uint64_t number, const Span *name) except -1 nogil:
    # A new, empty group becomes the last one used; an older one with this key is found no more.
    cdef uint64_t index = groups.size
    cdef uint64_t room
    cdef Group *group
    cdef void *moved
    if index == groups.room:
        room = 2 * index if index else 8
        moved = realloc(groups.items, room * sizeof(Group))
        if moved == NULL:
            with gil:
                raise MemoryError("no memory to group a batch by key")
        groups.items = <Group *>moved
        groups.room = room
    group = &groups.items[index]
    memset(group, 0, sizeof(Group))
    group.hash = hashed
    group.number = number
    if name != NULL:
        group.name = name[0]
    groups.size = index + 1
    groups.last = index
    if index < GROUPS_WITHOUT_TABLE:
        return 0
    if groups.slots != NULL and groups.size * 2 <= groups.slot_mask:
        return groups_link(groups, index)
    room = 4 * GROUPS_WITHOUT_TABLE
    while room < groups.size * 4:
        room *= 2
    free(groups.slots)
    groups.slots = <uint32_t *>calloc(room, sizeof(uint32_t))
    if groups.slots == NULL:
        with gil:
            raise MemoryError("no memory to group a batch by key")
    groups.slot_mask = room - 1
    for index in range(groups.size):
        groups_link(groups, index)
    return 0


cdef Group *groups_find_slow(Groups *groups, uint64_t number, const Span *name) except NULL nogil:
    cdef uint64_t index
    cdef uint64_t slot
    cdef uint64_t hashed
    cdef Group *group
    if name != NULL:
        hashed = mix64(hash_bytes(name.data, name.size) ^ number)
    else:
        hashed = mix64(number ^ HASH_SEED)
    if groups.size <= GROUPS_WITHOUT_TABLE:
        index = groups.size
        while index:
            index -= 1
            group = &groups.items[index]
            if group.hash == hashed and group_is(group, number, name):
                groups.last = index
                return group
    else:
        slot = hashed & groups.slot_mask
        while groups.slots[slot]:
            index = groups.slots[slot] - 1
            group = &groups.items[index]
            if group.hash == hashed and group_is(group, number, name):
                groups.last = index
                return group
            slot = (slot + 1) & groups.slot_mask
    groups_add(groups, hashed, number, name)
    return &groups.items[groups.last]


cdef inline Group *groups_find(Groups *groups, uint64_t number, const Span *name) except NULL nogil:
    # The newest group with this key, made if there is none. The pointer holds until the next find.
    cdef Group *group
    if groups.size:
        group = &groups.items[groups.last]
        if group_is(group, number, name):
            return group
    return groups_find_slow(groups, number, name)


cdef void groups_clear(Groups *groups) noexcept:
    cdef uint64_t index
    for index in range(groups.size):
        out_drop(&groups.items[index].out)
    groups.size = 0
    groups.last = 0
    free(groups.slots)
    groups.slots = NULL
    groups.slot_mask = 0


cdef void groups_free(Groups *groups) noexcept:
    groups_clear(groups)
    free(groups.items)
    memset(groups, 0, sizeof(Groups))


cdef int group_allocate(Group *group) except -1:
    # Room for exactly the bytes that were counted in `size`.
    if group.size:
        group.out.owner = new_bytes(NULL, <Py_ssize_t>group.size)
        group.out.data = <uint8_t *>bytes_data(group.out.owner)
        group.out.room = group.size
    return 0
