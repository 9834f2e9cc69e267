#!/bin/sh
# test_digests.sh: the results of every collective, type and operator have the bits that a GPU gave. Runs
# digest.c on the emulator, both modes, every protocol, and compares with tests/golden/digests-*.txt;
# `bench/gpu.sh check digests` compares GPUs with the same files. Prints one `ok - `, `not ok - ` or `skip:
# ` line per check and fails if a check failed. Finds the library at ${BUILD:-build}.
#
#     tests/test_digests.sh --record     rewrites the files from the emulator: unconfirmed by a GPU
#
# A file digests-<ranks>.txt is valid for every protocol, because a sum of two is the same in either order;
# a file digests-<ranks>-<protocol>.txt for one protocol. Its lines that begin with # name the settings:
# buffers so small that these few elements make many chunks and loops.
# runner: 7 s
. "$(dirname "$0")/script.inc"
use_build
export LD_LIBRARY_PATH="$build/lib"
settings="NCCL_BUFFSIZE=4096 NCCL_LL_BUFFSIZE=4096 NCCL_LL128_BUFFSIZE=3840 NCCL_MAX_NCHANNELS=4"

# emulate RANKS PROTOCOL MODE SETTINGS [COUNT...]: digest's lines on standard output. Uses rings, as on
# GPUs: other algorithms add in another order.
emulate() {
  ranks=$1 protocol=$2 mode=$3 list=$4
  shift 4
  # The settings are a list of words.
  # shellcheck disable=SC2086
  env $list NCCL_ALGO=Ring NCCL_PROTO="$protocol" TUTTI_EMU="mode=$mode,channels=4" \
    timeout 100 "$work/digest" "$ranks" "$@"
}

# record RANKS PROTOCOL NAME: writes one golden file.
record() {
  {
    echo "# tests/digest.c, $1 ranks, made with $2; written by tests/test_digests.sh --record"
    echo "# settings: $settings"
    echo "# recorded on: NOT YET CONFIRMED on a GPU"
    emulate "$1" "$2" threads "$settings"
  } >"$here/golden/digests-$3.txt"
}

# same RANKS PROTOCOL MODE GOLDEN [COUNT]: the emulator's text equals the golden file, or COUNT's lines of
# it.
same() {
  golden=$4
  list=$(sed -n 's/^# settings: //p' "$golden")
  [ -n "$list" ] || return 1
  emulate "$1" "$2" "$3" "$list" ${5+"$5"} >"$work/out" 2>"$work/log" || return 1
  grep -v '^#' "$golden" | awk -v count="${5-}" 'count == "" || $4 == count' >"$work/golden"
  [ -s "$work/golden" ] && diff "$work/golden" "$work/out" >"$work/log"
}

# Word splitting is wanted: pkg-config's answer is a list of flags.
# shellcheck disable=SC2046
cc -O2 -Wall -o "$work/digest" "$here/digest.c" $(pkg-config --cflags --libs tutti-emu) >"$work/log" 2>&1
check $? "digest.c builds for the emulator"

if [ "${1-}" = --record ]; then
  record 2 Simple 2
  for protocol in Simple LL LL128; do record 4 $protocol 4-$protocol; done
fi

for ranks in 2 4; do
  for protocol in Simple LL LL128; do
    golden=$here/golden/digests-$ranks-$protocol.txt
    [ -f "$golden" ] || golden=$here/golden/digests-$ranks.txt
    same "$ranks" "$protocol" threads "$golden"
    check $? "$ranks ranks, $protocol, threads: results equal the recorded bits"
    same "$ranks" "$protocol" guarded "$golden" 777
    check $? "$ranks ranks, $protocol, guarded, 777 elements: results equal the recorded bits"
  done
done
for golden in "$here"/golden/digests-*.txt; do
  grep -q '^# recorded on: NOT YET' "$golden" &&
    echo "skip: $(basename "$golden"): no GPU has confirmed it yet"
done

[ "$failures" -eq 0 ]
