#!/bin/sh
# test_machines.sh: topologies of machines from folders of the shape of /sys: paths, NICs of each GPU, rings
# and trees of each machine of tests/machines, the same by the XML of NCCL and by a recording, and folders
# that lack something or are wrong. Prints one `ok - ` or `not ok - ` line per check and fails if a check
# failed.
. "$(dirname "$0")/script.inc"
unset NCCL_TOPO_FILE NCCL_TOPO_DUMP_FILE NCCL_GRAPH_DUMP_FILE NCCL_CROSS_NIC NCCL_P2P_LEVEL TUTTI_SYSFS
use_build
tutti="$build/bin/tutti"
machines="$work/machines"

if ! command -v python3 >/dev/null; then
  echo "skip: machines: python3 is not installed"
  exit 0
fi
python3 "$here/machines/make.py" "$machines" || exit 1

for folder in "$machines"/*; do
  name=$(basename "$folder")
  "$tutti" topo --sysfs "$folder" --nodes 2 --dump "$work/node.xml" >"$work/out" 2>"$work/log" &&
    sed -n '/^paths/,$p' "$work/out" | diff "$here/machines/expected/$name.txt" - >>"$work/log"
  check $? "$name has the expected paths, NICs, rings and trees"
  "$tutti" topo --file "$work/node.xml" --nodes 2 >"$work/read" 2>"$work/log" &&
    tail -n +2 "$work/out" >"$work/out2" && tail -n +2 "$work/read" | diff "$work/out2" - >>"$work/log"
  check $? "$name is the same by the XML that it is written to"
  "$tutti" topo --sysfs "$folder" --record "$work/recorded/" >"$work/log" 2>&1 &&
    "$tutti" topo --sysfs "$work/recorded" --nodes 2 2>>"$work/log" >"$work/read" &&
    tail -n +2 "$work/read" | diff "$work/out2" - >>"$work/log"
  check $? "$name is the same by a recording"
  rm -rf "$work/recorded"
done

"$tutti" topo --sysfs "$machines/roce-box" --dump "$work/node.xml" >"$work/log" 2>&1 &&
  "$tutti" sim all_reduce -b 1M -e 1M --nodes 2 --file "$work/node.xml" >"$work/out" 2>"$work/log" &&
  "$tutti" sim all_reduce -b 1M -e 1M --nodes 2 --sysfs "$machines/roce-box" >"$work/read" 2>>"$work/log" &&
  grep -v '^#' "$work/out" >"$work/out2" && grep -v '^#' "$work/read" | diff "$work/out2" - >>"$work/log"
check $? "a machine is simulated as by the XML that it is written to"
echo "sysfs $machines/gb200-tray" >"$work/cluster" &&
  "$tutti" sim all_reduce -b 1M -e 1M --cluster "$work/cluster" >"$work/log" 2>&1 &&
  grep -q 'gb200-tray' "$work/log"
check $? "a cluster's description may name a machine, whose GPUs are counted"

# says STATUS TEXT ARGUMENTS...: `tutti topo` with these arguments exits with STATUS and prints TEXT.
says() {
  status=$1 text=$2
  shift 2
  timeout 60 "$tutti" topo "$@" >"$work/log" 2>&1
  [ $? -eq "$status" ] && grep -qF -- "$text" "$work/log"
}

says 4 "$work/nvml.xml: cannot be read" --sysfs "$work"
check $? "a folder without nvml.xml is refused"
says 4 "/no/such/nvml.xml: cannot be read" --sysfs /no/such
check $? "a folder that does not exist is refused"
says 2 "--sysfs says what a node has; leave out --machine" --sysfs "$machines/p5" --machine dgx-h100
check $? "--sysfs and --machine contradict each other"
says 2 "leave out --file" --sysfs "$machines/p5" --record "$work/new" --file "$work/node.xml"
check $? "--record and --file contradict each other"
says 3 "$machines: cannot be made: File exists" --sysfs "$machines/p5" --record "$machines"
check $? "a recording never replaces a folder"
says 3 "/no/such/folder: cannot be made" --sysfs "$machines/p5" --record /no/such/folder
check $? "a recording that cannot be written is an error"

bad="$work/bad"
broken() { rm -rf "$bad" && cp -R "$machines/$1" "$bad"; }

broken roce-box && rm -r "$bad/class" "$bad/bus" "$bad/devices"
says 0 "bad: 1 node; each has 1 CPU, 8 GPUs, 0 NICs" --sysfs "$bad"
check $? "GPUs without a place are below one CPU, and a machine without NICs has none"
broken roce-box && printf '<system>\n<cpu>\n<gpu/>' >"$bad/nvml.xml"
says 4 "bad/nvml.xml:3: <gpu> inside <cpu>; expected it inside <pci>" --sysfs "$bad"
check $? "a wrong nvml.xml is refused with its line"
broken roce-box && find "$bad/devices" -name max_link_speed -o -name max_link_width | while read -r file; do
  echo Unknown >"$file"
done
says 0 "  12 GB/s" --sysfs "$bad"
check $? "links of unknown speed have 12 GB/s"
broken roce-box && for port in "$bad"/class/infiniband/*/ports/*; do
  echo "1: DOWN" >"$port/state"
done
says 0 "0 NICs" --sysfs "$bad"
check $? "ports that are down are left out"
broken flat-vm && rm "$bad/class/net/ens5/device" && ln -s device "$bad/class/net/ens5/device"
says 0 "0 NICs" --sysfs "$bad"
check $? "a link that leads to itself is no device"
broken dgx-h100 && head -c 100000 /dev/urandom >"$bad/cpuinfo" &&
  find "$bad/devices/pci0000:02" -name class -exec cp "$bad/cpuinfo" {} \;
says 0 "8 GPUs" --sysfs "$bad"
check $? "random bytes in place of numbers are unknown values"
# A virtual machine's own tree is flat; the file says which devices share a switch.
cat >"$work/part.xml" <<'END'
<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:00:16.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0000:00:05.0"/>
    </pci>
  </cpu>
  <cpu numaid="1"><pci busid="0000:00:17.0"/></cpu>
</system>
END
says 0 "GPU 0     LOC  SYS  PHB  PHB  PHB  PHB  PHB  PHB  PIX" --sysfs "$machines/flat-vm" \
  --file "$work/part.xml" && grep -q "CPU 0  x86_64 GenuineIntel, 22 GB/s" "$work/log" &&
  grep -q "GPU 1     SYS  LOC" "$work/log"
check $? "a file that describes a part of a machine says where these devices are"
says 4 "cannot be read" --sysfs "$machines/flat-vm" --file /no/such/file
check $? "such a file must be there"

# This machine, with GPUs that a library in NVML's place shows.
mkdir "$work/nvml" && ${CC:-cc} -shared -fPIC -o "$work/nvml/libnvidia-ml.so.1" \
  "$here/machines/fake_nvml.c" || exit 3
export LD_LIBRARY_PATH="$work/nvml${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
says 0 "this machine: 1 node" --sysfs /sys --dump "$work/node.xml" &&
  grep -q '<gpu dev="0" sm="80" .*gdr="1"' "$work/node.xml" &&
  grep -q '<nvlink target="0000:77:00.0" count="1" tclass="0x030200"/>' "$work/node.xml" &&
  [ "$(grep -c '<nvlink target="0000:c1:00.0" count="2" tclass="0x068000"/>' "$work/node.xml")" -eq 2 ] &&
  [ "$(grep -c '<c2c bw="44712" count="5"/>' "$work/node.xml")" -eq 1 ] &&
  grep -q '^GPU 0     LOC  NVL' "$work/log"
check $? "NVML says which GPUs there are, and their links"
"$tutti" topo --record "$work/recorded" >"$work/log" 2>&1 &&
  "$tutti" topo --sysfs "$work/recorded" --dump "$work/again.xml" >>"$work/log" 2>&1 &&
  diff "$work/node.xml" "$work/again.xml" >>"$work/log"
check $? "a recording of this machine gives the same topology"
unset LD_LIBRARY_PATH

if [ -d /sys/bus/pci ] && ! command -v nvidia-smi >/dev/null; then
  says 4 "NVML (libnvidia-ml.so.1) shows no GPU of this machine" --sysfs /sys
  check $? "a machine without GPUs says so"
fi
