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
. "$here/attack/meet.inc"
hosts_up 2
held_most=65536 # KiB

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
