#!/bin/sh
# test_meet.sh: how ranks in processes find each other in ncclCommInitRank: over IPv4 and IPv6, rank 0
# first, last or never, several communicators at one address in a row, ranks that contradict each other, and
# unauthenticated connections of all kinds, with and without a secret, which must not delay anybody. Prints
# one `ok - ` or `not ok - ` line per check and fails if a check failed.
# runner: 140 s, waits
. "$(dirname "$0")/script.inc"
. "$here/hosts.inc"
use_build
program=$build/tests/rank_program
unset TUTTI_RANK TUTTI_SIZE TUTTI_LOCAL_RANK TUTTI_LOCAL_SIZE TUTTI_RENDEZVOUS TUTTI_JOB NCCL_COMM_ID
export NCCL_DEBUG=WARN TUTTI_EMU=mode=threads TUTTI_INIT_TIMEOUT_SECONDS=30 NCCL_SOCKET_IFNAME==lo
place=$((20000 + $$ % 5000)) # not those of test_launch.sh

next_port() {
  place=$((place + 1))
  at=127.0.0.1:$place
}

# rank R ARGS...: starts it in the background, for at most a minute; its output goes to $work/rank.R
rank() {
  rank_number=$1
  shift
  : >"$work/rank.$rank_number" # before any awaits, which would find what an earlier rank of this number said
  timeout 60 "$program" --rank "$rank_number" --ops all_reduce --iterations 1 "$@" \
    >"$work/rank.$rank_number" 2>&1 &
  eval "rank_process_$rank_number=$!"
}

# programs_of_ranks R...: the ids of their processes, which timeout(1) has started.
programs_of_ranks() {
  for program_rank; do
    eval "program_parent=\$rank_process_$program_rank"
    cat "/proc/$program_parent/task/$program_parent/children"
  done
}

# ended R...: all of them exited with 0.
ended() {
  ended_status=0
  for ended_rank; do rank_wait "$ended_rank" || ended_status=1; done
  cat "$work"/rank.* >"$work/log"
  return $ended_status
}

# all_say TEXT R...: the output of each has the text.
all_say() {
  all_text=$1
  shift
  for all_rank; do
    grep -q -e "$all_text" "$work/rank.$all_rank"
    noted $? "rank $all_rank says $all_text" || return 1
  done
}

# awaits FILE TEXT: waits for at most twenty seconds until the file has the text.
awaits() {
  for _ in $(seq 1000); do
    grep -q -e "$2" "$1" 2>/dev/null && return
    sleep 0.02
  done
  return 1
}

# root_begin ARGS...: starts rank 0, whose process logs which ranks have checked in.
root_begin() { NCCL_DEBUG=TRACE NCCL_DEBUG_SUBSYS=BOOTSTRAP rank 0 "$@"; }

# are_here N: waits until N ranks have checked in.
are_here() { awaits "$work/rank.0" "has come: $1 of [0-9]* ranks are here"; }

# ---- addresses
next_port
for number in 2 1 0; do rank $number --size 3 --comm-id "$at" --rounds 5; done
ended 0 1 2 && [ "$(grep -c 'destroy ok$' "$work/log")" -eq 15 ]
check $? 'five communicators are made in a row at one address'
next_port
NCCL_SOCKET_RETRY_CNT=0
export NCCL_SOCKET_RETRY_CNT
rank 1 --size 3 --comm-id "$at"
rank 2 --size 3 --comm-id "$at"
awaits "$work/rank.1" 'for [0-9]* seconds nobody has answered.*missing: rank 0' &&
  awaits "$work/rank.2" 'missing: rank 0'
