#!/usr/bin/env bash
# Builds the container image talos-ghcr:VERSION of an architecture (ARCH, amd64 by default) from its archive in dist/.
# TOOL is podman, docker or buildah: the first that is there. IMAGE names another image than talos-ghcr.
# CA_BUNDLE is what goes into it as the authorities to trust: those of this machine by default.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dist=${DIST:-dist}
arch=${ARCH:-amd64}
bundle=${CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}

fail() { printf 'image: %s\n' "$*" >&2; exit 1; }

archives=("$dist"/talos-ghcr_*_linux_"$arch".tar.gz)
[[ ${#archives[@]} == 1 && -f ${archives[0]} ]] || fail "$dist has no archive for $arch: run make dist first"
[[ -s $bundle ]] || fail "there is no $bundle: install ca-certificates, or name another with CA_BUNDLE"
for tool in ${TOOL:-podman docker buildah}; do
  ! command -v "$tool" >/dev/null || break
done
command -v "$tool" >/dev/null || fail "neither podman nor docker nor buildah is here; TOOL names another"

name=$(basename "${archives[0]}" .tar.gz)
version=${name#talos-ghcr_}
version=${version%%_*}
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
tar -xzf "${archives[0]}" -C "$context" --strip-components=1
install -m 644 "$bundle" "$context/ca-certificates.crt"
"$tool" build --file Containerfile --platform "linux/$arch" --tag "${IMAGE:-talos-ghcr}:$version" \
  --build-arg "VERSION=$version" --build-arg "REVISION=${REVISION:-$(git rev-parse HEAD)}" \
  --build-arg "SOURCE=${SOURCE:-}" "$context"
