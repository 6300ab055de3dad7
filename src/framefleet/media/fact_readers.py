"""Which FactReader reads the packets of a codec."""

from __future__ import annotations

from collections.abc import Callable

from framefleet.media.av1 import Av1Reader
from framefleet.media.facts import INTRA_CODECS, FactReader, IntraReader, TrustingReader
from framefleet.media.ffv1 import Ffv1Reader
from framefleet.media.frame_headers import DiracReader, GifReader, Mpeg4Reader, Mpeg12Reader, Vp8Reader, Vp9Reader
from framefleet.media.hevc import HevcReader
from framefleet.media.nal import H264Reader


def reads_packets_of(codec: str) -> bool:
    """Whether packets of `codec` are read here; the container is believed of all others, and of AV1 that is unusual."""
    return not isinstance(fact_reader(codec, b""), TrustingReader | Av1Reader)


def fact_reader(codec: str, extradata: bytes) -> FactReader:
    """The reader for `codec` (FFmpeg's name)."""
    if codec in INTRA_CODECS:
        return IntraReader()
    if codec == "h264":
        return H264Reader(extradata)
    if codec == "hevc":
        return HevcReader(extradata)
    if codec == "mpeg4":
        return Mpeg4Reader(extradata)
    simple: dict[str, Callable[[], FactReader]] = {
        "av1": Av1Reader,
        "vp8": Vp8Reader,
        "vp9": Vp9Reader,
        "mpeg1video": Mpeg12Reader,
        "mpeg2video": Mpeg12Reader,
        "dirac": DiracReader,
        "gif": GifReader,
        "ffv1": Ffv1Reader,
    }
    return simple.get(codec, TrustingReader)()
