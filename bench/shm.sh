#!/bin/sh
# shm.sh: on a machine with a GPU, two processes that do not map each other's memory (NCCL_P2P_DISABLE=1), so
# that data passes through memory of the host (SHM): NVIDIA's NCCL beside this library, in turns, and copies
# through pinned memory of the host. With one GPU both processes are on it.
#
#     bench/shm.sh [MINBYTES [MAXBYTES]]      default: 8, 256M
#
#     BUILD=build     has bin/tutti, lib/libnccl.so.2 and lib/libtutti-cuda.so
#     NCCL_LIB=       NVIDIA's libnccl.so.2; without it, this library alone
#     COLLECTIVES=    default: sendrecv all_reduce all_gather
#     ROUNDS=3        turns; the table has medians
#     PROCESSES=2
#     FLAGS=          more flags of `tutti bench`
#
# Prints a row for each collective and size: microseconds of a call, the bus bandwidth of both in GB/s, and
# NCCL's time divided by this library's. Each run's log must say "via SHM", and this library's results are
# checked. Two processes on one GPU share its link: each can send at half the rate at which the copies of both
# directions run. Exit status 1: a run failed, or used something else.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${BUILD:-$here/../build}" && pwd) || exit 3
toolkit=${CUDA_HOME:-/usr/local/cuda}
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
unset NCCL_PROTO NCCL_ALGO NCCL_HOSTID NCCL_SHM_DISABLE NCCL_P2P_LEVEL TUTTI_EMU
export NCCL_P2P_DISABLE=1 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_DEBUG=INFO NCCL_DEBUG_FILE="$work/log.%p"
status=0

# one LIBRARY FILE COLLECTIVE: adds `COLLECTIVE BYTES LIBRARY MICROSECONDS GB/S` for each size to $work/rows.
one() {
  library=$1 file=$2 collective=$3
  unset NCCL_COMM_ID
  # NVIDIA's library does not learn the id from `tutti launch`.
  [ "$library" != nccl ] || export NCCL_COMM_ID=127.0.0.1:$((20000 + $$ % 20000))
  rm -f "$work"/log.*
  # Flags are a list of words.
  # shellcheck disable=SC2086
  timeout 300 "$build/bin/tutti" launch -n "${PROCESSES:-2}" "$build/bin/tutti" bench "$collective" --gpu \
    --nccl "$file" -b "$least" -e "$most" -f 8 -n 20 -w 5 -q ${FLAGS:-} >"$work/out" 2>&1 || {
    echo "failed: $library $collective"
    tail -n 5 "$work/out"
    status=1
  }
  if ! grep -qhs 'via SHM' "$work"/log.* || grep -qhs 'via P2P' "$work"/log.*; then
    echo "failed: $library $collective: the log does not say \"via SHM\" alone"
    status=1
  fi
  awk -v collective="$collective" -v library="$library" '/^ *[0-9]+ +[0-9]+ / && NF >= 12 {
    print collective, $1, library, $6, $8; wrong += $9 } END { exit wrong > 0 }' "$work/out" >>"$work/rows" || {
    echo "failed: $library $collective: wrong results"
    status=1
  }
}

least=${1:-8} most=${2:-256M}
if cc -O2 -o "$work/host_copy" "$here/host_copy.c" -I"$toolkit/include" -L"$toolkit/lib64" -lcudart; then
  LD_LIBRARY_PATH=$toolkit/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$work/host_copy" || status=1
fi
: >"$work/rows"
for _ in $(seq "${ROUNDS:-3}"); do
  for collective in ${COLLECTIVES:-sendrecv all_reduce all_gather}; do
    [ -z "${NCCL_LIB:-}" ] || one nccl "$NCCL_LIB" "$collective"
    one tutti "$build/lib/libnccl.so.2" "$collective"
  done
done
echo 'collective bytes | NCCL us, GB/s | this library us, GB/s | ratio'
awk '
  function median(key, i, j, n, swap) {
    n = count[key]
    for (i = 2; i <= n; i++)
      for (j = i; j > 1 && value[key, j] < value[key, j - 1]; j--) {
        swap = value[key, j]; value[key, j] = value[key, j - 1]; value[key, j - 1] = swap
      }
    return n ? value[key, int((n + 1) / 2)] : 0
  }
  {
    row = $1 " " $2
    if (!(row in seen)) { seen[row] = 1; rows[++row_count] = row }
    key = row " " $3
    value[key, ++count[key]] = $4
    value[key "rate", ++count[key "rate"]] = $5
  }
  END {
    for (i = 1; i <= row_count; i++) {
      nccl = median(rows[i] " nccl"); ours = median(rows[i] " tutti")
      printf "%s | %.2f %.2f | %.2f %.2f | %.2f\n", rows[i], nccl, median(rows[i] " ncclrate"), ours,
        median(rows[i] " tuttirate"), (ours > 0 ? nccl / ours : 0)
    }
  }' "$work/rows"
exit "$status"
