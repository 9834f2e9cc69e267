#!/bin/sh
# test_hosts.sh: tests the hosts of tests/hosts.inc and the switch of tests/wire.c: plain TCP and UDP
# between hosts, the effect of each impairment, and that nothing is left behind, at the end or after a kill.
# Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
# runner: 18 s, waits
. "$(dirname "$0")/script.inc"
. "$here/hosts.inc"
use_build
hosts_or_skip hosts

# listen PORT | ask ADDRESS PORT: one line of TCP in each direction, printed by the client
# hear: prints the numbers of UDP packets as they arrive, until SIGTERM
# say ADDRESS COUNT PACE: sends COUNT numbered packets, PACE seconds apart
cat >"$work/net.py" <<'END'
import select, signal, socket, sys, time
mode, rest = sys.argv[1], sys.argv[2:]
def family(address): return socket.AF_INET6 if ':' in address else socket.AF_INET
if mode == 'listen':
    listener = socket.socket(socket.AF_INET6)
    listener.bind(('::', int(rest[0])))
    listener.listen()
    print('ready', flush=True)
    while True:
        peer, _ = listener.accept()
        with peer:
            while text := peer.recv(65536):
                peer.sendall(text)
elif mode == 'ask':
    with socket.socket(family(rest[0])) as peer:
        peer.settimeout(float(rest[2]) if len(rest) > 2 else 5)
        begin = time.monotonic()
        peer.connect((rest[0], int(rest[1])))
        peer.sendall(b'hello')
        print(peer.recv(5).decode(), int((time.monotonic() - begin) * 1000))
elif mode == 'hear':
    hearer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    hearer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    hearer.bind(('0.0.0.0', 7001))
    stopped = False
    def stop(*_):
        global stopped
        stopped = True
    signal.signal(signal.SIGTERM, stop)
    print('ready', flush=True)
    while select.select([hearer], [], [], 0 if stopped else 0.05)[0] or not stopped:
        if select.select([hearer], [], [], 0)[0]:
            print(hearer.recv(2000).decode().split()[0], flush=True)
elif mode == 'say':
    sayer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number in range(int(rest[1])):
        sayer.sendto(b'%d %0500d' % (number, 0), (rest[0], 7001))
        time.sleep(float(rest[2]))
END

# start NAME HOST MODE...: starts it in the background and waits until it is ready; its output goes to
# $work/NAME.
start() {
  start_name=$1
  start_host=$2
  shift 2
  hosts_start "$start_host" python3 "$work/net.py" "$@" >"$work/$start_name" 2>&1
  for _ in $(seq 500); do
    grep -q ready "$work/$start_name" && return
    sleep 0.02
  done
  return 1
}

ask() { # FROM ADDRESS [SECONDS]
  hosts_exec "$1" python3 "$work/net.py" ask "$2" 7000 "${3:-5}" >"$work/log" 2>&1 &&
    grep -q '^hello' "$work/log"
}

# heard FROM TO COUNT EXPECTED: sends COUNT packets, as fast as possible if $pace is 0; waits until EXPECTED
# have arrived, for at most a minute, and then a while for packets that should not arrive. $work/heard has
# the packets, $heard their number.
pace=0.001
heard() {
  start heard "$2" hear || return 1
  hosts_exec "$1" python3 "$work/net.py" say "10.99.0.$2" "$3" "$pace"
  for _ in $(seq 3000); do
    [ "$(wc -l <"$work/heard")" -le "$4" ] || break # one line says that it is ready
    sleep 0.02
  done
  sleep 0.2
  kill "$hosts_started"
  wait "$hosts_started"
  sed -i '/ready/d' "$work/heard"
  heard=$(wc -l <"$work/heard")
  echo "$heard of $3 packets came" >"$work/log"
}

refuses() { ! "$@"; }

links_before=$(ip -o link | wc -l)
hosts_up 3
check $? 'three hosts on a bridge are set up'
start listener 2 listen 7000
check $? 'a program in host 2 listens'
ask 1 10.99.0.2 && ask 3 fd99::2
check $? 'TCP between hosts works, IPv4 and IPv6'
[ "$(hosts_exec 2 hostname)" = host2 ] && [ "$(hosts_exec 3 hostname)" = host3 ]
check $? 'each host has its own host name'
[ "$(hosts_exec 1 ip -o link | wc -l)" -eq 2 ]
check $? 'a host sees only its own network'

hosts_rate 2 10mbit && heard 1 2 20 20 && [ "$heard" -eq 20 ] &&
  hosts_exec 2 tc qdisc show dev eth0 | grep -q 'tbf.*rate 10Mbit' &&
  hosts_rate 2 off && refuses sh -c "nsenter -t $hosts_target -n tc qdisc show dev eth0 | grep -q tbf"
check $? 'a rate limit is set and removed'
hosts_loss 2 500 && heard 1 2 200 1 && [ "$heard" -gt 0 ] && [ "$heard" -lt 200 ] &&
  hosts_loss 2 off && heard 1 2 50 50 && [ "$heard" -eq 50 ]
check $? 'packet loss is set and removed'
hosts_cut 2 && refuses ask 1 10.99.0.2 1 && hosts_exec 2 ip -o link show eth0 | grep -q NO-CARRIER
check $? 'a host whose cable is pulled sees no carrier and is unreachable'
hosts_join 2 && ask 1 10.99.0.2
check $? 'a cable that is plugged in again carries traffic'
hosts_mute 2 && heard 1 2 20 0 && [ "$heard" -eq 0 ] && refuses ask 1 10.99.0.2 1 &&
  refuses sh -c "nsenter -t $hosts_target -n ip -o link show eth0 | grep -q NO-CARRIER"
