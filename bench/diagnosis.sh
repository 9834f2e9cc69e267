#!/usr/bin/env bash
# diagnosis.sh: the accuracy of `tutti explain`: 1,000 runs of the emulator, each with the fault of its number
# (tests/diagnosis_case.h), and the diagnosis of the files that it leaves; a table of precision and recall,
# and a line for each wrong diagnosis. If this build has `tutti replay`, it replays each run's files, too.
# Appends commands and raw output to bench/results/diagnosis-<date>.txt. Ten minutes on two cores.
#
#   bench/diagnosis.sh [FIRST [COUNT]]   the runs of these numbers (default 1 1000)
set -eu -o pipefail
unset NCCL_PROTO NCCL_ALGO NCCL_DEBUG TUTTI_EMU TUTTI_SEED TUTTI_EVENTS
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${BUILD:-$here/../build}" && pwd)
raw=$here/results/diagnosis-$(date +%Y-%m-%d).txt
replay=()
if "$build/bin/tutti" help 2>/dev/null | grep -Eq '^ *(tutti )?replay '; then replay=(--replay "$build/bin/tutti"); fi
command=("$build/tests/diagnosis_program" "${1:-1}" "${2:-1000}" --jobs "${JOBS:-2}" "${replay[@]}")
{
  echo "# $(date +%F) $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
  echo "# ${command[*]##*/}"
} | tee -a "$raw"
"${command[@]}" 2>&1 | tee -a "$raw"
