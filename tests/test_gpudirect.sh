#!/bin/sh
# test_gpudirect.sh: slots of network connections in memory of GPUs, where NICs read and write them. GPUs are
# fibres (tests/simt), hosts are processes with host ids of their own, and their NICs are emulated
# (tests/simt/verbs.c): what a NIC writes to memory of a GPU is not visible before a flush. Prints one
# `ok - ` or `not ok - ` line per check and fails if a check failed.
# runner: 20 s
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
[ -z "$PLAIN" ] || [ "$TUTTI_RANK" != "$PLAIN" ] || unset TUTTI_TEST_MEMORY
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
    NCCL_DEBUG_SUBSYS=NET,PROXY NCCL_DEBUG_FILE="$work/rank.%p" SIMT_RDMA=dmabuf "$@" timeout 120 \
    "$tutti" launch -n 2 "$work/host" "$tutti" bench "$collective" -g 2 -b 8 -e 256K -f 32 -n 1 -w 0 -q \
    --nccl "$simt/libnccl.so.2" --cudart "$simt/libtutti-simt.so" >"$log" 2>&1 </dev/null
  between_result=$?
  cat "$work"/rank.* >>"$log" 2>/dev/null
  return $between_result
}
# on_device COUNT [WHERE]: so many of the four ranks receive into memory of their GPUs, and what they send is
# read there, or from WHERE.
on_device() {
  [ "$(grep -c 'writes to memory of its GPU' "$log")" -eq "$1" ] &&
    [ "$(grep -c "writes to memory of its GPU.* and reads what is sent from ${2:-there}" "$log")" -eq "$1" ]
}
# told COUNT PATTERN: so many lines of GPUDirect RDMA match.
told() { [ "$(grep -Ec "GPUDirect RDMA of NIC $2" "$log")" -eq "$1" ]; }

# ---- data
result=0
for collective in all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter; do
  between $collective TUTTI_NET_DEVICE_SLOTS=1 SIMT_SEED=5 && on_device 4 || { result=1 && break; }
done
check $result "all collectives of two hosts are right with slots in memory of GPUs"
for proto in LL Simple; do
  between all_reduce TUTTI_NET_DEVICE_SLOTS=1 NCCL_PROTO=$proto && on_device 4 || { result=1 && break; }
done
check $result "both protocols that networks carry are"
between alltoall && on_device 4 "the host's" && between all_reduce && on_device 4 "the host's"
check $? "so are they by default, with what is sent in memory of the hosts, as there are no NVLinks"
between all_reduce NCCL_NET_GDR_READ=1 && on_device 4 && between all_reduce TUTTI_NET_DEVICE_SLOTS=1 \
  NCCL_NET_GDR_READ=0 && on_device 4 "the host's"
check $? "NCCL_NET_GDR_READ says where NICs read it"

# ---- flushes
! between all_reduce NCCL_PROTO=Simple SIMT_FLUSHES=none && grep -q wrong "$log"
check $? "results are wrong where flushes make nothing visible"
between all_reduce NCCL_PROTO=Simple SIMT_RDMA_ORDERED=1 SIMT_FLUSHES=needless && on_device 4 "the host's" &&
  grep -q 'writes to memory of its GPU, in order' "$log"
check $? "there is no flush where the platform orders writes"
! between all_reduce NCCL_PROTO=Simple SIMT_RDMA_ORDERED=1 NCCL_NET_FORCE_FLUSH=1 SIMT_FLUSHES=needless &&
  grep -q 'with a flush after each' "$log" && grep -q 'verbs_fake: a needless read' "$log"
check $? "with NCCL_NET_FORCE_FLUSH there is"
! between all_reduce NCCL_PROTO=Simple NCCL_GDR_FLUSH_DISABLE=1 && grep -q wrong "$log" &&
  grep -q 'without a flush (NCCL_GDR_FLUSH_DISABLE)' "$log"
check $? "with NCCL_GDR_FLUSH_DISABLE there is none where it is needed, either"

# ---- where it is used
between all_reduce && told 4 'fake_[0-3]:1 and GPU 0000:0[12]:00.0, path PIX: used by DMA-BUF' &&
  told 4 'fake_[0-3]:1 and GPU 0000:0[12]:00.0, path SYS: not used: NCCL_NET_GDR_LEVEL allows paths up to P2C'
