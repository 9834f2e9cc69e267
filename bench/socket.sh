#!/usr/bin/env bash
# socket.sh: compares the socket net with plain sockets, over loopback and, as root, over a veth pair between
# two network namespaces that it makes and removes. Prints the tables of bench/socket.c and keeps them, with a
# line about the machine, in bench/results/socket-<date>.txt. Needs a finished build (`scons . tests`) in
# ${BUILD:-build} and a quiet machine: both processes spin. ROUNDS=n: number of rounds, of which the median
# counts.
set -eu -o pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${BUILD:-$here/../build}" && pwd)
rounds=${ROUNDS:-7}
work=$(mktemp -d)
near=tutti-near-$$ far=tutti-far-$$
clean() {
  for space in "$near" "$far"; do
    [ ! -e "/run/netns/$space" ] || ip netns del "$space"
  done
  rm -rf "$work"
}
trap clean EXIT
raw=${RAW:-$here/results/socket-$(date +%Y-%m-%d).txt}
mkdir -p "$(dirname "$raw")"

machine() {
  lscpu | sed -n 's/^Model name: *//p' | head -n 1
  echo "$(nproc) cores in use; Linux $(uname -r); $(cc --version | head -n 1)"
  git -C "$here" log -1 --format='commit %h' 2>/dev/null || true
  uptime
}

# measure TITLE COMMAND...: both tables; further arguments go behind the sizes.
measure() {
  local title=$1 netns=$2
  shift 2
  echo "## $title"
  "$@" "$work/socket" latency "$rounds" 8 262144 $netns
  "$@" "$work/socket" bandwidth "$rounds" 4096 16777216 $netns
  "$@" "$work/socket" bandwidth "$rounds" 67108864 67108864 $netns
}

veth() {
  ip netns add "$near"
  ip netns add "$far"
  ip link add veth0 netns "$near" type veth peer name veth0 netns "$far"
  ip -n "$near" addr add 10.91.0.1/24 dev veth0
  ip -n "$far" addr add 10.91.0.2/24 dev veth0
  ip -n "$near" link set veth0 up
  ip -n "$far" link set veth0 up
  while ! ip -n "$near" link show veth0 | grep -q LOWER_UP || ! ip -n "$far" link show veth0 | grep -q LOWER_UP; do
    sleep 0.1
  done
}

cc -D_GNU_SOURCE -O2 -I"$here/../lib" -o "$work/socket" "$here/socket.c" "$build/obj/libtutti_all.a" \
  -lnettle -lexpat -lpthread -ldl -lm
{
  machine
  NCCL_SOCKET_IFNAME=lo measure "loopback" ""
  if [ "$(id -u)" = 0 ] && veth; then
    NCCL_SOCKET_IFNAME=veth0 measure "veth pair" "/run/netns/$far" ip netns exec "$near"
  fi
  uptime
} 2>&1 | tee -a "$raw"
