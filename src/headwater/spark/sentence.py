"""Spark's long texts, cut to the sentence that a user needs. Pure."""

import re

_ERROR_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_SENTENCE_END = re.compile(r"[.?!](?=\s|$)|\s*SQLSTATE:|\n")
_PLACE = re.compile(r"\bline (\d+),? pos (\d+)")


def first_sentence(text: str) -> str:
    """What Spark says first, without its error class, its plan and its advice, and where in the text it found it."""
    said = _ERROR_CLASS.sub("", text.strip())
    place = _PLACE.search(said)
    end = _SENTENCE_END.search(said)
    sentence = (said[: end.start()] if end else said).rstrip()
    return f"{sentence} (line {place[1]}, position {place[2]})" if place and place[0] not in sentence else sentence
