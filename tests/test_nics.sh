#!/bin/sh
# test_nics.sh: which NICs, rings and trees the ranks of a job on GPUs use between hosts. GPUs are fibres
# (tests/simt), hosts are processes with host ids of their own, NICs are interfaces of a network namespace,
# and machines are folders of the shape of /sys (tests/machines). Prints one `ok - ` or `not ok - ` line per
# check and fails if a check failed.
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
  until ip link show nic$nic | grep -q 'state UP'; do sleep 0.01; done
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
# $OTHER: what the second host has in place of the first one's TUTTI_SYSFS.
cat >"$work/host" <<'END'
#!/bin/sh
[ "$TUTTI_RANK" = 0 ] || TUTTI_SYSFS=${OTHER:-$TUTTI_SYSFS}
NCCL_HOSTID=host$TUTTI_RANK exec "$@"
END
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
    NCCL_DEBUG_FILE="$work/rank.%p" timeout 120 unshare -rn sh "$work/nics" env "$@" \
    "$tutti" launch -n 2 "$work/host" "$tutti" bench "${collective:-all_reduce}" -g 2 -b 64K -e 64K -n 1 \
    -w 0 -q --nccl "$simt/libnccl.so.2" --cudart "$simt/libtutti-simt.so" >"$work/out" 2>"$log" </dev/null
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

# ---- rings and trees
# made_for MACHINE: each process says that it lays out its ranks by this topology.
made_for() { [ "$(grep -c "topology '$1': 4 ranks on 2 nodes" "$log")" -eq 2 ]; }
# not_alike WHAT: rank 0's process alone says how the second host differs, and both use the default machine.
not_alike() {
  [ "$(grep -c 'WARN hosts are not alike' "$log")" -eq 1 ] && made_for dgx-h100 &&
    grep -q "hosts are not alike: compared with .* (rank 0), [^ ]* (rank 2) has $1: rings" "$log"
}
between TUTTI_SYSFS="$machine" TUTTI_TRACE="$work/trace.%p" && made_for two-nics &&
  [ "$(grep -c "for their machines, which are alike: 2 GPUs and 2 NICs of 'two-nics'" "$log")" -eq 2 ]
check $? "rings and trees are made for the machines of two hosts that are alike"
for trace in "$work"/trace.*; do
  "$tutti" trace dump "$trace" | sed 's/state=ended/state=open/' >"$trace.txt"
  sed '/name=shape/d' "$trace.txt" >"$trace.none"
  sed 's/name=shape a=.*/name=shape a=7/' "$trace.txt" >"$trace.other"
done
# The job has ended, and is only said to be open: what matters is that its plans come out as they were.
"$tutti" replay "$work"/trace.*.txt >"$log" 2>&1
grep -Eq '^(not )?reached: ' "$log" &&
  ! "$tutti" replay "$work"/trace.*.none >"$log" 2>&1 && grep -q 'come out different' "$log" &&
  ! "$tutti" replay "$work"/trace.*.other >"$log" 2>&1 &&
  grep -q "cannot be made again: the job's machine: row 0 of .* makes no sense" "$log"
check $? "records hold what the graph was made for, and a replay makes it again"
mkdir "$work/other" && cp -r "$machine" "$work/other" && other="$work/other/two-nics"
sed -i 's/0000:01/0000:d1/' "$other/nvml.xml"
between TUTTI_SYSFS="$machine" OTHER="$other" && made_for dgx-h100 &&
  grep -q 'the GPU of rank 2 or its network is not among' "$log" && ! grep -q 'WARN hosts' "$log"
check $? "a GPU that its machine does not have: rings and trees of the default machine"
cp "$machine/nvml.xml" "$other/nvml.xml"
find "$other" -path '*02:00.0/max_link_width' | while read -r file; do echo 4 >"$file"; done
between TUTTI_SYSFS="$machine" OTHER="$other" && not_alike 'other links or settings of paths'
check $? "a host with other links is named, and all use rings and trees of the default machine"
sed -i 's|</cpu>|<pci busid="0000:44:00.0" class="0x030200"><gpu dev="7" sm="90"/></pci></cpu>|' \
  "$other/nvml.xml"
between TUTTI_SYSFS="$machine" OTHER="$other" && not_alike '3 GPUs instead of 2'
check $? "a host with another number of GPUs is named"

# ---- wrong machines
sed -i 's/0000:0\([12]\)/0000:a\1/' "$machine/nvml.xml" && between TUTTI_SYSFS="$machine" &&
  grep -q 'the GPU of rank 0 is not among those of this machine: NICs are taken in turn' "$log"
check $? "a folder of another machine is left out, and the log says so"
! between TUTTI_SYSFS="$work/none" && grep -q 'none/nvml.xml: cannot be read' "$log"
check $? "TUTTI_SYSFS that names nothing is an error"
