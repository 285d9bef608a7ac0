#!/bin/sh
# How often a healthy node is called anything but healthy: N runs of a suite (quick: 4 s each on two GPUs, standard: 15 s).
# usage, from the repository's root on a GPU machine: sh tests/gpu/verdicts.sh [N] [FOLDER] [SUITE]
# The runs are kept in FOLDER (out/verdicts): `egmctl profile learn` and `egmctl compare` read them.
set -eu
runs=${1:-20}
folder=${2:-out/verdicts}
suite=${3:-quick}
python=${PYTHON:-python3}
mkdir -p "$folder"
alarms=0
run=1
while [ "$run" -le "$runs" ]; do
    file="$folder/$suite-$run.json"
    code=0
    "$python" -m egmctl bench --suite "$suite" --strict --quiet --force -o "$file" || code=$?
    state=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["answer"]["state"])' "$file")
    echo "run $run: exit $code, $state"
    [ "$code" -eq 0 ] || alarms=$((alarms + 1))
    run=$((run + 1))
done
echo "$alarms of $runs runs ended otherwise than well"
[ "$alarms" -eq 0 ]
