#!/bin/sh
# test_topo.sh: `tutti topo` on presets and files, its error messages, and communicators that the emulator
# spreads over nodes. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
. "$(dirname "$0")/script.inc"
unset NCCL_TOPO_FILE NCCL_TOPO_DUMP_FILE NCCL_GRAPH_FILE NCCL_GRAPH_DUMP_FILE NCCL_CROSS_NIC NCCL_P2P_LEVEL
use_build
tutti="$build/bin/tutti"

# says STATUS TEXT ARGUMENTS...: `tutti topo` with these arguments exits with STATUS and prints TEXT.
says() {
  status=$1 text=$2
  shift 2
  "$tutti" topo "$@" >"$work/log" 2>&1
  [ $? -eq "$status" ] && grep -qF "$text" "$work/log"
}

says 0 "rings: 8 found, 48 GB/s each, NVL inside a node, 48 GB/s by PIX between nodes" --nodes 2
check $? "two nodes with one NIC per GPU are drawn"
says 0 "GPU 2     NVL  NVL  LOC  NVL  PXN  PXN  PIX  PXN" --gpus 4 --nics 4
check $? "the paths of a node are printed"
says 0 "where both support it (paths up to P2C, NCCL_NET_GDR_LEVEL)" --gpus 4 --nics 4 &&
  grep -q '^GPU 2 *  [a-z0-9_]*$' "$work/log" &&
  NCCL_NET_GDR_LEVEL=SYS says 0 "(paths up to SYS" --gpus 4 --nics 4 &&
  grep -q '^GPU 2 *\(  [a-z0-9_]*\)\{4\}$' "$work/log" &&
  NCCL_NET_GDR_LEVEL=LOC says 0 "GPU 2     none" --gpus 4 --nics 4
check $? "which NICs are near enough for GPUDirect RDMA is printed"
says 0 "and so on, 8192 ranks" --nodes 1024 && awk 'length > 100 { exit 1 }' "$work/log"
check $? "1,024 nodes fit in 100 columns"
says 0 "GPU 63" --machine pcie-box --gpus 64 --nics 40 && awk 'length > 100 { exit 1 }' "$work/log"
check $? "many devices fit in 100 columns"
says 0 "2 nodes" --nodes 2 --gpus 4 --nics 2 --dump "$work/node.xml" && mv "$work/log" "$work/made" &&
  says 0 "node.xml: 2 nodes" --nodes 2 --file "$work/node.xml" && tail -n +2 "$work/log" >"$work/read" &&
  tail -n +2 "$work/made" | cmp - "$work/read"
check $? "a dump is read again and gives the same topology"
if command -v python3 >/dev/null; then
  "$tutti" topo --nodes 3 --json | python3 -c '
import json, sys
topo = json.load(sys.stdin)
assert sum(path.get("gpudirect_rdma", False) for path in topo["paths"]) == 8
assert len(topo["paths"]) == 8 * 16 and topo["rings"]["channels"] == 8
for channel in topo["channels"]:
    assert sorted(channel["ring"]) == list(range(24)) and channel["tree_parents"].count(-1) == 1
' >"$work/log" 2>&1
  check $? "--json prints the topology"
else
  echo "skip: JSON: python3 is not installed"
fi
says 2 "there is no machine 'dgx-9'; there are dgx-h100" --machine dgx-9
check $? "an unknown machine is refused"
says 4 "/no/such/file: cannot be read" --file /no/such/file
check $? "a missing file is refused"
printf '<system>\n<cpu>\n<gpu/>' >"$work/bad.xml"
says 4 "bad.xml:3: <gpu> inside <cpu>; expected it inside <pci>" --file "$work/bad.xml"
check $? "a malformed file is refused with file, line, and what was expected"
says 2 "leave out --machine" --file "$work/node.xml" --machine dgx-h100
check $? "contradictory flags are refused"
says 3 "cannot be written" --dump /no/such/folder/file
check $? "a dump that cannot be written is an error"

# ---- communicators
bench() {
  timeout 60 "$tutti" bench "$@" --ranks 8 -e 16K -f 16 >"$work/log" 2>&1
}

for nodes in 2 4 8; do
  TUTTI_EMU=devices=8,channels=20,nodes=$nodes NCCL_ALGO="allreduce:ring" bench all_reduce &&
    TUTTI_EMU=devices=8,channels=20,nodes=$nodes NCCL_ALGO="allreduce:tree" bench all_reduce &&
    TUTTI_EMU=devices=8,channels=20,nodes=$nodes,mode=threads bench all_gather
  check $? "8 emulated devices form $nodes nodes"
