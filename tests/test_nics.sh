#!/bin/sh
# test_nics.sh: which NICs the ranks of a job on GPUs use between hosts. GPUs are fibres (tests/simt), hosts
# are processes with host ids of their own, NICs are interfaces of a network namespace, and machines are
# folders of the shape of /sys (tests/machines). Prints one `ok - ` or `not ok - ` line per check and fails if
# a check failed.
. "$(dirname "$0")/script.inc"
unset NCCL_TOPO_FILE NCCL_P2P_LEVEL NCCL_CROSS_NIC TUTTI_SYSFS NCCL_DEBUG NCCL_DEBUG_SUBSYS
use_build
tutti="$build/bin/tutti"
simt="$build/simt"
log="$work/log"

cat >"$work/nics" <<'END'
for nic in 0 1; do
  ip link add nic$nic type veth peer name peer$nic && ip address add 10.77.$nic.1/24 dev nic$nic &&
    ip link set nic$nic up && ip link set peer$nic up || exit 3
done
ip link set lo up && exec "$@"
END
if ! command -v python3 >/dev/null; then
  echo "skip: NICs beside GPUs: python3 is not installed"
  exit 0
fi
if ! unshare -rn sh "$work/nics" true 2>"$log"; then
  echo "skip: NICs beside GPUs: no network namespaces here: $(head -n 1 "$log")"
  exit 0
fi
# shellcheck disable=SC2016
printf '#!/bin/sh\nNCCL_HOSTID=host$$ NCCL_DEBUG_FILE=%s/rank.%%p exec "$@"\n' "$work" >"$work/host"
chmod +x "$work/host"
python3 "$here/machines/make.py" "$work" two-nics
machine="$work/two-nics" # nic1 is beside GPU 0
cat >"$work/nics.xml" <<'END'
<system version="1">
  <cpu numaid="0">
    <pci busid="ffff:ff:01.0" class="0x060400"><pci busid="0000:01:00.0"/><pci busid="0000:05:00.0"/></pci>
    <pci busid="ffff:ff:02.0" class="0x060400"><pci busid="0000:02:00.0"/><pci busid="0000:06:00.0"/></pci>
  </cpu>
</system>
END

# between NAME=VALUE...: a collective of two hosts of two GPUs is right; its log is in $log.
between() {
  rm -f "$work"/rank.*
  LD_LIBRARY_PATH=$simt TUTTI_BACKEND=cuda TUTTI_EMU=mode=threads,devices=2 NCCL_MAX_CTAS=2 \
    NCCL_SOCKET_IFNAME=nic NCCL_NET=Socket NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET,GRAPH \
    timeout 120 unshare -rn sh "$work/nics" "$tutti" launch -n 2 "$work/host" env "$@" \
    "$tutti" bench "${collective:-all_reduce}" -g 2 -b 64K -e 64K -n 1 -w 0 -q --nccl "$simt/libnccl.so.2" \
    --cudart "$simt/libtutti-simt.so" >"$work/out" 2>"$log" </dev/null
  between_result=$?
  cat "$work"/rank.* >>"$log" 2>/dev/null
  return $between_result
}

# by_nics DEVICE0 DEVICE1: connections of ranks on GPU 0 are by DEVICE0, those of ranks on GPU 1 by DEVICE1.
by_nics() {
  uses='(sends to|receives from) rank [0-3] by device'
  grep -Eq "rank [02] $uses $1" "$log" && grep -Eq "rank [13] $uses $2" "$log" &&
    ! grep -E "rank [02] $uses $((1 - $1))" "$log" && ! grep -E "rank [13] $uses $((1 - $2))" "$log"
}

for collective in all_reduce alltoall; do
  between TUTTI_SYSFS="$machine" &&
    grep -q 'NICs of rank 2 on GPU 0000:01:00.0, nearest first: nic1 PIX, nic0 SYS' "$log" && by_nics 1 0
  check $? "$collective of two hosts uses the NICs beside its GPUs"
done
collective=
between TUTTI_SYSFS="$machine" NCCL_TOPO_FILE="$work/nics.xml" && by_nics 0 1
check $? "NCCL_TOPO_FILE says which NICs these are"
sed -i 's/0000:0\([12]\)/0000:a\1/' "$machine/nvml.xml" && between TUTTI_SYSFS="$machine" &&
  grep -q 'the GPU of rank 0 is not among those of this machine: NICs are taken in turn' "$log"
check $? "a folder of another machine is left out, and the log says so"
! between TUTTI_SYSFS="$work/none" && grep -q 'none/nvml.xml: cannot be read' "$log"
check $? "TUTTI_SYSFS that names nothing is an error"
