#!/bin/sh
# Makes a Python environment of the interop tests and prints the path of its python on stdout: make_env.sh [NAME], of the
# packages in requirements-NAME.txt; without a name the one that the tests run in. It is cached outside the tree, under a
# name made from the pinned versions, so that it is built once; a build that was cut short leaves no environment that looks
# ready.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=${1:-interop}
case $name in
  interop) plain=$here/requirements.txt nodeps=$here/requirements-nodeps.txt ;;
  *) plain=$here/requirements-$name.txt nodeps=/dev/null ;;
esac
python=${CKPT_PYTHON:-}
if [ -z "$python" ]; then
  for candidate in /usr/bin/python3.11 python3.11 python3; do
    if command -v "$candidate" >/dev/null 2>&1; then python=$candidate; break; fi
  done
fi
[ -n "$python" ] || { echo "make_env: no python3 found" >&2; exit 1; }

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
pins=$(cat "$plain" "$nodeps" | sha256sum | cut -c1-12)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ckpt
env=$cache/$name-py$version-$pins
if [ ! -e "$env/ready" ]; then
  mkdir -p "$cache"
  exec 9>"$env.lock"
  flock 9
  if [ ! -e "$env/ready" ]; then
    rm -rf "$env"
    "$python" -m venv "$env" >&2 || { echo "make_env: $python -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }
    "$env/bin/python" -m pip install --quiet --disable-pip-version-check -r "$plain" >&2
    [ "$nodeps" = /dev/null ] || "$env/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$nodeps" >&2
    touch "$env/ready"
  fi
fi
echo "$env/bin/python"
