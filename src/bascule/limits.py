"""Every bound has a name here. Nothing in Bascule grows without one of these."""

KIB = 1024
MIB = 1024 * KIB

# the process
MALLOC_TRIM_BYTES = 32 * MIB  # freed memory at the top of the heap that is not given back
MALLOC_MMAP_BYTES = 4 * MIB  # larger pieces are mapped, and given back when they are freed
JOB_FIRST_PAUSE_S = 0.1  # before a background job that failed is started again; doubled each time
JOB_MAX_PAUSE_S = 30.0
JOB_STEADY_S = 30.0  # a job that ran for so long before it failed again waits for the first pause

# names and subjects
MAX_STREAM_NAME_BYTES = 200
MAX_SUBJECT_BYTES = 1024  # of every subject we write; NATS itself refuses control lines over 4 KiB by default
MAX_PARTITIONS = 10_000
MAX_MESSAGE_FIELDS = 4096  # of a publish that is decoded one by one: its headers, and the ten others at most
MAX_CORRELATION_ID_BYTES = 1024  # it is kept while an ack waits, and sent back with it

# the log
RECORD_TRAILER_BYTES = 15
MIN_RECORD_PAYLOAD_BYTES = RECORD_TRAILER_BYTES + 2
MAX_RECORD_BYTES = 72 * MIB  # a record is larger than the message that came in; NATS allows 64 MiB at most
MAX_SEGMENT_BYTES = (1 << 32) - 1
INDEX_INTERVAL_BYTES = 4 * KIB
UNSYNCED_HIGH_BYTES = 24 * MIB  # appended and waiting for the disk, over the whole broker: reading from NATS stops
UNSYNCED_LOW_BYTES = 8 * MIB  # and goes on
MAX_UNSYNCED_BYTES = 128 * MIB  # past this, appends are refused
MAX_OPEN_FILES = 512
RESERVED_DESCRIPTORS = 48  # of the process, for neither segments nor clients
MIN_DESCRIPTORS = 64
SYNC_THREADS = 4
READ_THREADS = 4
SETTLE_SLICE = 100  # logs told how a group commit went before the event loop is let go: up to 5 ms
HOPS_SLICE = 16  # tasks that waited for a disk thread and go on in one turn of it: up to 5 ms
READ_SCRATCH_BYTES = MIB  # larger reads from the page cache get a buffer of their own
SYNCFS_FROM_FILES = 4  # this many dirty files and more are synced by one syncfs: at 8 files 290 us, 1,100 singly
QUARANTINE_BYTES = 1024 * MIB
RESYNC_BYTES = 8 * MIB  # searched at a time for the next good record after a bad one
MAX_DAMAGE_NOTES = 1024  # bad stretches remembered per segment
RECOVERY_READ_BYTES = 4 * MIB
DAMAGE_PATIENCE_S = 10.0  # that a consumer waits for damage to be healed or given up
READ_TRIES = 6  # of bytes that do not verify, and are others at each read: then the disk is in error
WRITTEN_LOGS_LOOKED_AT = 1000  # in one pass over paths, of those that stored something since the last
IDLE_PATHS_LOOKED_AT = 100  # and of the others, in turn: the folder of each, and its newest file if there are few
SEGMENTS_LOOKED_AT = 256  # of one log, when the entries of its folder have changed
START_RESERVE_BYTES = MIB  # of the disk, kept for the next start
METADATA_RESERVE_BYTES = 64 * KIB  # of the disk, kept for changes of the metadata: a full one must not stop these
RECENT_CHANGE_NS = (
    50_000_000  # a folder changed so shortly ago may change again without showing it: clocks of files tick
)
MAX_CHECKPOINT_BYTES = 256 * MIB  # metadata snapshots are the large ones
PROMISED_ENDS_DELAY_S = 0.15  # what logs promise is on record so much later at most, and one write
PROMISED_ENDS_BYTES = 256 * KIB  # the file of them is written anew when it is this long
PROMISED_ENDS_GROWTH = 4  # and this many times as long as it must be
CACHED_ENDS = 64 * 1024  # logs whose promised ends are noted at once; after a crash less is known about others
CACHED_ENDS_ROOM = 512  # and the file of them has room for so many more than there are

