#!/bin/sh
# Run the GPU suite and the measurements on this node, with the python3 that is there: no virtual environment, nothing
# installed, the package taken from the checkout. What was seen is left in the directory given.
#
#   sh tests/gpu/measure.sh OUT
#
# Ends with 0 only if every step did.

out=${1:?give the directory for the results}
python=${PYTHON:-python3}
cd "$(dirname "$0")/../.." || exit 2
mkdir -p "$out" || exit 2
PYTHONPATH=$PWD
export PYTHONPATH
failed=

# step FILE COMMAND...: run it, keep what it printed, go on if it fails.
step() {
    file=$out/$1
    shift
    printf '== %s\n' "$*"
    "$@" >"$file" 2>"$file.err"
    code=$?
    cat "$file.err" >&2
    [ -s "$file.err" ] || rm -f "$file.err"
    if [ "$code" -ne 0 ]; then
        printf '== ended with %s: %s\n' "$code" "$*"
        failed="$failed $(basename "$file")($code)"
    fi
}

egmctl() { "$python" -m egmctl "$@"; }

step versions.txt sh -c "
    '$python' --version
    '$python' -m egmctl --version
    '$python' -c 'from importlib.metadata import distributions as d; print(*sorted(x.name + \" \" + x.version for x in d()), sep=\"\n\")'
    uname -srm"
step nvidia-smi.txt nvidia-smi
step nvidia-smi-topo-m.txt nvidia-smi topo -m
for index in r w n a p; do
    step nvidia-smi-topo-p2p-$index.txt nvidia-smi topo -p2p $index
done

# Only what the suite itself needs: other machines have other plugins.
step pytest.txt "$python" -m pytest tests/gpu -m gpu -o addopts= --import-mode=importlib -rA \
    -W ignore::pytest.PytestConfigWarning --junitxml="$out/junit.xml"
tail -n 1 "$out/pytest.txt"

step topo.txt egmctl topo
step topo-verbose.txt egmctl topo -v
step topo.json egmctl topo --json
step topo.csv egmctl topo --csv
step snapshot.txt egmctl snapshot -o "$out/snapshot.json" --force
step topo-replayed.txt egmctl topo --machine "$out/snapshot.json"
step bench-quick.txt egmctl bench --quick
step bench.log egmctl bench -o "$out/bench.json" --force

printf '== results in %s\n' "$out"
if [ -n "$failed" ]; then
    printf '== did not end with 0:%s\n' "$failed"
    exit 1
fi
