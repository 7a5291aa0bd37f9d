#!/usr/bin/env bash
# stage.sh BINARY RUNS TARGET DIR: puts into DIR all that an archive holds beside the binary for TARGET, and the binary.
# RUNS is the same program as one that runs on this machine: it writes its manual pages and completions itself.
set -euo pipefail
(($# == 4)) || { echo "usage: stage.sh BINARY RUNS TARGET DIR" >&2; exit 64; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
binary=$1 runs=$2 target=$3 dir=$4

mkdir -p "$dir/completions" "$dir/man"
cp "$binary" "$dir/talos-ghcr"
cp LICENSE README.md "$dir"
ci/licences.sh "$target" >"$dir/THIRD-PARTY-LICENSES.txt"
"$runs" completions bash >"$dir/completions/talos-ghcr.bash"
"$runs" completions zsh >"$dir/completions/_talos-ghcr"
"$runs" completions fish >"$dir/completions/talos-ghcr.fish"
"$runs" man "$dir/man"
