#!/bin/sh
# test_status.sh: what `tutti status` prints about running jobs, and what the watchdog makes every process
# log: healthy jobs, and jobs that hang because a rank is late, calls something else, was killed or stopped;
# in one process and in several, over shared memory and a network; by process, by address, and for all jobs;
# and operands that are not jobs. Cases run in parallel. Prints one `ok - ` or `not ok - ` line per check
# and fails if a check failed. Finds the build at ${BUILD:-build}. Set SLOW=5 under a sanitizer.
# runner: 30 s, waits
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
unset NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID NCCL_SHM_DISABLE NCCL_P2P_DISABLE TUTTI_NET_FAULTS
unset TUTTI_RANK TUTTI_SIZE TUTTI_RENDEZVOUS TUTTI_JOB TUTTI_SECRET
slow=${SLOW:-3}
export NCCL_SOCKET_IFNAME=lo TUTTI_INIT_TIMEOUT_SECONDS=$((20 * slow)) TUTTI_STALL_SECONDS=$((20 * slow))
export TUTTI_EMU=mode=threads TUTTI_WATCHDOG_SECONDS=$(((slow + 1) / 2)) NCCL_DEBUG=WARN
list=

# begin RANK ARGS...: starts one process; $begun is its process id. HOSTS=1 gives each its own host id.
begin() {
  begin_rank=$1
  shift
  NCCL_HOSTID=${HOSTS:+host$begin_rank} "$build/tests/rank_program" --rank "$begin_rank" --id "$work/id" \
    --deadline $((30 * slow)) "$@" >"$work/rank.$begin_rank" 2>&1 &
  begun=$!
  list="$list $begun"
}

# begin_late SIZE: an all-reduce on SIZE processes; rank 1 is late for the third one.
begin_late() {
  late_size=$1
  for rank in $(seq 0 $((late_size - 1))); do
    late_hold=
    [ "$rank" != 1 ] || late_hold="--hold 2,$work/go"
    # shellcheck disable=SC2086
    begin "$rank" --size "$late_size" --ops all_reduce --iterations 3 $late_hold
    [ "$rank" != 1 ] || late=$begun
  done
}

# finish: $statuses has the exit statuses of all started processes in order.
finish() {
  : >"$work/go"
  # shellcheck disable=SC2086
  wait_all $list
}

# until_true COMMAND...: repeats the command for some seconds until it succeeds.
until_true() {
  turns=$((20 * slow * 5))
  until "$@"; do
    turns=$((turns - 1))
    [ $turns -gt 0 ] || return 1
    sleep 0.2
  done
}

has() {
  grep -Eq -e "$1" "$work/log"
  noted $? "a line like $1"
}
timeless() { sed 's/, for [0-9]* s when the files were taken//'; }
sentences() { sed -n 's/.*operations make no progress: //p' "$work/$1" | timeless; }
# A rank's process has logged a message.
said() { grep -qs 'operations make no progress' "$work/rank.$1"; }
# ask STATUS OPERAND...: runs `tutti status`; $work/log has its output.
ask() {
  ask_want=$1
  shift
  timeout $((10 * slow)) "$tutti" status "$@" >"$work/log" 2>&1
  [ $? -eq "$ask_want" ]
}
file_of() { ls "$work"/tutti.*."$1".*.trace 2>/dev/null; }
address_of() { "$tutti" trace dump "$(file_of "$1")" | sed -n 's/.* control="\([^"]*\)".*/\1/p'; }
explained() { "$tutti" explain "$work"/tutti.*.trace | head -n 1 | timeless; }
json_is_good() { # PYTHON: an expression over the document d
  python3 -c "import json, sys; d = json.load(open(sys.argv[1])); sys.exit(not ($1))" "$work/log"
}

