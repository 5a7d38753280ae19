# bash completion for ckpt, made by `ckpt completion bash`
# Processes, with their names where bash lists them and inserts none (?, !).
_ckpt_pids() {
  local pid name
  for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    [[ $pid != "$1"* ]] || COMPREPLY+=("$pid")
  done
  [[ ${COMP_TYPE-} == 63 || ${COMP_TYPE-} == 33 ]] && ((${#COMPREPLY[@]} > 1)) || return
  compopt +o filenames 2>/dev/null
  for pid in "${!COMPREPLY[@]}"; do
    { read -r name </proc/"${COMPREPLY[pid]}"/comm; } 2>/dev/null && COMPREPLY[pid]+=" ($name)"
  done
}

# PATH, then a key of what lies there. $1: options whose value is no argument. Keys are a line each in the document;
# those with quotes and backslashes are left out.
_ckpt_path_and_key() {
  local path= seen= skip= word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    if [[ -z $seen ]]; then [[ $word != "$verb" ]] || seen=1
    elif [[ $word == = ]]; then skip=1
    elif [[ -n $skip ]]; then skip=
    elif [[ " $1 " == *" $word "* ]]; then skip=1
    elif [[ $word != -* ]]; then path=${word/#~\//$HOME/} path=${path//\\/}; break; fi
  done
  if [[ -z $path ]]; then COMPREPLY=($(compgen -f -- "$cur")); return; fi
  # bash quotes what a key holds of its own syntax, as of the name of a file.
  mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" load-metadata "$path" --key "${cur//\\/}**" 2>/dev/null |
    sed -n 's/^ *{"key": "\([^"\\]*\)".*/\1/p')
}

_ckpt() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= word words
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case " pre-dump dump restore migrate receive run watch guard suspend resume lock unlock timeslice check list squash rm export import criu convert cat agent persist inspect verify load-metadata push pull gc protect rebuild plan help version completion " in *" $word "*) verb=$word; break ;; esac
  done
  COMPREPLY=()
  # bash cuts --option=value in three.
  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
  case "$verb:$prev" in
    *:--progress) COMPREPLY=($(compgen -W 'auto tty plain jsonl none' -- "$cur")); return ;;
    *:--color) COMPREPLY=($(compgen -W 'auto always never' -- "$cur")); return ;;
    pre-dump:-p|pre-dump:-t|pre-dump:--pid|pre-dump:--tree) _ckpt_pids "$cur"; return ;;
    pre-dump:-f|pre-dump:-D|pre-dump:--images-dir|pre-dump:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--prev) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--prev-images-dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--external-pipes) COMPREPLY=($(compgen -W 'fail keep null' -- "$cur")); return ;;
    pre-dump:--external-memory) COMPREPLY=($(compgen -W 'fail copy' -- "$cur")); return ;;
    pre-dump:--external) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--gpu) COMPREPLY=($(compgen -W 'auto off only' -- "$cur")); return ;;
    pre-dump:--gpu-lock-timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--delta) COMPREPLY=($(compgen -W 'auto copy recompute' -- "$cur")); return ;;
    pre-dump:--ghost-limit) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--files) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--action-script) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--status-fd) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--mpi) COMPREPLY=($(compgen -W 'auto openmpi mpich none' -- "$cur")); return ;;
    pre-dump:--hold-limit) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--topology) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--safe-point-signal) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:-v|pre-dump:--verbosity) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:-o|pre-dump:--log-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--iterations|pre-dump:--rounds) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--max-iterations|pre-dump:--max-rounds) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--downtime-goal) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--validate-sample) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--max-cow) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--max-memory) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--hash) COMPREPLY=($(compgen -W 'xxh3 sha256' -- "$cur")); return ;;
    pre-dump:--jobs) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--trace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:-p|dump:-t|dump:--pid|dump:--tree) _ckpt_pids "$cur"; return ;;
    dump:-f|dump:-D|dump:--images-dir|dump:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--prev) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--prev-images-dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--external-pipes) COMPREPLY=($(compgen -W 'fail keep null' -- "$cur")); return ;;
    dump:--external-memory) COMPREPLY=($(compgen -W 'fail copy' -- "$cur")); return ;;
    dump:--external) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--gpu) COMPREPLY=($(compgen -W 'auto off only' -- "$cur")); return ;;
    dump:--gpu-lock-timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--delta) COMPREPLY=($(compgen -W 'auto copy recompute' -- "$cur")); return ;;
    dump:--ghost-limit) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--files) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--action-script) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--status-fd) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--mpi) COMPREPLY=($(compgen -W 'auto openmpi mpich none' -- "$cur")); return ;;
    dump:--hold-limit) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--topology) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--safe-point-signal) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:-v|dump:--verbosity) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:-o|dump:--log-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--iterations|dump:--rounds) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--max-iterations|dump:--max-rounds) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--downtime-goal) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--validate-sample) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--max-cow) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--max-memory) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--hash) COMPREPLY=($(compgen -W 'xxh3 sha256' -- "$cur")); return ;;
    dump:--jobs) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--trace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:-f|restore:-D|restore:--images-dir|restore:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--pidfile) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--external-pipes) COMPREPLY=($(compgen -W 'keep null' -- "$cur")); return ;;
    restore:--into) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--join-ns) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--root) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--external) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--veth) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--copies) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--output) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--copy-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--copy-signal) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--share-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--mpi) COMPREPLY=($(compgen -W 'auto openmpi mpich none' -- "$cur")); return ;;
    restore:--map-address) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--lazy-log) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--allow-changed) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--files-root) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--gpu) COMPREPLY=($(compgen -W 'auto off only' -- "$cur")); return ;;
    restore:--gpu-map) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--action-script) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--status-fd) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:-v|restore:--verbosity) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:-o|restore:--log-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--trace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:-p|migrate:-t|migrate:--pid|migrate:--tree) _ckpt_pids "$cur"; return ;;
    migrate:--to) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--ssh) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--remote-ckpt) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--iterations|migrate:--rounds) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--max-iterations|migrate:--max-rounds) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--downtime-goal) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--bandwidth) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--keep-image) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--files) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--external-pipes) COMPREPLY=($(compgen -W 'null' -- "$cur")); return ;;
    migrate:--external-memory) COMPREPLY=($(compgen -W 'fail copy' -- "$cur")); return ;;
    migrate:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--map-address) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--allow-changed) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    migrate:--max-memory) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    receive:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:-p|watch:-t|watch:--pid|watch:--tree) _ckpt_pids "$cur"; return ;;
    watch:-f|watch:-D|watch:--images-dir|watch:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:--every) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:--plan) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:--max-overhead) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:--full-every) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:--keep-last) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:--keep-every) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:--keep-daily) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:--restart) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:--external-pipes) COMPREPLY=($(compgen -W 'keep null' -- "$cur")); return ;;
    watch:--external-memory) COMPREPLY=($(compgen -W 'fail copy' -- "$cur")); return ;;
    watch:--gpu) COMPREPLY=($(compgen -W 'auto off only' -- "$cur")); return ;;
    watch:--gpu-lock-timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:--delta) COMPREPLY=($(compgen -W 'auto copy recompute' -- "$cur")); return ;;
    watch:--validate-sample) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    watch:--hash) COMPREPLY=($(compgen -W 'xxh3 sha256' -- "$cur")); return ;;
    guard:-f|guard:-D|guard:--images-dir|guard:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--grace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--every) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--full-every) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--keep-last) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--keep-every) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--keep-daily) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--notice-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--notice) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--status) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--external-pipes) COMPREPLY=($(compgen -W 'keep null' -- "$cur")); return ;;
    guard:--external-memory) COMPREPLY=($(compgen -W 'fail copy' -- "$cur")); return ;;
    guard:--gpu) COMPREPLY=($(compgen -W 'auto off only' -- "$cur")); return ;;
    guard:--gpu-lock-timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--delta) COMPREPLY=($(compgen -W 'auto copy recompute' -- "$cur")); return ;;
    guard:--validate-sample) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    guard:--hash) COMPREPLY=($(compgen -W 'xxh3 sha256' -- "$cur")); return ;;
    suspend:-p|suspend:-t|suspend:--pid|suspend:--tree) _ckpt_pids "$cur"; return ;;
    suspend:--gpu-lock-timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    resume:-p|resume:-t|resume:--pid|resume:--tree) _ckpt_pids "$cur"; return ;;
    resume:--after) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    resume:--gpu-map) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    lock:-p|lock:-t|lock:--pid|lock:--tree) _ckpt_pids "$cur"; return ;;
    lock:--gpu-lock-timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    unlock:-p|unlock:-t|unlock:--pid|unlock:--tree) _ckpt_pids "$cur"; return ;;
    timeslice:--quantum) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    timeslice:--gpu-lock-timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    check:-p|check:-t|check:--pid|check:--tree) _ckpt_pids "$cur"; return ;;
    check:--external-pipes) COMPREPLY=($(compgen -W 'fail keep null' -- "$cur")); return ;;
    check:--external-memory) COMPREPLY=($(compgen -W 'fail copy' -- "$cur")); return ;;
    check:--gpu) COMPREPLY=($(compgen -W 'auto off only' -- "$cur")); return ;;
    list:--store) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    list:--store-key) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    squash:--hash) COMPREPLY=($(compgen -W 'xxh3 sha256' -- "$cur")); return ;;
    squash:-j|squash:--jobs) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    rm:--keep-last) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    rm:--keep-every) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    rm:--keep-daily) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    rm:--store) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    rm:--store-key) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    export:-o|export:--output) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    export:--oci) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    import:-f|import:-D|import:--images-dir|import:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--to) COMPREPLY=($(compgen -W 'torch_dist dcp safetensors torch zarr3 npy' -- "$cur")); return ;;
    convert:--from) COMPREPLY=($(compgen -W 'auto zarr torch_dist dcp npz torch_save safetensors zarr2 zarr3 gguf npy' -- "$cur")); return ;;
    convert:--include) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--exclude) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--rename) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--map) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--dtype) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--shape) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--shard-size) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--shard-grid) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--files) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--file-size) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:-j|convert:--jobs) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--max-memory) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--mcore) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--part) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--trace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    cat:--from) COMPREPLY=($(compgen -W 'auto zarr torch_dist dcp npz torch_save safetensors zarr2 zarr3 gguf npy' -- "$cur")); return ;;
    cat:--max-memory) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    cat:--slice) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    agent:--to) COMPREPLY=($(compgen -W 'dcp torch_dist torch safetensors' -- "$cur")); return ;;
    agent:--every) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    agent:--keep-last) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    agent:--rate) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    agent:--buffers) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    agent:--agree) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    agent:--lost-after) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    agent:--grace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    agent:--linger) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    agent:--socket) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    persist:--step) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    persist:--into) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    persist:--socket) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    inspect:--from) COMPREPLY=($(compgen -W 'auto zarr torch_dist dcp npz torch_save safetensors zarr2 zarr3 gguf npy' -- "$cur")); return ;;
    inspect:--max-memory) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    inspect:--topology) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    inspect:--depth) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    inspect:--diff) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    inspect:--tolerance) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    inspect:--shards) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    inspect:--group-by) COMPREPLY=($(compgen -W 'param' -- "$cur")); return ;;
    inspect:--html) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    inspect:--sort) COMPREPLY=($(compgen -W 'key dtype shape size shards bytes elements grid file min max mean std nan inf zeros' -- "$cur")); return ;;
    inspect:--columns) COMPREPLY=($(compgen -W 'key dtype shape size shards bytes elements grid file min max mean std nan inf zeros' -P "${cur%"${cur##*,}"}" -- "${cur##*,}")); return ;;
    verify:--store) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    verify:--store-key) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    verify:--from) COMPREPLY=($(compgen -W 'auto zarr torch_dist dcp npz torch_save safetensors zarr2 zarr3 gguf npy' -- "$cur")); return ;;
    verify:--against) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    verify:--manifest) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    verify:--write-manifest) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    verify:--hash) COMPREPLY=($(compgen -W 'xxh3-128 sha256' -- "$cur")); return ;;
    verify:--part) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    verify:--sample) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    verify:--seed) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    verify:--max-memory) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    load-metadata:--from) COMPREPLY=($(compgen -W 'auto zarr torch_dist dcp npz torch_save safetensors zarr2 zarr3 gguf npy' -- "$cur")); return ;;
    load-metadata:--key) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    load-metadata:--plan) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    load-metadata:--rank) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    push:--store) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    push:--store-key) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    push:--name) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pull:--store) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pull:--store-key) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pull:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    gc:--store) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    gc:--store-key) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    gc:--grace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    protect:--topology) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    protect:--mpi) COMPREPLY=($(compgen -W 'auto openmpi mpich none' -- "$cur")); return ;;
    protect:--scheme) COMPREPLY=($(compgen -W 'partner xor rs' -- "$cur")); return ;;
    protect:--parity) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    protect:--failure-group) COMPREPLY=($(compgen -W 'node rack' -- "$cur")); return ;;
    protect:--set-size) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    protect:--max-memory) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    rebuild:--topology) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    rebuild:--mpi) COMPREPLY=($(compgen -W 'auto openmpi mpich none' -- "$cur")); return ;;
    plan:--mtbf) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--node-mtbf) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--nodes) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--save-cost) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--write-rate) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--restore-cost) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--memory-save-cost) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--memory-restore-cost) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--memory-share) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--step-time) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--max-overhead) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--sla) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    plan:--model) COMPREPLY=($(compgen -W 'young daly exact' -- "$cur")); return ;;
  esac
  case "$verb" in
    '') words='pre-dump dump restore migrate receive run watch guard suspend resume lock unlock timeslice check list squash rm export import criu convert cat agent persist inspect verify load-metadata push pull gc protect rebuild plan help version completion -V --version -h --help --json --progress --color -q --quiet' ;;
    pre-dump) words='-h --help -p -t --pid --tree -f -D --images-dir --dir --prev --prev-images-dir --no-prev -j --shell-job --external-pipes --external-memory --tcp-established --tcp-close --ext-unix-sk --external --gpu --gpu-lock-timeout --delta --ghost-limit --files --action-script --status-fd --together --mpi --hold-limit --topology --safe-point --barrier --safe-point-signal --track-mem -v --verbosity -o --log-file --display-stats --timeout --iterations --rounds --max-iterations --max-rounds --downtime-goal --validate-sample --max-cow --max-memory --force --no-compress --hash --jobs --trace -R --leave-running --non-stop -n --dry-run -V --version -h --help --json --progress --color -q --quiet' ;;
    dump) words='-h --help -p -t --pid --tree -f -D --images-dir --dir --prev --prev-images-dir --no-prev -j --shell-job --external-pipes --external-memory --tcp-established --tcp-close --ext-unix-sk --external --gpu --gpu-lock-timeout --delta --ghost-limit --files --action-script --status-fd --together --mpi --hold-limit --topology --safe-point --barrier --safe-point-signal --track-mem -v --verbosity -o --log-file --display-stats --timeout --iterations --rounds --max-iterations --max-rounds --downtime-goal --validate-sample --max-cow --max-memory --force --no-compress --hash --jobs --trace -R --leave-running --non-stop -s --leave-stopped --rehearse -n --dry-run -V --version -h --help --json --progress --color -q --quiet' ;;
    restore) words='-h --help -f -D --images-dir --dir -d --detach --restore-detached --pidfile -j --shell-job --external-pipes --tcp-established --new-pidns --into --join-ns --root --external --veth --copies --output --copy-file --copy-signal --share-file --together --mpi --map-address --lazy --lazy-log --allow-changed --drop-labels --files-root --force --gpu --gpu-map --action-script --status-fd -v --verbosity -o --log-file --display-stats -n --dry-run --trust --trace -V --version -h --help --json --progress --color -q --quiet' ;;
    migrate) words='-h --help -p -t --pid --tree --to --ssh --remote-ckpt --iterations --rounds --max-iterations --max-rounds --downtime-goal --bandwidth --timeout --lazy --keep-image --files --tcp-established --tcp-close --ext-unix-sk --external-pipes --external-memory --dir --new-pidns --map-address --allow-changed --drop-labels --max-memory --no-compress -V --version -h --help --json --progress --color -q --quiet' ;;
    receive) words='-h --help --dir -V --version -h --help --json --progress --color -q --quiet' ;;
    run) words='-h --help --track-fs -V --version -h --help --json --progress --color -q --quiet' ;;
    watch) words='-h --help -p -t --pid --tree -f -D --images-dir --dir --every --plan --max-overhead --on-sigterm --full-every --keep-last --keep-every --keep-daily --restart -j --shell-job --external-pipes --external-memory --tcp-established --tcp-close --ext-unix-sk --gpu --gpu-lock-timeout --delta --no-compress --validate-sample --hash -V --version -h --help --json --progress --color -q --quiet' ;;
    guard) words='-h --help -f -D --images-dir --dir --grace --every --full-every --keep-last --keep-every --keep-daily --notice-file --notice --status --requeue --fresh -j --shell-job --external-pipes --external-memory --tcp-established --tcp-close --ext-unix-sk --gpu --gpu-lock-timeout --delta --no-compress --validate-sample --hash -V --version -h --help --json --progress --color -q --quiet' ;;
    suspend) words='-h --help -p -t --pid --tree --gpu-lock-timeout -V --version -h --help --json --progress --color -q --quiet' ;;
    resume) words='-h --help -p -t --pid --tree --after --gpu-map -V --version -h --help --json --progress --color -q --quiet' ;;
    lock) words='-h --help -p -t --pid --tree --gpu-lock-timeout -V --version -h --help --json --progress --color -q --quiet' ;;
    unlock) words='-h --help -p -t --pid --tree -V --version -h --help --json --progress --color -q --quiet' ;;
    timeslice) words='-h --help --quantum --gpu-lock-timeout -V --version -h --help --json --progress --color -q --quiet' ;;
    check) words='-h --help -p -t --pid --tree -j --shell-job --external-pipes --external-memory --tcp-established --tcp-close --ext-unix-sk --gpu -V --version -h --help --json --progress --color -q --quiet' ;;
    list) words='-h --help --gpu --store --store-key -V --version -h --help --json --progress --color -q --quiet' ;;
    squash) words='-h --help --force --no-compress --hash --trust -j --jobs -n --dry-run -V --version -h --help --json --progress --color -q --quiet' ;;
    rm) words='-h --help --chain --force -n --dry-run --staging --keep-last --keep-every --keep-daily --store --store-key -V --version -h --help --json --progress --color -q --quiet' ;;
    export) words='-h --help -o --output --oci --squash --force --trust -V --version -h --help --json --progress --color -q --quiet' ;;
    import) words='-h --help -f -D --images-dir --dir --force --trust -V --version -h --help --json --progress --color -q --quiet' ;;
    criu) words='-h --help -V --version -h --help --json --progress --color -q --quiet' ;;
    convert) words='-h --help --to --from --include --exclude --skip-unreadable --tensors-only --no-optimizer --unflatten --rename --map --dtype --shape --allow-shape-mismatch --shard-size --shard-grid --files --file-size -j --jobs --max-memory --mcore -n --dry-run --verify --allow-damage --trust-pickles --copy-siblings --resume --part --force --no-sync --trace -V --version -h --help --json --progress --color -q --quiet' ;;
    cat) words='-h --help --from --max-memory --slice --npy --force -V --version -h --help --json --progress --color -q --quiet' ;;
    agent) words='-h --help --to --every --keep-last --rate --buffers --agree --lost-after --grace --linger --socket --no-persist-on-death --no-verify --status -V --version -h --help --json --progress --color -q --quiet' ;;
    persist) words='-h --help --step --into --socket --no-wait -V --version -h --help --json --progress --color -q --quiet' ;;
    inspect) words='-h --help --from --max-memory --skip-unreadable --common --stats --topology --maps --fds --threads --graph --tree --depth --diff --tolerance --shards --files --group-by --html --sort --reverse --columns -V --version -h --help --json --progress --color -q --quiet' ;;
    verify) words='-h --help --store --store-key --repair --parity --from --against --manifest --write-manifest --hash --tensor-hashes --part --sample --seed --globals --rehearse --trust --strict --optimizer --skip-unreadable --max-memory -V --version -h --help --json --progress --color -q --quiet' ;;
    load-metadata) words='-h --help --from --key --common --plan --rank -V --version -h --help --json --progress --color -q --quiet' ;;
    push) words='-h --help --store --store-key --name --force -V --version -h --help --json --progress --color -q --quiet' ;;
    pull) words='-h --help --store --store-key --dir --force --trust -V --version -h --help --json --progress --color -q --quiet' ;;
    gc) words='-h --help --store --store-key -n --dry-run --grace -V --version -h --help --json --progress --color -q --quiet' ;;
    protect) words='-h --help -n --dry-run --topology --mpi --scheme --parity --failure-group --set-size --max-memory -V --version -h --help --json --progress --color -q --quiet' ;;
    rebuild) words='-h --help -n --dry-run --topology --mpi --force -V --version -h --help --json --progress --color -q --quiet' ;;
    plan) words='-h --help --mtbf --node-mtbf --nodes --save-cost --write-rate --restore-cost --memory-save-cost --memory-restore-cost --memory-share --step-time --max-overhead --sla --model -V --version -h --help --json --progress --color -q --quiet' ;;
    help) words='-h --help -V --version -h --help --json --progress --color -q --quiet' ;;
    version) words='-h --help -V --version -h --help --json --progress --color -q --quiet' ;;
    completion) words='-h --help -V --version -h --help --json --progress --color -q --quiet' ;;
  esac
  if [[ $cur == -* || -z $verb ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    return
  fi
  case "$verb" in
    cat) _ckpt_path_and_key '--from --max-memory --slice --progress --color' ;;
    help) COMPREPLY=($(compgen -W 'pre-dump dump restore migrate receive run watch guard suspend resume lock unlock timeslice check list squash rm export import criu convert cat agent persist inspect verify load-metadata push pull gc protect rebuild plan help version completion' -- "$cur")) ;;
    completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- "$cur")) ;;
    *) COMPREPLY=($(compgen -f -- "$cur")) ;;
  esac
}
complete -o filenames -F _ckpt ckpt
