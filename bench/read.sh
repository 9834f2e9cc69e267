#!/bin/sh
# read.sh: on a machine with GPUs, the times of Simple's rings and messages with slots at the receiver and at
# the sender (NCCL_P2P_READ_ENABLE), in turns.
#
#     bench/read.sh [GPUS [MINBYTES [MAXBYTES]]]      default: all GPUs, 1M, 256M
#
#     BUILD=build     has bin/tutti, lib/libnccl.so.2 and lib/libtutti-cuda.so
#     COLLECTIVES=    default: all_reduce all_gather broadcast sendrecv alltoall
#     ROUNDS=5        times that the three settings take turns; the table has medians
#     PROCESSES=1     a process for each GPU, in place of a thread for all: needs GPUS
#     FLAGS=          more flags of `tutti bench`
#
# Prints a row for each collective and size: microseconds of a call with direct stores into outputs, as by
# default; with slots at the receiver (NCCL_P2P_DIRECT_DISABLE=1); with slots at the sender; and the quotient
# of the last two. Every result is checked. Exit status 1: a run failed or a result was wrong.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${BUILD:-$here/../build}" && pwd) || exit 3
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
unset NCCL_P2P_READ_ENABLE NCCL_P2P_DIRECT_DISABLE
export NCCL_PROTO=Simple NCCL_ALGO=Ring
status=0

# one COLLECTIVE KIND VARIABLE=VALUE...: adds `KIND COLLECTIVE BYTES MICROSECONDS` for each size to $work/rows.
one() {
  collective=$1 kind=$2
  shift 2
  starter='' ranks=${gpus:+-g $gpus}
  [ -z "${PROCESSES:-}" ] || starter="$build/bin/tutti launch -n $gpus" ranks='-g 1'
  # The prefix and the flags are lists of words.
  # shellcheck disable=SC2086
  env "$@" $starter "$build/bin/tutti" bench "$collective" --gpu $ranks -b "$least" -e "$most" -f 4 -q \
    ${FLAGS:-} >"$work/out" 2>"$work/log" </dev/null || : >"$work/out"
  if [ "$(awk '$9 != "N/A" { wrong += $9 } END { print (NR > 0), wrong + 0 }' "$work/out")" != "1 0" ]; then
    echo "$collective with $*: failed, or a wrong result" >&2
    tail -n 3 "$work/log" "$work/out" >&2
    status=1
    return
  fi
  awk -v kind="$kind" -v collective="$collective" '{ print kind, collective, $1, $6 }' "$work/out" >>"$work/rows"
}

gpus=${1:-} least=${2:-1M} most=${3:-256M}
[ -z "${PROCESSES:-}" ] || [ -n "$gpus" ] || { echo "read.sh: PROCESSES=1 needs the number of GPUs" >&2; exit 3; }
: >"$work/rows"
for _ in $(seq "${ROUNDS:-5}"); do
  for collective in ${COLLECTIVES:-all_reduce all_gather broadcast sendrecv alltoall}; do
    one "$collective" direct NCCL_P2P_READ_ENABLE=0
    one "$collective" write NCCL_P2P_DIRECT_DISABLE=1
    one "$collective" read NCCL_P2P_READ_ENABLE=1
  done
done
echo '# collective bytes direct_us write_us read_us read/write'
sort -k2,2 -k3,3n -k1,1 -k4,4n "$work/rows" | awk '
  function median() { return times[int((count + 1) / 2)] }
  function leave() {
    if (key == "") return
    took[kind] = median()
    if (kind == "write") printf "%s %.1f %.1f %.1f %.3f\n", name, took["direct"], took["write"], took["read"], \
      took["read"] / took["write"]
  }
  { if ($1 " " $2 " " $3 != key) { leave(); count = 0 }
    key = $1 " " $2 " " $3; kind = $1; name = $2 " " $3; times[++count] = $4 }
  END { leave() }'
exit $status
