/* proxy_device.c: slots in device memory, for networks whose devices access it. Neither the proxy nor other
 * host code accesses these slots: a message's data is transferred from slot to slot, and its trailer, as the
 * end of the message, between pages of host memory. The backend provides the slots, the network accepts or
 * refuses.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/proxy/proxy_impl.h"
#include "core/topology/rails.h"

#define TRAILERS_BYTES (PROXY_SLICES_MAX * sizeof(struct proxy_trailer))

bool proxy_device_possible(const struct net_ops *net, uint32_t net_device_count) {
  struct net_properties properties;
  bool possible = param_int(PARAM_TUTTI_NET_DEVICE_SLOTS) != 0 && net->irecv_parts != NULL;
  for (uint32_t i = 0; i < net_device_count && possible; i++)
    possible = net->properties(i, &properties) == ncclSuccess &&
               (properties.memory_dmabuf || properties.memory_cuda);
  return possible;
}

bool proxy_takes_apart(const struct proxy_comm *comm) { return comm->apart; }

/* ---- trials: does the NIC register what NIC, kernel and driver say that it can? ---- */

/* What a trial of a NIC and a GPU showed, kept for the process's later communicators. */
struct trial {
  const struct net_ops *net;
  uint32_t net_device, device_index;
  const char *access; /* how the NIC takes this GPU's memory */
  char refused[96];   /* why it does not; "": it does */
  struct trial *next;
};
static struct trial *trials;
static os_mutex trials_mutex = OS_MUTEX_INITIALIZER;

static const struct trial *trial_find(const struct proxy_comm *comm, uint32_t net_device) {
  os_mutex_lock(&trials_mutex);
  const struct trial *trial = trials;
  while (trial != NULL && (trial->net != comm->net || trial->net_device != net_device ||
                           trial->device_index != comm->call.device_index))
    trial = trial->next;
  os_mutex_unlock(&trials_mutex);
  return trial;
}

/* Tries what device_memory_register() tries, in its order. */
static void trial_run(const struct proxy_comm *comm, uint32_t rdma, struct trial *trial) {
  const struct net_ops *net = comm->net;
  const uint32_t device = trial->net_device;
  struct net_properties properties;
  uint8_t *sample = NULL;
  size_t bytes = 0;
  int error = -1, descriptor = -1;
  uint64_t offset = 0;
  trial->access = "DMA-BUF";
  if (net->properties(device, &properties) != ncclSuccess ||
      comm->call.ops->network->net_sample(comm->call.device_comm, &bytes, &sample) != ncclSuccess) {
    snprintf(trial->refused, sizeof trial->refused, "no memory of the GPU can be had for a trial");
    return;
  }
  if (properties.memory_dmabuf && (rdma & DEVICE_RDMA_DMABUF) != 0 &&
      comm->call.ops->memory->dmabuf(sample, bytes, &descriptor, &offset) == ncclSuccess) {
    error = net->device_trial(device, sample, bytes, descriptor, offset);
    os_descriptor_close(descriptor);
  }
  if (error != 0 && properties.memory_cuda) {
    error = net->device_trial(device, sample, bytes, -1, 0);
    trial->access = "nvidia_peermem";
  }
  if (error > 0)
    snprintf(trial->refused, sizeof trial->refused, "the NIC refuses the GPU's memory by %s (%s)",
             trial->access, strerror(error));
  if (error < 0)
    snprintf(trial->refused, sizeof trial->refused, "the driver gives no DMA-BUF of the GPU's memory");
}

/* Why the NIC cannot register memory of the rank's GPU; "" if it can. The backend's lock may be taken in a
 * trial, so that none is held; two threads that try the same keep both results. */
static const char *pair_try(const struct proxy_comm *comm, uint32_t net_device, uint32_t rdma) {
  const struct trial *known = trial_find(comm, net_device);
  if (known != NULL) return known->refused;
  struct trial *trial = (struct trial *)os_alloc(sizeof *trial);
  if (trial == NULL) return "a trial" LOG_OUT_OF_MEMORY;
  trial->net = comm->net;
  trial->net_device = net_device;
  trial->device_index = comm->call.device_index;
  log_hush(true);
  trial_run(comm, rdma, trial);
  log_hush(false);
  os_mutex_lock(&trials_mutex);
  trial->next = trials;
  trials = trial;
  os_mutex_unlock(&trials_mutex);
  return trial->refused;
}

/* ---- the decision ---- */

