#!/bin/sh
# Installs what the build and the lab need from the machine's own Debian sources. Says what it adds;
# does nothing where everything is there. Rust comes from the distribution only if no cargo is found.
set -eu
wanted="clang-19 llvm-19 libclang-19-dev libelf-dev zlib1g-dev pkg-config gcc make busybox-static cpio zstd xz-utils"
have_cargo() { command -v cargo >/dev/null 2>&1 && cargo --version >/dev/null 2>&1; }
have_cargo || wanted="$wanted rustup"
missing=""
for package in $wanted; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "install-deps: missing packages:$missing; run as root, or install them yourself" >&2
        exit 1
    fi
    echo "install-deps: apt-get install$missing"
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of package names
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
have_cargo || rustup default stable
