#!/bin/sh
# The clips of this folder, made by aomenc (libaom 3.6.0) of 60 frames with a barcode: what PyAV's encoders cannot write.
set -e
cd "$(dirname "$0")"
python - <<'PY'
import sys
sys.path.insert(0, "../..")
from barcode_clips import _picture
with open("frames.y4m", "wb") as file:
    file.write(b"YUV4MPEG2 W192 H112 F30:1 Ip A1:1 C420jpeg\n")
    for row in range(60):
        file.write(b"FRAME\n" + _picture(row, (192, 112), "yuv420p", None).to_ndarray().tobytes())
PY
make_clip() {
  name=$1; shift
  aomenc frames.y4m --cpu-used=6 --end-usage=q --cq-level=40 --kf-max-dist=30 --threads=1 -q "$@" -o "$name"
}
make_clip error_resilient.mkv --webm --error-resilient=1
make_clip film_grain.mkv --webm --film-grain-test=4
make_clip superres.mkv --webm --superres-mode=1 --superres-denominator=13 --superres-kf-denominator=12
make_clip resized.mkv --webm --resize-mode=1 --resize-denominator=12 --resize-kf-denominator=10
make_clip no_order_hints.mkv --webm --enable-order-hint=0
make_clip annex_b.obu --annexb=1 --obu
make_clip timing_info.obu --obu --timing-info=constant --passes=1
make_clip decoder_model.obu --obu --timing-info=model --lag-in-frames=0
rm frames.y4m
