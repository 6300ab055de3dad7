#!/usr/bin/env bash
# What pack.sh made, on the machine with the GPU. May be called again, with the next folder, for the same SITE.
#
#   benchmarks/card/unpack.sh OUT/nvdec SITE
#
# SITE gets the packages and SITE/code, this checkout with the code as it was at the packed HEAD; then
# SITE/code/benchmarks/card/run.sh runs it. Takes bash, tar and Python.
set -euo pipefail
in=${1:?usage: unpack.sh IN SITE} site=${2:?usage: unpack.sh IN SITE}
root=$(cd "$(dirname "$0")/../.." && pwd)
in=$(cd "$in" && pwd); mkdir -p "$site"; site=$(cd "$site" && pwd)
# Whole archives may have stayed behind, but no part of one that comes in parts.
(cd "$in" && sha256sum --check --quiet --ignore-missing SHA256SUMS && { ! [ -e zstd ] || sha256sum --check --quiet \
  <(grep '\.tar\.zst' SHA256SUMS); })

unxz() { python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer, 1 << 20)' "$1"; }

rm -rf "$site/code" && mkdir "$site/code"
(cd "$root" && tar -cf - --exclude=__pycache__ pyproject.toml src tests benchmarks) | tar -xf - -C "$site/code"
find "$site/code" \( -name '*.py' -o -name '*.sh' -o -name '*.toml' \) -delete # also what is in no commit
unxz "$in/code.tar.xz" | tar -xf - -C "$site/code"
cp "$in/COMMIT" "$site/code/COMMIT"
for archive in "$in"/*.tar.xz; do
  case $archive in */code.tar.xz) continue ;; esac
  unxz "$archive" | tar -xf - -C "$site"
done
if [ -e "$in/zstd" ]; then
  chmod +x "$in/zstd" 2> /dev/null || true
  cat "$in"/*.tar.zst.* | "$in/zstd" -d --long=27 -q | tar -xf - -C "$site"
fi
python3 -m compileall -q -j 0 "$site" > /dev/null 2>&1 || true # else each of twenty processes does it
echo "$site/code/benchmarks/card/run.sh, commit $(cat "$site/code/COMMIT")"