check $? 'ranks that wait for rank 0 say so'
rank 0 --size 3 --comm-id "$at"
ended 0 1 2
check $? 'ranks that waited connect when rank 0 starts'
unset NCCL_SOCKET_RETRY_CNT
next_port
for number in 1 0; do rank $number --size 2 --comm-id "localhost:$place"; done
ended 0 1
check $? "NCCL_COMM_ID may be a host name"
next_port
export NCCL_SOCKET_FAMILY=AF_INET6
for number in 0 1; do rank $number --size 2 --comm-id "[::1]:$place" --rounds 2; done
ended 0 1
check $? 'NCCL_COMM_ID may be an IPv6 address'
unset NCCL_SOCKET_FAMILY
rank 0 --size 2 --comm-id nowhere
ended 0
all_say 'error 5 .*NCCL_COMM_ID' 0
check $? 'without an address ncclCommInitRank returns ncclInvalidUsage'
next_port
TUTTI_RENDEZVOUS=$at timeout 60 "$build/bin/tutti" launch -n 4 "$program" --launched --rounds 6 \
  --ops all_reduce --iterations 1 >"$work/log" 2>&1 && [ "$(grep -c 'destroy ok$' "$work/log")" -eq 24 ]
check $? 'six ids of one launch are used in a row'

# ---- ranks that are missing, duplicate or contradictory
next_port
export TUTTI_INIT_TIMEOUT_SECONDS=4
rank 1 --size 2 --comm-id "$at"
ended 1
all_say 'error 6 .*within [0-9]* seconds.*missing: rank 0' 1
check $? 'a missing rank 0 is reported'
TUTTI_INIT_TIMEOUT_SECONDS=7
for number in 0 1 2; do rank $number --size 4 --id "$work/away"; done
ended 0 1 2
all_say 'for [0-9]* seconds 3 of 4 ranks have come; missing: rank 3' 0 1 2 &&
  all_say 'error 6 .*3 of 4 ranks came within [0-9]* seconds; missing: rank 3' 0 1 2
check $? 'a missing rank is named on all other ranks, while they wait and when they fail'
TUTTI_INIT_TIMEOUT_SECONDS=3
root_begin --size 4 --id "$work/asleep"
for number in 1 2; do rank $number --size 4 --id "$work/asleep"; done
are_here 3
# shellcheck disable=SC2046
kill -STOP $(programs_of_ranks 0 1 2)
sleep 4
# shellcheck disable=SC2046
kill -CONT $(programs_of_ranks 0 1 2)
ended 0 1 2
all_say 'error 6 .*3 of 4 ranks came within [0-9]* seconds; missing: rank 3' 0 1 2
check $? 'a missing rank is named even if all ranks were stopped for longer than the timeout'
TUTTI_INIT_TIMEOUT_SECONDS=30
for number in 0 1; do rank $number --size 4 --id "$work/twice"; done
timeout 60 "$program" --rank 1 --size 4 --id "$work/twice" >"$work/rank.3" 2>&1
ended 0 1
all_say 'error 5 .*rank 1 came twice, from' 0 1 3
check $? 'a duplicate rank is reported'
rank 0 --size 3 --id "$work/count"
rank 1 --size 3 --id "$work/count"
awaits "$work/rank.1" 'memory ok'
rank 2 --size 4 --id "$work/count"
ended 0 1 2
all_say 'rank [012] .*says [34] ranks, others say [34]' 0 1 2
check $? 'ranks that disagree on the number of ranks are reported'

