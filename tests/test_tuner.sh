#!/bin/sh
# test_tuner.sh: tuner plugins (NCCL_TUNER_PLUGIN) of every version of the interface change what collectives
# do, on one host and between hosts; those that fail or answer nonsense are named and leave the library's own
# choice; ranks whose plugins differ end with a sentence; a replay keeps what a plugin chose. Prints one
# `ok - ` or `not ok - ` line per check and fails if a check failed. Finds the build at ${BUILD:-build}.
# runner: 15 s, waits
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
plugins=$build/tests/plugins
unset NCCL_TUNER_PLUGIN NCCL_NET_PLUGIN TUTTI_TEST_TUNER TUTTI_TUNE_FILE
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING,COLL NCCL_SOCKET_IFNAME=lo
export TUTTI_STALL_SECONDS=1 TUTTI_PEER_TIMEOUT_SECONDS=5 TUTTI_INIT_TIMEOUT_SECONDS=20

has() {
  grep -q -e "$1" "$work/log"
  noted $? "a line like $1"
}
said() {
  [ "$(grep -c -e "$2" "$work/log")" -eq "$1" ]
  noted $? "$1 lines like $2"
}
# bench COLLECTIVE FLAGS...: on 4 devices of one process, recorded; the bench checks the results.
bench() {
  rm -f "$work/run"
  TUTTI_TRACE=$work/run timeout 60 "$tutti" bench "$@" -g 4 -w 0 -n 2 >"$work/log" 2>&1 </dev/null
}
# chose ALGO PROTO CHANNELS: the last rule in the records, which a replay follows.
chose() {
  "$tutti" trace dump "$work/run" | grep 'name=rule_choice' | tail -n 1 | sed 's/.*name/name/' >"$work/rule"
  grep -q "^name=rule_choice a=$3 b=$(($4 + $1 * 256 + $2 * 65536))\( \|\$\)" "$work/rule"
  noted $? "algorithm $1, protocol $2, $3 channels in $(cat "$work/rule")"
}
same() { ! "$tutti" trace dump "$work/run" | grep -q 'name=rule_choice'; }

for version in 2 3 4 5 6; do
  export NCCL_TUNER_PLUGIN="$plugins/libnccl-tuner-test$version.so"
  TUTTI_TEST_TUNER='0 2 1 0' bench all_reduce -b 4K -e 4K && chose 0 2 1 4 &&
    has "Tuner plugin .*/libnccl-tuner-test$version.so: 'Test', version $version of the interface" &&
    said 4 'test tuner: init of 4 ranks on 1 nodes' && said 4 'test tuner: ends after 1 questions'
  check $? "version $version: Tree over Simple with one channel, asked once for calls that repeat"
done
for row in 'broadcast 1 0 0' 'reduce 1 0 1' 'all_gather 1 0 2' 'reduce_scatter 1 0 3' 'all_reduce 1 1 4'; do
  # shellcheck disable=SC2086
  set -- $row
  TUTTI_TEST_TUNER="$2 $3 1 0" bench "$1" -b 8K -e 8K && chose "$2" "$3" 1 "$4"
  check $? "$1 follows the plugin"
done
TUTTI_TEST_TUNER='1 2 1 1024' bench all_reduce -b 64K -e 64K && chose 1 2 1 4 &&
  "$tutti" trace dump "$work/run" | grep -q 'rule_choice .* c=4398046511105' # 1 of the group, 1024 << 32
check $? 'version 6 sets the size of chunks'
NCCL_TUNER_PLUGIN=test4 LD_LIBRARY_PATH=$plugins TUTTI_TEST_TUNER='0 0 2 0' bench all_reduce -b 4K -e 4K &&
  has "Tuner plugin libnccl-tuner-test4.so: 'Test'"
check $? 'a plugin is found by its name'
NCCL_TUNER_PLUGIN='' NCCL_NET_PLUGIN=$plugins/libnccl-tuner-test5.so TUTTI_TEST_TUNER='0 0 2 0' \
  bench all_reduce -b 4K -e 4K && has "Tuner plugin .*/libnccl-tuner-test5.so: 'Test'"
check $? "without NCCL_TUNER_PLUGIN, the network plugin's library may hold the tuner"
NCCL_TUNER_PLUGIN=NONE TUTTI_TEST_TUNER='0 0 2 0' bench all_reduce -b 4K -e 4K && same &&
  has 'No tuner plugin: NCCL_TUNER_PLUGIN says none'
check $? 'none: no plugin is loaded'
printf 'all_reduce 0 max algo=Ring proto=LL128 channels=1\n' >"$work/rules"
TUTTI_TUNE_FILE=$work/rules TUTTI_TEST_TUNER='0 0 2 0' bench all_reduce -b 4K -e 4K && chose 1 1 1 4
[ $? -ne 0 ] && has 'ends after 0 questions'
check $? "the user's tuning file overrules a plugin, which is not asked"

