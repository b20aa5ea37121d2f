"""Every bound of Bascule has a name here: nothing grows without one of them.

A `_SLICE` is the number of items that are handled before the event loop runs other tasks; the time is how long that
takes.
"""

KIB = 1024
MIB = 1024 * KIB

# the process
MALLOC_TRIM_BYTES = 32 * MIB  # free memory at the top of the malloc arena that is not returned to the system
MALLOC_MMAP_BYTES = 4 * MIB  # larger allocations are mapped, and returned to the system when they are freed
JOB_FIRST_PAUSE_S = 0.1  # before a background job that failed is started again; doubled each time
JOB_MAX_PAUSE_S = 30.0
METRIC_LABEL_VALUES = 200  # values of the label of one metric; what comes beyond them is counted as "other"
JOB_STEADY_S = 30.0  # after a job has run for so long, the pause begins with the first one again

# names and subjects
MAX_STREAM_NAME_BYTES = 200
MAX_SUBJECT_BYTES = 1024  # of every subject we write; NATS itself refuses control lines over 4 KiB by default
MAX_PARTITIONS = 10_000
MAX_MESSAGE_FIELDS = 4096  # protobuf fields of one published message: its headers, and at most ten others
MAX_CORRELATION_ID_BYTES = 1024  # it is stored while the ack is pending, and sent back with it

# the log
RECORD_TRAILER_BYTES = 15
MIN_RECORD_PAYLOAD_BYTES = RECORD_TRAILER_BYTES + 2
MAX_RECORD_BYTES = 72 * MIB  # a record is larger than the message it stores; NATS allows messages of 64 MiB at most
MAX_SEGMENT_BYTES = (1 << 32) - 1
INDEX_INTERVAL_BYTES = 4 * KIB
UNSYNCED_HIGH_BYTES = 24 * MIB  # appended and not synced yet, over the whole broker: above it, reading from NATS stops
UNSYNCED_LOW_BYTES = 8 * MIB  # below it, reading from NATS resumes
MAX_UNSYNCED_BYTES = 128 * MIB  # above it, appends are refused
MAX_OPEN_FILES = 512
RESERVED_DESCRIPTORS = 48  # file descriptors of the process that are neither for segments nor for clients
MIN_DESCRIPTORS = 64
SYNC_THREADS = 4
READ_THREADS = 4
SYNC_RESULTS_SLICE = 100  # logs that receive the result of a group commit: up to 5 ms
HOPS_SLICE = 16  # tasks that continue after their call in a disk thread: up to 5 ms
READ_SCRATCH_BYTES = MIB  # larger reads from the page cache get a buffer of their own
SYNCFS_FROM_FILES = 4  # from this many dirty files on, one syncfs replaces the fsyncs: 290 us for 8 files, not 1,100
QUARANTINE_BYTES = 1024 * MIB
RESYNC_BYTES = 8 * MIB  # searched at a time for the next valid record after a bad one
MAX_DAMAGE_NOTES = 1024  # damaged stretches remembered per segment
RECOVERY_READ_BYTES = 4 * MIB
SECTOR_BYTES = 512  # a device writes a sector whole or not at all; larger sectors are multiples of it
DAMAGE_PATIENCE_S = 10.0  # a consumer waits so long until damage is repaired or known to be lost
READ_TRIES = 6  # reads of bytes that fail their CRC and differ each time; after them, the read is an error of the disk
WRITTEN_LOGS_LOOKED_AT = 1000  # logs that were written since their last check, in one check of files
IDLE_PATHS_LOOKED_AT = 100  # other logs, in turn: the folder of each, and its newest file if there are few logs
SEGMENTS_LOOKED_AT = 256  # of one log, when the entries of its folder have changed
START_RESERVE_BYTES = MIB  # disk space that is reserved for the next start
METADATA_RESERVE_BYTES = 64 * KIB  # disk space that is reserved for metadata changes: they go on when the disk is full
RECENT_CHANGE_NS = (
    50_000_000  # file times have a coarse clock: two changes of a folder within this time may have the same time
)
MAX_CHECKPOINT_BYTES = 256 * MIB  # metadata snapshots are the large ones
PROMISED_ENDS_DELAY_S = 0.15  # a promised end is on disk after so long, plus one write
PROMISED_ENDS_BYTES = 256 * KIB  # the file of promised ends is rewritten when it is longer than this
PROMISED_ENDS_GROWTH = 4  # and longer than this many times its length after the last rewrite
CACHED_ENDS = 64 * 1024  # logs whose promised ends are written to the page cache at once; the others rely on the file
CACHED_ENDS_ROOM = 512  # that file has room for twice as many logs as there are, plus so many

