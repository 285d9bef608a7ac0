#!/bin/sh
# How often a healthy node is called anything but healthy: N runs of the quick suite, 8 to 10 s each.
# usage, from the repository's root on a GPU machine: sh tests/gpu/verdicts.sh [N] [FOLDER]
# The runs are kept in FOLDER (out/verdicts): `egmctl profile learn` and `egmctl compare` read them.
set -eu
runs=${1:-20}
folder=${2:-out/verdicts}
python=${PYTHON:-python3}
mkdir -p "$folder"
alarms=0
run=1
while [ "$run" -le "$runs" ]; do
    file="$folder/quick-$run.json"
    code=0
    "$python" -m egmctl bench --quick --strict --quiet --force -o "$file" || code=$?
    grade=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["result"]["verdict"]["reason"])' "$file")
    echo "run $run: exit $code, $grade"
    [ "$code" -eq 0 ] || alarms=$((alarms + 1))
    run=$((run + 1))
done
echo "$alarms of $runs runs ended otherwise than well"
[ "$alarms" -eq 0 ]