# well: a healthy job of four processes, asked for in every way.
well() {
  export TUTTI_SECRET=one
  for rank in 0 1 2 3; do
    begin $rank --size 4 --ops all_reduce --iterations 1000 --pace 20 --hold 999,"$work/go"
  done
  until_true grep -qs 'iteration 3 ok' "$work/rank.0"
  ask 0 && has '^job is well: 4 processes on 1 host, 1 communicator$' &&
    has "^  comm '1': 4 ranks, called [0-9-]+, ended [0-9-]+: (moving|idle)$" &&
    ask 0 "$begun" && has '^job is well: 4 processes' &&
    ask 0 "$(address_of "$begun")" && has '^job is well: 4 processes' &&
    ask 0 --json && json_is_good 'd["version"] == 1 and d["jobs"][0]["good"] and
      not d["jobs"][0]["silent"] and [m["rank"] for m in
      d["jobs"][0]["communicators"][0]["members"]] == [0, 1, 2, 3]'
  well_all=$?
  # shellcheck disable=SC2086
  kill -9 $list
  finish
  return $well_all
}

# late_seen SIZE: the diagnosis of the late rank.
late_seen() {
  ask 1 "$late" && has "^job hangs: $1 processes on 1 host, 1 communicator, 1 of them hung$" &&
    has "^  comm '1': $1 ranks, called 2-3, ended 2: hangs$" &&
    has "^    rank 1 \(process $late on .*\) is behind: has called 2 of 3 operations$" &&
    has '^    rank 0 .* waits in operation #2, at step [0-9]+ of channel 0, for .*' &&
    has "^rank 1 \(process $late on .*\) has not called operation #2 of comm '1'"
}

# late SIZE [network]: one rank has not called what the others have. Every process logs that once, in the
# words of explain.
late() {
  export TUTTI_SECRET=one
  [ $# -eq 1 ] || export HOSTS=1
  begin_late "$1"
  for rank in $(seq 0 $(($1 - 1))); do until_true said "$rank" || return 1; done
  until_true late_seen "$1" || return 1
  ask 1 "$(address_of "$begun")" --json && json_is_good 'd["jobs"][0]["verdict"]["kind"] == "not arrived" and
    d["jobs"][0]["state"] == "hangs" and d["jobs"][0]["communicators"][0]["members"][1]["behind"] and
    d["jobs"][0]["communicators"][0]["members"][0]["waits"]["operation"] == 2' || return 1
  explained >"$work/explained"
  sleep $((TUTTI_WATCHDOG_SECONDS + 1)) # in which nothing is said again
  for rank in $(seq 0 $(($1 - 1))); do
    sentences "rank.$rank" | cmp -s - "$work/explained" || return 1
  done
  finish
  case $statuses in *[1-9]*) return 1 ;; esac
}

# late_guarded: the guarded emulator has no watchdog; `tutti status` still gets the diagnosis.
late_guarded() {
  export TUTTI_SECRET=one
  export TUTTI_EMU=mode=guarded
  begin_late 2
  until_true ask 1 "$late"
  has '^rank 1 .* has not called operation #2' && until_true ask 1 "$(address_of "$late")" &&
    has '^job hangs'
  late_all=$?
  until_true said 0 || return 1
  finish
  [ "$statuses" = '0 0 ' ] && return $late_all
}

# off: with the watchdog off nothing is logged.
off() {
  export TUTTI_WATCHDOG_SECONDS=0
  begin_late 2
  until_true ask 1 "$late"
  sleep 2
  ! said 0 && ! said 1 || return 1
  finish
  [ "$statuses" = '0 0 ' ]
}

differs_said() {
  for rank in 0 1; do sentences rank.$rank | grep -q 'they differ in the count; rank' || return 1; done
}

# differs: two ranks send messages of different sizes to each other.
differs() {
  export NCCL_CHECK_MODE=LOCAL # else the calls fail at once
  begin 0 --size 2 --ops all_reduce --iterations 3 --bytes 4096
  begin 1 --size 2 --ops all_reduce --iterations 3 --bytes 4194304
  until_true differs_said && until_true ask 1 "$begun" &&
    has '^rank .* called AllReduce of .* where 1 other called .*they differ in the count; rank .* at ' &&
    [ "$(sentences rank.0 | tail -n 1)" = "$(explained)" ]
  differs_all=$?
  # shellcheck disable=SC2086
  kill -9 $list
  finish
  return $differs_all
}

