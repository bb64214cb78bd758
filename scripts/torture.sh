#!/bin/bash
# Prints the torture as another experiment: in a guest whose vCPUs are preempted half of the time, or on a host beneath two
# CPU-bound guests. It is the same program with the same tolerance in the accounts.
#   scripts/torture.sh alone|nested|host [SECONDS, default 25]
set -eu
kind=${1:-} secs=${2:-25}
cd "$(dirname "$0")/.."

torture() { # time limit in seconds, further sed arguments
    local limit=$1; shift
    sed -e "s/TORTURE_SECS:-25/TORTURE_SECS:-$secs/; s/^timeout_s = .*/timeout_s = $((limit + secs))/" "$@" experiments/test-torture.toml
}

case $kind in
alone)
    torture 300
    ;;
# Without slice timers, which the emulated virtualisation does not bear.
nested)
    torture 375 \
        -e 's/^name = .*/name = "test-torture-nested"/; s/^title = .*/title = "The same in a guest whose vCPUs are preempted half of the time"/' \
        -e 's/^mode = .*/mode = "nested"/; /^cpus = /d' \
        -e 's/tandem guest --stats/tandem guest --no-slice-timers --stats/; s/TORTURE_SLEEPERS:-10000/TORTURE_SLEEPERS:-1000/g'
    printf '\n[[vm]]\nname = "a"\npins = [1, 2]\nmemory_mib = 1024\nemulator_apart = true\n'
    printf '\n[[contention]]\nname = "half"\ncpus = [1, 2]\non_us = 6000\noff_us = 6000\nseed = 5\n'
    ;;
host)
    torture 375 \
        -e 's/^name = .*/name = "test-torture-host"/; s/^title = .*/title = "The same on a host, beneath two CPU-bound guests"/' \
        -e 's/^mode = .*/mode = "nested"\nunder_test = "host"/; /^cpus = /d; s/tandem guest --stats/tandem host --stats/' \
        -e 's/^others() .*/others() { [ "$(pidof qemu | wc -w)" = 2 ] \&\& kill -$1 $(pidof qemu) || fail "guests are gone"; }/'
    # Guests of an emulated host bear many switches badly (docs/LAB.md).
    printf '\n[host]\nbase_slice_us = 3000\n'
    for vm in a b; do
        printf '\n[[vm]]\nname = "%s"\npins = [1, 2]\nfree = true\nlayout = "libvirt"\n' $vm
        printf '\n[[background]]\nmachine = "%s"\nargv = ["tandem-kit", "spin", "--threads", "2", "--secs", "3600"]\n' $vm
    done
    ;;
*)
    echo "torture.sh: expected alone, nested or host, and perhaps a number of seconds" >&2
    exit 2
    ;;
esac
