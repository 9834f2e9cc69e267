/* net.h: selects the network of this process and its devices: first plugins (NCCL_NET_PLUGIN,
 * libnccl-net.so), then the built-in networks; the first that has devices, or the one that NCCL_NET names.
 * Each rejected network logs why. */
#ifndef TUTTI_CORE_NET_H
#define TUTTI_CORE_NET_H

#include "backends/net.h"

/* Selects at the first call. ncclInvalidUsage: NCCL_NET names none of the networks, which the message lists;
 * ncclSystemError: there is no network at all. */
ncclResult_t net_choose(const struct net_ops **ops, uint32_t *device_count);
/* ncclConfig_t.netName: selects the network of this name if none is selected yet. ncclInvalidUsage: there is
 * none, or this process uses another one; the message names it. */
ncclResult_t net_require(const char *call, const char *name);
/* The network device for a rank's channel: the nearest to its GPU first, then the others in turn. */
uint32_t net_device_of(uint32_t device_count, uint32_t device_index, uint32_t channel_index);
/* The calling thread, which drives networks, keeps to NCCL_PROXY_CPUSET; a list that is none is a warning. */
void net_thread_bind(void);

#endif
