#!/bin/sh
# usage: build.sh FOLDER
# Builds the registry of the conformance tests into FOLDER/registry-<version>-<hash of the sources>, unless it is there,
# and prints its path. Needs Go and a module proxy, nothing else.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")"
command -v go >/dev/null || {
  echo "build.sh: Go is not installed. Get it from https://go.dev/dl (the version that go.mod names, or newer), or set" \
    "TALOS_GHCR_REGISTRY_BINARY to a built tests/conformance/registry." >&2
  exit 2
}
version=$(sed -n 's/^\tgithub.com\/distribution\/distribution\/v3 v//p' go.mod)
hash=$(cat build.sh go.mod go.sum main.go | sha256sum | cut -c1-12)
out=$folder/registry-$version-$hash
if [ ! -e "$out/registry" ]; then
  echo "building distribution $version into $out; a minute or two when nothing is cached" >&2
  mkdir -p "$out"
  # Always these flags: with others nothing is shared and everything is compiled again.
  CGO_ENABLED=0 go build -mod=readonly -p 2 -trimpath -ldflags "-s -w" -o "$out/registry.new" . >&2
  # Under its name only when it is whole.
  mv "$out/registry.new" "$out/registry"
fi
echo "$out/registry"
