#!/usr/bin/env bash
# attack.sh: how long four ranks on two hosts take to make a communicator while a stranger attacks the control
# port of rank 0's process, and how much memory that process holds for it. The hosts are network namespaces
# (root); tests/attack/stranger.c describes the attacks.
#
#   bench/attack.sh [ROUNDS [CONNECTIONS]]      5 rounds of each attack, 1000 connections
#   BUILD=OTHER/build STRANGER=build/tests/stranger bench/attack.sh     another version is attacked
#
# Prints, for each attack, how many of the rounds ended well; the median and the largest time of the last
# rank's ncclCommInitRank, in ms; and by how much rank 0's largest resident memory exceeds what it was before,
# in KiB, less the same without an attack. Appends to results/attack-<date>.txt.
. "$(dirname "$0")/bench.inc"
rounds=${1:-5} connections=${2:-1000}
failures=0
here=$(cd "$here/../tests" && pwd)
set +eu
. "$here/hosts.inc"
[ -z "$(hosts_missing)" ] || { hosts_missing; exit 3; }
. "$here/attack/meet.inc"
export TUTTI_TRACE="$work/" TUTTI_INIT_TIMEOUT_SECONDS=20
hosts_up 2
usual=0

# row NAME CONNECTIONS ARGS...: one attack.
row() {
  good=0 most=0
  : >"$work/times"
  for _ in $(seq "$rounds"); do
    meet "${@:2}" && good=$((good + 1))
    sed -n 's/^rank 3 init took \([0-9]*\) ms/\1/p' "$work/rank.3" >>"$work/times"
    [ "$((held - usual))" -le "$most" ] || most=$((held - usual))
  done
  [ "$1" != none ] || usual=$most most=0
  say "$(sort -n "$work/times" | awk -v name="$1" -v good="$good" -v rounds="$rounds" -v most="$most" '
    {time[NR] = $1}
    END {printf "%-6s %2d of %d   %6s %6s ms %8d KiB", name, good, rounds,
         NR ? time[int((NR + 1) / 2)] : "-", NR ? time[NR] : "-", most}')"
}

say "attack   made   median largest      held       $connections connections; build $(git -C "$build" \
  log -1 --format='commit %h')"
row none
for attack in idle half slow hello proof noise http huge; do row $attack $attack "$connections"; done
row flood flood 64
