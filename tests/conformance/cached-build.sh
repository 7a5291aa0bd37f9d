# Sourced by the build.sh of the Go modules beside it, which are called with a folder: goes to the module, and remembers
# the folder by its whole path.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")"

# cached_build NAME VERSION INSTEAD LDFLAGS PACKAGE...
# Builds the packages of the module into NAME-VERSION-HASH in the folder, unless they are there, and sets `built` to that. HASH is of everything that the result depends on. INSTEAD is what to do without Go.
# Several may build at once: each builds for itself, and the first one's result stands.
cached_build() {
  name=$1 version=$2 instead=$3 ldflags=$4
  shift 4
  command -v go >/dev/null || {
    echo "build.sh: Go is not installed. Get it from https://go.dev/dl (the version that go.mod names, or newer), or $instead" >&2
    exit 2
  }
  hash=$({ cat ../cached-build.sh build.sh go.mod go.sum; find . -name '*.go' | LC_ALL=C sort | xargs cat; go env GOVERSION GOOS GOARCH; } | sha256sum | cut -c1-12)
  built=$folder/$name-$version-$hash
  if [ ! -d "$built" ]; then
    new=$(mktemp -d "$folder/.building-XXXXXX")
    trap 'rm -rf "$new"' EXIT
    echo "building $name $version into $built" >&2
    # Always these flags: with others nothing is shared and everything is compiled again. No commit goes into it.
    CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -p 2 -trimpath -ldflags "-s -w $ldflags" -o "$new/" "$@" >&2
    after_build "$new"
    # Under its name only when it is whole; somebody else's is as good.
    mv -T "$new" "$built" 2>/dev/null || [ -d "$built" ]
  fi
}

# What is left to do in the new folder before it gets its name; a build.sh may define its own.
after_build() { :; }