done
TUTTI_EMU=devices=8,nodes=3 bench all_reduce
[ $? -ne 0 ] && grep -q 'nodes=3 does not divide devices=8' "$work/log"
check $? "devices that do not divide by the nodes are refused"
TUTTI_EMU=devices=8 NCCL_TOPO_FILE="$work/node.xml" NCCL_GRAPH_DUMP_FILE="$work/graph.xml" \
  NCCL_TOPO_DUMP_FILE="$work/again.xml" NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH bench all_reduce &&
  grep -q "topology 'node.xml': 8 ranks on 2 nodes" "$work/log" && cmp "$work/node.xml" "$work/again.xml" &&
  grep -q '<graph id="1"' "$work/graph.xml"
check $? "NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE and NCCL_GRAPH_DUMP_FILE are honoured"
NCCL_TOPO_FILE="$work/bad.xml" bench all_reduce
[ $? -ne 0 ] && grep -q 'bad.xml:3: <gpu> inside <cpu>' "$work/log"
check $? "a malformed NCCL_TOPO_FILE fails ncclCommInit with file and line"
TUTTI_EMU=devices=8 NCCL_TOPO_FILE="$work/node.xml" NCCL_TOPO_DUMP_FILE=/no/such/folder/file bench all_reduce
check $? "a dump that cannot be written does not stop the job"

# Rings of 8 GPUs in an order that no search finds, for one node and for two.
cat >"$work/rings.xml" <<'XML'
<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="20" speedinter="20" samechannels="1">
    <channel>
      <net dev="3"/>
      <gpu dev="2"/><gpu dev="0"/><gpu dev="3"/><gpu dev="7"/><gpu dev="1"/><gpu dev="6"/><gpu dev="5"/>
      <gpu dev="4"/>
      <net dev="5"/>
    </channel>
  </graph>
</graphs>
XML
result=0
for job in devices=8 devices=8,mode=threads devices=16,nodes=2; do
  case $job in *nodes*) ranks=16 chain='3 2 0 3' ;; *) ranks=8 chain='2 0 3 7' ;; esac
  rm -f "$work/graph.xml"
  TUTTI_EMU=$job NCCL_GRAPH_FILE="$work/rings.xml" NCCL_GRAPH_DUMP_FILE="$work/graph.xml" NCCL_ALGO=ring \
    timeout 60 "$tutti" bench all_reduce --ranks "$ranks" -e 16K -f 16 >"$work/log" 2>&1 &&
    [ "$(grep -m 4 -E '<(net|gpu) ' "$work/graph.xml" | tr -dc '0-9\n' | xargs)" = "$chain" ] ||
    { result=1 && break; }
done
check $result "NCCL_GRAPH_FILE gives the rings inside a node, on one node and on several"
rm -f "$work/graph.xml"
LD_LIBRARY_PATH="$build/simt" TUTTI_BACKEND=cuda TUTTI_EMU=mode=threads,devices=8 NCCL_MAX_CTAS=1 \
  NCCL_GRAPH_FILE="$work/rings.xml" NCCL_GRAPH_DUMP_FILE="$work/graph.xml" NCCL_ALGO=ring timeout 60 \
  "$tutti" bench all_reduce -g 8 -e 16K -f 16 -n 1 -w 0 -q --nccl "$build/simt/libnccl.so.2" \
  --cudart "$build/simt/libtutti-simt.so" >"$work/log" 2>&1 &&
  [ "$(grep -m 4 -E '<(net|gpu) ' "$work/graph.xml" | tr -dc '0-9\n' | xargs)" = '2 0 3 7' ]
check $? "and on GPUs of one host (tests/simt)"
sed 's/<gpu dev="7"\/>//' "$work/rings.xml" >"$work/few.xml"
TUTTI_EMU=devices=8 NCCL_GRAPH_FILE="$work/few.xml" bench all_reduce
[ $? -ne 0 ] && grep -q 'NCCL_GRAPH_FILE: .*few.xml:3: the channel lacks GPU 7, which the comm' "$work/log"
check $? "a NCCL_GRAPH_FILE that lacks a GPU fails ncclCommInit with file and line"
NCCL_GRAPH_FILE=/no/such/file bench all_reduce
[ $? -ne 0 ] && grep -q 'NCCL_GRAPH_FILE: /no/such/file: cannot be read: No such file' "$work/log"
check $? "so does one that cannot be read"
cat >"$work/other" <<END
#!/bin/sh
[ "\$TUTTI_RANK" -eq 0 ] || export NCCL_GRAPH_FILE="$work/rings.xml"
exec "\$@"
END
chmod +x "$work/other"
timeout 60 "$tutti" launch -n 2 "$work/other" "$tutti" bench all_reduce -g 4 -e 16K >"$work/log" 2>&1
[ $? -ne 0 ] && grep -q 'rank 0 .* and rank 4 .* do not have the same NCCL_GRAPH_FILE' "$work/log"
check $? "one that some processes do not have is refused"

[ "$failures" -eq 0 ]