# replication
ROLES_SLICE = 20  # partitions that take a role: up to 8 ms
PAUSED_LOGS_AT_ONCE = 4  # of paused partitions that are open to be scrubbed, or for other replicas
ISR_CHANGES_AT_ONCE = 1_000_000  # requested by one broker: one for each other replica of each partition it leads
LATE_CHANGES_AT_ONCE = 10_000  # metadata changes that wait for the disk
READS_FOR_FOLLOWERS = 4096  # concurrent reads of logs for followers: one for each follower
WATCH_SLICE = 200  # leaders that check which followers lag
PAUSES_AT_ONCE = 16  # idle partitions that a broker asks to be paused, at a time
FEED_SLICE = 100  # positions of a follower that are processed: up to 4 ms
FEED_WAITING_REQUESTS = 1000  # fetch requests of one follower that wait for the processing of earlier ones
CLOSE_SLICE = 100  # partitions that are closed
FEED_PARTITION_BYTES = MIB  # of one partition in one response, and buffered of one partition for one follower
FEED_BUFFERED_BYTES = 16 * MIB  # new records buffered in memory for one follower, over all partitions
FEED_RESPONSE_BYTES = 4 * MIB  # no further partition is added to a response of this size
FEED_PAST_SESSIONS = 64  # earlier sessions of a follower that are remembered; messages of older ones no longer arrive

# NATS
NATS_READ_BUFFER_BYTES = MIB
NATS_MAX_CONTROL_LINE = 32 * KIB
NATS_MAX_INFO_BYTES = MIB
NATS_MAX_PENDING_BYTES = 64 * MIB  # written and not yet taken by the socket
NATS_HIGH_WATER_BYTES = 4 * MIB  # pending bytes above which `drained` waits
NATS_LOW_WATER_BYTES = MIB
NATS_DEFAULT_PAYLOAD_BYTES = MIB  # the max_payload of a server until it announces another
NATS_MAX_PAYLOAD_BYTES = 64 * MIB  # the largest max_payload that a server can be configured with
NATS_MAX_SERVERS = 256  # configured and announced by other servers
NATS_CONNECT_TIMEOUT_S = 2.0  # of one attempt at one server
NATS_START_TIMEOUT_S = 10.0  # until the first connection, and until an embedded server answers
NATS_PING_INTERVAL_S = 5.0  # a server that is silent for one interval gets a PING; after two it counts as dead
NATS_MAX_RETRY_S = 2.0
NATS_RESTART_MAX_S = 5.0  # between two starts of an embedded server that ends again and again
NATS_CLOSE_TIMEOUT_S = 5.0
NATS_SERVER_MAX_PENDING_BYTES = 256 * MIB  # what the embedded server buffers for a slow consumer
NATS_SERVER_WRITE_DEADLINE_S = 30
NATS_LAST_LINES = 20  # lines of an embedded server's log that are remembered for the message that it ended
NATS_MAX_LOG_LINE_BYTES = 4 * KIB

