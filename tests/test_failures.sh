#!/bin/sh
# test_failures.sh: eight real processes on four hosts lose one process, a host, or half of all, at random
# moments, and in every way that namespaces offer. Each run is drawn from its seed. Guarantees of a run:
# every survivor's call ends in time with an error that names a lost rank; survivors then shrink and
# complete a checked all-reduce, each half of a partition by itself; no resource of the library is left in
# them. Faults that only disturb (loss, delay, reordering) end with right results.
#
#  test_failures.sh                one run of each kind (what the test command does)
#   RUNS=50 test_failures.sh        this many runs, seeds from SEED (1) on, kinds in turn
#   SEED=17 RUNS=1 test_failures.sh repeats that run
#   KINDS="kill stop" ...           only these kinds
#   JOBS=3 ...                      this many networks of hosts in parallel
#   VERBOSE=1 ...                   also prints the ranks' error messages
#
# Prints one `ok - ` or `not ok - ` line per run and fails if a run failed.
# runner: 80 s, waits
. "$(dirname "$0")/script.inc"
. "$here/hosts.inc"
use_build
hosts_or_skip failures
bridge_kinds='kill stop cut kill_host mute reset partition descriptors memory'
wire_kinds='one_way lossy'
: "${KINDS=$bridge_kinds $wire_kinds}" "${SEED=1}"
: "${RUNS=$(echo "$KINDS" | wc -w)}" "${STRIDE=1}"
: "${TUTTI_PEER_TIMEOUT_SECONDS=5}" # more where the machine has other work: silence is loss
export TUTTI_INIT_TIMEOUT_SECONDS=15 TUTTI_PEER_TIMEOUT_SECONDS
ls -d /dev/shm/*tutti* >"$work/shm_before" 2>/dev/null
all='0 1 2 3 4 5 6 7'
deadline=60

# random N: sets $drawn to a number below N.
random() {
  state=$(((state * 1103515245 + 12345) & 0x7fffffff))
  drawn=$(((state >> 8) % $1))
}

# Sleeps for this many milliseconds.
pause() { sleep "$(($1 / 1000)).$(printf %03d $(($1 % 1000)))"; }

# without LIST1 LIST2: the words of the first list that are not in the second.
without() {
  for item in $1; do
    case " $2 " in *" $item "*) ;; *) echo "$item" ;; esac
  done | tr '\n' ' '
}

commas() { echo "$1" | sed 's/^ *//; s/ *$//; s/  */,/g'; }

# start RANKS LOST ARGS...: starts ranks that will lose the ranks LOST; the first of $limited gets $limit.
start() {
  start_ranks=$1
  start_lost=$2
  shift 2
  [ -z "$start_lost" ] || set -- "$@" --shrink-after-error "$(commas "$start_lost")"
  for rank in $start_ranks; do
    ulimits=
    [ "$rank" != "$limited" ] || ulimits=$limit
    # shellcheck disable=SC2016
    hosts_start $((rank / 2 + 1)) sh -c "$ulimits"' exec "$@"' sh "$build/tests/rank_program" --rank "$rank" \
      --size 8 --id "$work/id" --deadline "$deadline" --seed "$seed" "$@" >"$work/rank.$rank" 2>&1
    eval "rank_process_$rank=$hosts_started"
  done
}

# The moment of the fault: random from the creation of the id on, so that it falls into the init, or into or
# between operations.
await_moment() {
  for _ in $(seq 1000); do
    [ ! -s "$work/id" ] || break
    sleep 0.01
  done
  random 4
  if [ "$drawn" -gt 0 ]; then # three of four behind the init
    for _ in $(seq 1000); do
      if grep -q "iteration 0 ok" "$work/rank.${first_rank:-0}"; then break; fi
      sleep 0.01
    done
    random 300
  else
    random 60
  fi
  moment="$drawn ms"
  pause "$drawn"
}