check $? 'a muted host receives nothing and keeps its carrier'
hosts_unmute 2 && ask 1 10.99.0.2 && ask 2 10.99.0.2
check $? 'an unmuted host receives again'
rank_start 0 3 --size 1 --id "$work/id" && rank_wait 0 && grep -q '^rank 0 destroy ok$' "$work/rank.0" &&
  [ -s "$work/id" ]
check $? 'a rank runs on a host'
rank_start 0 3 --size 1 --pace 20000 && rank_signal 0 KILL
rank_wait 0
[ $? -eq 137 ]
check $? 'a rank on a host is killed'
holders="$hosts_switch $hosts_holder_1 $hosts_holder_2 $hosts_holder_3 $hosts_started"
hosts_down
left=$(for process in $holders; do [ ! -d "/proc/$process" ] || echo "$process"; done)
[ -z "$left" ]
check $? 'no process is left after hosts_down'

hosts_up_wire 3 -s 5 && start listener 2 listen 7000 && ask 1 10.99.0.2 && ask 3 fd99::2
check $? 'three hosts on wire are set up'
hosts_wire set '*' '*' delay_us=20000 && ask 1 10.99.0.2 && [ "$(cut -d' ' -f2 "$work/log")" -ge 80 ]
check $? 'a delay applies in both directions: two round trips'
hosts_wire set '*' '*' delay_us=0 && heard 1 2 50 50 && sort -n "$work/heard" | cmp -s - "$work/heard" &&
  [ "$heard" -eq 50 ]
check $? 'without impairments all packets arrive in order'
hosts_wire set '*' '*' delay_us=3000 jitter_us=3000 && heard 1 2 100 100 && [ "$heard" -eq 100 ] &&
  sort -n "$work/heard" | cmp -s - "$work/heard"
check $? 'jitter keeps the order of packets'
pace=0 # else a busy machine sends so slowly that none overtakes, and none is too many
hosts_wire set '*' '*' jitter_us=0 reorder_ppm=200000 && heard 1 2 100 100 && [ "$heard" -eq 100 ] &&
  refuses sh -c "sort -n '$work/heard' | cmp -s - '$work/heard'"
check $? 'reordered packets overtake each other'
pace=0.001
hosts_wire set '*' '*' delay_us=0 reorder_ppm=0 dup_ppm=1000000 && heard 1 2 20 40 && [ "$heard" -eq 40 ]
check $? 'duplicated packets arrive twice'
hosts_wire set 1 2 dup_ppm=0 loss_ppm=500000 && heard 1 2 100 1 && [ "$heard" -gt 0 ] &&
  [ "$heard" -lt 100 ]
check $? 'lost packets do not arrive'
hosts_wire set '*' '*' dup_ppm=0 loss_ppm=0 cut=0 && hosts_wire set 1 2 cut=1 && heard 1 2 10 0 &&
  [ "$heard" -eq 0 ] && heard 3 2 10 10 && [ "$heard" -eq 10 ] && heard 2 3 10 10 && [ "$heard" -eq 10 ]
check $? 'a cut affects one direction only'
pace=0
hosts_wire set '*' '*' cut=0 rate_mbit=1 queue_kb=1 && heard 1 2 200 1 && [ "$heard" -lt 200 ]
check $? 'a rate limit drops what its queue does not hold'
hosts_wire set 1 9 cut=1 2>/dev/null
check $((! $?)) 'a command for an unknown host is refused'
holders="$hosts_wire_pid $hosts_holder_1 $hosts_holder_2 $hosts_holder_3 $hosts_started"
hosts_down
left=$(for process in $holders; do [ ! -d "/proc/$process" ] || echo "$process"; done)
[ -z "$left" ]
check $? 'no process is left after wire ends'

# A script that is killed ends its hosts too.
cat >"$work/killed.sh" <<END
root=$root; here=$here; work=$work/killed; build=$build
mkdir "$work/killed"
. "$here/hosts.inc"
hosts_up 2 && hosts_start 1 sleep 600
setpriv --pdeathsig KILL sleep 600 &
for process in \$hosts_started \$!; do # who is still on its way would not hear of the script's end
  until [ "\$(cat /proc/\$process/comm)" = sleep ]; do sleep 0.01; done
done
echo "\$hosts_switch \$hosts_holder_1 \$hosts_holder_2 \$hosts_started"
wait
END
for signal in TERM KILL; do
  rm -rf "$work/killed" "$work/holders"
  sh "$work/killed.sh" >"$work/holders" 2>&1 &
  killed=$!
  for _ in $(seq 500); do
    [ ! -s "$work/holders" ] || break
    sleep 0.02
  done
  kill "-$signal" "$killed"
  wait "$killed" 2>/dev/null
  left=begin
  for _ in $(seq 100); do
    left=$(for process in $(cat "$work/holders"); do [ ! -d "/proc/$process" ] || echo "$process"; done)
    [ -n "$left" ] || break
    sleep 0.05
  done
  [ -s "$work/holders" ] && [ -z "$left" ]
  check $? "no host outlives a script that SIG$signal ends"
done
[ "$(ip -o link | wc -l)" -eq "$links_before" ]
check $? 'the root namespace is unchanged'
[ "$failures" -eq 0 ]