# killed: the rest of a job after one process was killed.
killed() {
  begin 0 --size 3 --ops all_reduce --iterations 3
  begin 1 --size 3 --ops all_reduce --iterations 3 --hold 2,"$work/go"
  gone=$begun
  begin 2 --size 3 --ops all_reduce --iterations 3 --hold 2,"$work/go"
  until_true grep -qs 'iteration 1 ok' "$work/rank.1" && until_true grep -qs 'iteration 1 ok' "$work/rank.2"
  kill -9 "$gone"
  until_true grep -q 'after 2 operations' "$work/rank.2"
  ask 1 "$begun" && has '^job is broken: ' && has '^    rank 2 .* has failed after 2 operations: .*rank 1' &&
    ask 4 "$gone" && has "there is no process $gone on this host"
  killed_all=$?
  finish
  return $killed_all
}

# stopped: a process that a signal has stopped. On its own host its file is read; to other hosts it does not
# answer.
stopped() {
  export TUTTI_SECRET=one
  begin_late 3
  until_true grep -qs 'iteration 1 ok' "$work/rank.1"
  kill -STOP "$late"
  until_true said 0 && until_true said 2 &&
    sentences rank.0 | grep -q "; rank 1 (process $late on .*) does not answer: it is stopped, or out of r" &&
    ask 1 "$begun" && has "^  rank 1 \(process $late on .*\) is stopped, by a signal or a debugger$" &&
    has '^    rank 1 .* is behind' && ask 1 "$(address_of "$begun")" --json &&
    json_is_good 'd["jobs"][0]["silent"][0]["rank"] == 1 and
      d["jobs"][0]["communicators"][0]["ranks_seen"] == 2'
  stopped_all=$?
  ask 3 "$(address_of "$late")" && has 'no answer within the deadline' || stopped_all=1
  kill -CONT "$late"
  finish
  [ "$statuses" = '0 0 0 ' ] && [ "$(sentences rank.0 | wc -l)" -eq 1 ] && return $stopped_all
}