# HTTP/2 and gRPC
GRPC_MAX_MESSAGE_BYTES = 4 * MIB
GRPC_MAX_STATUS_MESSAGE_BYTES = 2 * KIB  # clients refuse trailers over 8 KiB
GRPC_SMALL_REQUEST_BYTES = 512 * KIB  # of a request that carries no message; decoding 4 MiB of names takes 60 ms
GRPC_MAX_CALLS = 100_000  # of one server, over all connections
GRPC_MAX_ASSEMBLY_BYTES = 64 * MIB  # of one connection: unfinished request messages larger than a window
GRPC_MAX_WAITING_CALLS = 10_000  # of one channel, for the server's MAX_CONCURRENT_STREAMS
GRPC_LISTENER_GRANT_BYTES = 16 * KIB  # answers that a caller has dealt with, and of which the server is told at once
GRPC_REFUSED_RETRIES = 6  # of a unary call whose stream the server refused without processing it
GRPC_REFUSED_PAUSE_S = 0.005  # doubled on each try
HTTP2_MAX_CONCURRENT_STREAMS = 1000
HTTP2_MAX_HEADER_LIST_BYTES = 16 * KIB
HTTP2_MAX_FRAME_BYTES = 16 * KIB  # what we accept, as announced
HTTP2_STREAM_WINDOW_BYTES = MIB
HTTP2_CONNECTION_WINDOW_BYTES = 16 * MIB
HTTP2_READ_BUFFER_BYTES = 256 * KIB  # one for all connections of a server
HTTP2_HEADER_TABLE_BYTES = 4 * KIB  # of what we send; a peer may ask for less
HTTP2_HEADER_MEMO = 16  # header blocks remembered by each half of a connection
HTTP2_MAX_HEADER_BLOCK_BYTES = 32 * KIB  # compressed
HTTP2_MAX_CONTINUATIONS = 16
HTTP2_REQUESTS_A_TURN = 16  # of one connection, begun in a turn of the event loop: 1 to 3 ms
HTTP2_CROWDED_A_TURN = 4  # connections with more than that, which go on in one turn
HTTP2_SEND_QUANTUM_BYTES = 64 * KIB  # of one stream, before the next stream's turn
HTTP2_SEND_ROUND_BYTES = 256 * KIB  # of one connection, in one write
HTTP2_SMALL_WINDOW_UPDATE_BYTES = KIB  # smaller updates count as control frames
HTTP2_MAX_SETTINGS_PER_SECOND = 100
HTTP2_MAX_GOAWAY_REASON_BYTES = 256
HTTP2_HANDSHAKE_TIMEOUT_S = 10.0  # from the connection to the client's SETTINGS; also the limit of a TLS handshake
TLS_HANDSHAKES = 512  # under way at one server, 10 to 40 KB each; above it, the oldest one is given up
TLS_HANDSHAKES_A_TURN = 4  # continued in a turn of the event loop: 1 to 2 ms each with a key of 2048 bits
TLS_PIECE_BYTES = 32 * KIB  # passed to OpenSSL at a time: its buffers stay as large as the largest piece
TLS_RECORD_BYTES = 16 * KIB
HTTP2_WRITE_STALL_S = 60.0  # a peer whose socket takes nothing for so long counts as gone
HTTP2_CLOSE_TIMEOUT_S = 5.0  # from the last bytes we write to the end of the connection
HTTP2_MAX_RESETS_PER_SECOND = 400  # rapid reset: streams opened and reset by the peer
HTTP2_MAX_CONTROL_FRAMES_PER_SECOND = 10_000  # PING, SETTINGS, PRIORITY, empty frames
HTTP2_MAX_QUEUED_CONTROL_BYTES = 64 * KIB
METADATA_NAMES = 10_000  # streams, and groups, that one FetchMetadata may name
METADATA_ANSWER_BYTES = 64 * MIB  # 10,000 partitions take 0.6 to 2 MB
METADATA_HELD_BYTES = 128 * MIB  # responses in flight, over the whole broker; a shared one counts once
METADATA_PIECE_BYTES = 64 * KIB  # of a response, written at once
METADATA_SLICE_ENTRIES = 200  # partitions or streams described before other tasks run: 1 ms
METADATA_TAKE_S = 30.0  # for a client to receive its response
SUBSCRIBER_BUFFER_BYTES = MIB
SUBSCRIBER_READ_BYTES = 256 * KIB  # one read of the log for one subscriber
UNREAD_BYTES = 256 * MIB  # records read for clients that have not taken them, over the whole broker
UNREAD_LEAST_BYTES = 4 * KIB  # of one reader, however much is held; one record at least
UNREAD_ROOM_S = 10.0  # a reader waits so long until others have taken theirs
BULK_READ_BYTES = MIB  # of records in one response of a bulk read, unless the client asks for another size
BULK_READ_MAX_BYTES = 4 * MIB - 64 * KIB  # the most it may ask for: grpc-go takes messages of 4 MiB by default
BULK_READS = 256  # at once on one broker: each has two responses in memory
BULK_WRITES = 64  # calls at once on one broker: each may have a batch in memory that is not appended yet
IDLE_PLACE_S = 5.0  # a bulk read or write that waited so long for its client may be ended, when there are too many
BULK_WRITE_MESSAGES = 16_384  # in one batch
BULK_WRITE_HEADERS = (
    131_072  # in one batch, over all messages: up to 14 ms; each message has at most MAX_MESSAGE_FIELDS
)
ATOMIC_MESSAGE_BYTES = 40  # that a message counts in an atomic batch beside what its publisher sent: of its record
BULK_WRITE_UNACKED_BYTES = 8 * MIB  # of one call; above it, the client gets no more window
BULK_WRITE_UNACKED = 1024  # batches of one call
OVERLAP_SLICE = 500  # streams whose subjects are compared with that of a bulk write: 1 ms
CACHED_ROUTES = 4096  # of deleted streams: acks for messages published to them may be in flight
PUBLISH_OUTSTANDING_ACKS = 65_536  # of one PublishAsync stream; above it, the client gets no more window
PUBLISH_SINGLY = 64  # requests answered one by one in a turn of the event loop: 0.5 ms
RESUMPTIONS = 4096  # requests for partitions that messages of PublishAsync wait for, over the whole broker
RESUMPTIONS_AT_ONCE = 64  # of them at the controller at the same time
PENDING_ACK_BYTES = 64 * MIB  # acks that wait for a sync or a commit, over the whole broker
PENDING_REFUSAL_BYTES = 4 * MIB  # refusals that wait for a confirmed leadership, over the whole broker
PENDING_BATCH_BYTES = 256  # what a pending batch takes in addition to its acks
PENDING_SWEEP_BYTES = 4 * MIB  # pending acks searched in a turn of the event loop for calls that have ended: 3-12 ms
GONE_CALLS = 16_384  # calls remembered that ended with acks outstanding: the newest ones
GONE_CALLS_AT_ONCE = 4096  # of them in one message to the other brokers
MAX_CONNECTIONS = 10_000
ACCEPT_BURST = 8  # connections accepted at once: one over the limit has a descriptor until it is refused
TCP_KEEPALIVE_IDLE_S = 60  # after so long the kernel probes a silent peer
TCP_KEEPALIVE_INTERVAL_S = 15
TCP_KEEPALIVE_PROBES = 4