# odd WHAT SIZE WHEN SAYS: rank 3 contradicts the others when only rank 0 has checked in, or when all others
# have: all ranks, rank 3 included, fail at once with error 5 and this message.
odd() {
  there=0
  root_begin --size 4 --id "$work/odd.$1.$3"
  awaits "$work/rank.0" 'memory ok' # it checks in when another one does
  [ "$3" = early ] || {
    there='0 1 2'
    for number in 1 2; do rank $number --size 4 --id "$work/odd.$1.$3"; done
    are_here 3
  }
  timeout 60 "$build/tests/odd_rank" "$work/odd.$1.$3" 3 "$2" "$1" >"$work/rank.3" 2>&1
  # shellcheck disable=SC2086
  ended $there
  for number in $there 3; do
    grep -Eq -e "rank $number init error 5.*$4" "$work/rank.$number" || return 1
  done
}
for when in early late; do
  odd version 4 $when 'rank 3 \(process [0-9]+ on host odd, .*is of version [0-9]+, others are of [0-9]+'
  check $? "a rank of another version that checks in $when is named to every rank"
  odd ids 4 $when 'rank [0-3] \(process .* passes another list'
  check $? "a rank with another list of ids that checks in $when is named to every rank"
  odd none 5 $when 'rank [0-3] \(process .* says [45] ranks, others say [45]'
  check $? "a rank with another number of ranks that checks in $when is named to every rank"
done

# ---- unauthenticated connections of every kind to rank 0, before and while the others check in
cat >"$work/strangers.py" <<'END'
import os, random, resource, socket, struct, sys, time
port, count, secret = int(sys.argv[1]), int(sys.argv[2]), len(sys.argv) > 3
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 1000, count + 1000))
def dial(blocking=True):
    peer = socket.socket()
    peer.setblocking(blocking)
    try:
        peer.connect(('127.0.0.1', port))
    except BlockingIOError:
        pass
    return peer
MAGIC = 0x2149747475546921
def hello(kind, magic=MAGIC, version=1, wants=0):
    return struct.pack('=QHBBBBHQQ', magic, version, 1, kind, wants, 0, 0, 7, 0) + os.urandom(32)
kept = []
def say(*texts):
    peer = dial()
    for text in texts:
        try:
            peer.sendall(text)
        except OSError:
            pass
    kept.append(peer)
for _ in range(20):
    dial().close()                                            # a port scanner
    say(b'GET / HTTP/1.0\r\n\r\n')
    say(hello(1, magic=MAGIC ^ 1), b'x' * 100)                # wrong magic
    say(hello(1, version=99))
    say(hello(1)[:random.randrange(1, 63)])                   # half a handshake
    for kind in (1, 2, 3, 4, 5, 77):
        say(hello(kind), struct.pack('=IHH', 1 << 30, 3, 0))  # 1 GiB announced
        say(hello(kind), struct.pack('=IHH', 0xffffffff, 10, 0), b'y' * 5000)
    say(hello(1), struct.pack('=IHH', 200, 3, 0), b'z' * 50)  # half a message
    say(os.urandom(3000))
    say(hello(1, wants=1))
idle = [dial(False) for _ in range(count)]
print('ready', flush=True)
time.sleep(100)
END
for limit in 4096 512; do
  next_port
  (ulimit -n $limit && exec timeout 60 "$program" --rank 0 --size 3 --comm-id "$at" --ops all_reduce) \
    >"$work/rank.0" 2>&1 &
  rank_process_0=$!
  awaits "$work/rank.0" 'memory ok'
  python3 "$work/strangers.py" "$place" 10000 >"$work/strangers" 2>&1 &
  strangers=$!
  awaits "$work/strangers" ready
  check $? "10000 idle and other unauthenticated connections are open, rank 0 with $limit descriptors"
  for number in 1 2; do rank $number --size 3 --comm-id "$at" --rounds 1 --iterations 3; done
  ended 0 1 2
  check $? 'init, operations and destroy succeed meanwhile'
  kill "$strangers"
  wait "$strangers" 2>/dev/null
done

# ---- the secret
next_port
export TUTTI_SECRET='one for all' NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP
rank 0 --size 2 --comm-id "$at"
awaits "$work/rank.0" 'memory ok'
python3 "$work/strangers.py" "$place" 100 >"$work/strangers" 2>&1 &
strangers=$!
awaits "$work/strangers" ready
(
  TUTTI_SECRET='another' TUTTI_INIT_TIMEOUT_SECONDS=2
  timeout 60 "$program" --rank 1 --size 2 --comm-id "$at" >"$work/rank.2" 2>&1
)
(
  unset TUTTI_SECRET
  timeout 60 "$program" --rank 1 --size 2 --comm-id "$at" >"$work/rank.3" 2>&1
)
rank 1 --size 2 --comm-id "$at"
ended 0 1
check $? 'ranks that share a secret connect'
all_say 'error 6 .*the secret there is another one: .*TUTTI_SECRET' 2 &&
  all_say 'error 6 .*TUTTI_SECRET is set at the server and not at the client' 3