# A rank's exit status, which can be asked for only once: its process id may soon be another process's.
ended() {
  rank_wait "$1"
  ended_status=$?
  eval "rank_process_$1="
  return $ended_status
}

complain() { # RANK SENTENCE
  echo "rank $1: $2"
  grep -v 'iteration [0-9]* ok$' "$work/rank.$1" | tail -n 15 | sed 's/^/  /'
} >>"$work/log"

# What a process leaves after a clean end; the emulator keeps threads of blocks.
clean() {
  grep -Eq '^end descriptors (-[0-9]+|0) threads (-[0-9]+|[0-8]) allocations (-[0-9]+|[0-9]|1[0-9])$' \
    "$work/rank.$1"
}

# survived RANKS LOST: each rank got an error that names one of LOST, and continued without it.
survived() {
  named=$(commas "$2" | tr , '|')
  good=0
  for rank in $1; do
    ended "$rank"
    status=$?
    if { [ "$status" -eq 3 ] || [ "$status" -eq 0 ]; } &&
      grep -Eq "^rank $rank init error [26] .*(ranks? (.*\\b)?($named)\\b|root)" "$work/rank.$rank"; then
      status=0
    elif [ "$status" -ne 0 ]; then
      complain "$rank" "status $status"
    elif ! grep -Eq "iteration [0-9]+ error [26] .*rank ($named)\\b.*10\\.99\\.0\\." "$work/rank.$rank"; then
      complain "$rank" "no error that names one of $named and its address"
      status=1
    elif ! grep -q 'all_reduce after shrink ok' "$work/rank.$rank"; then
      complain "$rank" 'no all-reduce after the shrink'
      status=1
    fi
    if ! clean "$rank"; then
      complain "$rank" 'something is left'
      status=1
    fi
    [ "$status" -eq 0 ] || good=1
  done
  return $good
}