# diagnose_stopped: the process that should diagnose is stopped; another one does, and nothing is logged
# twice.
diagnose_stopped() {
  begin_late 3
  judge=${list# }
  judge=${judge%% *}
  until_true grep -qs 'iteration 1 ok' "$work/rank.0"
  kill -STOP "$judge"
  until_true said 1 && until_true said 2
  diagnose_all=$?
  kill -CONT "$judge"
  until_true said 0 || diagnose_all=1
  sleep 2
  finish
  for rank in 0 1 2; do [ "$(sentences rank.$rank | wc -l)" -eq 1 ] || diagnose_all=1; done
  return $diagnose_all
}

# elsewhere: the records of the other processes are on other hosts; one process asks for them.
elsewhere() {
  for rank in 0 1 2; do
    hold=
    [ $rank != 1 ] || hold="--hold 2,$work/go"
    mkdir "$work/$rank"
    # shellcheck disable=SC2086
    TUTTI_TRACE=$work/$rank/ begin $rank --size 3 --ops all_reduce --iterations 3 $hold
  done
  until_true ask 1 "$begun" && has '^job hangs: 3 processes' && has '^    rank 1 .* is behind' &&
    has '^rank 1 .* has not called operation #2' && TUTTI_TRACE=$work/0/ ask 1 &&
    has '^job hangs: 3 processes'
  elsewhere_all=$?
  finish
  [ "$statuses" = '0 0 0 ' ] && return $elsewhere_all
}

# secret: a request without the secret gets no answer.
secret() {
  export TUTTI_SECRET=one
  begin_late 2
  until_true ask 1 "$late"
  at=$(address_of "$late")
  ask 1 "$at" && has '^job hangs: 2 processes' && (unset TUTTI_SECRET && ask 3 "$at") &&
    ! has '^job' && has "tutti status: $at: .*SECRET" && (export TUTTI_SECRET=other && ask 3 "$at") &&
    has 'SECRET'
  secret_all=$?
  finish
  [ "$statuses" = '0 0 ' ] && return $secret_all
}

# stranger: without a secret a job answers its own user on its host, and nobody else: not over the network,
# not another user.
stranger() {
  begin_late 2
  until_true ask 1 "$late"
  at=$(address_of "$late")
  ask 3 "$at" && ! has '^job' && has 'answers those who know its TUTTI_SECRET' &&
    (export TUTTI_SECRET=guessed && ask 3 "$at") && ! has '^job' && has 'TUTTI_SECRET is set at the client'
  stranger_all=$?
  if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
    setpriv --reuid 65534 --clear-groups timeout 10 "$tutti" status "$late" >"$work/log" 2>&1 &&
      stranger_all=1
    ! has '^job' || stranger_all=1
  fi
  finish
  [ "$statuses" = '0 0 ' ] && return $stranger_all
}

# truncated: somebody truncates the record files of a running job; it goes on.
truncated() {
  for rank in 0 1; do begin $rank --size 2 --ops all_reduce --iterations 300 --hold 2,"$work/go"; done
  until_true grep -qs 'iteration 1 ok' "$work/rank.0" && until_true grep -qs 'iteration 1 ok' "$work/rank.1"
  truncated_all=$?
  for file in "$work"/tutti.*.trace; do : >"$file"; done
  finish
  [ "$statuses" = '0 0 ' ] && return $truncated_all
}

threads_agree() {
  ask 1 "$begun" && [ "$(sentences rank.0)" = "$(explained)" ] &&
    timeless <"$work/log" | grep -Fxq "$(explained)"
}

# threads SCENARIO: four ranks of one process.
threads() {
  "$build/tests/hang_program" "$1" 60 >"$work/rank.0" 2>&1 &
  begun=$!
  until_true said 0 && until_true threads_agree && has '^job hangs: 1 process on 1 host'
  threads_all=$?
  kill -9 $begun
  wait $begun 2>/dev/null
  return $threads_all
}

# thread_of NAME: the folder in /proc of this thread of the process $begun.
thread_of() {
  for thread_folder in /proc/"$begun"/task/*; do
    [ "$(cat "$thread_folder/comm" 2>"$work/gone")" != "$1" ] || return 0
  done
  return 1
}

# runs_on CPU: the proxy's thread may run on this processor alone.
runs_on() {
  thread_of tutti-proxy && grep -Eqx "Cpus_allowed_list:[[:space:]]*$1" "$thread_folder/status"
}

# named: threads bear names and keep to processors; a list that is none leaves them where they are.
named() {
  cpu=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\([0-9]*\).*/\1/p' /proc/self/status)
  export NCCL_SET_THREAD_NAME=1 NCCL_PROXY_CPUSET="$cpu" HOSTS=1
  begin_late 2
  until_true runs_on "$cpu" && thread_of tutti-control && [ "$(cat /proc/"$begun"/comm)" = rank_program ]
  named_all=$?
  finish
  case $statuses in *[1-9]*) return 1 ;; esac
  export NCCL_PROXY_CPUSET=0-x
  list=
  rm "$work/go" "$work/id"
  begin_late 2
  until_true grep -q 'NCCL_PROXY_CPUSET=0-x: Invalid argument, so .*such as 0-3,8' "$work/rank.0" ||
    named_all=1
  finish
  case $statuses in *[1-9]*) return 1 ;; esac
  return $named_all
}

# slow_link: a connection of an emulated network that delays each message; the job makes progress.
slow_link() {
  TUTTI_EMU=nodes=2,devices=4,net=1,fault=slow,fault_at=9 NCCL_ALGO=Ring \
    "$build/tests/hang_program" slow_forever >"$work/rank.0" 2>&1 &
  begun=$!
  until_true ask 1 "$begun" && has '^job is slow: 1 process on 1 host' && has ': moving$' &&
    has '^the link from rank [0-3] to rank [0-3] of comm .* is slow, not hung: on channel 0, network' &&
    ! said 0
  slow_all=$?
  kill -9 $begun
  wait $begun 2>/dev/null
  return $slow_all
}

