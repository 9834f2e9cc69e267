#!/usr/bin/env bash
# repeat.sh: runs `./run test` repeatedly, in fresh clones of HEAD, some of them beside two busy loops.
#
#   bench/repeat.sh [RUNS [BUSY [FILE]]]    RUNS (10) clones, the last BUSY (3) of them beside the loops
#
# Appends to FILE, results/repeat-<date>.txt: the machine and the commit; for each run its time, build
# included, and its last lines; for a failed run also its messages. The whole output of a failed run is kept
# beside FILE, as FILE.run-N. The clones and the loops are removed when the script ends, for whatever reason.
# Exit status 1: a run failed.
set -eu -o pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
runs=${1:-10} busy=${2:-3} file=${3:-$here/results/repeat-$(date +%F).txt}
work=$(mktemp -d)
loops= running= failed=0

# Ends the current run: its whole process group.
end_run() {
  [ -n "$running" ] || return 0
  kill -TERM -- "-$running" 2>/dev/null || true
  wait "$running" || true
  running=
}
end_loops() {
  for process in $loops; do kill "$process" 2>/dev/null || true; done
  loops=
}
trap 'end_run; end_loops; rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM

say() { printf '%s\n' "$*" | tee -a "$file"; }

begin_loops() {
  for _ in 1 2; do
    sh -c 'while :; do :; done' &
    loops="$loops $!"
  done
}

# one NUMBER BESIDE: runs a fresh clone's ./run test, and reports the result.
one() {
  local begin status=0 log=$work/log-$1
  rm -rf "$work/clone"
  git clone -q "$here/.." "$work/clone"
  git -C "$work/clone" checkout -q "$commit"
  begin=$(date +%s)
  setsid "$work/clone/run" test >"$log" 2>&1 </dev/null &
  running=$!
  wait "$running" || status=$?
  running=
  say "run $1${2:+, $2}: exit status $status, $(($(date +%s) - begin)) s with the build; its tests:" \
    "$(grep -E '^[0-9]+ (s$|passed, )' "$log" | tail -n 2 | paste -sd ' ')"
  [ "$status" -eq 0 ] && return
  failed=$((failed + 1))
  sed -n '/^failed:/,$p' "$log" | sed '/^[0-9]* passed/d; s/^/  /' | tee -a "$file"
  cp "$log" "$file.run-$1"
}

commit=$(git -C "$here" rev-parse HEAD)
say "# $(date '+%F %R') $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores," \
  "$(($(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo) / 1048576 + 1)) GB," \
  "$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), load $(cut -d' ' -f1 /proc/loadavg)," \
  "commit ${commit:0:12}"
for number in $(seq "$runs"); do
  beside=
  if [ "$number" -gt $((runs - busy)) ]; then
    beside='beside two busy loops'
    begin_loops
  fi
  one "$number" "$beside"
  end_loops
done
say "$((runs - failed)) of $runs runs without a failure"
[ "$failed" -eq 0 ]
