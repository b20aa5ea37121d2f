# Producers: which sequences of which idempotent producers a partition has stored, and at which offsets.
#
# A producer numbers its messages to a partition without gaps, so what it has stored is everything below `next`. Its runs
# say where: a run is sequences in a row at offsets in a row. They cover the last PRODUCER_WINDOW sequences, unless a
# partition has too many of them. The log is the truth: what is observed is taken as it is, also if it has gaps.

cdef enum:
    MAX_PRODUCER_FIELD = 48
    MIN_PRODUCER_FIELD = 12
    PRODUCER_BYTES = 36  # of a snapshot, and for each run
    RUN_BYTES = 16
    SEQUENCE_ACCEPTED = 0
    SEQUENCE_STORED = -1  # no error of an ack
    ERROR_SEQUENCE_GAP = 100
    ERROR_UNKNOWN_PRODUCER = 101
    ERROR_FENCED = 102
    ERROR_DUPLICATE = 103
    ERROR_OVERLAP = 104

cdef uint64_t WINDOW = limits.PRODUCER_WINDOW
cdef uint64_t SECRET = <uint64_t><int64_t>hash("producers")  # of the process, as for the keys of dictionaries
cdef uint64_t MAX_RUNS = limits.MAX_PRODUCER_RUNS
cdef int64_t PRODUCER_EXPIRY = limits.PRODUCER_EXPIRY_NS

cdef struct Numbered:
    # What field 2001 of a message says.
    uint64_t id
    uint64_t epoch
    uint64_t creation
    uint64_t partition
    uint64_t sequence

cdef struct Run:
    int64_t offset  # of its first sequence
    uint32_t sequence  # the low bits of that
    uint32_t count

cdef struct Producer:
    uint64_t id
    uint64_t epoch
    uint64_t next
    int64_t timestamp  # of its last record
    Run *runs
    uint32_t head  # the first of them
    uint32_t end
    uint32_t room

cdef struct Producers:
    uint64_t creation
    uint64_t partition
    Producer *items
    uint64_t size
    uint64_t room
    uint32_t *slots  # number of an item + 1, by the hash of its id
    uint64_t mask
    uint64_t runs
    uint64_t duplicates
    uint64_t most  # items; another one makes room


cdef bint read_numbered(const Span *field, Numbered *numbered) noexcept nogil:
    # False if it is not what a producer writes.
    cdef const uint8_t *at = field.data
    cdef const uint8_t *end
    if field.size < MIN_PRODUCER_FIELD or field.size > MAX_PRODUCER_FIELD:
        return False
    end = field.data + field.size - 8
    at = read_varint(at, end, &numbered.id)
    if at != NULL:
        at = read_varint(at, end, &numbered.epoch)
    if at != NULL:
        at = read_varint(at, end, &numbered.creation)
    if at != NULL:
        at = read_varint(at, end, &numbered.partition)
    numbered.sequence = get_le64(end)
    return at == end


cdef inline bint is_of(const Producers *table, const Numbered *numbered) noexcept nogil:
    return numbered.creation == table.creation and numbered.partition == table.partition


cdef inline uint64_t slot_of(const Producers *table, uint64_t id) noexcept nogil:
    # Senders choose the ids: without a secret they could choose those that share a slot. Nothing depends on the order.
    cdef uint64_t mixed = id + SECRET
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL
    return (mixed ^ (mixed >> 31)) & table.mask


cdef Producer *find_producer(Producers *table, uint64_t id) noexcept nogil:
    cdef uint64_t slot
    if table.size == 0:
        return NULL
    slot = slot_of(table, id)
    while table.slots[slot]:
        if table.items[table.slots[slot] - 1].id == id:
            return &table.items[table.slots[slot] - 1]
        slot = (slot + 1) & table.mask
    return NULL


cdef void place_producers(Producers *table) noexcept nogil:
    # Every item into its slot.
    cdef uint64_t number
    cdef uint64_t slot
    memset(table.slots, 0, (table.mask + 1) * sizeof(uint32_t))
    for number in range(table.size):
        slot = slot_of(table, table.items[number].id)
        while table.slots[slot]:
            slot = (slot + 1) & table.mask
        table.slots[slot] = <uint32_t>(number + 1)


cdef int out_of_memory() except -1 with gil:
    raise MemoryError("the producers of a partition do not fit into memory")


cdef void drop_producer(Producers *table, uint64_t number) noexcept nogil:
    # The slots are to be placed again.
    table.runs -= table.items[number].end - table.items[number].head
    free(table.items[number].runs)
    table.size -= 1
    table.items[number] = table.items[table.size]