# broken: four ranks of one process that disagree and have reported it.
broken() {
  "$build/tests/hang_program" count 60 >"$work/rank.0" 2>&1 &
  begun=$!
  until_true ask 1 "$begun" && has '^job is broken: 1 process' &&
    has '^    rank 0 .* has failed after 3 oper' &&
    has '^rank 3 of comm .* another count; rank 3 called #' &&
    [ "$(grep -c 'has failed' "$work/log")" -eq 1 ] && ! said 0
  broken_all=$?
  kill -9 $begun
  wait $begun 2>/dev/null
  return $broken_all
}

# nothing: operands that are not jobs, and addresses that do not answer.
nothing() {
  export TUTTI_SECRET=one # without it no address is asked
  ask 4 && has 'no process of this user records in' && ask 4 999999999 &&
    has 'there is no process 999999999' &&
    ask 4 $$ && has "process $$ records nothing" && ask 2 word && has '`word` is neither' &&
    ask 2 1 2 && has 'is one too many' && ask 2 --no-such && ask 3 127.0.0.1:1 &&
    has '127.0.0.1:1: ' || return 1
  python3 - "$work/port" <<'EOF' &
import os, socket, sys
server = socket.create_server(('127.0.0.1', 0))
open(sys.argv[1] + '.new', 'w').write('%d' % server.getsockname()[1])
os.rename(sys.argv[1] + '.new', sys.argv[1])
for words in b'HTTP/1.1 400 Bad Request\r\n\r\n' * 10, b'':
    other = server.accept()[0]
    other.sendall(words)
    other.close()
other = server.accept()[0]
other.recv(1 << 20)
server.accept()
EOF
  stranger=$!
  until_true test -s "$work/port"
  strange=127.0.0.1:$(cat "$work/port")
  ask 3 "$strange" && has "tutti status: $strange: " && ask 3 "$strange" && ask 3 "$strange" &&
    has 'deadline'
  nothing_all=$?
  kill -9 $stranger
  wait $stranger 2>/dev/null
  return $nothing_all
}

# permission: another user's process.
permission() {
  [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null || return 0
  begin_late 2
  until_true ask 1 "$late"
  setpriv --reuid=65534 --clear-groups "$tutti" status "$late" >"$work/log" 2>&1
  [ $? -eq 4 ] && has "process $late cannot be looked at: Permission denied"
  permission_all=$?
  finish
  return $permission_all
}

beside 'a healthy job is shown: all jobs, by process, by address, as JSON' well
beside 'a late rank over shared memory: every process logs once what explain prints' late 4
beside 'a late rank over a network: every process logs once what explain prints' late 3 network
export NCCL_MULTI_RANK_GPU_ENABLE=1 # eight emulated devices
beside 'a late rank of sixteen processes: every process logs once what explain prints' late 16
unset NCCL_MULTI_RANK_GPU_ENABLE
beside 'guarded mode: the watchdog and tutti status give the diagnosis' late_guarded
beside 'a watchdog that is off logs nothing' off
beside 'ranks that call different operations are diagnosed' differs
beside 'a rank that was killed is diagnosed' killed
beside 'a process that is stopped is named, and not waited for' stopped
beside 'another process diagnoses if the first is stopped, and nothing is logged twice' diagnose_stopped
beside 'records of other hosts are fetched' elsewhere
beside 'a request without the secret gets no answer' secret
beside 'a job goes on whose record files are truncated' truncated
beside 'a stranger gets no answer from a job without a secret' stranger
beside "another user's process is refused with the reason" permission
for scenario in absent recv_alone refused open_group blocked cycle behind graph; do
  beside "four ranks of one process are diagnosed: $scenario" threads $scenario
done
beside 'ranks that have failed are shown' broken
beside 'a job with a slow link is shown to make progress, and the link is named' slow_link
beside 'threads bear names, and those of proxies keep to NCCL_PROXY_CPUSET' named
beside 'an operand that is not a job, or that does not answer, is reported' nothing
beside_wait
