#!/usr/bin/env bash
# Runs the acceptance tests, collects every message that they see, and writes docs/messages.md. A person reads its changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly CARGO=${1:-cargo} PAGE=docs/messages.md
collected=$(mktemp)
trap 'rm -f "$collected"' EXIT
# A test that fails has said something, too; that it failed is told at the end.
status=0
TALOS_GHCR_MESSAGES=$collected "$CARGO" test --locked -p coordinator --test acceptance || status=$?

# The lines that begin so, sorted; "" is all that begin with none of the others.
section() {
  printf '\n## %s\n\n```text\n' "$1"
  LC_ALL=C sort -u "$collected" | if [[ -n $2 ]]; then grep -E "^($2)" || true; else grep -vE "^($OTHERS)" || true; fi
  printf '```\n'
}
readonly OTHERS='error: |warning: |exit code |Left: |Missing for a run: |stopping: '
{
  cat <<'HEAD'
# Messages

Every message that the acceptance tests have seen, written by `make messages`: what differs from run to run stands as NODE,
ADDRESS, LENGTH, TIME, HOLDER, FILE, N. It is here to be read: does each say what happened, to which object, why, and what
to do? What to do about them is in the [runbook](runbook.md).
HEAD
  section "Errors" 'error: '
  section "Warnings" 'warning: '
  section "What is left for a human" 'Left: '
  section "What a plan misses" 'Missing for a run: '
  section "The last line" 'exit code |stopping: '
  section "Events" ''
} >"$PAGE"
echo "$PAGE: $(grep -c . "$PAGE") lines"
exit "$status"
