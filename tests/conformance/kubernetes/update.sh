#!/bin/sh
# usage: update.sh VERSION, for instance update.sh 1.37.2
# Takes another version of Kubernetes: its own line in go.mod, and the staging repositories that it was released with.
set -eu
cd "$(dirname "$0")"
[ $# = 1 ] || { echo "usage: $0 VERSION, for instance $0 1.37.2" >&2; exit 2; }
sed -i -e "s/^\(\tk8s.io\/kubernetes\) v.*/\1 v$1/" \
  -e "s/\(=> k8s.io\/[a-z-]*\) v.*/\1 v0.${1#*.}/" go.mod
go mod tidy