check $? "the log says of each NIC and GPU whether it is used, and why not"
between all_reduce NCCL_NET_GDR_LEVEL=LOC && on_device 0 && told 8 '.*: not used: .* paths up to LOC'
check $? "NCCL_NET_GDR_LEVEL keeps NICs from GPUs"
between all_reduce TUTTI_NET_DEVICE_SLOTS=0 && on_device 0 && told 0 .
check $? "TUTTI_NET_DEVICE_SLOTS=0 keeps slots in memory of the hosts"
between all_reduce SIMT_RDMA= && on_device 0 && told 8 '.*: not used: neither do both offer DMA-BUF, nor'
check $? "so does a driver without DMA-BUF"
between all_reduce NCCL_DMABUF_ENABLE=0 && on_device 0 &&
  told 8 '.*: not used: neither do both offer DMA-BUF, nor'
check $? "so does NCCL_DMABUF_ENABLE=0"
mkdir -p "$machine/module/nvidia_peermem" && between all_reduce SIMT_RDMA=address &&
  on_device 4 "the host's" && told 4 '.* PIX: used by nvidia_peermem' && ! grep 'NCCL WARN' "$log"
check $? "nvidia_peermem does instead of it"
between all_reduce SIMT_RDMA=closed && on_device 4 "the host's" && told 4 '.* PIX: used by nvidia_peermem' &&
  ! grep 'NCCL WARN' "$log"
check $? "also where the driver gives no DMA-BUF although it says so"

# ---- NICs and drivers that refuse
refused="device memory cannot be registered"
cure="TUTTI_NET_DEVICE_SLOTS=0 leaves it to the host's"
between all_reduce SIMT_RDMA=refused && on_device 0 && ! grep 'NCCL WARN' "$log" && told 4 \
  "fake_[0-3]:1 and GPU 0000:0[12]:00.0, path PIX: not used: the NIC refuses .* by nvidia_peermem \(Bad addr"
check $? "slots are in memory of the hosts where a NIC refuses what it should register, and the log says why"
! between all_reduce SIMT_RDMA=refused TUTTI_NET_DEVICE_SLOTS=1 NCCL_PROTO=Simple &&
  grep -q "$refused (Bad address): $cure" "$log"
check $? "an error says how to do without, if it is demanded"
rm -r "$machine/module"
between all_reduce SIMT_RDMA_LIMIT=0 && on_device 0 && ! grep 'NCCL WARN' "$log" &&
  told 4 '.* PIX: not used: the NIC refuses the .* by DMA-BUF \(Cannot allocate memory\)'
check $? "so does a NIC that refuses DMA-BUFs"
! between all_reduce SIMT_RDMA_LIMIT=0 TUTTI_NET_DEVICE_SLOTS=1 NCCL_PROTO=Simple &&
  grep -q "$refused (Cannot allocate memory): $cure" "$log"
check $? "and ends a job that demands it"
! between all_reduce SIMT_RDMA_LIMIT=2 NCCL_PROTO=Simple && on_device 4 "the host's" &&
  grep -q "$refused (Cannot allocate memory): $cure" "$log"
check $? "one that refuses after the trials is an error that says how to do without"
between all_reduce SIMT_RDMA=closed && on_device 0 && ! grep 'NCCL WARN' "$log" &&
  told 4 '.* PIX: not used: the driver gives no DMA-BUF of'
check $? "so does a driver without the DMA-BUFs that it promises"
result=0
for collective in all_reduce sendrecv; do
  between $collective SIMT_RDMA_LIMIT=0:fake_3 && on_device 3 "the host's" &&
    told 3 '.* PIX: used by DMA-BUF' &&
    told 1 'fake_3:1 and GPU 0000:02:00.0, path PIX: not used: the NIC refuses the' || { result=1 && break; }
done
check $result "each rank decides alone: only one whose NIC refuses has slots in memory of the host"
cp -a "$machine" "$work/joined"
sed -i -e 's|<gpu dev="0".*|&<nvlink target="0000:02:00.0" count="4" tclass="0x030200"/>|' \
  -e 's|<gpu dev="1".*|&<nvlink target="0000:01:00.0" count="4" tclass="0x030200"/>|' "$work/joined/nvml.xml"
