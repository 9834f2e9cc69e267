# setup.sh: runs in the guest: creates its devices, then runs the job. With `wires` one: a device, rxe0 at
# 10.77.0.1, whose queue pairs reach each other; two: also rxe1 at 10.77.0.2, with a wire between nic0 and
# nic1; far1 or far2: one of two guests, rxe0 at 10.77.0.1 or .2 and rxe1 at 10.78.0.1 or .2, each with a wire
# to the same device of the other guest.
# shellcheck shell=bash disable=SC2154
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8
ulimit -l unlimited
ulimit -c 0
ip link set lo up
echo guest >/proc/sys/kernel/hostname
if [ "$wires" = one ]; then
  ip link add nic0 type dummy
  ip addr add 10.77.0.1/24 dev nic0
  ip link set nic0 mtu 4200 up
elif [ "$wires" = two ]; then
  ip link add nic0 type veth peer name nic1
  for i in 0 1; do
    ip link set nic$i mtu 4200 up
    ip addr add 10.77.0.$((i + 1))/32 dev nic$i
  done
  # Both addresses belong to this host: routing rules force their packets onto the wire.
  for name in all default nic0 nic1; do
    echo 0 >/proc/sys/net/ipv4/conf/$name/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$name/accept_local
  done
  ip rule add pref 10 iif nic0 lookup local
  ip rule add pref 11 iif nic1 lookup local
  ip rule add pref 12 to 127.0.0.0/8 lookup local
  ip route add 10.77.0.2 dev nic0 src 10.77.0.1 table 100
  ip route add 10.77.0.1 dev nic1 src 10.77.0.2 table 100
  ip rule add pref 20 lookup 100
  ip rule add pref 30 lookup local
  ip rule del pref 0
  rdma link add rxe1 type rxe netdev nic1
else
  echo "guest${wires#far}" >/proc/sys/kernel/hostname
  for i in 0 1; do
    ip link set eth$i name nic$i mtu 4200
    ip addr add 10.7$((i + 7)).0.${wires#far}/24 dev nic$i
    ip link set nic$i up
  done
  rdma link add rxe1 type rxe netdev nic1
fi
rdma link add rxe0 type rxe netdev nic0
cd "$(cat /mnt/folder)" || exit
bash /mnt/job.sh >/mnt/out 2>&1 </dev/null
echo $? >/mnt/status
