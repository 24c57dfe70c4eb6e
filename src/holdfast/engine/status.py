"""The status words that scripts answer with: one enum, so that a word has one spelling."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    GRANTED = "granted"
    QUEUED = "queued"
    BUSY = "busy"
    RELEASED = "released"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    NOT_HELD = "not_held"
    RENEWED = "renewed"
    FORCED = "forced"
    FOUND = "found"
    WRITTEN = "written"
    FENCED = "fenced"
    FAILED = "failed"
    REPLAYED = "replayed"
