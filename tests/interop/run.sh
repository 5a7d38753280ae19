#!/bin/sh
# One file of interop tests, in their own Python environment: run.sh CKPT_BINARY TEST_FILE...; without a file it only
# makes the environment. CKPT_INTEROP=1 switches them on: the environment takes 1.1 GB and its download some minutes.
[ "${CKPT_INTEROP:-0}" = 1 ] || { echo "skipped: interop tests need CKPT_INTEROP=1"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/make_env.sh") || exit 1
CKPT_BIN=$1
export CKPT_BIN PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=2
shift
[ $# -eq 0 ] && exit 0
cd "$here" && exec "$python" -m pytest -q -p no:cacheprovider -W ignore "$@"
