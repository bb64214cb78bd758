#!/bin/bash
# Builds the schedulers that `make bench` compares with, from the package registry, as static binaries
# into the lab's cache: name, version as resolved, nothing of it in this tree. A checkout of scx whose
# path is given in SCX_CHECKOUT adds scx_eevdf, which is not in the registry.
set -eu
cache=${TANDEM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem}
root=$cache/peers
target=x86_64-unknown-linux-gnu
mkdir -p "$root"
export RUSTFLAGS="-C target-feature=+crt-static"
export LIBBPF_SYS_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu
export BPF_CLANG=${BPF_CLANG:-clang-19}
export CARGO_TARGET_DIR=$root/build
install() { # name, where from...
    local name=$1; shift
    if [ -x "$root/bin/$name" ]; then echo "peers: $name is there"; return; fi
    echo "peers: building $name"
    # Not in this tree: its settings are for our own binaries.
    (cd / && cargo install --quiet --locked --target "$target" --root "$root" "$@") ||
        echo "peers: $name cannot be built here; it is left out" >&2
}
install scx_lavd scx_lavd
install scx_bpfland scx_bpfland
if [ -n "${SCX_CHECKOUT:-}" ]; then
    install scx_eevdf --path "$SCX_CHECKOUT/scheds/rust/scx_eevdf"
fi
rm -rf "$CARGO_TARGET_DIR"
