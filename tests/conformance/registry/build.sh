#!/bin/sh
# usage: build.sh FOLDER
# Builds the registry of the conformance tests into a folder in FOLDER, unless it is there, and prints its path. A minute
# or two when nothing is cached. Needs Go and a module proxy, nothing else.
. "$(dirname "$0")/../cached-build.sh"

version=$(sed -n 's/^\tgithub.com\/distribution\/distribution\/v3 v//p' go.mod)
cached_build registry "$version" \
  "set TALOS_GHCR_REGISTRY_BINARY to a built tests/conformance/registry." "" .
echo "$built/registry"