check $? 'a rank with another secret, or none, is told why it is refused'
all_say 'WARN a connection from 127.0.0.1:[0-9]* was turned away: .*TUTTI_SECRET' 0
check $? 'rank 0 reports the refused rank'
all_say 'Init timings: 2 ranks in 2 processes: total [0-9.]* ms (check-in' 0 1
check $? 'each process logs how long each phase took'
all_say 'connections refused so far: [1-9][0-9]* unauthenticated, [1-9][0-9]* without the secret' 0
check $? 'rank 0 counts all refused connections'
kill "$strangers"
wait "$strangers" 2>/dev/null

# The addresses at which a process listens, one per line.
cat >"$work/ports.py" <<'END'
import os, sys
listens = {}
for line in list(open('/proc/net/tcp'))[1:]:
    part = line.split()
    if part[3] == '0A':
        listens['socket:[%s]' % part[9]] = int(part[1].split(':')[1], 16)
for name in os.listdir('/proc/%s/fd' % sys.argv[1]):
    try:
        port = listens.get(os.readlink('/proc/%s/fd/%s' % (sys.argv[1], name)))
    except OSError:
        continue
    if port:
        print(port)
END
# Rank 0 listens for data from its first operation on; rank 1 calls it three seconds later.
NCCL_HOSTID=one rank 0 --size 2 --id "$work/data"
NCCL_HOSTID=two rank 1 --size 2 --id "$work/data" --pace 3000
awaits "$work/rank.0" 'init ok'
sleep 0.5
process=$(cat "/proc/$rank_process_0/task/$rank_process_0/children") # of timeout
python3 "$work/ports.py" "${process% }" >"$work/ports"
[ "$(wc -l <"$work/ports")" -eq 2 ]
check $? 'two hosts: rank 0 listens for control and for data'
while read -r port; do
  TUTTI_SECRET=another "$build/tests/odd_rank" dial "$port"
  env -u TUTTI_SECRET "$build/tests/odd_rank" dial "$port"
done <"$work/ports" >"$work/log" 2>&1
[ "$(grep -c '^kind [1-4]: .*refused: no' "$work/log")" -eq 8 ] && # keys that it makes up
  [ "$(grep -c '^kind [1-4]: .*TUTTI_SECRET is set at the server and not at' "$work/log")" -eq 8 ]
check $? 'connections with another secret or none are refused at both, and told why'
ended 0 1 && all_say 'iteration 0 ok' 0 1
check $? 'the two ranks continue with right results'
all_say 'refused so far: [0-9]* unauthenticated, 8 without the secret.* 8 with an unknown key' 0 &&
  all_say 'WARN a connection from 127.0.0.1:[0-9]* was turned away: .*TUTTI_SECRET' 0
check $? 'rank 0 has counted all refused connections'
export NCCL_DEBUG=WARN
unset NCCL_DEBUG_SUBSYS TUTTI_SECRET

# ---- hosts
hosts_or_skip hosts
export NCCL_SOCKET_IFNAME=eth0 TUTTI_PEER_TIMEOUT_SECONDS=2
options='--ops all_reduce,all_gather --iterations 2'