# replication
ROLES_SLICE = 20  # partitions that take a role before the event loop is let go: up to 8 ms
ISR_CHANGES_AT_ONCE = 1_000_000  # asked for by one broker: one for each other replica of each partition it leads
LATE_CHANGES_AT_ONCE = 10_000  # of the metadata, that wait for the disk
READS_FOR_FOLLOWERS = 4096  # logs read for others at once: one for each follower
WATCH_SLICE = 200  # leaders that look who lags before it is
FEED_SLICE = 100  # positions of a follower taken before it is: up to 4 ms
FEED_WAITING_REQUESTS = 1000  # of one follower, while what it said before is taken
CLOSE_SLICE = 100  # partitions closed before it is
FEED_PARTITION_BYTES = MIB  # of one partition in one response, and kept in memory of one partition for one follower
FEED_BUFFERED_BYTES = 16 * MIB  # new records kept in memory for one follower, over all partitions
FEED_RESPONSE_BYTES = 4 * MIB  # no further partition is added to a response of this size
FEED_PAST_SESSIONS = 64  # of one follower: so many restarts ago nothing is on its way any more

# NATS
NATS_READ_BUFFER_BYTES = MIB
NATS_MAX_CONTROL_LINE = 32 * KIB
NATS_MAX_INFO_BYTES = MIB
NATS_MAX_PENDING_BYTES = 64 * MIB  # written and not yet taken by the socket
NATS_HIGH_WATER_BYTES = 4 * MIB  # of them; above it `drained` waits
NATS_LOW_WATER_BYTES = MIB
NATS_DEFAULT_PAYLOAD_BYTES = MIB  # what a server takes in one message until it says otherwise
NATS_MAX_PAYLOAD_BYTES = 64 * MIB  # no server can be told to take more
NATS_MAX_SERVERS = 256  # configured and announced by other servers
NATS_CONNECT_TIMEOUT_S = 2.0  # of one attempt at one server
NATS_START_TIMEOUT_S = 10.0  # until the first connection, and until an embedded server answers
NATS_PING_INTERVAL_S = 5.0  # a server silent for one gets a PING, silent for two it is dead
NATS_MAX_RETRY_S = 2.0
NATS_RESTART_MAX_S = 5.0  # between two starts of an embedded server that keeps ending
NATS_CLOSE_TIMEOUT_S = 5.0
NATS_SERVER_MAX_PENDING_BYTES = 256 * MIB  # what the embedded server keeps for a slow reader
NATS_SERVER_WRITE_DEADLINE_S = 30
NATS_LAST_LINES = 20  # of an embedded server's log, kept for the message about its death
NATS_MAX_LOG_LINE_BYTES = 4 * KIB

