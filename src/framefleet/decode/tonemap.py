"""HDR to SDR: what a viewer of an ordinary screen should see of PQ and HLG pictures. Pure numpy.

Steps, after scaling: (1) the inverse of the transfer function gives light, in units of the HDR reference white of
203 cd/m2 (ITU-R BT.2408); (2) BT.2020 primaries become BT.709 ones; (3) the extended Reinhard curve
`y (1 + y / w^2) / (1 + y)` on the brightest channel, with white point w = 1000 cd/m2, brings highlights down and keeps
hue; (4) the sRGB curve. PQ is SMPTE ST 2084, HLG is ITU-R BT.2100 with a system gamma of 1.2 at 1000 cd/m2.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

METHOD: Final = {
    "pq": "pq to sdr: reinhard, white 1000 cd/m2, reference 203 cd/m2",
    "hlg": "hlg to sdr: reinhard, white 1000 cd/m2, reference 203 cd/m2",
}
_REFERENCE_WHITE = 203.0
_PEAK = 1000.0
_TO_BT709 = np.array(
    [[1.660491, -0.587641, -0.072850], [-0.124550, 1.132900, -0.008349], [-0.018151, -0.100579, 1.118730]], np.float32
)
"""Linear BT.2020 to linear BT.709 (ITU-R BT.2087, annex 2, inverted)."""
_LUMA_BT2020 = np.array([0.2627, 0.6780, 0.0593], np.float32)
_CURVE_STEPS = 4096


def to_sdr(rgb: npt.NDArray[np.uint16], transfer: str, is_wide_gamut: bool) -> npt.NDArray[np.uint8]:  # noqa: FBT001
    """uint16 [H, W, 3] full-range signal to uint8 [H, W, 3] of the same size. `transfer` is `pq` or `hlg`."""
    light = _light_table(transfer)[rgb]
    if transfer == "hlg":
        luma = light @ _LUMA_BT2020
        light *= np.maximum(luma, 1e-6)[..., None] ** np.float32(0.2)
    light *= np.float32(_PEAK / _REFERENCE_WHITE)
    if is_wide_gamut:
        light = np.maximum(light @ _TO_BT709.T, 0)
    brightest = light.max(axis=-1, keepdims=True)
    white = np.float32(_PEAK / _REFERENCE_WHITE)
    light *= (1 + brightest / white**2) / (1 + brightest)
    steps = np.minimum(light * (_CURVE_STEPS - 1) + np.float32(0.5), _CURVE_STEPS - 1).astype(np.uint16)
    return np.asarray(_srgb_table()[steps], np.uint8)


@cache
def _light_table(transfer: str) -> Float32:
    """Signal 0..65535 to light, 1.0 being 1000 cd/m2 (PQ goes to 10) or, for HLG, scene light of full signal."""
    signal = np.arange(1 << 16) / 65535
    table: Any = _pq(signal) if transfer == "pq" else _hlg(signal)
    return np.asarray(table, np.float32)


def _pq(signal: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    m1, m2, c1, c2, c3 = 2610 / 16384, 2523 / 32, 3424 / 4096, 2413 / 128, 2392 / 128
    power = signal ** (1 / m2)
    return np.asarray((np.maximum(power - c1, 0) / (c2 - c3 * power)) ** (1 / m1) * (10_000 / _PEAK))


def _hlg(signal: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    return np.asarray(np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12))


@cache
def _srgb_table() -> npt.NDArray[np.uint8]:
    light = np.arange(_CURVE_STEPS) / (_CURVE_STEPS - 1)
    encoded = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.asarray(np.rint(encoded * 255), np.uint8)
