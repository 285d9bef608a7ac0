#!/bin/sh
# Prove the folder that `make dist` built on a machine with GPUs: unpacked in a fresh place, with nothing else installed.
#
#   sh tests/gpu/prove_folder.sh dist/egmctl-VERSION-linux-ARCH-cu13.tar.xz OUT
#
# Runs topo, doctor --active, bench --quick and bench --suite ipc with an empty environment (no PYTHONPATH, no PATH of a
# CUDA toolkit, a home of their own), and leaves in OUT what each printed (NAME.txt, NAME.err) and saved (NAME.json),
# and a line for each in OUT/summary: name, exit code, seconds. Ends with 1 where a command ended with anything but 0 or 1
# (1: something is wrong with the node), where a saved document is missing, or where the folder was written to.
set -u

[ $# -eq 2 ] && [ -f "$1" ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
archive=$1
mkdir -p "$2"
out=$(cd "$2" && pwd)
place=$(mktemp -d)
trap 'chmod -R u+w "$place"; rm -rf "$place"' EXIT
mkdir "$place/home"
failed=0

seconds() { date +%s.%N; }
since() { awk -v from="$1" -v to="$(seconds)" 'BEGIN { printf "%.1f", to - from }'; }
listing() { (cd "$1" && find . -printf '%p %s %T@\n' | sort); }
note() { printf '%s\n' "$*" | tee -a "$out/summary"; }

: >"$out/summary"
{
    uname -srm
    grep -s PRETTY_NAME /etc/os-release
    cat /proc/driver/nvidia/version 2>&1
    for name in python3 nvcc; do printf '%s: %s\n' "$name" "$(command -v "$name" || echo none)"; done
    printf 'CUDA toolkits: %s\n' "$(ls -d /usr/local/cuda* 2>/dev/null | paste -sd ' ')"
    sha256sum "$archive"
} >"$out/machine"

began=$(seconds)
tar -xf "$archive" -C "$place" --no-same-owner || exit 1
note "unpack 0 $(since "$began")"
egmctl=$(echo "$place"/egmctl-*/bin/egmctl)
folder=${egmctl%/bin/egmctl}
chmod -R a-w "$folder"
listing "$folder" >"$place/before"

# The driver's libraries are where the dynamic linker looks, but for some containers, which name the place.
libraries=
if ! /sbin/ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' && [ -n "${LD_LIBRARY_PATH:-}" ]; then
    libraries="LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
    note "# libcuda is not in the linker's cache: $libraries"
fi

prove() {
    name=$1
    shift
    began=$(seconds)
    # shellcheck disable=SC2086
    (cd / && exec env -i PATH=/usr/bin:/bin HOME="$place/home" LC_ALL=C.UTF-8 $libraries "$egmctl" "$@") \
        >"$out/$name.txt" 2>"$out/$name.err"
    code=$?
    note "$name $code $(since "$began")"
    [ $code -le 1 ] || failed=1
    case "$*" in *.json) [ -s "$out/$name.json" ] || { note "# $name saved nothing"; failed=1; } ;; esac
}

prove version --version
prove topo topo -o "$out/topo.json"
prove doctor-active doctor --active -o "$out/doctor-active.json"
prove bench-quick bench --quick -o "$out/bench-quick.json"
prove bench-ipc bench --suite ipc -o "$out/bench-ipc.json"

listing "$folder" | cmp -s - "$place/before" || { note "# the folder was written to"; failed=1; }
exit $failed
