#!/bin/sh
# seeds.sh: 1,000 seeds of an 8-rank all-reduce with each protocol at tiny constants (test_seeds.c), in two
# halves side by side. Takes the number of seeds as its argument.
set -u
here=$(cd "$(dirname "$0")" && pwd)
program="${BUILD:-$here/../build}/tests/test_seeds"
seeds=${1:-1000}
if [ ! -x "$program" ]; then
  echo "not ok - $program is not built; run scons tests"
  exit 1
fi
begin=$(date +%s)
half=$((seeds / 2))
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$program" 1 "$half" > "$folder/first" 2>&1 &
first=$!
"$program" $((half + 1)) $((seeds - half)) > "$folder/second" 2>&1
second_status=$?
wait "$first"
first_status=$?
cat "$folder/first" "$folder/second"
seconds=$(($(date +%s) - begin))
for half_status in "first $first_status" "second $second_status"; do
  status=${half_status#* }
  [ "$status" -le 1 ] || echo "not ok - the ${half_status% *} half ended with status $status"
done
echo "# $seeds seeds of each protocol took $seconds s"
