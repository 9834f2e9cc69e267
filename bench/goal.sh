#!/usr/bin/env bash
# goal.sh: compares `tutti goal sim` with LogGOPSim (github.com/spcl/LogGOPSim) on the same files, which are
# exports of the library's own schedules: the last rank and its end must be equal to the nanosecond; user
# seconds and peak memory are measured in turns. LOGGOPSIM is a folder with the programs LogGOPSim and
# txt2bin, which you build. LogGOPSim orders ready operations by std::sort; every message here has a tag of
# its own, so the order of equal ones does not matter. PARTS: `ends`, `time` or both (the default). Appends
# raw output to bench/results/goal-<date>.txt. Needs a finished build in ${BUILD:-build}, and 1 GB in $TMPDIR.
set -eu -o pipefail
unset NCCL_DEBUG TUTTI_EMU
export LC_ALL=C TUTTI_TRACE=off
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${BUILD:-$here/../build}" && pwd)
peer=${LOGGOPSIM:?"a folder with LogGOPSim and txt2bin"}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
raw=$here/results/goal-$(date +%Y-%m-%d).txt
tutti=$build/bin/tutti
parts=${PARTS:-ends time}
different=0

say() { printf '%s\n' "$*" | tee -a "$raw"; }

# timed COMMAND...: "U s user, M KiB"; the command's output is in $work/said.
timed() { /usr/bin/time -o "$work/took" -f '%U s user, %M KiB' "$@" >"$work/said" 2>&1 && tail -n 1 "$work/took"; }

# ours FILE COSTS, theirs FILE COSTS: "HOST: NS" of the last rank.
ours() { "$tutti" goal sim --loggops "$2" "$1" | sed -n 's/^finished after \([0-9]*\) ns, last rank \([0-9]*\)/\2: \1/p'; }
theirs() {
  # shellcheck disable=SC2046
  "$peer/LogGOPSim" -b -f "$1" $(echo "$2" | sed 's/\([A-Za-z]\)=/-\1 /g; s/,/ /g') |
    sed -n 's/^Maximum finishing time at host \([0-9]*: [0-9]*\) .*/\1/p'
}

# same FILE COSTS
same() {
  local one two
  one=$(ours "$1" "$2") two=$(theirs "$1" "$2")
  if [ "$one" = "$two" ]; then say "  $2: last rank $one ns: the same"; else
    say "  $2: last rank $one ns, LogGOPSim $two: DIFFERENT"
    different=$((different + 1))
  fi
}

default=L=2500,o=1500,g=1000,O=0,G=6,S=65535
say "# $(date +%F) $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
say "# LogGOPSim: $(basename "$peer"); parts: $parts"
for ranks in 64 256 1024; do
  case $parts in *ends*) ;; *) break ;; esac
  for option in "all_reduce --algo ring --proto LL -b 1M" "all_reduce --algo ring --proto Simple -b 1M --channels 2" \
    "all_reduce --algo tree -b 1M --channels 4 --reduce-ns 30" "all_gather --algo pat -b 1M --proto Simple" \
    "reduce_scatter --algo ring -b 4M --proto LL128" "alltoall -b 1M"; do
    [ "$ranks" -gt 256 ] && case $option in *Simple*channels*|reduce_scatter*|alltoall*) continue ;; esac
    # shellcheck disable=SC2086
    say "$("$tutti" goal export $option -g "$ranks" -o "$work/x.bin" | sed 's/^[^:]*: //'): $option"
    for costs in $default L=700,o=90,g=40,O=1,G=2,S=65535 L=2500,o=1500,g=1000,O=0,G=6,S=500; do
      same "$work/x.bin" "$costs"
    done
  done
done

say "# what it takes: 1 MiB ring all-reduce, 2n(n-1) messages, in turns"
for ranks in 64 256 1024; do
  case $parts in *time*) ;; *) break ;; esac
  "$tutti" goal export all_reduce --algo ring --proto LL -b 1M -g "$ranks" -o "$work/ring.goal" >/dev/null
  say "$ranks ranks, text to binary: txt2bin $(timed "$peer/txt2bin" -i "$work/ring.goal" -o "$work/theirs.bin")"
  say "$ranks ranks, text to binary: tutti goal convert $(timed "$tutti" goal convert "$work/ring.goal" -o "$work/ring.bin")"
  cmp "$work/theirs.bin" "$work/ring.bin" && say "$ranks ranks: both binaries are the same, $(wc -c <"$work/ring.bin") bytes"
  for _ in 1 2 3; do
    say "$ranks ranks: LogGOPSim $(timed "$peer/LogGOPSim" -b -f "$work/ring.bin"): $(tail -n 1 "$work/said")"
    say "$ranks ranks: tutti goal sim $(timed "$tutti" goal sim "$work/ring.bin"): $(tail -n 1 "$work/said")"
    say "$ranks ranks: tutti goal sim, from text $(timed "$tutti" goal sim "$work/ring.goal"): $(tail -n 1 "$work/said")"
  done
done
[ "$different" -eq 0 ]
