#!/bin/sh
# test_gpudirect.sh: slots of network connections in memory of GPUs, where NICs read and write them. GPUs are
# fibres (tests/simt), hosts are processes with host ids of their own, and their NICs are emulated
# (tests/simt/verbs.c): what a NIC writes to memory of a GPU is not visible before a flush. Prints one
# `ok - ` or `not ok - ` line per check and fails if a check failed.
. "$(dirname "$0")/script.inc"
unset NCCL_TOPO_FILE NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ TUTTI_NET_DEVICE_SLOTS TUTTI_SYSFS NCCL_DEBUG_SUBSYS
use_build
tutti="$build/bin/tutti"
simt="$build/simt"
log="$work/log"
if ! command -v python3 >/dev/null; then
  echo "skip: NICs beside GPUs: python3 is not installed"
  exit 0
fi

# NICs 0 and 2 are the first ones of their hosts, 1 and 3 the second ones, each beside a GPU.
python3 "$here/machines/make.py" "$work" two-nics
machine="$work/two-nics"
for nic in 0 1 2 3; do
  mkdir -p "$machine/class/infiniband/fake_$nic:1"
  cp -P "$machine/class/net/nic$((1 - nic % 2))/device" "$machine/class/infiniband/fake_$nic:1/device"
done
cat >"$work/host" <<'END'
#!/bin/sh
SIMT_NICS=$NICS:$((2 * TUTTI_RANK)):2 NCCL_HOSTID=host$TUTTI_RANK exec "$@"
END
chmod +x "$work/host"

# between COLLECTIVE NAME=VALUE...: it is right between two hosts of two GPUs; their logs are in $log.
between() {
  rm -rf "$work"/rank.* "$work"/nics*
  collective=$1
  shift
  env LD_LIBRARY_PATH="$simt/verbs:$simt" NICS="$work/nics" TUTTI_SYSFS="$machine" TUTTI_BACKEND=cuda \
    TUTTI_EMU=mode=threads,devices=2 NCCL_MAX_CTAS=2 NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO \
    NCCL_DEBUG_SUBSYS=NET,PROXY NCCL_DEBUG_FILE="$work/rank.%p" SIMT_DMABUF=1 "$@" timeout 120 \
    "$tutti" launch -n 2 "$work/host" "$tutti" bench "$collective" -g 2 -b 8 -e 256K -f 32 -n 1 -w 0 -q \
    --nccl "$simt/libnccl.so.2" --cudart "$simt/libtutti-simt.so" >"$log" 2>&1 </dev/null
  between_result=$?
  cat "$work"/rank.* >>"$log" 2>/dev/null
  return $between_result
}
# on_device COUNT: so many of the four ranks have their slots in memory of GPUs.
on_device() { [ "$(grep -c 'slots of connections over network IB lie in device memory' "$log")" -eq "$1" ]; }

result=0
for collective in all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter; do
  between $collective TUTTI_NET_DEVICE_SLOTS=1 SIMT_SEED=5 && on_device 4 || { result=1 && break; }
done
check $result "all collectives of two hosts are right with slots in memory of GPUs"
for proto in LL Simple; do
  between all_reduce TUTTI_NET_DEVICE_SLOTS=1 NCCL_PROTO=$proto && on_device 4 ||
    { result=1 && break; }
done
check $result "both protocols that networks carry are"
! between all_reduce TUTTI_NET_DEVICE_SLOTS=1 NCCL_PROTO=Simple SIMT_FLUSHES=none && grep -q wrong "$log"
check $? "results are wrong where flushes make nothing visible"
[ "$failures" -eq 0 ]
