#!/usr/bin/env bash
# Archives for a machine with a GPU and no network (CUDA 13, Python 3.12 with torch 2.11): see benchmarks/README.md.
#
#   benchmarks/card/pack.sh OUT nvdec          OUT/nvdec/     50 MB: decoding, its peers, its tests
#   benchmarks/card/pack.sh OUT vllm           OUT/vllm/     200 MB: vLLM 0.26.0 for the serving benchmarks
#   benchmarks/card/pack.sh OUT dali           OUT/dali/     140 MB: DALI, one more of decoding's peers
#
# No file is larger than 39 MiB. The code goes along as it is at HEAD. Needs uv, git, xz and zstd; for GStreamer Debian
# or Ubuntu, with python3.12 and a C compiler on the PATH (or GST_BUNDLE=DIR, one that was made before).
set -euo pipefail
usage="usage: pack.sh OUT nvdec|vllm|dali ..."
out=${1:?$usage}; shift
[ $# -gt 0 ] || { echo "$usage" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
head=$(git -C "$root" rev-parse HEAD)
: "${PYTHON:=$root/.venv/bin/python}"
NVDEC=(av==18.1.0 msgspec==0.23.0 PyNvVideoCodec==2.2.4 nvidia-ml-py torchcodec==0.14.0)
DEEPSTREAM=(nvidia-deepstream-videodecode-cu13==9.0.2)
DALI=(nvidia-dali-cuda130==2.4.0 astunparse gast makefun nvtx optree packaging pyyaml six typing-extensions)
CODE=('*.py' '*.sh' '*.toml')
TESTS=(pytest pytest-timeout hypothesis)
# Of vLLM's needs: what comes with torch and transformers, and what this model never imports.
LEFT_OUT=(torch torchaudio torchvision torchcodec triton transformers tokenizers numpy numba llvmlite
  opencv-python-headless pillow nvidia-cutlass-dsl tokenspeed-mla humming-kernels tilelang flashinfer-cubin scipy
  cuda-python nvidia-cudnn-frontend sentencepiece tiktoken aiohttp protobuf safetensors lxml ninja regex quack-kernels)

fetch() { # FOLDER PACKAGES...: unpacked, for the other machine
  local folder=$1; shift
  uv pip install --quiet --target "$work/$folder" --python-version 3.12 --python-platform x86_64-manylinux_2_39 \
    --only-binary :all: "$@"
  # Kernels for CUDA 12 and what they need; whatever wheels put beside their packages.
  rm -rf "$work/$folder"/{samples,external,benchmarks,bin,example.py,.lock,PyNvVideoCodec/*_121.*.so}
  local library name
  for library in "$work/$folder"/PyNvVideoCodec/lib*.so.*.*.*; do # each is there three times
    [ -e "$library" ] || continue
    for name in "${library%%.so*}.so" "${library%.*.*}"; do ln -sf "$(basename "$library")" "$name"; done
  done
}

code() { # FOLDER: the checkout's code at HEAD, and the commit that last changed it: new results are none
  git -C "$root" archive --format tar "$head" "${CODE[@]}" | xz -6 > "$1/code.tar.xz"
  git -C "$root" log -1 --format=%h "$head" -- "${CODE[@]}" > "$1/COMMIT"
}

pack() { # FOLDER ARCHIVE
  tar -C "$work/$1" -cf - . | xz -T2 -6 > "$2"
}

nvdec() {
  fetch nvdec --no-deps "${NVDEC[@]}"
  pack nvdec "$1/nvdec.tar.xz"
  fetch tests "${TESTS[@]}"
  pack tests "$1/tests.tar.xz"
  fetch deepstream --no-deps "${DEEPSTREAM[@]}"
  cp -r "$(bundle)" "$work/deepstream/gst-bundle"
  pack deepstream "$1/deepstream.tar.xz"
}

bundle() { # prints its folder
  [ -n "${GST_BUNDLE:-}" ] && { echo "$GST_BUNDLE"; return; }
  "$PYTHON" -m framefleet deepstream bundle --python 3.12 --output "$work/gst-bundle" >&2
  echo "$work/gst-bundle"
}

vllm() {
  { printf "%s ; sys_platform == 'never'\n" "${LEFT_OUT[@]}"; echo PyNvVideoCodec==2.2.4; } > "$work/overrides.txt"
  fetch vllm --override "$work/overrides.txt" vllm==0.26.0 av==18.1.0 msgspec==0.23.0 nvidia-ml-py
  # FlashAttention 2 (Hopper uses 3), kernels of other architectures and models.
  rm -rf "$work"/vllm/{vllm/vllm-rs,vllm/third_party/deep_gemm,vllm/third_party/fmha_sm100,pycountry/locales} \
    "$work"/vllm/vllm/{vllm_flash_attn/_vllm_fa2_C,_flashmla_C}.abi3.so
  "$PYTHON" "$here/model_8b.py" "$work/vllm/model_8b"
  mkdir "$work/vllm/framefleet-0.1.0.dist-info"
  # Our plugin is found by its entry point, which pip would have written.
  printf 'Metadata-Version: 2.1\nName: framefleet\nVersion: 0.1.0\n' > "$work/vllm/framefleet-0.1.0.dist-info/METADATA"
  printf '[vllm.general_plugins]\nframefleet = framefleet.vllm_plugin:register\n' \
    > "$work/vllm/framefleet-0.1.0.dist-info/entry_points.txt"
  pack_in_parts vllm "$1"
}

dali() { # for one Python, without headers; what reads pictures stays behind
  fetch dali --no-deps "${DALI[@]}"
  rm -rf "$work"/dali/nvidia/dali/{include,test}
  find "$work/dali/nvidia/dali" -name '*.cpython-3*.so' ! -name '*.cpython-312-*' -delete
  pack_in_parts dali "$1"
}

pack_in_parts() { # FOLDER OUT
  tar -C "$work/$1" -cf - . | zstd -T0 -12 --long=27 -q | split -b 39M -d - "$2/$1.tar.zst."
  cp "$(command -v zstd)" "$2/zstd"
}

for part in "$@"; do
  case $part in nvdec | vllm | dali) ;; *) echo "$usage" >&2; exit 2 ;; esac
  rm -rf "${out:?}/$part" && mkdir -p "$out/$part"
  code "$out/$part"
  "$part" "$out/$part"
  (cd "$out/$part" && sha256sum -- * > "$work/sums" && mv "$work/sums" SHA256SUMS && ls -l)
done
