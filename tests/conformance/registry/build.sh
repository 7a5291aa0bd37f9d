#!/bin/sh
# usage: build.sh FOLDER
# Builds the registry of the conformance tests into a folder in FOLDER, unless it is there, and prints its path. A minute
# or two when nothing is cached. Needs Go and a module proxy, nothing else.
set -eu
folder=$1
cd "$(dirname "$0")"
. ../cached-build.sh
folder=$(cd - >/dev/null && absolute "$folder")

version=$(sed -n 's/^\tgithub.com\/distribution\/distribution\/v3 v//p' go.mod)
cached_build "$folder" registry "$version" \
  "set TALOS_GHCR_REGISTRY_BINARY to a built tests/conformance/registry." "" .
echo "$built/registry"
