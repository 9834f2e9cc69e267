/* proxy_device.c: slots in device memory, for networks whose devices access it. Neither the proxy nor other
 * host code accesses these slots: a message's data is transferred from slot to slot, and its trailer, as the
 * end of the message, between pages of host memory. The backend provides the slots, the network accepts or
 * refuses.
 */
#include <inttypes.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/proxy/proxy_impl.h"
#include "core/topology/rails.h"

#define TRAILERS_BYTES (PROXY_SLICES_MAX * sizeof(struct proxy_trailer))

static bool net_takes_devices(const struct proxy_comm *comm) {
  struct net_properties properties;
  if (comm->net->irecv_parts == NULL) return false;
  for (uint32_t i = 0; i < comm->net_device_count; i++) {
    if (comm->net->properties(i, &properties) != ncclSuccess) return false;
    if (!properties.memory_dmabuf && !properties.memory_cuda) return false;
  }
  return true;
}

void proxy_device_choose(struct proxy_comm *comm) {
  if (param_int(PARAM_TUTTI_NET_DEVICE_SLOTS) == 0) return;
  const bool takes = net_takes_devices(comm);
  const bool near = takes && rails_reach_memory(comm->call.rails, comm->call.rank);
  const bool device = near && comm->call.ops->network->net_memory(comm->call.device_comm, POINTER_DEVICE);
  log_info(LOG_NET | LOG_PROXY, "comm %s: rank %" PRIu32 ": slots of connections over network %s lie in %s",
           comm->name, comm->call.rank, comm->net->name,
           device  ? "device memory"
           : near  ? "the host's memory: the backend keeps them there"
           : takes ? "the host's memory: NCCL_NET_GDR_LEVEL keeps NICs from the GPU's"
                   : "the host's memory: it takes no other");
}

ncclResult_t proxy_device_open(struct proxy_conn *conn) {
  if (conn->end.memory != POINTER_DEVICE) return ncclSuccess;
  conn->trailers = (struct proxy_trailer *)os_pages_map(TRAILERS_BYTES);
  return conn->trailers != NULL ? ncclSuccess : log_no_memory("a connection");
}

void proxy_device_close(const struct net_ops *net, struct proxy_conn *conn) {
  if (conn->trailers_registration != NULL)
    net->unregister_memory(conn->connection, conn->trailers_registration);
  if (conn->trailers != NULL) os_pages_unmap(conn->trailers, TRAILERS_BYTES);
}

/* Registers a DMA-BUF if the network accepts one, since that needs no vendor-specific kernel module. */
static ncclResult_t slots_register(struct proxy_conn *conn, void *slots, size_t bytes, void **registration) {
  const struct net_ops *net = conn->comm->net;
  struct net_properties properties;
  int descriptor;
  uint64_t offset;
  TRY(net->properties(conn->net_device, &properties));
  ncclResult_t made = ncclInvalidUsage;
  if (properties.memory_dmabuf)
    made = conn->comm->call.ops->memory->dmabuf(slots, bytes, &descriptor, &offset);
  if (made != ncclSuccess && properties.memory_cuda)
    return net->register_memory(conn->connection, slots, bytes, NET_MEMORY_CUDA, registration);
  TRY(made);
  const ncclResult_t result =
      net->register_dmabuf(conn->connection, slots, bytes, descriptor, offset, registration);
  os_descriptor_close(descriptor);
  return result;
}

ncclResult_t proxy_device_register(struct proxy_conn *conn, void *slots, size_t bytes, void **registration) {
  if (conn->trailers_registration == NULL)
    TRY(conn->comm->net->register_memory(conn->connection, conn->trailers, TRAILERS_BYTES, NET_MEMORY_HOST,
                                         &conn->trailers_registration));
  return slots_register(conn, slots, bytes, registration);
}
