#!/bin/sh
# usage: build.sh FOLDER
# Builds etcd, kube-apiserver, kube-controller-manager, kubectl and leader-election into a folder in FOLDER, unless they
# are there, and prints that folder. 4 to 15 minutes when nothing is cached. Needs Go and a module proxy, nothing else.
. "$(dirname "$0")/../cached-build.sh"

version=$(sed -n 's/^\tk8s.io\/kubernetes v//p' go.mod)
minor=${version#*.}
# Built as a module, Kubernetes does not know its own version, and kubectl cannot read the one that it then says.
stamp=
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  stamp="$stamp -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
  stamp="$stamp -X $package.gitTreeState=clean -X $package.gitCommit=unknown"
  stamp="$stamp -X $package.buildDate=1970-01-01T00:00:00Z"
done

# One binary, which is what it is called by.
after_build() {
  for program in etcd kube-apiserver kube-controller-manager kubectl; do
    ln -s kubernetes "$1/$program"
  done
}

cached_build kubernetes "$version" \
  "set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, kube-controller-manager and kubectl." \
  "$stamp" . ./leader-election
echo "$built"