# the client
CLIENT_CONNECT_TIMEOUT_S = 5.0
CLIENT_CONNECT_TRY_S = 2.0  # of one connection, of the TCP handshake to the server's SETTINGS
CLIENT_LATE_S = 1.0  # a broker that did not answer in time is not tried again for so long
CLIENT_LEADER_GONE_S = 3.0  # a lost leader is waited for to be replaced, before messages go by way of other brokers
CLIENT_HEDGE_S = 0.5  # a broker takes longer to say who leads, or to accept a connection: the next one is asked, too
CLIENT_METADATA_AGE_S = 10.0  # who leads what, and how many partitions there are, is asked for again after so long
CLIENT_WATCH_TICK_S = 0.5  # calls that wait are looked at as often
CLIENT_QUIET_S = 1.0  # without an ack: the other brokers are asked who leads
CLIENT_QUIET_READER_S = 2.5  # without a message, which is nothing unusual: the same
CLIENT_READERS_PER_CONNECTION = 100  # subscriptions, each with a window of HTTP2_STREAM_WINDOW_BYTES
CLIENT_ARRIVING_S = 0.2  # answers arrive, if the last one came no longer ago
CLIENT_OUTBOX_BYTES = MIB  # of messages of one broker that wait for the connection
CLIENT_ENCODERS = 1000  # streams and policies, of single publishes, whose constant bytes are kept
CLIENT_UNACKED_OUTBOX_BYTES = 64 * KIB  # the same, above which a publish without an ack waits
CLIENT_SOURCE_SLICE_S = 0.005  # of a synchronous source, before other tasks run
GRPC_KEEPALIVE_TICK_S = 0.5
GRPC_KEEPALIVE_PING_TICKS = 2  # without a byte from the server: it is probed
GRPC_KEEPALIVE_DEAD_TICKS = 6  # the connection counts as lost
CLIENT_CURSORS_S = 3.0  # until a cluster without the stream of cursors is taken for one that has none
CLIENT_TIMEOUT_S = 10.0  # of a whole request, with its retries
CLIENT_ADMIN_TIMEOUT_S = 60.0  # of a request that moves replicas between brokers
CLIENT_ACK_TIMEOUT_S = 5.0
CLIENT_CLOSE_TIMEOUT_S = 2.0
CLIENT_FLUSH_S = 5.0  # without an ack, until a client that is closed waits no longer for messages of its producers
CLIENT_LAST_ANSWERS_S = 0.2  # of a blocking client that is closed, to the threads that wait for it
CLIENT_REFUSED_S = 2.0  # after a refusal, for the next answer to what was sent with it
CLIENT_RETRY_MIN_S = 0.05  # doubled on each try
CLIENT_RETRY_MAX_S = 0.4
CLIENT_HUNG_UP_TRIES = 3  # when every server ends the connection right after the TLS handshake
CLIENT_RETRY_FOR_S = 30.0  # how long a producer sends again what has no ack
CLIENT_UNRAISED_FAILURES = 1000  # of messages of a producer, that it keeps until a receipt or `flush` raises them
CLIENT_IDLE_PRODUCERS = 1000  # streams whose producers are kept for the next messages
CLIENT_PRODUCERS_AGAIN_S = 60.0  # a server that does not number messages is asked again whether it does
CLIENT_RESUBSCRIBE_S = 30.0  # how long a broken subscription tries to resume
CLIENT_PUBLISH_WINDOW = 16_384  # messages of one call without an ack yet
CLIENT_NUMBERED_PUBLISHES = 64  # single ones that are sent again until they are acked, each with its own producer
CLIENT_PUBLISH_BATCH = 1024  # messages encoded and sent at once
CLIENT_PUBLISH_BATCH_BYTES = MIB
CLIENT_WRITE_BATCH_BYTES = MIB  # of a bulk write, about
CLIENT_WRITE_WINDOW_BYTES = 8 * MIB  # of batches of a bulk write without an ack yet
CLIENT_GROUP_TIMEOUT_S = 15.0  # of silence, of a member or a coordinator, until the cluster has said its own
CLIENT_GROUP_SHARE = 0.4  # of a member's timeout: it is heard as often at least
CLIENT_GROUP_HEARTBEAT_S = 1.0  # and as often as this: so long the others take to notice that a member left
CLIENT_GROUP_ASK_S = 3.0  # of one request to a coordinator
CLIENT_GROUP_UNKNOWN_TIMES = 2  # brokers say that there is no such group, until that is believed
CLIENT_GROUP_AT_ONCE = 32  # partitions whose cursors a member asks for, or stores, at a time
CLIENT_COMMIT_FENCE_S = 1.0  # a position is stored no later after the coordinator said whose the partition is
CLIENT_AUTO_COMMIT_S = 5.0
CLIENT_ARROW_BYTES = 3 * MIB  # of log bytes of one Arrow record batch, unless the caller asks for another size
EXPORT_FILE_BYTES = 256 * MIB  # of messages in one file of an export
CLIENT_DECODE_BATCH = 4096  # records handed to the caller at once
CLI_LAGS_AT_ONCE = 32  # cursors of which `bascule cursor list` asks for the lag at a time
CLI_READ_PARTITIONS = 500  # of one `bascule sub`: each is a call, and a connection takes 1000
SPARK_READ_BYTES = 3 * MIB  # of log bytes of one Arrow record batch
SPARK_SAMPLE_BYTES = 64 * 1024  # of log bytes that the driver reads to see how large messages are
SPARK_BATCH_BYTES = 4 * MIB  # values of one Arrow record batch
SPARK_BATCH_ROWS = 32_768
AUDIT_RUNS = 100_000  # breaks in the order of the offsets of one file or range: more are no log
AUDIT_TIMES = 2000  # stretches of time in which an audit counts records
AUDIT_READ_BYTES = 16 * MIB  # of a segment at once: several of the largest records
AUDIT_RANGE_OFFSETS = 500_000  # of a stream that one task reads
AUDIT_FINDINGS = 1000  # shown in a report
SPARK_RETRY_S = 120.0  # how long a query, or a task of it, waits for a broker that answers
SPARK_RETRY_MAX_S = 1.0  # between two tries
SPARK_WRITE_RETRY_S = 120.0  # how long a task of a write sends again what has no ack
SPARK_REGISTRY_DAYS = 8  # longer than producers are known, PRODUCER_EXPIRY_NS
SPARK_WRITE_ROWS = 8192  # framed at once
SPARK_WRITES_TOLD = 1000  # of which a driver remembers that it has warned of them
SPARK_SORT_BYTES = 256 * MIB  # of rows that a task of a write puts into an order
JAR_MAX_BYTES = 64 * MIB  # of a jar that is fetched