/* A NIC, and the memory of the rank's GPU. */
struct pair {
  struct net_properties properties;
  struct rails_reach reach;
  const char *access;  /* how the NIC accesses the memory; NULL: not at all */
  const char *refused; /* NULL: it has not been tried */
  bool known, near;
};

static bool pair_find(const struct proxy_comm *comm, uint32_t net, uint32_t rdma, struct pair *pair) {
  const enum graph_path level = rails_gdr_level();
  memset(pair, 0, sizeof *pair);
  if (comm->net->properties(net % comm->net_device_count, &pair->properties) != ncclSuccess) return false;
  if (pair->properties.memory_cuda && (rdma & DEVICE_RDMA_ADDRESS) != 0) pair->access = "nvidia_peermem";
  if (pair->properties.memory_dmabuf && (rdma & DEVICE_RDMA_DMABUF) != 0) pair->access = "DMA-BUF";
  pair->known = rails_reach(comm->call.rails, comm->call.rank, net, &pair->reach);
  pair->near = pair->known ? pair->reach.path <= level : level == GRAPH_SYS;
  const bool demanded = param_int(PARAM_TUTTI_NET_DEVICE_SLOTS) > 0;
  const struct trial *trial = demanded ? NULL : trial_find(comm, net % comm->net_device_count);
  if (trial != NULL) pair->access = trial->access;
  if (trial != NULL && trial->refused[0] != '\0') pair->refused = trial->refused;
  return true;
}

static void pair_log(const struct proxy_comm *comm, const struct pair *pair, bool all) {
  const char *path = pair->known ? paths_type_name(pair->reach.path) : "unknown";
  char why[128] = "another NIC of this GPU cannot";
  if (pair->access == NULL)
    snprintf(why, sizeof why, "neither do both offer DMA-BUF, nor has the kernel nvidia_peermem");
  else if (!pair->near)
    snprintf(why, sizeof why, "NCCL_NET_GDR_LEVEL allows paths up to %s", paths_type_name(rails_gdr_level()));
  else if (pair->refused != NULL) snprintf(why, sizeof why, "%s", pair->refused);
  const bool used = all && pair->refused == NULL && pair->access != NULL && pair->near;
  log_info(LOG_NET, "rank %" PRIu32 ": GPUDirect RDMA of NIC %s and GPU %s, path %s: %s%s", comm->call.rank,
           pair->properties.name, pair->known ? pair->reach.gpu : "of this rank", path,
           used ? "used by " : "not used: ", used ? pair->access : why);
}

/* Tries the NICs that are to access the memory, unless the user says that they can. */
static bool pairs_try(const struct proxy_comm *comm, uint32_t count, uint32_t rdma, bool *reads) {
  struct pair pair;
  bool all = true;
  if (param_int(PARAM_TUTTI_NET_DEVICE_SLOTS) > 0 || comm->net->device_trial == NULL) return true;
  for (uint32_t net = 0; net < count; net++) {
    if (!pair_find(comm, net, rdma, &pair)) return false;
    const bool uses = !pair.known || pair.reach.used, only_sends = !uses && pair.reach.sends && *reads;
    if ((!uses && !only_sends) || pair_try(comm, net % comm->net_device_count, rdma)[0] == '\0') continue;
    if (uses) all = false;
    else *reads = false;
  }
  return all;
}

/* True if all NICs that the rank's connections use can access its GPU's memory; *reads becomes false if not
 * all of those can that it sends through. */
static bool pairs_allow(const struct proxy_comm *comm, uint32_t rdma, bool *ordered, bool *reads) {
  const uint32_t known = rails_net_count(comm->call.rails);
  const uint32_t count = known > 0 ? known : comm->net_device_count;
  struct pair pair;
  bool all = true;
  for (uint32_t net = 0; net < count; net++) {
    if (!pair_find(comm, net, rdma, &pair)) return false;
    if (pair.known && pair.reach.sends && !pair.near) *reads = false;
    if (pair.known && !pair.reach.used) continue;
    all = all && pair.access != NULL && pair.near;
    /* Data that takes another path than counters (C2C) may come behind them. */
    *ordered = *ordered && pair.known && pair.reach.path <= GRAPH_PXB && !pair.properties.force_flush;
  }
  all = all && pairs_try(comm, count, rdma, reads);
  for (uint32_t net = 0; net < count; net++)
    if (pair_find(comm, net, rdma, &pair)) pair_log(comm, &pair, all);
  return all;
}

