#!/bin/sh
# test_attack.sh: ranks meet while a stranger on their network attacks their control port (attack/stranger.c):
# with connections that say nothing, little, nonsense, whole hellos or wrong proofs; with few descriptors; and
# with a forged unique id. Each time all ranks must meet and have right results, and the attacked process must
# not hold more than 64 MiB for the stranger. The hosts are network namespaces. Prints one `ok - ` or
# `not ok - ` line per check and fails if a check failed.
# runner: 40 s
. "$(dirname "$0")/script.inc"
. "$here/hosts.inc"
use_build
hosts_or_skip 'attacks over a network'
unset TUTTI_SECRET NCCL_COMM_ID TUTTI_RANK TUTTI_SIZE TUTTI_RENDEZVOUS TUTTI_JOB
export NCCL_DEBUG=WARN TUTTI_EMU=mode=threads TUTTI_INIT_TIMEOUT_SECONDS=60 NCCL_SOCKET_IFNAME=eth0
hosts_up 2
held_most=65536 # KiB

# awaits COMMAND...: repeats it for at most a minute until it succeeds.
awaits() {
  for _ in $(seq 3000); do
    "$@" && return
    sleep 0.02
  done
  return 1
}
has_text() { grep -qs -e "$2" "$1"; }

# member R HOST ARGS...: a rank of four; it waits for $work/go before it ends.
member() {
  member_rank=$1 member_host=$2
  shift 2
  rank_start "$member_rank" "$member_host" --size 4 --id "$work/id" --ops all_reduce --iterations 1 \
    --hold 1,"$work/go" "$@"
}

# The process of rank 0, which hosts_exec has started as the child of others.
root_process() { pgrep -f "rank_program --rank 0 --size 4 --id $work/id" | tail -n 1; }
root_port() { hosts_exec 1 ss -Hltn | sed -n 's/.*10\.99\.0\.1:\([0-9]*\) .*/\1/p' | head -n 1; }
kib_of() { sed -n "s/^$2: *\([0-9]*\) kB/\1/p" "/proc/$1/status"; }

# meet [ATTACK CONNECTIONS]: four ranks meet during the attack; $held is by how much rank 0's memory grew.
meet() {
  rm -f "$work/id" "$work/go"
  member 0 1
  awaits test -s "$work/id" || return 1
  meet_root=$(root_process)
  meet_before=$(kib_of "$meet_root" VmRSS)
  if [ $# -gt 0 ]; then
    hosts_start 2 "$build/tests/stranger" "$1" "10.99.0.1:$(root_port)" "$2" >"$work/stranger" 2>&1
    meet_stranger=$hosts_started
    awaits has_text "$work/stranger" ready || return 1
  fi
  member 1 1
  member 2 1
  member 3 2
  meet_all=0
  for rank in 0 1 2 3; do awaits has_text "$work/rank.$rank" 'iteration 0 ok' || meet_all=1; done
  held=$(($(kib_of "$meet_root" VmHWM) - meet_before))
  : >"$work/go"
  for rank in 0 1 2 3; do rank_wait $rank || meet_all=1; done
  [ $# -eq 0 ] || kill "$meet_stranger"
  cat "$work"/rank.* >"$work/log"
  return $meet_all
}

meet
check $? 'four ranks meet undisturbed'
usual=$held
for attack in idle half slow hello proof noise http huge; do
  meet $attack 1000 && [ $((held - usual)) -lt $held_most ]
  check $? "four ranks meet: $attack, 1000 connections"
done
meet flood 64 && [ $((held - usual)) -lt $held_most ]
check $? 'four ranks meet: flood'
hard=$(ulimit -Hn)
ulimit -Sn 256
for attack in idle half hello proof; do
  meet $attack 500
  check $? "four ranks with 256 descriptors meet: $attack, 500 connections"
done
ulimit -Sn "$hard"

# A rank with another secret is refused; the job is not disturbed.
rm -f "$work/id" "$work/go"
member 0 1
awaits test -s "$work/id"
{ head -c 64 "$work/id"; head -c 32 /dev/zero; tail -c 32 "$work/id"; } >"$work/forged"
rank_start 9 2 --rank 1 --size 4 --id "$work/forged" --ops all_reduce --iterations 1
rank_wait 9 && forged=1 || forged=0
grep -q 'no communicator is being made there under this unique id' "$work/rank.9" || forged=1
for rank in 1 2 3; do member $rank 1; done
: >"$work/go"
for rank in 0 1 2 3; do rank_wait $rank || forged=1; done
cat "$work"/rank.* >"$work/log"
check $forged 'a rank with a forged unique id is refused, and disturbs nobody'
[ "$failures" -eq 0 ]
