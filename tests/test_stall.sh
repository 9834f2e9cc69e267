#!/bin/sh
# test_stall.sh: operations that hang because of another process: a rank that has left too early, a late
# rank, a stopped process, a network that loses the last message or goes silent. A permanent hang fails with
# a message that names rank, process and operation; a late rank is named in a warning, and the results are
# right. All cases run in parallel. Prints one `ok - ` or `not ok - ` line per check and fails if a check
# failed. Finds the build at ${BUILD:-build}. SLOW=1: in a third of the time, on an idle machine; SLOW=5:
# under a sanitizer.
# runner: 30 s, waits
. "$(dirname "$0")/script.inc"
use_build
unset NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID NCCL_SHM_DISABLE NCCL_P2P_DISABLE TUTTI_NET_FAULTS
unset TUTTI_RANK TUTTI_SIZE TUTTI_RENDEZVOUS TUTTI_JOB
slow=${SLOW:-3}
export NCCL_SOCKET_IFNAME=lo TUTTI_INIT_TIMEOUT_SECONDS=$((20 * slow)) TUTTI_STALL_SECONDS="$slow"
export TUTTI_PEER_TIMEOUT_SECONDS=$((20 * slow)) TUTTI_NET_PATIENCE_SECONDS=$((2 * slow)) NCCL_DEBUG=WARN
export NCCL_CHECK_MODE=LOCAL # calls are not compared, which would find some of these ranks before they hang
list=

# begin RANK HOST ARGS...: starts one process; $begun is its process id.
begin() {
  begin_rank=$1
  begin_host=$2
  shift 2
  NCCL_HOSTID=$begin_host "$build/tests/rank_program" --rank "$begin_rank" --id "$work/id" \
    --deadline $((30 * slow)) "$@" >"$work/rank.$begin_rank" 2>&1 &
  begun=$!
  list="$list $begun"
}

# finish: $statuses has the exit statuses of all started processes in order, and $work/log their output.
finish() {
  # shellcheck disable=SC2086
  wait_all $list
  cat "$work"/rank.* >"$work/log"
}

has() {
  grep -Eq -e "$1" "$work/log"
  noted $? "a line like $1"
}
rank_has() {
  grep -Eq -e "$2" "$work/rank.$1"
  noted $? "rank $1 says $2"
}

# host RANK MODE: the host id of a rank.
host() { [ "$2" = memory ] && echo one || echo "host$1"; }

# leaves MODE: rank 0 calls two all-reduces and leaves; ranks 1 and 2 call a third.
leaves() {
  for rank in 0 1 2; do
    iterations=3
    [ "$rank" != 0 ] || iterations=2
    begin $rank "$(host $rank "$1")" --size 3 --ops all_reduce --iterations $iterations
  done
  finish
  [ "$statuses" = '0 3 3 ' ] && has 'rank 0 .*destroy ok' &&
    rank_has 1 '^rank 1 all_reduce iteration [12] error 6 ' &&
    rank_has 2 '^rank 2 all_reduce iteration [12] error 6 ' || return 1
  if [ "$1" = network ]; then # the network says so itself
    has '^rank [12] .* error 6 .*(receiving from|sending to) rank 0 .*'
    return
  fi
  said='rank 0 \(process [0-9]+ on .*\) has left the communicator.*; rank [12] waits for it in all_reduce #2'
  if [ "${TUTTI_EMU:-}" = mode=guarded ]; then # nothing can move: that is found at once
    rank_has 1 ' rank 1 .*all_reduce #2 .* rank 0 has left the communicator'
    return
  fi
  rank_has 1 "^rank 1 .* error 6 .*$said" && rank_has 2 "^rank 2 .* error 6 .*$said"
}

# half_leaves: ranks 0 and 1 are in one process, which continues when rank 0 has destroyed its communicator.
half_leaves() {
  begin 0 one --size 4 --here 2 --ops all_reduce --iterations 3 --leave-at 0,2
  begin 2 one --size 4 --here 2 --ops all_reduce --iterations 3
  finish
  [ "$statuses" = '3 3 ' ] &&
    [ "$(grep -c '^rank [123] all_reduce iteration 2 error 6 ' "$work/log")" -eq 3 ] &&
    has 'rank 0 (\(process .*\) has left the communicator after 2 operations; rank [123] |has launched 2)'
}

# go_when RANKS PATTERN...: a process that waits for $work/go continues when each of RANKS (a shell pattern)
# has printed every PATTERN, or at the deadline.
go_when() {
  turns=$((30 * slow * 5))
  sayers=$1
  shift
  for pattern; do
    # shellcheck disable=SC2086
    until cat "$work"/rank.$sayers 2>/dev/null | grep -Eq -e "$pattern" || [ $turns -eq 0 ]; do
      turns=$((turns - 1))
      sleep 0.2
    done
  done
  : >"$work/go"
}