# a cluster on one machine
LOCAL_BROKERS = 9
LOCAL_START_TIMEOUT_S = 60.0  # until every broker is a voter
LOCAL_STOP_TIMEOUT_S = 20.0  # for a clean shutdown of all brokers
LOCAL_RESTART_S = 5.0  # before a broker that was killed is started again
LOCAL_LAST_LINE_BYTES = 4 * KIB  # read from the end of a broker's log to find its last line

# configuration
MAX_ID_BYTES = 128  # of a server id and of the namespace: both are tokens of every internal subject
CONFIG_MAX_BYTES = MIB
CONFIG_MAX_NODES = 10_000  # keys and values of a file, with aliases counted as often as they are used
CONFIG_MAX_DEPTH = 16

# Raft
RAFT_APPEND_BYTES = 256 * KIB  # of one append request; one entry may be larger
RAFT_SNAPSHOT_CHUNK_BYTES = 256 * KIB
RAFT_PAYLOAD_SHARE = 2  # entries, or a chunk of a snapshot, fill one part in this many of what NATS takes in a message
RAFT_HEAD_BYTES = 1024  # of a message with one entry, without that entry: names, terms, indexes, lengths
RAFT_OUTBOX_MESSAGES = 16_384  # messages that wait for the disk; others are dropped, as on a network, and sent again
RAFT_INFLIGHT_APPENDS = 64  # append requests to one follower that are not answered yet
RAFT_TRAILING_ENTRIES = 4096  # retained in memory behind a snapshot: a follower a little behind needs no snapshot
RAFT_PINNED_ENTRIES = 65_536  # retained at most for a follower that receives a snapshot: it needs what comes after it
RAFT_SNAPSHOT_STALL_TICKS = 100  # a follower that takes no chunk for so long loses its claim on the snapshot
RAFT_UNCOMMITTED_ENTRIES = 65_536  # above it, a leader takes no proposals
RAFT_APPLY_ENTRIES = 4096  # committed entries in one Ready
CODEC_SLICE = 1000  # partitions of a command or a snapshot that are encoded or decoded: 5 ms
CODEC_SLICED_BYTES = 16 * KIB  # a command of at least this length is decoded in slices
APPLY_SLICE = 500  # partitions that are changed by commands; each command counts as COMMAND_WEIGHT more
COMMAND_WEIGHT = 10  # a command that changes one partition takes about as long as so many further partitions
RAFT_PENDING_READS = 65_536
REMEMBERED_OPERATIONS = 4096  # changes by id, and deletions by name: a repeated request is carried out once
RAFT_TERM_LEAP = 1 << 32  # more elections than happen while a server is away: a forged term cannot use up all terms
RECOVERED_INDEX_LEAP = 1 << 32  # added to the metadata's index when a cluster is recovered: above any earlier epoch
CONNECTION_CHANGES = 64  # of the metadata, asked for over one connection: they wait for the same commits
CHANGES_AT_ONCE = 100_000  # metadata changes requested from the controller; further requests are sent again later
FENCINGS_AT_ONCE = 4096  # brokers that are being fenced, some of them perhaps several times
RAFT_MAX_SERVERS = 1024  # voters and learners of one membership

