#!/bin/sh
# faults.sh: 1,000 small programs over an emulated network that fails, or that are ended at a bad moment
# (test_faults.c), in the guarded world and in two halves side by side; then 40 with free threads. Takes the
# number of guarded seeds as its argument.
set -u
here=$(cd "$(dirname "$0")" && pwd)
program="${BUILD:-$here/../build}/tests/test_faults"
seeds=${1:-1000}
if [ ! -x "$program" ]; then
  echo "not ok - $program is not built; run scons tests"
  exit 1
fi
begin=$(date +%s)
half=$((seeds / 2))
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$program" 1000 "$half" > "$folder/first" 2>&1 &
first=$!
"$program" $((1000 + half)) $((seeds - half)) > "$folder/second" 2>&1
second_status=$?
wait "$first"
first_status=$?
"$program" 1000 40 threads > "$folder/third" 2>&1
third_status=$?
cat "$folder/first" "$folder/second" "$folder/third"
seconds=$(($(date +%s) - begin))
for part_status in "first $first_status" "second $second_status" "third $third_status"; do
  status=${part_status#* }
  [ "$status" -le 1 ] || echo "not ok - the ${part_status% *} part ended with status $status"
done
echo "# $seeds seeds and 40 with free threads took $seconds s"
