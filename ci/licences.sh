#!/usr/bin/env bash
# licences.sh TARGET: prints the licences of all crates that are linked into talos-ghcr for that target, each with the
# texts that its package carries. Needs jq.
set -euo pipefail
(($# == 1)) || { echo "usage: licences.sh TARGET" >&2; exit 64; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$1
export LC_ALL=C

# What only builds others (build scripts, procedural macros) is in no binary.
linked=$(cargo tree --locked --package coordinator --target "$target" --edges normal,no-proc-macro \
  --prefix none --format '{p}' | awk '{ sub(/^v/, "", $2); print $1, $2 }' | sort -u)
known=$(cargo metadata --locked --format-version 1 --filter-platform "$target" | jq -r '
  .packages[] | select(.source != null)
  | [.name, .version, (.license // "see the text"), (.repository // "-"), (.manifest_path | rtrimstr("/Cargo.toml"))]
  | @tsv')

declare -A carrier
echo "talos-ghcr is under the Apache License 2.0 (LICENSE). It contains the crates below, under their own licences."
while IFS=$'\t' read -r name version licence repository folder; do
  grep -qxF "$name $version" <<<"$linked" || continue
  printf '\n%s\n%s %s: %s\n%s\n' "$(printf '=%.0s' {1..100})" "$name" "$version" "$licence" "$repository"
  found=0
  # Files of the package itself, and of what it took over from others.
  while IFS= read -r file; do
    found=1
    carrier[$repository]=${carrier[$repository]:-$name $version}
    printf '\n--- %s\n\n' "${file#"$folder"/}"
    tr -d '\r' <"$file"
  done < <(find "$folder" -maxdepth 2 -type f \
    \( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'copyright*' -o -iname 'unlicense*' \) \
    ! -name '*.rs' | sort)
  ((found)) || printf '\n(The package carries no text of its licence. See %s.)\n' "${carrier[$repository]:-LICENSE}"
done < <(sort <<<"$known")
