#!/bin/sh
# Run the GPU suite and the measurements on this node, with the python3 that is there: no virtual environment, nothing
# installed, the package taken from the checkout. What was seen is left in the directory given.
#
#   sh tests/gpu/measure.sh OUT [PART...]
#
# The parts are those of parts.txt and "measurements"; without a name, all of them, one after another. A part that takes
# longer than LIMIT_S seconds (540) is ended and counts as failed.
#
# Ends with 0 only if every step did.

out=${1:?give the directory for the results}
shift
python=${PYTHON:-python3}
limit_s=${LIMIT_S:-540}
cd "$(dirname "$0")/../.." || exit 2
mkdir -p "$out" || exit 2
PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
failed=

parts="$(sed -n 's/^\([a-z]*\):.*/\1/p' tests/gpu/parts.txt) measurements"
[ $# -gt 0 ] || set -- $parts
for part; do
    case " $(echo $parts) " in
    *" $part "*) ;;
    *)
        echo "measure.sh: there is no part $part; there are $(echo $parts)" >&2
        exit 2
        ;;
    esac
done

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

# suite PART: run the tests of a part. Only what the suite itself needs: other machines have other plugins.
suite() {
    files=$(sed -n "s/^$1: *//p" tests/gpu/parts.txt | tr ' ' '\n' | sed 's|.*|tests/gpu/test_&.py|')
    # shellcheck disable=SC2086 # names of files, of which none has a space
    step "pytest-$1.txt" timeout -k 20 "$limit_s" "$python" -m pytest $files -m gpu -o addopts= \
        --import-mode=importlib -o junit_family=xunit1 -rA --durations=10 -W ignore::pytest.PytestConfigWarning --junitxml="$out/junit-$1.xml"
    tail -n 1 "$out/pytest-$1.txt"
}

measurements() {
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
    step topo.txt egmctl topo
    step topo-verbose.txt egmctl topo -v
    step topo.json egmctl topo --json
    step topo.csv egmctl topo --csv
    step snapshot.txt egmctl snapshot -o "$out/snapshot.json" --force
    step topo-replayed.txt egmctl topo --machine "$out/snapshot.json"
    step bench-quick.txt egmctl bench --quick
    step bench.log egmctl bench -o "$out/bench.json" --force
}

for part; do
    printf '== part %s\n' "$part"
    if [ "$part" = measurements ]; then
        measurements
    else
        suite "$part"
    fi
done

printf '== results in %s\n' "$out"
if [ -n "$failed" ]; then
    printf '== did not end with 0:%s\n' "$failed"
    exit 1
fi
