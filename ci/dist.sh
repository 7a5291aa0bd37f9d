#!/usr/bin/env bash
# Builds what a release consists of into dist/: for each architecture an archive with the static binary, licences,
# completions and manual pages, and SHA256SUMS. Runs on Linux on x86-64; needs rustup's musl targets, a C compiler for
# each, binutils, git and jq:
#
#   rustup target add x86_64-unknown-linux-musl aarch64-unknown-linux-musl
#   apt-get install musl-tools gcc-aarch64-linux-gnu jq
#
# ARCHES="amd64 arm64" names what must be built; without it, arm64 is left out where its tools are missing.
# VERSION, when it is set, must be that of Cargo.toml: a release's tag.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly CARGO=${CARGO:-cargo}
readonly TARGET_DIR=${CARGO_TARGET_DIR:-target}
readonly LARGEST=$((12 * 1024 * 1024))

say() { printf 'dist: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# Sets target, compiler and machine (as readelf names it) of an architecture.
of() {
  case $1 in
    amd64) target=x86_64-unknown-linux-musl compiler=musl-gcc machine='Advanced Micro Devices X86-64' ;;
    arm64) target=aarch64-unknown-linux-musl compiler=aarch64-linux-gnu-gcc machine=AArch64 ;;
    *) fail "ARCHES names '$1', which is neither amd64 nor arm64" ;;
  esac
}

# Says what is missing to build for an architecture, or nothing.
missing() {
  of "$1"
  command -v "$compiler" >/dev/null || echo "no $compiler (Debian: musl-tools, gcc-aarch64-linux-gnu)"
  [[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ]] || echo "no rustup target $target"
}

# Builds the binary of an architecture, in some minutes; sets `binary`.
build() {
  local separator=$'\x1f' upper
  of "$1"
  upper=$(tr 'a-z-' 'A-Z_' <<<"$target")
  # Paths of the machine that builds are in no binary: else the same commit would give other bytes elsewhere.
  export CARGO_ENCODED_RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo${separator}--remap-path-prefix=$PWD=/src"
  export "CC_${target//-/_}=$compiler"
  if [[ $1 != amd64 ]]; then
    # This one brings glibc's headers, whose fortified calls musl does not have; it also links, with rustc's musl.
    export "CFLAGS_${target//-/_}=-U_FORTIFY_SOURCE"
    export "CARGO_TARGET_${upper}_LINKER=$compiler"
  fi
  "$CARGO" build --locked --release --package coordinator --bin talos-ghcr --target "$target"
  binary=$TARGET_DIR/$target/release/talos-ghcr
}

# A binary that needs a loader or a library would not start on every Linux, nor in an image with nothing else in it.
check() {
  local size headers
  of "$1"
  headers=$(readelf --file-header --program-headers --dynamic --wide "$2")
  grep -qF "$machine" <<<"$headers" || fail "$2 is not for $machine"
  ! grep -qE 'INTERP|NEEDED' <<<"$headers" || fail "$2 is not static"
  ! grep -qaF "$PWD" "$2" || fail "$2 names the folder that it was built in"
  size=$(stat --format %s "$2")
  ((size <= LARGEST)) || fail "$2 has $size bytes, more than $LARGEST"
  say "$1: static, $size bytes"
}

[[ "$(uname -sm)" == "Linux x86_64" ]] || fail "runs on Linux on x86-64, not on $(uname -sm)"
version=$("$CARGO" metadata --locked --no-deps --format-version 1 | jq -r '.packages[] | select(.name == "coordinator").version')
[[ -z ${VERSION:-} || ${VERSION#v} == "$version" ]] ||
  fail "VERSION is $VERSION and Cargo.toml says $version: change one of them"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
git diff --quiet HEAD || say "this tree differs from its commit; what is built is not what the commit says"

arches=${ARCHES:-amd64}
for arch in $arches; do
  why=$(missing "$arch")
  [[ -z $why ]] || fail "$arch cannot be built: ${why//$'\n'/; }"
done
if [[ -z ${ARCHES:-} ]]; then
  why=$(missing arm64)
  if [[ -z $why ]]; then arches="amd64 arm64"; else say "arm64 is left out: ${why//$'\n'/; }"; fi
fi

rm -rf dist
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
# Whatever is built: this one runs here and writes the manual of all.
build amd64
runs=$binary
for arch in $arches; do
  if [[ $arch == amd64 ]]; then binary=$runs; else build "$arch"; fi
  of "$arch"
  check "$arch" "$binary"
  ci/stage.sh "$binary" "$runs" "$target" "$stage/$arch"
  ci/pack.sh dist "$version" "$arch" "$stage/$arch"
done
cat dist/SHA256SUMS
