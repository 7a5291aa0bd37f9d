#!/usr/bin/env bash
# The step of action.yml: gets talos-ghcr (one that is there, or a release whose sum was checked) and becomes it.
# Every input comes as a variable, never as text of a script, so that none of them can be run.
set -euo pipefail

# Ends the step with one annotation. What stands in it may come from outside: it must not end the command.
fail() {
  local code=$1 text=$2
  text=${text//'%'/%25}
  text=${text//$'\r'/%0D}
  text=${text//$'\n'/%0A}
  printf '::error title=talos-ghcr::%s\n' "$text"
  exit "$code"
}

# As the release names its archives.
architecture() {
  local system=${RUNNER_OS:-$(uname -s)} machine=${RUNNER_ARCH:-$(uname -m)}
  [[ $system == Linux ]] || fail 64 "this runner's system is $system: there are releases for Linux only"
  case $machine in
    X64 | x86_64) printf amd64 ;;
    ARM64 | aarch64) printf arm64 ;;
    *) fail 64 "this runner's architecture is $machine: there are releases for X64 and ARM64 only; build one and give its path" ;;
  esac
}

# Nothing but https, or files of this machine; a redirect never leaves https.
fetch() {
  curl --fail --silent --show-error --location --proto '=https,file' --proto-redir '=https' \
    --retry 3 --connect-timeout 20 --max-time 300 --output "$2" -- "$1" ||
    fail 1 "$1 could not be fetched (its error is above); is there a release of this version for this architecture?"
}

# Puts the binary of a release into a folder of this job and sets `binary`.
download() {
  local version=${INPUT_VERSION#v} base=${INPUT_BASE_URL:-} sum=${INPUT_SHA256:-} arch archive folder
  [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.-]+)?$ ]] ||
    fail 64 "version is '$INPUT_VERSION', which is no version such as 1.2.3"
  [[ -z $sum || $sum =~ ^[0-9a-fA-F]{64}$ ]] || fail 64 "sha256 is '$sum', which is no SHA-256: 64 hex digits"
  if [[ -z $base ]]; then
    [[ -n ${INPUT_REPOSITORY:-} ]] ||
      fail 64 "the repository of this action is not known (a local one has none): give base-url or path"
    base=${GITHUB_SERVER_URL:-https://github.com}/$INPUT_REPOSITORY/releases/download/v$version
  fi
  # Its exit in the substitution ends only that; what it said is passed on.
  arch=$(architecture) || { printf '%s\n' "$arch"; exit 64; }
  archive=talos-ghcr_${version}_linux_$arch.tar.gz
  folder=$(mktemp -d "${RUNNER_TEMP:-/tmp}/talos-ghcr.XXXXXX")
  fetch "${base%/}/$archive" "$folder/$archive"
  if [[ -z $sum ]]; then
    fetch "${base%/}/SHA256SUMS" "$folder/SHA256SUMS"
    sum=$(awk -v name="$archive" '$2 == name { print $1 }' "$folder/SHA256SUMS")
    [[ $sum =~ ^[0-9a-f]{64}$ ]] || fail 1 "SHA256SUMS of this release does not name $archive once; nothing was unpacked"
  fi
  # Before it is unpacked: tar and gzip read nothing that nobody vouched for.
  printf '%s  %s\n' "${sum,,}" "$folder/$archive" | sha256sum --check --status ||
    fail 1 "$archive does not have the SHA-256 ${sum,,}: it was damaged or replaced; nothing was unpacked or run"
  tar -xzf "$folder/$archive" -C "$folder" --no-same-owner "${archive%.tar.gz}/talos-ghcr" ||
    fail 1 "$archive cannot be unpacked (tar's reason is above), though its sum is right; is it a release of talos-ghcr?"
  binary=$folder/${archive%.tar.gz}/talos-ghcr
}

binary=
if [[ -n ${INPUT_VERSION:-} && -n ${INPUT_PATH:-} ]]; then
  fail 64 "both version and path are given: give version to download a release, or path for a binary that is there"
elif [[ -n ${INPUT_VERSION:-} ]]; then
  command -v curl >/dev/null || fail 1 "there is no curl on this runner; install it, or give path instead of version"
  download
elif [[ -n ${INPUT_PATH:-} ]]; then
  [[ -z ${INPUT_SHA256:-} ]] || fail 64 "sha256 belongs to version; with path nothing is downloaded"
  # A path, or a name that is looked for in PATH as a shell would.
  binary=$(type -P -- "$INPUT_PATH") || fail 64 "path is '$INPUT_PATH', which is no program that can be run here"
else
  fail 64 "neither version nor path is given: give version to download a release, or path for a binary that is there"
fi

# Words as in a shell, quotes too, and nothing is ever expanded: xargs only splits.
words=$(mktemp "${RUNNER_TEMP:-/tmp}/talos-ghcr.XXXXXX")
printf '%s\n' "${INPUT_ARGS:-}" | xargs -r printf '%s\0' >"$words" ||
  fail 64 "args cannot be split into words (the reason is above); a quote must end on its own line"
mapfile -d '' -t args <"$words"
rm -f "$words"

command=${INPUT_COMMAND:-run}
unset "${!INPUT_@}"
# No shell stays between the runner and the tool: a cancelled job's signals reach it, and it gives back what it holds.
exec "$binary" "$command" "${args[@]}"