cdef void drop_expired(Producers *table, int64_t now) noexcept nogil:
    cdef uint64_t number = 0
    while number < table.size:
        if now - table.items[number].timestamp > PRODUCER_EXPIRY:
            drop_producer(table, number)
        else:
            number += 1
    if table.slots != NULL:
        place_producers(table)


cdef int compare_int64(const void *one, const void *other) noexcept nogil:
    cdef int64_t a = (<const int64_t *>one)[0]
    cdef int64_t b = (<const int64_t *>other)[0]
    return (a > b) - (a < b)


cdef int drop_oldest(Producers *table) except -1 nogil:
    # Those that were not used for longest. Many at once: to look for one costs as much, and a sender who uses a new id
    # for each message makes that happen each time.
    cdef uint64_t number
    cdef int64_t last
    cdef int64_t *times = <int64_t *>malloc(table.size * sizeof(int64_t))
    if times == NULL:
        out_of_memory()
    for number in range(table.size):
        times[number] = table.items[number].timestamp
    qsort(times, table.size, sizeof(int64_t), compare_int64)
    last = times[table.most // 8 - 1 if table.most >= 8 else 0]
    free(times)
    number = 0
    while number < table.size:
        if table.items[number].timestamp <= last:
            drop_producer(table, number)
        else:
            number += 1
    place_producers(table)
    return 0


cdef Producer *add_producer(Producers *table, uint64_t id) except NULL nogil:
    cdef uint64_t room
    cdef Producer *items
    cdef uint32_t *slots
    cdef Producer *added
    cdef uint64_t slot
    if table.size >= table.most:
        drop_oldest(table)
    if table.size == table.room:
        room = 2 * table.room if table.room else 4
        items = <Producer *>realloc(table.items, room * sizeof(Producer))
        if items == NULL:
            out_of_memory()
        table.items = items
        table.room = room
        slots = <uint32_t *>realloc(table.slots, 2 * room * sizeof(uint32_t))
        if slots == NULL:
            out_of_memory()
        table.slots = slots
        table.mask = 2 * room - 1
        place_producers(table)
    added = &table.items[table.size]
    memset(added, 0, sizeof(Producer))
    added.id = id
    table.size += 1
    slot = slot_of(table, id)
    while table.slots[slot]:
        slot = (slot + 1) & table.mask
    table.slots[slot] = <uint32_t>table.size
    return added


cdef void halve_runs(Producers *table) noexcept nogil:
    cdef uint64_t number
    cdef uint32_t dropped
    for number in range(table.size):
        dropped = (table.items[number].end - table.items[number].head) // 2
        table.items[number].head += dropped
        table.runs -= dropped


cdef int add_run(Producers *table, Producer *producer, int64_t offset, uint64_t sequence, uint32_t count) except -1 nogil:
    cdef uint32_t room
    cdef Run *runs
    if producer.end == producer.room:
        if producer.head >= producer.room // 2 and producer.head:
            memmove(producer.runs, producer.runs + producer.head, (producer.end - producer.head) * sizeof(Run))
            producer.end -= producer.head
            producer.head = 0
        else:
            room = 2 * producer.room if producer.room else 2
            runs = <Run *>realloc(producer.runs, room * sizeof(Run))
            if runs == NULL:
                out_of_memory()
            producer.runs = runs
            producer.room = room
    producer.runs[producer.end].offset = offset
    producer.runs[producer.end].sequence = <uint32_t>sequence
    producer.runs[producer.end].count = count
    producer.end += 1
    table.runs += 1
    return 0


cdef inline uint64_t first_of(const Producer *producer, const Run *run) noexcept nogil:
    # The sequence a run begins with. It is less than 2**32 below the next one.
    return producer.next - <uint32_t>(<uint32_t>producer.next - run.sequence)


cdef void trim_runs(Producers *table, Producer *producer) noexcept nogil:
    # What is below the window.
    cdef uint64_t least
    cdef uint64_t first
    cdef Run *run
    if producer.next <= WINDOW:
        return
    least = producer.next - WINDOW
    while producer.head < producer.end:
        run = &producer.runs[producer.head]
        first = first_of(producer, run)
        if first >= least:
            return
        if first + run.count > least:
            run.offset += <int64_t>(least - first)
            run.count -= <uint32_t>(least - first)
            run.sequence += <uint32_t>(least - first)
            return
        producer.head += 1
        table.runs -= 1


cdef int observe_numbered(Producers *table, const Numbered *numbered, int64_t offset, int64_t timestamp) except -1 nogil:
    # A record that the log has.
    cdef Producer *producer = find_producer(table, numbered.id)
    cdef Run *run
    cdef bint goes_on
    if producer == NULL:
        producer = add_producer(table, numbered.id)
        goes_on = False
    else:
        goes_on = (
            producer.epoch == numbered.epoch
            and producer.next <= numbered.sequence
            and timestamp - producer.timestamp <= PRODUCER_EXPIRY
        )
    if not goes_on:
        table.runs -= producer.end - producer.head
        producer.head = producer.end = 0
        producer.epoch = numbered.epoch
        producer.next = numbered.sequence
    if numbered.sequence - producer.next > WINDOW:
        table.runs -= producer.end - producer.head
        producer.head = producer.end = 0
    run = &producer.runs[producer.end - 1] if producer.end > producer.head else NULL
    if run != NULL and numbered.sequence == producer.next and run.offset + run.count == offset and (
        run.sequence + run.count == <uint32_t>numbered.sequence
    ):
        run.count += 1
    else:
        add_run(table, producer, offset, numbered.sequence, 1)
    producer.next = numbered.sequence + 1
    producer.timestamp = timestamp
    trim_runs(table, producer)
    if table.runs > MAX_RUNS:
        halve_runs(table)
    return 0


cdef int judge_sequence(
    Producers *table, const Numbered *numbered, uint64_t count, int64_t now, int64_t *offset
) noexcept nogil:
    # SEQUENCE_ACCEPTED, SEQUENCE_STORED with its offset, or an error. Of `count` sequences in a row, which are stored
    # together: if only the first of them are stored, or what is known of them shows that they are not in a row, it is an
    # overlap. If it is not known of all of them where they are, for compaction has removed some, they are a duplicate.
    cdef Producer *producer = find_producer(table, numbered.id)
    cdef uint32_t low
    cdef uint32_t high
    cdef uint32_t middle
    cdef Run *run
    cdef uint64_t first
    cdef uint64_t start
    cdef uint64_t covered = 0
    cdef int64_t ahead = 0
    if producer == NULL or now - producer.timestamp > PRODUCER_EXPIRY:
        return SEQUENCE_ACCEPTED if numbered.sequence == 0 else ERROR_UNKNOWN_PRODUCER
    if numbered.epoch < producer.epoch:
        return ERROR_FENCED
    if numbered.epoch > producer.epoch:
        return SEQUENCE_ACCEPTED if numbered.sequence == 0 else ERROR_SEQUENCE_GAP
    if numbered.sequence == producer.next:
        if numbered.sequence < 0x7FFFFFFFFFFFFFFFULL and count <= 0x7FFFFFFFFFFFFFFFULL - numbered.sequence:
            return SEQUENCE_ACCEPTED
        return ERROR_SEQUENCE_GAP
    if numbered.sequence > producer.next:
        return ERROR_SEQUENCE_GAP
    if producer.next - numbered.sequence < count:
        return ERROR_OVERLAP
    table.duplicates += 1
    low = producer.head
    high = producer.end
    while low < high:
        middle = low + (high - low) // 2
        run = &producer.runs[middle]
        if first_of(producer, run) + run.count <= numbered.sequence:
            low = middle + 1
        else:
            high = middle
    while low < producer.end:  # from the first that ends after the sequence on
        run = &producer.runs[low]
        first = first_of(producer, run)
        if first >= numbered.sequence + count:
            break
        if covered and run.offset - <int64_t>first != ahead:
            return ERROR_OVERLAP
        ahead = run.offset - <int64_t>first
        start = first if first > numbered.sequence else numbered.sequence
        covered += min(first + run.count, numbered.sequence + count) - start
        low += 1
    if covered != count:
        return ERROR_DUPLICATE
    offset[0] = <int64_t>numbered.sequence + ahead
    return SEQUENCE_STORED


cdef int64_t offset_of(const Producer *producer, uint64_t sequence) noexcept nogil:
    # -1 if it is not known.
    cdef uint32_t low = producer.head
    cdef uint32_t high = producer.end
    cdef uint32_t middle
    cdef Run *run
    cdef uint64_t first
    while low < high:
        middle = low + (high - low) // 2
        run = &producer.runs[middle]
        first = first_of(producer, run)
        if sequence < first:
            high = middle
        elif sequence - first < run.count:
            return run.offset + <int64_t>(sequence - first)
        else:
            low = middle + 1
    return -1


cdef void drop_producers(Producers *table) noexcept nogil:
    cdef uint64_t number
    for number in range(table.size):
        free(table.items[number].runs)
    free(table.items)
    free(table.slots)
    table.items = NULL
    table.slots = NULL
    table.size = table.room = table.mask = table.runs = 0


cdef class ProducerTable:
    """The producers of one partition, of the stream with this creation index, at most so many."""

    cdef Producers table
    cdef public bint ready
    cdef public int64_t end

    def __cinit__(self, uint64_t creation, uint64_t partition, uint64_t most):
        memset(&self.table, 0, sizeof(Producers))
        self.table.creation = creation
        self.table.partition = partition
        self.table.most = most
        self.ready = True
        self.end = 0

    def __dealloc__(self):
        drop_producers(&self.table)

    def __len__(self):
        return self.table.size

    @property
    def scope(self):
        """The creation index of the stream, and the partition."""
        return self.table.creation, self.table.partition

    @property
    def runs(self):
        return self.table.runs

    @property
    def duplicates(self):
        return self.table.duplicates

    def expire(self, int64_t now):
        """Forget producers whose last record is too old at this time."""
        drop_expired(&self.table, now)

    def expected(self, uint64_t id, uint64_t epoch, int64_t now):
        """The sequence that a producer goes on with; -1 if it is fenced."""
        cdef Producer *known = find_producer(&self.table, id)
        if known == NULL or now - known.timestamp > PRODUCER_EXPIRY or known.epoch < epoch:
            return 0
        return known.next if known.epoch == epoch else -1

    def offset_of(self, uint64_t id, uint64_t epoch, uint64_t sequence):
        """Where a sequence is stored; -1 if it is not, or that is not known."""
        cdef Producer *known = find_producer(&self.table, id)
        return offset_of(known, sequence) if known != NULL and known.epoch == epoch else -1

    def take(self, ProducerTable other not None):
        """Become what the other one is, which is empty then."""
        cdef uint64_t duplicates = self.table.duplicates
        drop_producers(&self.table)
        self.table = other.table
        self.table.duplicates = duplicates
        memset(&other.table, 0, sizeof(Producers))
        other.table.creation = self.table.creation
        other.table.partition = self.table.partition
        other.table.most = self.table.most
        self.end = other.end

    def snapshot(self):
        """Its state as bytes, the same for equal tables: `restore` reads them."""
        cdef Out out
        cdef Producer *producer
        cdef Run *run
        cdef uint32_t number
        cdef list ids = sorted([self.table.items[number].id for number in range(self.table.size)])
        memset(&out, 0, sizeof(Out))
        try:
            for id in ids:
                producer = find_producer(&self.table, id)
                out_reserve(&out, PRODUCER_BYTES + <uint64_t>(producer.end - producer.head) * RUN_BYTES)
                put_le64(out.data + out.size, producer.id)
                put_le64(out.data + out.size + 8, producer.epoch)
                put_le64(out.data + out.size + 16, producer.next)
                put_le64(out.data + out.size + 24, <uint64_t>producer.timestamp)
                put_le32(out.data + out.size + 32, producer.end - producer.head)
                out.size += PRODUCER_BYTES
                for number in range(producer.head, producer.end):
                    run = &producer.runs[number]
                    put_le64(out.data + out.size, <uint64_t>run.offset)
                    put_le32(out.data + out.size + 8, run.sequence)
                    put_le32(out.data + out.size + 12, run.count)
                    out.size += RUN_BYTES
            return out_take(&out)
        finally:
            out_drop(&out)

    def restore(self, bytes data not None):
        """What `snapshot` gave. ValueError, and an empty table, if these bytes are something else."""
        cdef const uint8_t *at = <const uint8_t *>bytes_data(<PyObject *>data)
        cdef const uint8_t *end = at + len(data)
        cdef Producer *producer
        cdef uint32_t count
        cdef uint64_t last = 0
        drop_producers(&self.table)
        while end - at >= PRODUCER_BYTES:
            count = get_le32(at + 32)
            if (
                (self.table.size and get_le64(at) <= last) or self.table.size >= self.table.most
                or <uint64_t>(end - at - PRODUCER_BYTES) // RUN_BYTES < count
            ):
                break
            last = get_le64(at)
            producer = add_producer(&self.table, last)
            producer.epoch = get_le64(at + 8)
            producer.next = get_le64(at + 16)
            producer.timestamp = <int64_t>get_le64(at + 24)
            at += PRODUCER_BYTES
            while count:
                add_run(&self.table, producer, <int64_t>get_le64(at), get_le32(at + 8), get_le32(at + 12))
                at += RUN_BYTES
                count -= 1
        if at != end:
            drop_producers(&self.table)
            raise ValueError("these are not the producers of a partition, as they are stored")