# ---- plugins that fail
while IFS='|' read -r version told text; do
  NCCL_TUNER_PLUGIN=$plugins/libnccl-tuner-test$version.so TUTTI_TEST_TUNER=$told \
    bench all_reduce -b 4K -e 4K && same && said 1 "rank 0 of comm .* tuner plugin 'Test' .*$text"
  check $? "$told (version $version): $text"
done <<'T'
4|init|is left out: its init fails with 2
6|init|is left out: its init fails with 2
2|fail|fails (3) for function 4 of 4096 bytes, so the library's own choice stays
4|fail|fails (3) for function 4 of 4096 bytes, so the library's own choice stays
6|negative|asks for a negative number of channels (-5)
2|negative|asks for a negative number of channels (-5)
5|nothing|leaves no possible algorithm and protocol
5|nan|leaves no possible algorithm and protocol
2|6 2 1 0|leaves no possible algorithm and protocol
4|6 2 1 0|wants what is not possible here
T
while IFS='|' read -r plugin text; do
  NCCL_TUNER_PLUGIN=$plugin bench all_reduce -b 4K -e 4K && same && said 1 "$text"
  check $? "$text"
done <<T
$plugins/libnccl-tuner-test0.so|libnccl-tuner-test0.so is left out: it has no 'getCollInfo'
$plugins/libnccl-tuner-test1.so|libnccl-tuner-test1.so is left out: it has no table of version 2 to 6
nonsense|NCCL_TUNER_PLUGIN: 'nonsense' cannot be loaded: nonsense: .*libnccl-tuner-nonsense.so: cannot open
T

NCCL_TUNER_PLUGIN=test3 LD_LIBRARY_PATH=$plugins "$tutti" doctor true >"$work/log" 2>&1
has 'note .*plugin .*the tuner plugin libnccl-tuner-test3.so would be loaded: version 3'
check $? 'doctor says which plugin would be loaded'
NCCL_TUNER_PLUGIN=$plugins/libnccl-tuner-test1.so "$tutti" doctor true >"$work/log" 2>&1
[ $? -eq 1 ] && has 'not ok .*the tuner plugin .* has no table of version 2 to 6'
check $? 'doctor says which plugin would not'

# ---- ranks
hosts() {
  # shellcheck disable=SC2016
  timeout 60 "$tutti" launch -n 2 sh -c 'NCCL_HOSTID=host$TUTTI_RANK exec "$@"' sh "$@" >"$work/log" 2>&1 \
    </dev/null
}
export NCCL_TUNER_PLUGIN="$plugins/libnccl-tuner-test6.so"
TUTTI_TEST_TUNER='0 0 1 0' hosts "$tutti" bench all_reduce -b 4K -e 4K -w 0 -n 1 -q &&
  said 2 'test tuner: init of 2 ranks on 2 nodes'
check $? 'hosts follow the plugin'
differ='has different answers of the tuner plugin: rank . chose Ring over'
! TUTTI_TEST_TUNER=differ bench all_reduce -b 4K -e 4K && has "$differ"
check $? 'ranks of a process whose plugins answer differently end with a sentence'
! TUTTI_TEST_TUNER=differ hosts "$tutti" bench all_reduce -b 4K -e 4K -w 0 -n 1 -q && has "$differ" &&
  has 'give the tuner plugin the same configuration on all ranks'
check $? 'so do ranks of hosts'
# shellcheck disable=SC2016
! hosts sh -c '[ "$TUTTI_RANK" = 0 ] || export NCCL_TUNER_PLUGIN=none; exec "$@"' sh \
  "$tutti" bench all_reduce -b 4K -e 4K -w 0 -n 1 -q &&
  has 'NCCL_TUNER_PLUGIN the same plugin, everywhere'
check $? 'a plugin on one rank alone is refused when the communicator is made'

# ---- replay
for told in '0 0 2 0' '0 2 1 0' '1 2 1 1024'; do
  rm -f "$work/run"
  NCCL_ALGO=Tree,Ring,Direct TUTTI_TEST_TUNER=$told TUTTI_TRACE=$work/run NCCL_DEBUG=NONE \
    timeout 60 "$build/tests/hang_program" blocked >/dev/null 2>&1
  timeout 60 "$tutti" replay "$work/run" >"$work/log" 2>&1 && "$tutti" trace dump "$work/run" |
    grep -q 'name=rule_choice' && has '^missing: "rank 2 start"' && has '^with it: all ranks end'
  check $? "a replay plans as the plugin did: $told"
done
[ $failures -eq 0 ]
