# bash completion for ckpt, made by `ckpt completion bash`
_ckpt() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= word words
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case " pre-dump dump restore check list squash rm convert cat inspect verify load-metadata completion " in *" $word "*) verb=$word; break ;; esac
  done
  COMPREPLY=()
  case "$verb:$prev" in
    *:--version) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    *:-h|*:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    *:--json) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    *:--progress) COMPREPLY=($(compgen -W 'auto tty plain jsonl none' -- "$cur")); return ;;
    *:--color) COMPREPLY=($(compgen -W 'auto always never' -- "$cur")); return ;;
    *:-q|*:--quiet) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:-h|pre-dump:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:-p|pre-dump:-t|pre-dump:--pid|pre-dump:--tree) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:-f|pre-dump:-D|pre-dump:--images-dir|pre-dump:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--prev|pre-dump:--prev-images-dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:-j|pre-dump:--shell-job) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--tcp-established) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--tcp-close) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--ext-unix-sk) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--ghost-limit) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--action-script) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--status-fd) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--rounds) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--max-rounds) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--downtime-goal) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--max-cow) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--max-memory) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--force) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--no-compress) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--jobs) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:--trace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:-R|pre-dump:--leave-running|pre-dump:--non-stop) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    pre-dump:-n|pre-dump:--dry-run) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:-h|dump:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:-p|dump:-t|dump:--pid|dump:--tree) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:-f|dump:-D|dump:--images-dir|dump:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--prev|dump:--prev-images-dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:-j|dump:--shell-job) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--tcp-established) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--tcp-close) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--ext-unix-sk) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--ghost-limit) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--action-script) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--status-fd) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--timeout) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--rounds) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--max-rounds) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--downtime-goal) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--max-cow) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--max-memory) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--force) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--no-compress) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--jobs) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:--trace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:-R|dump:--leave-running|dump:--non-stop) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:-s|dump:--leave-stopped) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    dump:-n|dump:--dry-run) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:-h|restore:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:-f|restore:-D|restore:--images-dir|restore:--dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:-d|restore:--detach|restore:--restore-detached) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--pidfile) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:-j|restore:--shell-job) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--tcp-established) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--new-pidns) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--lazy) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--lazy-log) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--action-script) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--status-fd) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:-n|restore:--dry-run) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    restore:--trace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    check:-h|check:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    check:-p|check:-t|check:--pid|check:--tree) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    check:-j|check:--shell-job) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    check:--tcp-established) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    check:--tcp-close) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    check:--ext-unix-sk) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    list:-h|list:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    squash:-h|squash:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    squash:--force) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    squash:--no-compress) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    squash:-j|squash:--jobs) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    squash:-n|squash:--dry-run) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    rm:-h|rm:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    rm:--chain) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    rm:--force) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    rm:-n|rm:--dry-run) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:-h|convert:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--to) COMPREPLY=($(compgen -W 'torch_dist' -- "$cur")); return ;;
    convert:--shard-size) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:-j|convert:--jobs) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--files) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--max-memory) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--include) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--exclude) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:-n|convert:--dry-run) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--force) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--no-sync) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    convert:--trace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    cat:-h|cat:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    cat:--slice) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    cat:--npy) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    cat:--force) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    inspect:-h|inspect:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    inspect:--common) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    inspect:--stats) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    verify:-h|verify:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    verify:--strict) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    load-metadata:-h|load-metadata:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    load-metadata:--key) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    load-metadata:--common) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    completion:-h|completion:--help) COMPREPLY=($(compgen -f -- "$cur")); return ;;
  esac
  case "$verb" in
    '') words='pre-dump dump restore check list squash rm convert cat inspect verify load-metadata completion --version -h --help --json --progress --color -q --quiet' ;;
    pre-dump) words='-h --help -p -t --pid --tree -f -D --images-dir --dir --prev --prev-images-dir -j --shell-job --tcp-established --tcp-close --ext-unix-sk --ghost-limit --action-script --status-fd --timeout --rounds --max-rounds --downtime-goal --max-cow --max-memory --force --no-compress --jobs --trace -R --leave-running --non-stop -n --dry-run --version -h --help --json --progress --color -q --quiet' ;;
    dump) words='-h --help -p -t --pid --tree -f -D --images-dir --dir --prev --prev-images-dir -j --shell-job --tcp-established --tcp-close --ext-unix-sk --ghost-limit --action-script --status-fd --timeout --rounds --max-rounds --downtime-goal --max-cow --max-memory --force --no-compress --jobs --trace -R --leave-running --non-stop -s --leave-stopped -n --dry-run --version -h --help --json --progress --color -q --quiet' ;;
    restore) words='-h --help -f -D --images-dir --dir -d --detach --restore-detached --pidfile -j --shell-job --tcp-established --new-pidns --lazy --lazy-log --action-script --status-fd -n --dry-run --trace --version -h --help --json --progress --color -q --quiet' ;;
    check) words='-h --help -p -t --pid --tree -j --shell-job --tcp-established --tcp-close --ext-unix-sk --version -h --help --json --progress --color -q --quiet' ;;
    list) words='-h --help --version -h --help --json --progress --color -q --quiet' ;;
    squash) words='-h --help --force --no-compress -j --jobs -n --dry-run --version -h --help --json --progress --color -q --quiet' ;;
    rm) words='-h --help --chain --force -n --dry-run --version -h --help --json --progress --color -q --quiet' ;;
    convert) words='-h --help --to --shard-size -j --jobs --files --max-memory --include --exclude -n --dry-run --force --no-sync --trace --version -h --help --json --progress --color -q --quiet' ;;
    cat) words='-h --help --slice --npy --force --version -h --help --json --progress --color -q --quiet' ;;
    inspect) words='-h --help --common --stats --version -h --help --json --progress --color -q --quiet' ;;
    verify) words='-h --help --strict --version -h --help --json --progress --color -q --quiet' ;;
    load-metadata) words='-h --help --key --common --version -h --help --json --progress --color -q --quiet' ;;
    completion) words='-h --help --version -h --help --json --progress --color -q --quiet' ;;
  esac
  if [[ $cur == -* || -z $verb ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
  else
    COMPREPLY=($(compgen -f -- "$cur"))
  fi
}
complete -o filenames -F _ckpt ckpt
