#!/bin/bash
# run.sh GUEST one|two|far1|far2 SECONDS SCRIPT [ARGUMENT...]: runs a script in the guest that guest.sh built,
# in the current folder, which is read-only there; /tmp is empty, /mnt is writable. Prints the script's output
# and exits with its status; 125: the guest ended without a status, and its console is printed. far1 and far2
# are two guests with wires between them, whose ends are sockets in the folder $WIRES. $CORES: emulated cores
# (1). $CLOCK=instructions: the guest's clock counts executed instructions, so that other load on this machine
# does not change times measured there. While the guest is idle its clock follows the machine's; with
# $IDLE=skipped it jumps to the next timer instead, so a slow read of the root's files may look like hours.
set -u
here=$(cd "$(dirname "$0")" && pwd)
guest=$1 wires=$2 seconds=$3
shift 3
job=$(mktemp -d)
trap 'rm -rf "$job"' EXIT
pwd >"$job/folder"
cp "$here/setup.sh" "$job/setup.sh"
printf '%q ' bash "$@" >"$job/job.sh"
threads=multi clock=() sleep=on
[ "${IDLE:-}" != skipped ] || sleep=off
[ "${CLOCK:-}" != instructions ] || threads=single clock=(-icount shift=1,sleep=$sleep)
nics=(-nic none)
if [ "${wires#far}" != "$wires" ]; then
  own=${wires#far} other=$((3 - ${wires#far})) nics=()
  for wire in 0 1; do
    nics+=(-netdev "dgram,id=w$wire,local.type=unix,local.path=$WIRES/$own.$wire,\
remote.type=unix,remote.path=$WIRES/$other.$wire"
      -device "virtio-net-pci,netdev=w$wire,host_mtu=4200,mac=52:54:00:00:0$wire:0$own")
  done
fi
timeout "$seconds" qemu-system-x86_64 -M q35 -accel "tcg,thread=$threads,tb-size=256" "${clock[@]}" -cpu max \
  -smp "${CORES:-1}" -m 1536 -nodefaults -no-user-config -display none -no-reboot -serial stdio \
  "${nics[@]}" \
  -kernel "$guest/vmlinux" -initrd "$guest/initrd.cpio" \
  -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 selinux=0 apparmor=0 wires=$wires" \
  -fsdev local,id=root,path=/,readonly=on,security_model=none,multidevs=remap \
  -device virtio-9p-pci,fsdev=root,mount_tag=root \
  -fsdev local,id=job,path="$job",security_model=none -device virtio-9p-pci,fsdev=job,mount_tag=job \
  </dev/null >"$job/console" 2>&1
[ ! -f "$job/out" ] || cat "$job/out"
[ -s "$job/status" ] && exit "$(cat "$job/status")"
echo "run.sh: the guest ended without a status; its console:" >&2
tail -n 40 "$job/console" >&2
exit 125