# administration
REMOVED_BROKERS = 256  # remembered: a removed broker that starts again learns that it was removed
ADMIN_NAMED_PARTITIONS = 1000  # partitions of each kind in one response; the counts are complete
ADMIN_SLICE = 200  # partitions that are described

# retention
MAX_HOLDS = 64  # of one partition
MAX_HOLD_NAME_BYTES = 200
EXPIRED_AT_ONCE = 4  # segments whose files are removed before the disk has a pause
EXPIRY_PAUSE_S = 0.01
TOLD_CLEARED_ENDS = 1000  # partitions in one command that tells how far their logs are cleared
RAISED_STARTS = 1000  # partitions in one command that raises their starts

# merging of small segments
MERGED_FROM_SEGMENTS = 100  # a partition with fewer segments is left alone
MERGED_LEAST_SEGMENTS = 8  # fewer adjacent ones are not worth a copy
MERGED_AT_ONCE = 256  # segments of one merge at most
MERGED_LEAST_BYTES = MIB  # a merged segment may have so many, however small the segments of the stream are
MERGED_MOST_BYTES = 16 * MIB  # and no more than this, however large: so much is copied at a time
MERGED_SHARE = 100  # a merged segment is at most one part in so many of what retention keeps
MERGE_READ_FILES = 32  # small segments read in one turn of a thread
MERGE_READ_BYTES = MIB
MERGE_TIME_S = 0.5  # for merging in one round of the cleaner, which looks at all partitions again after that
SYNCED_AT_ONCE = 16  # segments that compaction has synced, under relaxed sync, before other writes have their turn
KEY_SLOT_BYTES = 24  # of the key map of a compaction, of which a quarter stays free: 32 MB for a million keys
LEAST_KEY_MAP_BYTES = 1000  # without room for a key a pass reads the log and removes nothing
COMPACT_READ_BYTES = 256 * KIB  # of a log, passed through the key map at a time
COMPACT_SLICE_BYTES = MIB  # the same, in one turn of a thread
COMPACT_SYNC_BYTES = 4 * MIB  # of a compacted copy, after which it is synced: the group commit must not wait for more
COMPACT_BYTES_A_SECOND = 64 * MIB  # read by compaction
COMPACT_FREE_BYTES = 256 * MIB  # disk space that stays free beside the copy; with less nothing is compacted
COMPACT_WHOLE_BYTES = 64 * MIB  # a log up to this size is compacted as soon as it has something new
COMPACT_SHARE = 5  # a larger one when what is new is at least one part in so many of it
COMPACT_PASSES = 64  # over one log in a row: then other partitions have their turn
MERGE_FREE_BYTES = 256 * MIB  # disk space that stays free beside the copy; with less nothing is merged