/* Sends read device memory where NVLinks say that the machine is made for it. */
static bool reads_devices(const struct proxy_comm *comm) {
  const int64_t wish = param_int(PARAM_NET_GDR_READ);
  if (wish >= 0) return wish != 0;
  return param_int(PARAM_TUTTI_NET_DEVICE_SLOTS) > 0 || rails_has_nvlink(comm->call.rails, comm->call.rank);
}

void proxy_device_choose(struct proxy_comm *comm) {
  const struct network_ops *network = comm->call.ops->network;
  if (!proxy_device_possible(comm->net, comm->net_device_count)) return;
  comm->apart = comm->net->splits_parts;
  uint32_t rdma = network->net_rdma(comm->call.device_comm);
  if (param_int(PARAM_DMABUF_ENABLE) == 0) rdma &= ~(uint32_t)DEVICE_RDMA_DMABUF;
  bool ordered = (rdma & DEVICE_RDMA_ORDERED) != 0 && param_int(PARAM_NET_FORCE_FLUSH) == 0;
  bool reads = reads_devices(comm);
  network->net_memory(comm->call.device_comm, POINTER_DEVICE, POINTER_DEVICE); /* samples lie there */
  const bool allowed = pairs_allow(comm, rdma, &ordered, &reads);
  network->net_memory(comm->call.device_comm, allowed ? POINTER_DEVICE : POINTER_HOST,
                      allowed && reads ? POINTER_DEVICE : POINTER_HOST);
  if (!allowed) return;
  comm->rdma = rdma;
  comm->flushes = !ordered && param_int(PARAM_GDR_FLUSH_DISABLE) == 0;
  log_info(LOG_NET | LOG_PROXY,
           "rank %" PRIu32 ": network %s writes to memory of its GPU, %s, and reads what is sent from %s",
           comm->call.rank, comm->net->name,
           ordered         ? "in order"
           : comm->flushes ? "with a flush after each message"
                           : "without a flush (NCCL_GDR_FLUSH_DISABLE)",
           reads ? "there" : "the host's (NCCL_NET_GDR_READ)");
}

ncclResult_t proxy_device_open(struct proxy_conn *conn) {
  if (conn->end.memory != POINTER_DEVICE && !conn->apart) return ncclSuccess;
  conn->trailers = (struct proxy_trailer *)os_pages_map(TRAILERS_BYTES);
  return conn->trailers != NULL ? ncclSuccess : log_no_memory("a connection");
}

void proxy_device_close(const struct net_ops *net, struct proxy_conn *conn) {
  if (conn->trailers_registration != NULL)
    net->unregister_memory(conn->connection, conn->trailers_registration);
  if (conn->trailers != NULL) os_pages_unmap(conn->trailers, TRAILERS_BYTES);
}

static ncclResult_t dmabuf_register(struct proxy_conn *conn, void *slots, size_t bytes, void **registration) {
  int descriptor;
  uint64_t offset;
  TRY(conn->comm->call.ops->memory->dmabuf(slots, bytes, &descriptor, &offset));
  const ncclResult_t result =
      conn->comm->net->register_dmabuf(conn->connection, slots, bytes, descriptor, offset, registration);
  os_descriptor_close(descriptor);
  return result;
}

/* Registers a DMA-BUF if the network accepts one, since that needs no vendor-specific kernel module. */
static ncclResult_t device_memory_register(struct proxy_conn *conn, void *slots, size_t bytes,
                                           void **registration) {
  struct net_properties properties;
  TRY(conn->comm->net->properties(conn->net_device, &properties));
  ncclResult_t made = ncclInvalidUsage;
  log_hush(properties.memory_cuda); /* there is another way */
  if (properties.memory_dmabuf && (conn->comm->rdma & DEVICE_RDMA_DMABUF) != 0)
    made = dmabuf_register(conn, slots, bytes, registration);
  log_hush(false);
  if (made == ncclSuccess || !properties.memory_cuda) return made;
  return conn->comm->net->register_memory(conn->connection, slots, bytes, NET_MEMORY_CUDA, registration);
}

ncclResult_t proxy_device_register(struct proxy_conn *conn, void *slots, size_t bytes, void **registration) {
  if (conn->trailers_registration == NULL)
    TRY(conn->comm->net->register_memory(conn->connection, conn->trailers, TRAILERS_BYTES, NET_MEMORY_HOST,
                                         &conn->trailers_registration));
  if (conn->end.memory == POINTER_DEVICE) return device_memory_register(conn, slots, bytes, registration);
  return conn->comm->net->register_memory(conn->connection, slots, bytes, NET_MEMORY_HOST, registration);
}
