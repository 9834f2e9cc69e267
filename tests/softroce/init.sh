#!/bin/sh
# init.sh: process 1 of the guest, in busybox's shell: modules, this machine's files as the root, then the
# job.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for word in $(cat /proc/cmdline); do
  case $word in wires=*) export wires="${word#*=}" ;; esac
done
for module in $(cat /lib/modules/order); do insmod "/lib/modules/$module" || echo "guest: no $module"; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose root /host || poweroff -f
for folder in proc sys dev; do mount -o bind /$folder /host/$folder; done
mkdir -p /dev/shm /folder
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none job /host/mnt
folder=$(cat /host/mnt/folder)
mount -o bind "/host$folder" /folder # it may be below a folder that is hidden next
for empty in tmp run dev/shm; do mount -t tmpfs none /host/$empty; done
if [ ! -d "/host$folder" ]; then
  mkdir -p "/host$folder" && mount -o bind /folder "/host$folder"
fi
chroot /host /bin/bash /mnt/setup.sh
sync
poweroff -f
