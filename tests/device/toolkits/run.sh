#!/bin/sh
# A test with files of NVIDIA's that PyPI has: run.sh NAME FILE COMMAND... fetches the package of requirements-NAME.txt,
# 20 MB at most, into a cache outside the tree, sets CKPT_TOOLKIT_FILE to the file in it that matches FILE, and runs
# the command. On with CKPT_INTEROP=1; skips, with its reason, where they cannot be had.
set -eu
[ "${CKPT_INTEROP:-0}" = 1 ] || { echo "skipped: tests with files of the CUDA toolkit need CKPT_INTEROP=1"; exit 77; }
name=$1 file=$2
shift 2
wanted=$(cd "$(dirname "$0")" && pwd)/requirements-$name.txt
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ckpt
folder=$cache/toolkit-$name-$(sha256sum <"$wanted" | cut -c1-12)

fetch() {
  rm -rf "$folder"
  mkdir -p "$folder"
  /usr/bin/python3 -m venv "$folder/venv" || return
  # Its files are read, nothing of it is installed: for whichever Python it was made.
  "$folder/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.10 --require-hashes -r "$wanted" -d "$folder" || return
  for wheel in "$folder"/*.whl; do /usr/bin/python3 -m zipfile -e "$wheel" "$folder" || return; done
  rm -rf "$folder/venv" "$folder"/*.whl
  touch "$folder/ready"
}

if [ ! -e "$folder/ready" ]; then
  mkdir -p "$cache"
  exec 9>"$folder.lock"
  flock 9
  [ -e "$folder/ready" ] || fetch >&2 || { echo "skipped: no $(grep -v '^#' "$wanted" | cut -d' ' -f1)"; exit 77; }
  exec 9>&-
fi
CKPT_TOOLKIT_FILE=$(find "$folder" -path "$folder/$file" | head -n 1)
[ -n "$CKPT_TOOLKIT_FILE" ] || { echo "$name has no $file"; exit 1; }
export CKPT_TOOLKIT_FILE
exec "$@"
