"""All targets, by name."""

from __future__ import annotations

from tools.fuzzing import drafts, http2, records, storage, texts, wires

TARGETS = {
    target.name: target
    for target in (*records.TARGETS, *drafts.TARGETS, *wires.TARGETS, *http2.TARGETS, *texts.TARGETS, *storage.TARGETS)
}