# on HOSTFILE HOST R ARGS...: rank R on a host with its own /etc/hosts.
on() {
  on_file=$1 on_host=$2 on_rank=$3
  shift 3
  # shellcheck disable=SC2016,SC2086
  hosts_start "$on_host" unshare -m sh -c 'mount --bind "$0" /etc/hosts && exec "$@"' "$on_file" \
    timeout 60 "$program" --rank "$on_rank" $options "$@" >"$work/rank.$on_rank" 2>&1
  eval "rank_process_$on_rank=$hosts_started"
}

hosts_up_wire 3
check $? 'three hosts are set up'
echo '127.0.1.1 first' >"$work/hosts.own"
echo '10.99.0.1 first' >"$work/hosts.others"
on "$work/hosts.others" 2 1 --size 2 --comm-id first:7777
on "$work/hosts.own" 1 0 --size 2 --comm-id first:7777 --rounds 1
ended 0 1
check $? "a host name that resolves to the loopback address is handled"
# shellcheck disable=SC2086
for number in 2 1 0; do rank_start $number $((number + 1)) --size 3 --comm-id 10.99.0.1:7778 $options; done
ended 0 1 2
check $? 'three ranks on three hosts connect over IPv4'

# cut_off COMMAND...: ranks run on all hosts; after the command the ranks other than rank 2 report its loss.
# shellcheck disable=SC2086
cut_off() {
  rm -f "$work"/rank.* "$work/cut"
  for number in 0 1 2; do
    rank_start $number $((number + 1)) --size 3 --id "$work/cut" --ops all_reduce --iterations 1000 \
      --pace 20 --deadline 40
  done
  awaits "$work/rank.0" 'iteration 3 ok' || return 1
  "$@"
  rank_wait 0
  cut_0=$?
  rank_wait 1
  [ "$cut_0 $?" = '3 3' ] && all_say 'error 6 .*rank 2' 0 1
  cut_status=$?
  rank_signal 2 KILL 2>/dev/null
  rank_wait 2
  cat "$work"/rank.[01] | grep error >"$work/log"
  return $cut_status
}
silence_both() { silence_one && hosts_wire set 1 3 cut=1 && hosts_wire set 2 3 cut=1; }
silence_one() { hosts_wire set 3 1 cut=1 && hosts_wire set 3 2 cut=1; }
stop_rank() { rank_signal 2 STOP; }
cut_off silence_both
check $? 'a host that is cut off is named by the others'
hosts_wire set '*' '*' cut=0
cut_off silence_one
check $? 'a host that receives but cannot send is named by the others'
hosts_wire set '*' '*' cut=0
cut_off stop_rank
check $? 'a stopped process is named by the others'
for host in 1 2 3; do hosts_exec $host ip -4 addr flush dev eth0; done
# shellcheck disable=SC2086
for number in 2 1 0; do
  rank_start $number $((number + 1)) --size 3 --comm-id '[fd99::1]:7779' $options
done
ended 0 1 2
check $? 'three ranks on three hosts with IPv6 only connect'
# shellcheck disable=SC2086
for number in 0 1 2; do rank_start $number $((number + 1)) --size 3 --id "$work/six" $options; done
ended 0 1 2
check $? 'they also connect by a unique id'
hosts_down
# A rank whose process made the id, and that is entering the call when the first rank of another process
# connects: processes that start at the same moment, repeatedly. TUTTI_EMU= is guarded mode, whose pace is
# uneven. Word splitting is wanted: pkg-config's answer is a list of flags.
# shellcheck disable=SC2046
cc -O2 -o "$work/comm_init" "$root/bench/comm_init.c" $(pkg-config --cflags --libs tutti-emu) >"$work/log" \
  2>&1
check $? "bench/comm_init.c builds for the emulator"
good=0
for _ in $(seq 30); do
  TUTTI_EMU='' TUTTI_INIT_TIMEOUT_SECONDS=5 timeout 20 "$work/comm_init" 4 >"$work/log" 2>&1 || break
  good=$((good + 1))
done
[ "$good" -eq 30 ]
check $? "four processes make five communicators, thirty times"

[ "$failures" -eq 0 ]