# Resources of the library that remain on hosts after all of its processes have ended: listening sockets,
# named memory.
nothing_left() {
  for host in 1 2 3 4; do
    # shellcheck disable=SC2016
    hosts_exec "$host" sh -c '[ -z "$(grep tutti- /proc/net/unix)" ] &&
      [ -z "$(cat /proc/net/tcp /proc/net/tcp6 | awk "\$4 == \"0A\"")" ]' && continue
    echo "host $host: sockets are left"
    return 1
  done >>"$work/log"
  # Files that existed before do not count: they are other programs' traces.
  for name in /dev/shm/*tutti*; do
    if [ -e "$name" ] && ! grep -Fqx "$name" "$work/shm_before"; then
      echo "$name is left" >>"$work/log"
      return 1
    fi
  done
}

finished() { # RANKS
  good=0
  for rank in $1; do
    ended "$rank"
    status=$?
    [ "$status" -eq 0 ] && clean "$rank" && continue
    complain "$rank" "status $status"
    good=1
  done
  return $good
}

# How ranks wait: in the call, by polling in turns, or by polling only the stream.
draw_wait() {
  random 3
  case $drawn in 0) endless=--poll ;; 1) endless=--query ;; *) endless= ;; esac
  endless="$endless --ops all_reduce,alltoall,sendrecv --iterations 1000000"
}

draw_bytes() {
  random 3
  case $drawn in 0) bytes=64 ;; 1) bytes=20000 ;; *) bytes=400000 ;; esac
}

# ---- kinds: each sets $what and returns 0 if all guarantees hold ----

one_lost() { # SIGNAL
  random 8
  lost=$drawn
  what="rank $lost"
  first_rank=$(((lost + 1) % 8))
  # shellcheck disable=SC2086
  start "$(without "$all" "$lost")" "$lost" $endless --bytes "$bytes"
  # shellcheck disable=SC2086
  start "$lost" '' $endless --bytes "$bytes"
  await_moment
  rank_signal "$lost" "$1"
  survived "$(without "$all" "$lost")" "$lost"
  result=$?
  rank_signal "$lost" KILL 2>/dev/null
  ended "$lost"
  return $result
}

run_kill() { one_lost KILL; }
run_stop() { one_lost STOP; }

# Both sides of a partition continue by themselves: SIDE and the others.
two_sides() { # SIDE BREAK...
  side=$1
  shift
  others=$(without "$all" "$side")
  # shellcheck disable=SC2086
  start "$side" "$others" $endless --bytes "$bytes"
  # shellcheck disable=SC2086
  start "$others" "$side" $endless --bytes "$bytes"
  await_moment
  "$@" || return 1
  survived "$side" "$others"
  first=$?
  survived "$others" "$side" && [ "$first" -eq 0 ]
}

draw_host() {
  random 4
  host=$((drawn + 1))
  pair="$((drawn * 2)) $((drawn * 2 + 1))"
  what="host $host"
}

run_cut() {
  draw_host
  two_sides "$pair" hosts_cut "$host"
  result=$?
  hosts_join "$host"
  return $result
}

run_mute() {
  draw_host
  two_sides "$pair" hosts_mute "$host"
  result=$?
  hosts_unmute "$host"
  return $result
}

run_kill_host() {
  draw_host
  first_rank=$(((drawn * 2 + 2) % 8))
  # shellcheck disable=SC2086
  start "$(without "$all" "$pair")" "$pair" $endless --bytes "$bytes"
  # shellcheck disable=SC2086
  start "$pair" '' $endless --bytes "$bytes"
  await_moment
  for rank in $pair; do rank_signal "$rank" KILL; done
  survived "$(without "$all" "$pair")" "$pair"
  result=$?
  for rank in $pair; do ended "$rank"; done
  return $result
}

# Answers all TCP between this host and others with a reset, in both directions.
reset_host() {
  hosts_exec "$host" nft "table inet resets {
    chain in { type filter hook input priority 0; iifname eth0 meta l4proto tcp reject with tcp reset; }
    chain out { type filter hook output priority 0; oifname eth0 meta l4proto tcp reject with tcp reset; }; }"
}

run_reset() {
  draw_host
  two_sides "$pair" reset_host
  result=$?
  hosts_exec "$host" nft delete table inet resets
  return $result
}

# All ports move at once: moved one after another they would partition the second half for a while.
partition() {
  hosts_in "$hosts_switch" nft 'table bridge halves { chain between { type filter hook forward priority 0;
    iifname { p1, p2 } oifname { p3, p4 } drop; iifname { p3, p4 } oifname { p1, p2 } drop; }; }'
}

run_partition() {
  what='two halves'
  two_sides '0 1 2 3' partition
  result=$?
  hosts_in "$hosts_switch" nft delete table bridge halves
  return $result
}

# One rank has too little of a resource: either it is enough, or that rank says so and all ranks learn of
# it.
lacking() {
  random 8
  limited=$drawn
  first_rank=$limited
  # shellcheck disable=SC2086
  start "$(without "$all" "$limited")" "$limited" --bytes "$bytes" --iterations 3
  start "$limited" '' --bytes "$bytes" --iterations 3
  ended "$limited"
  status=$?
  if [ "$status" -eq 0 ]; then
    what="$what sufficed"
    finished "$(without "$all" "$limited")"
    return
  fi
  what="$what did not suffice"
  result=0
  if [ "$status" -ne 3 ] || ! grep -Eq "rank $limited [a-z].* error [1-9]" "$work/rank.$limited"; then
    complain "$limited" "status $status"
    result=1
  fi
  for rank in $(without "$all" "$limited"); do
    ended "$rank"
    status=$?
    { [ "$status" -eq 0 ] || [ "$status" -eq 3 ]; } && clean "$rank" && continue
    complain "$rank" "status $status"
    result=1
  done
  return $result
}

run_descriptors() {
  random 40
  limit="ulimit -n $((drawn + 6));"
  what="rank with $((drawn + 6)) descriptors:"
  lacking
}

run_memory() {
  random 30
  limit="ulimit -v $(((drawn + 3) * 20000));"
  what="rank with $(((drawn + 3) * 20)) MB of addresses:"
  lacking
}

# What the host sends is lost; what others send arrives.
cut_one_way() { hosts_wire set "$host" '*' cut=1; }

run_one_way() {
  draw_host
  two_sides "$pair" cut_one_way
  result=$?
  hosts_wire set '*' '*' cut=0
  return $result
}

run_lossy() {
  random 4
  case $drawn in
    0) what='loss_ppm=10000' ;;
    1) what='delay_us=3000 jitter_us=3000' ;;
    2) what='reorder_ppm=100000' ;;
    *) what='delay_us=500 loss_ppm=3000 reorder_ppm=20000 dup_ppm=20000' ;;
  esac
  for setting in $what; do hosts_wire set '*' '*' "$setting" || return 1; done
  [ "$bytes" -le 20000 ] || bytes=50000
  start "$all" '' --ops all_reduce,alltoall,sendrecv --iterations 3 --bytes "$bytes"
  finished "$all"
  result=$?
  hosts_wire set '*' '*' delay_us=0 jitter_us=0 loss_ppm=0 reorder_ppm=0 dup_ppm=0
  return $result
}

one_run() {
  kind=$1
  seed=$2
  state=$((seed * 2654435761 & 0x7fffffff))
  what=$kind
  moment=
  limited=none
  limit=
  first_rank=0
  rm -f "$work"/rank.* "$work"/id* "$work/log"
  random 3
  mode=threads
  [ "$drawn" -gt 0 ] || mode=guarded
  export TUTTI_EMU="mode=$mode"
  draw_bytes
  draw_wait
  begin=$(date +%s%N)
  "run_$kind"
  result=$?
  took=$((($(date +%s%N) - begin) / 1000000))
  [ -z "${VERBOSE-}" ] || grep -h ' error ' "$work"/rank.*
  for rank in $all; do # those that failed to end
    eval "[ -n \"\${rank_process_$rank-}\" ]" || continue
    rank_signal "$rank" KILL
    ended "$rank"
  done
  nothing_left || result=1
  check $result "seed $seed: $kind, $what, $mode, $bytes bytes${moment:+, after $moment}: $took ms"
}

# of KINDS LIST: those of KINDS that are in LIST.
of() {
  for kind in $1; do
    case " $2 " in *" $kind "*) echo "$kind" ;; esac
  done
}

# With JOBS, each job takes every JOBS-th seed.
if [ "${JOBS:-1}" -gt 1 ]; then
  list=
  for job in $(seq "$JOBS"); do
    STRIDE=$JOBS SEED=$((SEED + job - 1)) RUNS=$(((RUNS - job) / JOBS + 1)) KINDS=$KINDS JOBS=1 sh "$0" &
    list="$list $!"
  done
  for job in $list; do wait "$job" || failures=1; done
  exit "$failures"
fi

# The runs of one network, seeds SEED to SEED + RUNS - 1, kinds in turn.
runs() { # LIST
  index=0
  count=$(echo "$KINDS" | wc -w)
  while [ "$index" -lt "$RUNS" ]; do
    number=$((SEED + index * STRIDE))
    index=$((index + 1))
    chosen=$(echo "$KINDS" | tr -s ' ' '\n' | sed -n "$(((number - 1) % count + 1))p")
    case " $1 " in *" $chosen "*) one_run "$chosen" "$number" ;; esac
  done
}

if [ -n "$(of "$KINDS" "$bridge_kinds")" ]; then
  hosts_up 4
  check $? 'four hosts on a bridge are set up'
  runs "$bridge_kinds"
  hosts_down
fi
if [ -n "$(of "$KINDS" "$wire_kinds")" ]; then
  hosts_up_wire 4 -s "$SEED"
  check $? 'four hosts on wire are set up'
  runs "$wire_kinds"
fi
[ "$failures" -eq 0 ]
