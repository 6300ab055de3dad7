#!/usr/bin/env bash
# The benchmarks that need a GPU, part after part in one call; each is ended when its seconds, or the call's, are over.
#
#   SITE/code/benchmarks/card/run.sh OUT [PART=SECONDS ...]
#
#   one GPU    tests=120 clips=60 decode=320 deepstream=60     (what is run when no part is named), opens=300;
#              serve_e2e=570 and serve_mps=570, without MPS and with it; diagnose=400: a call each
#   two GPUs   serve_e2e=570 (MPS on the second), multi_gpu=570
#
# OUT/all.tar.gz is written anew after each part: logs, raw results, parts.jsonl with exit statuses (124: out of time).
# Results stay in SITE/results, so that the next call goes on with them: `decode` runs what its plan still lacks.
# LIMIT_S (580) is the whole call's. NAME_ARGS adds arguments to a part: DECODE_ARGS="--seconds 5".
set -uo pipefail
out=${1:?usage: run.sh OUT [PART=SECONDS ...]}; shift
[ $# -gt 0 ] || set -- tests=120 clips=60 decode=320 deepstream=60
mkdir -p "$out"; out=$(cd "$out" && pwd)
cd "$(dirname "$0")/../.." || exit 2
site=${SITE:-$(dirname "$PWD")}; results=$site/results; clips=$site/clips; model=$site/model_8b
: "${PYTHON:=python3}" "${LIMIT_S:=580}" "${COMMIT:=$(cat COMMIT 2> /dev/null || git log -1 --format=%h -- '*.py' '*.sh' '*.toml')}"
mkdir -p "$results"
export COMMIT PYTHONPATH=$PWD/src:$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
[ -d "$site/gst-bundle" ] && export FRAMEFLEET_GST_BUNDLE=$site/gst-bundle
# What keep.py takes out of the raw results.
printf '{"OUT": "%s", "CLIPS": "%s", "MODELS": "%s", "CODE": "%s", "SITE": "%s"}\n' \
  "$results" "$clips" "$site" "$PWD" "$site" > "$results/places.json"
echo "$COMMIT" > "$results/COMMIT"

command_of() { # PART SECONDS: what Python is to run
  local to=$results/$1
  case $1 in
    tests) command=(-m pytest -p no:cacheprovider -m gpu -rA -q -k "not deepstream and not two_thousand"
      tests/gpu tests/decode/gpu tests/contract/test_decode_backend.py) ;;
    opens) command=(-m pytest -p no:cacheprovider -m gpu -rA -q -k two_thousand tests/gpu) ;;
    clips) command=(benchmarks/nvdec/make_clips.py "$clips") ;;
    decode | decode_once) command=(benchmarks/nvdec/bench.py --clips "$clips" --out "$to" --budget-s $(($2 - 15))
      --plan "$([ "$1" = decode ] && echo all || echo once)") ;;
    deepstream) command=(benchmarks/nvdec/deepstream_check.py --clips "$clips" --out "$to" --corpus tests/corpus/files
      --only odd,equal,hang --budget-s $(($2 - 10))) ;;
    serve_e2e | serve_mps) command=(benchmarks/serve_e2e/run.py "$to" --model "$model" --clips "$clips"
      --limit-s $(($2 - 10)) --gpus all --mps "$([ "$1" = serve_mps ] && echo on || echo off,on)" --trial-s 21
      --in-flight 28 --kv-gib 17) ;;
    multi_gpu) command=(benchmarks/multi_gpu/run.py "$to" --model "$model" --clips "$clips" --limit-s $(($2 - 10))
      --gpus all --trial-s 19 --in-flight 22 --kv-gib 17) ;;
    diagnose) command=(benchmarks/diagnose/servers.py "$to" --model "$model" --clips "$clips" --limit-s $(($2 - 10))) ;;
    *) echo "no part $1; there are: tests opens clips decode decode_once deepstream serve_e2e serve_mps multi_gpu diagnose" >&2; return 1 ;;
  esac
  local more=${1^^}_ARGS words
  read -ra words <<< "${!more:-}"
  command+=("${words[@]}")
}

keep() { # all of it, however this ends
  tar -czf "$site/all.$$.tar.gz" -C "$results" . && mv "$site/all.$$.tar.gz" "$out/all.tar.gz"
}

[ -n "${BENCH_FAKE_NVDEC:-}" ] || export FRAMEFLEET_REQUIRE_GPU=1
status=0
for asked in "$@"; do
  name=${asked%%=*} seconds=${asked#*=} left=$((LIMIT_S - SECONDS - 5))
  seconds=$((seconds < left ? seconds : left))
  command_of "$name" "$seconds" || exit 2
  [ "$seconds" -gt 5 ] || { echo "$name: no time left"; status=1; continue; }
  mkdir -p "$results/$name"
  begin=$SECONDS
  timeout -k 10 "$seconds" "$PYTHON" "${command[@]}" >> "$results/$name/log.txt" 2>&1
  rc=$?
  [ $rc -eq 0 ] || status=1
  echo "{\"part\": \"$name\", \"exit\": $rc, \"seconds\": $((SECONDS - begin)), \"commit\": \"$COMMIT\"}" \
    | tee -a "$results/parts.jsonl"
  tail -n 3 "$results/$name/log.txt"
  keep
done
exit $status
