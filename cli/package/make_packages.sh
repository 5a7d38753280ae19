#!/bin/bash
# Makes ckpt_VERSION-0ckpt1_amd64.deb (Debian's own first one, -1, would be newer) and ckpt-VERSION-linux-x86_64.tar.gz in
# OUT from what is built in BUILD; the same input gives the same bytes. Needs no root.
# CKPT_PACKAGE_LEVEL: how hard to compress, 1 to 9.
# usage: make_packages.sh BUILD VERSION OUT
set -euo pipefail
umask 022
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
build=$1 version=$2 out=$3 level=${CKPT_PACKAGE_LEVEL:-6}
work=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-package-XXXXXX")
trap 'rm -rf "$work"' EXIT

fail() { echo "make_packages: $*" >&2; exit 1; }

debian_version=$(sed -n '1s/^ckpt (\([^)]*\)) .*/\1/p' "$here/changelog")
[ "${debian_version%-*}" = "$version" ] ||
  fail "cli/package/changelog is of ${debian_version%-*}, the source of $version"
grep -q "^## ${version//./\\.}$" "$source/CHANGELOG.md" || fail "CHANGELOG.md has no heading '## $version'"
SOURCE_DATE_EPOCH=$(date -d "$(sed -n 's/^ -- .*>  //p' "$here/changelog" | head -n 1)" +%s)
export SOURCE_DATE_EPOCH

# install_into ROOT PREFIX: what `make install` puts there.
install_into() { DESTDIR=$1 cmake --install "$build" --prefix "$2" >/dev/null; }
# Documents lie in the same folder of either package.
documents_into() {
  mkdir -p "$1"
  install -m 644 "$source/README.md" "$here/copyright" "$1"
}

# libraries_of FILE...: what the loader would look for.
libraries_of() { readelf -dW "$@" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u; }
# The oldest C library that has every version of a symbol that they ask for.
oldest_libc() {
  local asked
  asked=$(readelf -VW "$@" | grep -o 'GLIBC_[A-Z0-9._]*')
  # The loader of 2.36 is the first that knows compact relocations.
  sed -n 's/^GLIBC_\([0-9.]*\)$/\1/p; s/^GLIBC_ABI_DT_RELR$/2.36/p' <<<"$asked" | sort -V | tail -n 1
}

make_deb() {
  local root=$work/deb doc=$work/deb/usr/share/doc/ckpt file strange
  install_into "$root" /usr
  local binaries=("$root/usr/bin/ckpt")
  while IFS= read -r file; do binaries+=("$file"); done < <(find "$root/usr/lib" -name '*.so' 2>/dev/null)
  strip --strip-unneeded --remove-section=.comment --remove-section=.note "${binaries[@]}"
  chmod 644 "${binaries[@]:1}"
  strange=$(libraries_of "${binaries[@]}" |
    grep -vE '^(lib(c|m|dl|pthread|rt)\.so\.[0-9]+|ld-linux-x86-64\.so\.2)$' || true)
  [ -z "$strange" ] || fail "it would need more than libc6: $strange"
  # Where Debian's zsh looks.
  mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
  documents_into "$doc"
  cp "$source/CHANGELOG.md" "$doc/changelog"
  cp "$here/changelog" "$doc/changelog.Debian"
  install -D -m 644 "$here/lintian-overrides" "$root/usr/share/lintian/overrides/ckpt"
  find "$root/usr/share/man" -type f -exec gzip -9n {} +
  gzip -9n "$doc/changelog" "$doc/changelog.Debian" "$doc/README.md"
  mkdir "$root/DEBIAN"
  (cd "$root" && find usr -type f | sort | xargs md5sum) >"$root/DEBIAN/md5sums"
  cat >"$root/DEBIAN/control" <<END
Package: ckpt
Version: $debian_version
Architecture: amd64
Maintainer: $(sed -n 's/^ -- \(.*>\)  .*/\1/p' "$here/changelog" | head -n 1)
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f 1)
Depends: libc6 (>= $(oldest_libc "${binaries[@]}"))
Recommends: libcurl4, libisal2, libnftables1
Section: admin
Priority: optional
$(cat "$here/description")
END
  dpkg-deb --root-owner-group -z"$level" --build "$root" "$out/ckpt_${debian_version}_amd64.deb" >/dev/null
}

make_tarball() {
  local name=ckpt-$version root=$work/tarball/ckpt-$version
  install_into "$work/tarball" "/$name"
  # The program that needs nothing, in place of the one that is installed; what only the other can use goes with that.
  rm -rf "$root/lib" "$root"/lib[0-9]* "$root/include" "$root/share/pkgconfig" "$root/share/ckpt/torch"
  strip --strip-all --remove-section=.comment -o "$root/bin/ckpt" "$build/static/ckpt"
  [ -z "$(libraries_of "$root/bin/ckpt")" ] || fail "the static ckpt needs $(libraries_of "$root/bin/ckpt" | xargs)"
  documents_into "$root"
  install -m 644 "$source/LICENSE" "$source/CHANGELOG.md" "$root"
  # Which the copyright file names; they are not on every system.
  install -D -m 644 -t "$root/licenses" /usr/share/common-licenses/{Apache-2.0,GPL-3,LGPL-2.1}
  tar -C "$work/tarball" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$name" |
    gzip -n"$level" >"$out/$name-linux-x86_64.tar.gz"
}

mkdir -p "$out"
make_deb &
deb=$!
make_tarball
wait $deb
(cd "$out" && ls -sh --block-size=KiB "ckpt_${debian_version}_amd64.deb" "ckpt-$version-linux-x86_64.tar.gz")
