#!/bin/bash
# The main jobs on real input: a training process is checkpointed and restored, a model checkpoint is converted, and a training loop
# goes on from an agent's memory.
# Needs CKPT_BIN (default build/ckpt), python3 and numpy. Ends with a status other than 0 at the first mismatch.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
ckpt=$(realpath "${CKPT_BIN:-$here/../../build/ckpt}")
python=${CKPT_PYTHON:-python3}
steps=${CKPT_DEMO_STEPS:-}
work=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-demo-XXXXXX")
training=

cleanup() {
  local status=$?
  if [ -n "$training" ]; then kill -9 "$training" 2>/dev/null || true; fi
  rm -rf "$work"
  if [ $status -ne 0 ]; then echo; echo "demo: FAILED (exit $status)"; fi
}
trap cleanup EXIT

heading() { printf '\n== %s\n' "$*"; }
fail() { echo "demo: $*" >&2; exit 1; }
say() { echo "\$ ckpt $*"; }

# wait_for FILE PATTERN SECONDS: until a line of the file matches.
wait_for() {
  local tries=$(($3 * 20))
  until grep -q "$2" "$1" 2>/dev/null; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || fail "no '$2' in $(basename "$1") after $3 s: $(tail -n 1 "$1" 2>/dev/null)"
    sleep 0.05
  done
}
# A session of its own, without the descriptors that this shell may have inherited from whoever started it.
start_alone() {
  local fd
  for fd in "/proc/$BASHPID/fd/"*; do
    fd=${fd##*/}
    if [ "$fd" -gt 2 ] && [ "$fd" -ne 255 ]; then eval "exec $fd>&-"; fi
  done
  exec setsid "$@"
}
frozen_ms() {
  "$python" -c 'import json, sys; print("%.1f" % (json.load(open(sys.argv[1] + "/manifest.json"))["stats"]["frozen_us"] / 1000))' "$1"
}
size_mib() { du -sm "$1" | cut -f1; }

"$python" -c 'import numpy' 2>/dev/null || fail "needs numpy (Debian: apt-get install python3-numpy)"

# What the caller leaves open (make's job server) is no part of the training process. 255 is bash's own.
for fd in /proc/$$/fd/*; do
  number=${fd##*/}
  if ((number > 2 && number < 255)); then eval "exec $number>&-"; fi
done

# As many steps as take some 12 seconds here: time to dump a process that is still at work, on any machine.
if [ -z "$steps" ]; then
  took=$("$python" "$here/train.py" "$work/probe.log" --steps 20 2>&1 >/dev/null)
  steps=$(awk -v took="${took% s}" 'BEGIN { n = int(20 * 12 / (took > 0.05 ? took : 0.05)); print n < 40 ? 40 : n - n % 20 }')
fi

heading "1. The training loop, uninterrupted"
"$python" "$here/train.py" "$work/straight.log" --steps "$steps" 2>"$work/straight.err"
head -n 1 "$work/straight.log"
tail -n 2 "$work/straight.log"
echo "took $(tail -n 1 "$work/straight.err")"

heading "2. The same loop: pre-dumped while it runs, dumped, restored"
start_alone "$python" "$here/train.py" "$work/broken.log" --steps "$steps" </dev/null >/dev/null 2>&1 &
training=$!
wait_for "$work/broken.log" "^step .*0 " 60
sleep 1.5
say "pre-dump -p $training -f before    # runs on meanwhile"
"$ckpt" pre-dump -p "$training" -f "$work/before"
sleep 1
say "dump -p $training -f now --prev before    # ends once the image is durable"
"$ckpt" dump -p "$training" -f "$work/now" --prev "$work/before"
wait "$training" 2>/dev/null || true
kill -0 "$training" 2>/dev/null && fail "the process is still there"
echo "the process has ended; last line of its log: $(tail -n 1 "$work/broken.log")"
! grep -q sha256 "$work/broken.log" || fail "the loop was done before it was dumped: nothing is shown"
say "restore -f now -d"
"$ckpt" restore -f "$work/now" -d
wait_for "$work/broken.log" "^sha256 " 120
training=
tail -n 2 "$work/broken.log"

heading "3. Compared"
cmp <(sed 1d "$work/straight.log") <(sed 1d "$work/broken.log") || fail "the interrupted run ends with other weights"
echo "weights and every line of the log: identical to the uninterrupted run"
echo "frozen: pre-dump $(frozen_ms "$work/before") ms (image $(size_mib "$work/before") MiB)," \
  "dump --prev $(frozen_ms "$work/now") ms (image $(size_mib "$work/now") MiB)"
say "verify now"
"$ckpt" verify "$work/now"
rm -rf "$work/before" "$work/now"

heading "4. A Megatron zarr checkpoint becomes torch_dist"
"$python" "$here/make_megatron_zarr.py" "$work/zarr" --mib 256
say "convert zarr torch_dist --to torch_dist"
"$ckpt" convert "$work/zarr" "$work/torch_dist" --to torch_dist
say "inspect torch_dist | head -n 8"
"$ckpt" inspect "$work/torch_dist" >"$work/table"
head -n 8 "$work/table"
echo "..."
tail -n 1 "$work/table"
say "verify torch_dist"
"$ckpt" verify "$work/torch_dist"

heading "5. A training loop that is killed in a save goes on from memory"
library=${CKPT_FLASH_LIBRARY:-$(dirname "$ckpt")/libckpt-flash.so}
if [ -e "$library" ]; then
  export CKPT_BIN=$ckpt CKPT_FLASH_LIBRARY=$library
  "$python" "$here/flash_train.py" "$work/straight-flash" 30 >"$work/straight-flash.log"
  # A shell of its own, whose word on the killed child nobody needs.
  ("$python" "$here/flash_train.py" "$work/flash" 30 --die 17; exit $?) 2>/dev/null && fail "the loop was not killed"
  echo "killed (-9) in the save of step 17"
  "$python" "$here/flash_train.py" "$work/flash" 30 | tee "$work/flash.log"
  cmp <(grep sha256 "$work/straight-flash.log") <(grep sha256 "$work/flash.log") || fail "it ends with other weights"
  echo "weights: identical to the uninterrupted run"
  say "verify flash@latest    # what its agent has written meanwhile"
  "$ckpt" verify "$work/flash@latest"
else
  echo "left out: libckpt-flash.so is not built here"
fi

heading "Done: all jobs hold"
