"""The compiled twin has the functions of the pure one, and a switch for tests that selects the slower CRC."""

from bascule.wire._pure import KeyMap as KeyMap
from bascule.wire._pure import ProducerTable as ProducerTable
from bascule.wire._pure import ack_responses as ack_responses
from bascule.wire._pure import crc32c as crc32c
from bascule.wire._pure import decode_records as decode_records
from bascule.wire._pure import decode_responses as decode_responses
from bascule.wire._pure import drop_gone as drop_gone
from bascule.wire._pure import encode_acks as encode_acks
from bascule.wire._pure import encode_messages as encode_messages
from bascule.wire._pure import encode_records as encode_records
from bascule.wire._pure import envelope_columns as envelope_columns
from bascule.wire._pure import envelope_rows as envelope_rows
from bascule.wire._pure import find_record as find_record
from bascule.wire._pure import frame_data as frame_data
from bascule.wire._pure import frame_rows as frame_rows
from bascule.wire._pure import index_records as index_records
from bascule.wire._pure import observe_producers as observe_producers
from bascule.wire._pure import open_batch as open_batch
from bascule.wire._pure import record_columns as record_columns
from bascule.wire._pure import record_tail as record_tail
from bascule.wire._pure import reverse_records as reverse_records
from bascule.wire._pure import route_publishes as route_publishes
from bascule.wire._pure import scan_frames as scan_frames
from bascule.wire._pure import scan_records as scan_records
from bascule.wire._pure import seek_record as seek_record
from bascule.wire._pure import split_messages as split_messages
from bascule.wire._pure import split_nats as split_nats

def _crc_by_table_only(table_only: bool) -> None: ...