# late MODE: rank 0 calls its second operation after rank 1 has reported that rank 0 is late.
late() {
  begin 0 "$(host 0 "$1")" --size 2 --ops all_reduce --iterations 2 --hold 1,"$work/go"
  begin 1 "$(host 1 "$1")" --size 2 --ops all_reduce --iterations 2
  go_when 1 '^  rank 0 \(process [0-9]+ on .*\) has called 1 operations, and not all_reduce #1 yet'
  finish
  [ "$statuses" = '0 0 ' ] && ! has ' error ' && rank_has 1 'and not all_reduce #1 yet'
}

# in_turn: rank 0 is late, and each rank behind it reports that the next one waits itself.
in_turn() {
  waits='^  rank [123] .* has called it too; it waits itself for rank [0-3] in broadcast #0'
  begin 0 one --size 4 --ops broadcast --iterations 1 --bytes 4000000 --hold 0,"$work/go"
  for rank in 1 2 3; do
    begin $rank one --size 4 --ops broadcast --iterations 1 --bytes 4000000
  done
  late='^  rank 0 .* has called 0 operations, and not broadcast #0 yet'
  go_when '[123]' "$waits" "$late"
  finish
  [ "$statuses" = '0 0 0 0 ' ] && ! has ' error ' && has "$waits" && has "$late"
}

# fault_net KIND AT ARGS...: two hosts exchange messages three times; the fault hits a message of rank 0,
# which gets ARGS.
fault_net() {
  export NCCL_NET_PLUGIN="$build/lib/libtutti-net-fault.so" TUTTI_NET_FAULTS="fault=$1,fault_at=$2"
  shift 2
  begin 0 host0 --size 2 --ops sendrecv "$@"
  unset TUTTI_NET_FAULTS
  begin 1 host1 --size 2 --ops sendrecv
  finish
}

falls_silent() {
  fault_net stop 3
  [ "$statuses" = '3 3 ' ] && rank_has 1 '^rank 1 sendrecv iteration 2 error 6 ' &&
    has 'network FaultNet: message [0-9]+ of connection [01] -> [01], .*(is not taken|has not come)'
}

# lost: the last message of rank 0 is lost, while its operations are over and its process is alive, until
# rank 1 has printed PATTERN: no later message would reveal the loss.
lost() {
  (go_when 1 "$1") &
  goer=$!
  fault_net drop 3 --hold 3,"$work/go"
  wait "$goer"
  [ "$statuses" = '0 3 ' ] && rank_has 1 "$1"
}

loses_last() {
  lost '^rank 1 sendrecv iteration 2 error 6 .*' &&
    rank_has 1 'network FaultNet: message 2 of connection 0 -> 1, .* has not come, though the network took it'
}

loses_last_patiently() {
  export TUTTI_NET_PATIENCE_SECONDS=0
  lost '^  rank 0 \(process [0-9]+ on .*\) has called 6 operations; it has finished all that it called' &&
    ! has 'network FaultNet: message'
}

# stopped: rank 0 is stopped for longer than all timeouts, and continues.
stopped() {
  set -- --size 2 --ops all_reduce,alltoall --iterations 20 --pace 100 --bytes 200000
  begin 0 host0 "$@"
  stopped_process=$begun
  begin 1 host1 "$@"
  sleep 1
  kill -STOP "$stopped_process"
  sleep $((4 * slow))
  kill -CONT "$stopped_process"
  finish
  [ "$statuses" = '0 0 ' ] && ! has ' error '
}

for mode in guarded threads; do
  export TUTTI_EMU=mode=$mode
  beside "$mode, shared memory: ranks that wait for a rank that has left name it" leaves memory
  beside "$mode, over a network: ranks that wait for a rank that has left name it" leaves network
  beside "$mode: a rank that has left is named though its process has not" half_leaves
  beside "$mode, shared memory: a late rank is named, and results are right" late memory
  beside "$mode, over a network: a late rank is named, and results are right" late network
  beside "$mode: a network that goes silent ends the operation" falls_silent
  beside "$mode: ranks wait for a process that is stopped for a while" stopped
done
beside 'ranks that wait in a chain say so of each other' in_turn
beside 'a lost last message ends the operation, though its sender is alive' loses_last
beside 'without TUTTI_NET_PATIENCE_SECONDS a lost last message ends with the sender' loses_last_patiently
beside_wait
