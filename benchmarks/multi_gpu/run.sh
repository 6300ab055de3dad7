#!/usr/bin/env bash
# Replicas on all GPUs of this host behind our proxy, by who decodes; then the report. See run.py for more flags.
#
#   benchmarks/multi_gpu/run.sh OUT MODEL_FOLDER [FLAGS of run.py]
#
# vLLM and what we need must be importable by python3 (PYTHONPATH); our plugin must be among its entry points.
set -euo pipefail
out=${1:?usage: run.sh OUT MODEL_FOLDER [FLAGS]} model=${2:?usage: run.sh OUT MODEL_FOLDER [FLAGS]}
shift 2
here=$(cd "$(dirname "$0")" && pwd)
python3 "$here/run.py" "$out" --model "$model" --gpus all --trial-s 34 "$@"
python3 "$here/report.py" "$out"
