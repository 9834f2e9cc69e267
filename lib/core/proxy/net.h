/* net.h: which network this process uses, and its devices: plugins (NCCL_NET_PLUGIN, libnccl-net.so), then
 * our own, the first that has devices, or the one that NCCL_NET names. The log says which and why. */
#ifndef TUTTI_CORE_NET_H
#define TUTTI_CORE_NET_H

#include "backends/net.h"

/* Chosen at the first call. ncclInvalidUsage, naming what exists, when NCCL_NET names none of them;
 * ncclSystemError when there is no network at all. */
ncclResult_t net_choose(const struct net_ops **ops, uint32_t *device_count);
/* The device that a rank's channel goes through: near its GPU first, then spread over the others. */
uint32_t net_device_of(uint32_t device_count, uint32_t device_index, uint32_t channel_index);

#endif