between sendrecv TUTTI_SYSFS="$work/joined" NCCL_NET_GDR_LEVEL=SYS SIMT_RDMA_LIMIT=0:fake_2 && told 1 \
  'fake_2:1 and GPU 0000:02:00.0, path SYS: not used: the NIC refuses' &&
  [ "$(grep -c 'rank [01]: network IB writes to .* and reads what is sent from there' "$log")" -eq 2 ] &&
  [ "$(grep -c "rank [23]: network IB writes to .* and reads what is sent from the host's" "$log")" -eq 1 ]
check $? "what is sent is in memory of the host if a NIC refuses beside another GPU of the process (PXN)"

# ---- network plugins
# plugged VERSION MEMORY COLLECTIVE NAME=VALUE...: the same over a plugin of a version of NCCL's interface.
plugged() {
  plugin=$build/tests/plugins/libnccl-net-loopback$1.so
  memory=$2
  collective=$3
  shift 3
  between "$collective" NCCL_NET_PLUGIN="$plugin" TUTTI_TEST_MEMORY="$memory" NCCL_NET_GDR_LEVEL=SYS "$@"
}
result=0
for collective in all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter; do
  plugged 12 dmabuf $collective && on_device 4 "the host's" &&
    grep -q 'memory of a GPU by descriptor' "$log" || { result=1 && break; }
done
check $result "all collectives are right with slots in memory of GPUs that a plugin registers"
result=0
for version in 6 8 9 10; do
  plugged $version dmabuf all_reduce NCCL_NET_GDR_READ=1 && on_device 4 || { result=1 && break; }
done
check $result "so they are with older versions of the interface, which send from there too"
plugged 11 cuda alltoall SIMT_RDMA=address && on_device 4 "the host's" &&
  told 8 'loop[01] and GPU 0000:0[12]:00.0, .*: used by nvidia_peermem' && ! grep 'NCCL WARN' "$log"
check $? "a plugin that takes no DMA-BUF registers addresses"
plugged 12 refused all_reduce && on_device 0 && ! grep 'NCCL WARN' "$log" &&
  told 8 'loop[01] .*: not used: the NIC refuses .* by nvidia_peermem \(Operation not supported\)'
check $? "one that registers none after all leaves the slots to memory of the hosts"
plugged 12 dmabuf all_reduce PLAIN=1 && on_device 2 "the host's" && plugged 12 dmabuf sendrecv PLAIN=0 &&
  on_device 2 "the host's"
check $? "hosts with such a plugin and hosts with a plain one understand each other"
! plugged 12 dmabuf all_reduce PLAIN=1 NCCL_NET_GDR_READ=1 NCCL_PROTO=Simple &&
  grep -q 'sends from memory of its GPU over network Loopback, and rank [23] receives into none; set' "$log"
check $? "but for one that sends from memory of GPUs, which is an error that says what to do"

# Two communicators, one after the other, in each of two processes of two ranks.
cat >"$work/twice.c" <<'C'
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static ncclUniqueId id_of(const char *path, int first) {
  char name[256], draft[256];
  ncclUniqueId id;
  FILE *file;
  snprintf(draft, sizeof draft, "%s.draft", path);
  if (first == 0) {
    if (ncclGetUniqueId(&id) != ncclSuccess || (file = fopen(draft, "w")) == NULL) exit(1);
    if (fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0 || rename(draft, path) != 0) exit(1);
    return id;
  }
  while ((file = fopen(path, "r")) == NULL) usleep(1000);
  if (fread(&id, sizeof id, 1, file) != 1) exit(1);
  fclose(file);
  return id;
}
int main(int count, char **words) {
  for (int round = 2; round < count; round++) {
    const int first = atoi(words[1]);
    const ncclUniqueId id = id_of(words[round], first);
    ncclComm_t comms[2];
    ncclGroupStart();
    for (int i = 0; i < 2; i++) {
      cudaSetDevice(i);
      ncclCommInitRank(&comms[i], 4, id, first + i);
    }
    if (ncclGroupEnd() != ncclSuccess) return 1;
    for (int i = 0; i < 2; i++)
      if (ncclCommDestroy(comms[i]) != ncclSuccess) return 1;
  }
  return 0;
}
C
cc -o "$work/twice" "$work/twice.c" -I"$build/include" -I"$build/include/tutti-emu" -L"$build/lib" \
  -ltutti-cudart -lnccl || exit 3
rm -rf "$work"/nics*
twice() {
  env LD_LIBRARY_PATH="$simt/verbs:$simt" LD_PRELOAD="$simt/libtutti-simt.so" SIMT_NICS="$work/nics:$1:2" \
    NCCL_HOSTID="host$1" TUTTI_SYSFS="$machine" TUTTI_BACKEND=cuda TUTTI_EMU=mode=threads,devices=2 \
    NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET SIMT_RDMA=closed timeout 60 \
    "$work/twice" "$1" "$work/id.0" "$work/id.1" >"$work/rank.$1" 2>&1 </dev/null
}
twice 0 &
host=$!
twice 2 && wait "$host"
result=$?
cat "$work/rank.0" "$work/rank.2" >"$log"
[ "$result" -eq 0 ] && told 8 '.* PIX: not used: the driver gives no DMA-BUF of' &&
  [ "$(grep -c 'no DMA-BUF of .* can be had' "$log")" -eq 4 ]
check $? "a process tries each NIC and GPU once"
between all_reduce NCCL_IB_HCA="^fake_0,fake_2" && on_device 2 "the host's" && told 2 '.* SYS: not used' &&
  told 2 '.* PIX: used'
check $? "one NIC of a host serves the GPU beside it"

# ---- `tutti doctor`, with a driver of two GPUs
cat >"$work/driver.c" <<'C'
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static int file;
int cuDevicePrimaryCtxRetain(void **context, int gpu) { return *context = &file, gpu > 1; }
int cuCtxSetCurrent(void *context) { return context != &file; }
int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
  file = memfd_create("simt", 0);
  if (ftruncate(file, (off_t)bytes) != 0) return 2;
  *address = (unsigned long long)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return 0;
}
int cuMemFree_v2(unsigned long long address) { return munmap((void *)address, 2 << 20) + close(file); }
int cuMemGetHandleForAddressRange(int *range, unsigned long long address, size_t bytes, int kind,
                                  unsigned long long flags) {
  char path[64];
  if (getenv("NO_RANGE") != NULL || address == 0 || bytes != 2 << 20 || kind != 1 || flags != 0) return 801;
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  *range = open(path, O_RDWR);
  return 0;
}
int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGetCount(int *count) { return *count = 2, 0; }
int cuDeviceGet(int *gpu, int index) { return *gpu = index, 0; }
int cuDeviceGetName(char *name, int bytes, int gpu) {
  strncpy(name, "GPU", (size_t)bytes);
  return gpu > 1;
}
int cuDeviceGetAttribute(int *value, int which, int gpu) {
  *value = which == 75 ? 9 : which == 116 ? 1 : which == 124 ? getenv("NO_DMABUF") == NULL : 0;
  return gpu > 1;
}
int cuDeviceCanAccessPeer(int *value, int a, int b) { return *value = a != b, 0; }
int cuDeviceGetP2PAttribute(int *value, int which, int a, int b) { return *value = 0, which < 0 || a == b; }
C
mkdir "$work/driver" && cc -shared -fPIC -o "$work/driver/libcuda.so.1" "$work/driver.c"
# doctor NAME=VALUE... : `tutti doctor` of the first host; its report is in $log.
doctor() {
  rm -rf "$work"/nics*
  env LD_LIBRARY_PATH="$simt/verbs:$work/driver" SIMT_NICS="$work/nics:0:2" TUTTI_SYSFS="$machine" "$@" \
    timeout 60 "$tutti" doctor >"$log" 2>&1 </dev/null
  true
}
# says COUNT PATTERN: so many lines of the report match.
says() { [ "$(grep -Ec "GPU [01] and NIC fake_[01]:1, path $2" "$log")" -eq "$1" ]; }
doctor && says 2 'PIX: GPUDirect RDMA by DMA-BUF' && says 2 'SYS: no GPUDirect RDMA: .* paths up to P2C'
check $? "tutti doctor says which NICs would be used, and why others would not"
doctor NO_DMABUF=1 && says 4 '.*: no GPUDirect RDMA: neither do both offer DMA-BUF' &&
  doctor TUTTI_NET_DEVICE_SLOTS=0 && says 4 '.*: no GPUDirect RDMA: TUTTI_NET_DEVICE_SLOTS=0'
check $? "and what the driver and the setting have to do with it"
doctor SIMT_RDMA_LIMIT=0:fake_1 && says 1 'PIX: GPUDirect RDMA by DMA-BUF' &&
  says 1 'PIX: no GPUDirect RDMA: the NIC refuses the GPU.s memory: Cannot allocate memory' &&
  doctor NO_RANGE=1 && says 2 'PIX: no GPUDirect RDMA: the driver gives no DMA-BUF of its memory' &&
  doctor SIMT_RDMA_LIMIT=0 TUTTI_NET_DEVICE_SLOTS=1 && says 4 '.*: GPUDirect RDMA by DMA-BUF'
check $? "and what a trial of each says"
[ "$failures" -eq 0 ]