# HTTP/2 and gRPC
GRPC_MAX_MESSAGE_BYTES = 4 * MIB
GRPC_MAX_STATUS_MESSAGE_BYTES = 2 * KIB  # clients refuse trailers over 8 KiB
GRPC_SMALL_REQUEST_BYTES = 512 * KIB  # of a request that carries no message; decoding 4 MiB of names takes 60 ms
GRPC_MAX_CALLS = 100_000  # of one server, over all connections
GRPC_MAX_ASSEMBLY_BYTES = 64 * MIB  # of one connection: unfinished request messages larger than a window
GRPC_MAX_WAITING_CALLS = 10_000  # of one channel, for the server's MAX_CONCURRENT_STREAMS
GRPC_REFUSED_RETRIES = 6  # of a unary call whose stream the server refused unseen
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
HTTP2_SEND_QUANTUM_BYTES = 64 * KIB  # of one stream, before the next one's turn
HTTP2_SEND_ROUND_BYTES = 256 * KIB  # of one connection, in one write
HTTP2_SMALL_WINDOW_UPDATE_BYTES = KIB  # smaller updates count as control frames
HTTP2_MAX_SETTINGS_PER_SECOND = 100
HTTP2_MAX_GOAWAY_REASON_BYTES = 256
HTTP2_HANDSHAKE_TIMEOUT_S = 10.0  # from the connection to the client's SETTINGS; a TLS handshake has as long
TLS_HANDSHAKES = 512  # under way at one server, 10 to 40 KB each; past it the one that has taken longest is given up
TLS_HANDSHAKES_A_TURN = 4  # carried on in a turn of the event loop: 1 to 2 ms each with a key of 2048 bits
TLS_PIECE_BYTES = 32 * KIB  # handed to OpenSSL at a time, which keeps as much for good
TLS_RECORD_BYTES = 16 * KIB
HTTP2_WRITE_STALL_S = 60.0  # a peer whose socket takes nothing for so long is gone
HTTP2_CLOSE_TIMEOUT_S = 5.0  # from our last word to the end of the connection
HTTP2_MAX_RESETS_PER_SECOND = 400  # rapid reset: streams opened and reset by the peer
HTTP2_MAX_CONTROL_FRAMES_PER_SECOND = 10_000  # PING, SETTINGS, PRIORITY, empty frames
HTTP2_MAX_QUEUED_CONTROL_BYTES = 64 * KIB
METADATA_NAMES = 10_000  # streams, and groups, that one FetchMetadata may name
METADATA_ANSWER_BYTES = 64 * MIB  # 10,000 partitions take 0.6 to 2 MB
METADATA_HELD_BYTES = 128 * MIB  # of answers on their way, over the whole broker; shared ones count once
METADATA_PIECE_BYTES = 64 * KIB  # of an answer, written at once
METADATA_SLICE_ENTRIES = 200  # partitions or streams described before the event loop is let go: 1 ms
METADATA_TAKE_S = 30.0  # for a client to take its answer
SUBSCRIBER_BUFFER_BYTES = MIB
SUBSCRIBER_READ_BYTES = 256 * KIB  # one read of the log for one subscriber
CACHED_ROUTES = 4096  # of deleted streams: acks for what was published to them may be under way
PUBLISH_OUTSTANDING_ACKS = 65_536  # of one PublishAsync stream; past it the client gets no more window
PUBLISH_SINGLY = 64  # requests answered one by one in a turn of the event loop: 0.5 ms
PENDING_ACK_BYTES = 64 * MIB  # waiting for a sync or a commit, over the whole broker
PENDING_BATCH_BYTES = 256  # what a batch that waits takes beside its acks
PENDING_SWEEP_BYTES = 4 * MIB  # of them looked through in one turn of the event loop for calls that are over: 3-12 ms
GONE_CALLS = 16_384  # that ended with acks outstanding, remembered; the newest ones
GONE_CALLS_AT_ONCE = 4096  # of them in one message to the other brokers
MAX_CONNECTIONS = 10_000
ACCEPT_BURST = 8  # connections taken in one go: those over the limit have a descriptor until they are refused
TCP_KEEPALIVE_IDLE_S = 60  # the kernel asks a silent peer whether it is still there
TCP_KEEPALIVE_INTERVAL_S = 15
TCP_KEEPALIVE_PROBES = 4