# idempotent producers
MAX_PRODUCER_NAME_BYTES = 200
MAX_NAMED_PRODUCERS = 10_000  # of a cluster; those without a name are not stored
PRODUCER_EXPIRY_NS = 7 * 86_400_000_000_000  # a name, or a producer of a partition, that was not used for so long
PRODUCER_WINDOW = 16_384  # sequences of a producer whose offsets a partition knows; as many as a client has in flight
MAX_PARTITION_PRODUCERS = (
    10_000  # of one partition; for another one the eighth of them that was not used for longest go
)
MAX_PRODUCER_RUNS = 1 << 20  # of one partition, of 16 bytes each: over it the older half of each producer's goes
PRODUCER_CHECKPOINT_BYTES = 16 * MIB  # of records, after which a partition's producers are stored
PRODUCER_CLOSE_BYTES = MIB  # the same, when its replica is closed: less is read again when it is opened
PRODUCER_REBUILD_BYTES = 256 * KIB  # of a log that is read again, in a turn of the event loop
PRODUCER_REBUILDS = 4  # logs that are read again at a time

# cursors and the activity stream
MAX_CURSOR_ID_BYTES = 1024
MAX_CURSOR_STREAM_BYTES = 1024
CACHED_CURSORS = 512  # of one partition of the stream of the cursors
CURSOR_INDEX_ENTRIES = 4_000_000  # cursors whose place a broker knows: 36 bytes each; others are looked for in the log
CURSOR_SCAN_BYTES = 64 * KIB  # of the log of the cursors, indexed in a turn of the event loop: 2 ms
CURSOR_INDEX_LAG = 1000  # records that may be stored before the index takes them in
CURSORS_SET_AT_ONCE = 16_384  # calls of SetCursor, and cursors whose calls wait for one another
UNPUBLISHED_EVENTS = 4096  # of the activity stream, in the metadata; older ones are dropped
UNPUBLISHED_EVENT_BYTES = 4 * MIB

# consumer groups
MAX_GROUPS = 10_000
MAX_GROUP_MEMBERS = 1000
MAX_MEMBER_STREAMS = 1000  # that one member subscribes to
MAX_GROUP_SUBSCRIPTIONS = 20_000  # streams that the members of one group subscribe to, each member by itself
MAX_SUBSCRIPTIONS = 200_000  # over all groups; a member whose streams are all deleted counts as one
MAX_GROUP_PARTITIONS = 20_000  # that the members of one group read
MAX_ASSIGNED_PARTITIONS = 200_000  # over all groups: each has its reader in the metadata
MAX_GROUP_ID_BYTES = 200  # of a group, and of a consumer
ASSIGN_SLICE = 4000  # steps of an assignment: 3 ms
GROUPS_SLICE = 200  # groups or members that are looked at
EXPIRIES_AT_ONCE = 64  # groups whose members a coordinator asks to be removed, at a time
