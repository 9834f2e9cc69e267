#!/usr/bin/env bash
# watchdog.sh: the cost of the watchdog: TUTTI_WATCHDOG_SECONDS=30, the default, compared with 0, which
# disables it. Appends to bench/results/watchdog-<date>.txt. Needs a finished build, with its tests, in
# ${BUILD:-build} and a quiet machine; two minutes.
#
#   cost   all-reduces of two ranks on the emulator's free threads, by processes without and with in turns
#   idle   four processes of a job that calls nothing: CPU time and wake-ups of a process, without and with
. "$(dirname "$0")/bench.inc"
rounds=${ROUNDS:-31}
seconds=${SECONDS_IDLE:-20}

# once SETTING BYTES CALLS: us of an out-of-place all-reduce.
once() {
  TUTTI_TRACE=/dev/shm/ TUTTI_WATCHDOG_SECONDS=$1 $quiet "$build/bin/tutti" bench all_reduce -t 2 -g 1 --threads \
    -b "$2" -e "$2" -n "$3" -c 0 | awk -v bytes="$2" '$1 == bytes { print $6 }'
}

# spent PROCESS...: CPU time of all their threads in ns, and how often those have gone to sleep.
spent() {
  local process
  for process; do
    cat /proc/"$process"/task/*/schedstat | awk '{ print $1, 0 }'
    cat /proc/"$process"/task/*/status | awk '/^voluntary_ctxt_switches/ { print 0, $2 }'
  done | awk '{ ns += $1; sleeps += $2 } END { print ns, sleeps }'
}

# idle SETTING: of one of four processes, in a second.
idle() {
  local list=() rank ns sleeps before slept
  mkdir "$work/job"
  for rank in 0 1 2 3; do
    TUTTI_EMU=mode=threads TUTTI_TRACE="$work/job/" TUTTI_WATCHDOG_SECONDS=$1 NCCL_SOCKET_IFNAME=lo \
      "$build/tests/rank_program" --rank "$rank" --id "$work/job/id" --size 4 --ops all_reduce --iterations 2 \
      --hold "1,$work/job/go" >"$work/job/rank.$rank" 2>&1 &
    list+=($!)
  done
  until [ "$(cat "$work"/job/rank.* | grep -c 'iteration 0 ok')" -eq 4 ]; do sleep 0.1; done
  sleep 2
  read -r before slept < <(spent "${list[@]}")
  sleep "$seconds"
  read -r ns sleeps < <(spent "${list[@]}")
  : >"$work/job/go"
  wait
  rm -r "$work/job"
  awk -v ns=$((ns - before)) -v sleeps=$((sleeps - slept)) -v over=$((4 * seconds)) \
    'BEGIN { printf "%.1f us, %.1f wake-ups", ns / 1000 / over, sleeps / over }'
}

for point in '8 20000' '65536 2000' '1048576 200'; do
  read -r bytes calls <<<"$point"
  for number in $(seq "$rounds"); do
    echo "$(once 0 "$bytes" "$calls") $(once 30 "$bytes" "$calls")" >"$work/pair.$number"
  done
  say "$bytes bytes, without and with: $(ratios "$work"/pair.*)"
done
for setting in 0 30 0 30; do say "idle, TUTTI_WATCHDOG_SECONDS=$setting: a second of a process: $(idle $setting)"; done