# the client
CLIENT_CONNECT_TIMEOUT_S = 5.0
CLIENT_TIMEOUT_S = 10.0  # of a whole request, with its retries
CLIENT_ADMIN_TIMEOUT_S = 60.0  # of what moves replicas between brokers
CLIENT_ACK_TIMEOUT_S = 5.0
CLIENT_CLOSE_TIMEOUT_S = 2.0
CLIENT_RETRY_MIN_S = 0.05  # doubled on each try
CLIENT_RETRY_MAX_S = 1.0
CLIENT_HUNG_UP_TRIES = 3  # at servers that all end connections right after the TLS handshake
CLIENT_RESUBSCRIBE_S = 30.0  # how long a broken subscription tries to come back
CLIENT_PUBLISH_WINDOW = 16_384  # messages of one call without an ack yet
CLIENT_PUBLISH_BATCH = 1024  # messages encoded and sent in one go
CLIENT_PUBLISH_BATCH_BYTES = MIB
CLIENT_DECODE_BATCH = 4096  # records handed to the caller at once
SPARK_BATCH_BYTES = 4 * MIB  # values of one Arrow record batch
SPARK_BATCH_ROWS = 32_768

# a cluster on one machine
LOCAL_BROKERS = 9
LOCAL_START_TIMEOUT_S = 60.0  # until every broker is a voter
LOCAL_STOP_TIMEOUT_S = 20.0  # for brokers to stop in good order
LOCAL_RESTART_S = 5.0  # before a broker that was killed is started again
LOCAL_LAST_WORDS_BYTES = 4 * KIB  # of a log that are looked at for the last line

# configuration
MAX_ID_BYTES = 128  # of a server id and of the namespace: both are tokens of every internal subject
CONFIG_MAX_BYTES = MIB
CONFIG_MAX_NODES = 10_000  # keys and values of a file, with aliases counted as often as they are used
CONFIG_MAX_DEPTH = 16

# Raft
RAFT_APPEND_BYTES = 256 * KIB  # of one append request; one entry may be larger
RAFT_SNAPSHOT_CHUNK_BYTES = 256 * KIB
RAFT_PAYLOAD_SHARE = 2  # of what NATS takes in one message, entries or a piece of a snapshot fill this part: a half
RAFT_HEAD_BYTES = 1024  # of a message with one entry, beside that entry: names, terms, indexes, lengths
RAFT_OUTBOX_MESSAGES = 16_384  # that wait for the disk; what is more is lost, as on a network, and said again
RAFT_INFLIGHT_APPENDS = 64  # to one follower, not answered yet
RAFT_TRAILING_ENTRIES = 4096  # kept in memory beyond a snapshot, so that a follower a little behind needs no snapshot
RAFT_PINNED_ENTRIES = 65_536  # kept at most for a follower that receives a snapshot, to have what follows it
RAFT_SNAPSHOT_STALL_TICKS = 100  # a follower that takes no chunk for so long loses its claim on the snapshot
RAFT_UNCOMMITTED_ENTRIES = 65_536  # past it a leader takes no proposals
RAFT_APPLY_ENTRIES = 4096  # handed out for application in one Ready
CODEC_SLICE = 1000  # partitions of a command or a snapshot made bytes, or made of them, before the loop is let go: 5 ms
CODEC_SLICED_BYTES = 16 * KIB  # a command this long and longer is decoded in slices
APPLY_SLICE = 500  # partitions changed by commands before the event loop is let go, or so many commands' worth
COMMAND_WEIGHT = 10  # a command that changes one partition takes as long as one more of a command that changes many
RAFT_PENDING_READS = 65_536
REMEMBERED_OPERATIONS = 4096  # changes remembered by id, and deletions by name, so that asking twice makes them once
RAFT_TERM_LEAP = 1 << 32  # no cluster holds so many elections while a server is away: a forged term cannot use them up
RECOVERED_INDEX_LEAP = 1 << 32  # of the metadata's index when a cluster begins anew: above any epoch the old one gave
CHANGES_AT_ONCE = 100_000  # of the metadata, that other brokers ask the controller for; the others ask again
CONTROLLER_CHORES = 4096  # brokers that are being fenced, each perhaps several times
RAFT_MAX_SERVERS = 1024  # voters and learners of one membership

# administration
REMOVED_BROKERS = 256  # remembered, so that one that comes back is told
ADMIN_NAMED_PARTITIONS = 1000  # of each kind in one answer; the counts are whole
ADMIN_SLICE = 200  # partitions described before the event loop is let go
