#!/bin/sh
# usage: build.sh FOLDER
# Builds etcd, kube-apiserver, kube-controller-manager, kubectl and leader-election into FOLDER/<hash of the sources>,
# unless they are there, and prints that folder. Needs Go and a module proxy, nothing else.
set -eu
cd "$(dirname "$0")"
command -v go >/dev/null || {
  echo "build.sh: Go is not installed. Get it from https://go.dev/dl (the version that go.mod names, or newer), or set" \
    "KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, kube-controller-manager and kubectl." >&2
  exit 2
}
version=$(sed -n 's/^\tk8s.io\/kubernetes v//p' go.mod)
hash=$(cat build.sh go.mod go.sum ./*.go ./*/*.go | sha256sum | cut -c1-12)
out=$1/kubernetes-$version-$hash
if [ ! -e "$out/complete" ]; then
  minor=${version#*.}
  # Built as a module, Kubernetes does not know its own version, and kubectl cannot read the one that it then says.
  stamp=
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    stamp="$stamp -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
    stamp="$stamp -X $package.gitTreeState=clean -X $package.gitCommit=unknown"
    stamp="$stamp -X $package.buildDate=1970-01-01T00:00:00Z"
  done
  echo "building Kubernetes $version into $out; 4 to 15 minutes when nothing is cached" >&2
  mkdir -p "$out"
  # Always these flags: with others nothing is shared and everything is compiled again.
  CGO_ENABLED=0 go build -mod=readonly -p 2 -trimpath -ldflags "-s -w $stamp" -o "$out/" . ./leader-election >&2
  for program in etcd kube-apiserver kube-controller-manager kubectl; do
    ln -sf kubernetes "$out/$program"
  done
  touch "$out/complete"
fi
echo "$out"
