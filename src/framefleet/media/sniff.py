"""What a file that is no video seems to be, for the error message. Pure."""

from __future__ import annotations

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "a JPEG picture, not a video"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture, not a video"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"#EXTM3U", "a playlist, which names other files; give those files themselves"),
    (b"ffconcat", "a concatenation script, which names other files; give those files themselves"),
    (b"v=0", "a session description, which names a network address"),
    (b"\x00\x00\x01\x00", "an icon"),
    (b"BM", "a BMP picture, not a video"),
)


def explain_bytes(head: bytes) -> tuple[str, bool]:  # noqa: PLR0911 - a list of cases
    """The first bytes in words, and whether they are a healthy file of a kind we do not read (else: damaged).

    `("", False)` when they tell nothing.
    """
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "a WebP picture; FFmpeg cannot decode animated WebP; convert it to mp4 or gif", True
    for magic, words in _MAGIC:
        if head.startswith(magic):
            return words, True
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "a web page, not a video", False
    if text.startswith((b"<?xml", b"<mpd", b"<smil")):
        return "an XML document, not a video", True
    if text.startswith((b"{", b"[")):
        return "JSON text, not a video", False
    if head[4:8] in (b"ftyp", b"mdat", b"wide", b"free", b"skip"):
        return "an MP4/MOV file whose index (moov) is damaged or never arrived (it was cut short)", False
    if head and not head.strip(b"\0"):
        return "nothing but zeros at its start", False
    return "", False
