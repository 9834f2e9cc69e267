/* remote.c: the table of a communicator's ranks in other processes, made from their peer info, and the
 * answers to their requests for connections. Both ends of any pair choose the same transport. Does not know
 * how peer info is gathered, nor what a connection consists of. */
#include "core/remote/remote.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/pci.h"
#include "base/share.h"
#include "core/bootstrap/control.h"
#include "core/comm/comm.h"
#include "core/proxy/net.h"
#include "core/proxy/proxy_pxn.h"
#include "core/topology/layout.h"
#include "core/topology/rails.h"

#define REASON_WAIT_MS 300 /* wait for the other end's reason after it has gone */

/* ---- Peer info ---- */

/* Properties of the paths between a rank's device and all others of its host. */
static ncclResult_t info_paths(const struct ncclComm *comm, uint32_t device_count,
                               struct settings_paths *paths) {
  struct device_path_info info;
  TRY(comm->ops->device->farthest_path(comm->device_index, &info));
  if (info.name) {
    paths->peer_access = info.peer_access;
    paths->ll128 = info.ll128;
  } else if (device_count > 1) {
    TRY(settings_add_path(comm->ops, comm->device_index, (comm->device_index + 1) % device_count, paths));
  }
  return ncclSuccess;
}

/* Processes may number devices differently, and the slices of a GPU (MIG) have one place on the bus. */
static uint64_t device_id(const struct device_info *device) {
  static const uint8_t unknown[sizeof device->uuid] = {0};
  if (memcmp(device->uuid, unknown, sizeof unknown) != 0)
    return hash_bytes(HASH_SEED, device->uuid, sizeof device->uuid);
  return device->bus_id[0] != '\0' ? hash_text(HASH_SEED, device->bus_id) : 0;
}

static ncclResult_t info_device(const struct ncclComm *comm, struct peer_info *info) {
  struct device_info device;
  memset(&device, 0, sizeof device);
  TRY(comm->ops->device->info(comm->device_index, &device));
  char name[PCI_NAME_BYTES];
  info->device_id = device_id(&device);
  info->pci_id = pci_name(device.bus_id, name) ? hash_text(HASH_SEED, name) : 0;
  info->blocks = device.blocks;
  return comm->ops->device->use(comm->device_index, &info->use);
}

ncclResult_t peer_info_fill(const struct ncclComm *comm, struct device_comm *model, struct peer_info *info) {
  const struct backend *ops = comm->ops;
  const struct plan_limits *limits = &comm->settings.plan.limits;
  struct settings_paths paths = {true, true};
  uint32_t device_count = 0;
  bool reach = false, reach_shm = false;
  memset(info, 0, sizeof *info);
  TRY(ops->device->count(&device_count));
  TRY(ops->device->node(comm->device_index, &info->node));
  if (model) {
    ops->process->order_offer();
    TRY(ops->process->comm_handle(model, &info->device));
    TRY(ops->process->comm_reach(model, comm->rank, &info->device, &reach));
    TRY(ops->process->comm_reach_shm(model, comm->rank, &info->device, &reach_shm));
  }
  TRY(info_paths(comm, device_count, &paths));
  TRY(info_device(comm, info));
  info->host = share_host();
  info->settings = settings_digest(&comm->settings);
  info->graph_file = layout_graph_file_digest();
  info->channel_count = limits->channel_count;
  info->p2p_channel_count = limits->p2p_channel_count;
  info->p2p_channels_per_peer = limits->p2p_channels_per_peer;
  info->first_step = limits->first_step;
  info->device_index = comm->device_index;
  info->process = os_pid();
  info->present = 1;
  peer_info_machine(ops, info);
  info->offers = (uint8_t)((reach ? 1u << REACH_DEVICE : 0) | (reach_shm ? 1u << REACH_HOST : 0));
  info->peer_access = paths.peer_access;
  info->direct = limits->direct && paths.peer_access && param_int(PARAM_P2P_DISABLE) == 0;
  info->ll128 = paths.ll128;
  info->rank_order = comm->settings.plan.rank_order;
  info->reads_slots = comm->settings.plan.reads_slots;
  os_host_name(info->host_name, sizeof info->host_name);
  return ncclSuccess;
}

/* ---- The table ---- */

/* Two processes of one host. */
static bool remote_maps(const struct remote_rank *a, const struct remote_rank *b, enum reach_memory memory) {
  return (a->info->offers & b->info->offers & 1u << memory) != 0 &&
         reach_allows(&a->process, &b->process, memory);
}

static bool remote_same_group(const struct remote_rank *a, const struct remote_rank *b) {
  const bool one_node = a->info->host == b->info->host && a->info->node == b->info->node;
  if (a->process_index == b->process_index) return one_node;
  return one_node && (remote_maps(a, b, REACH_DEVICE) || remote_maps(a, b, REACH_HOST));
}

/* User memory is mapped within a group, or only within a process. */
static bool remote_same_p2p_domain(const struct remote_rank *a, const struct remote_rank *b) {
  if (a->group != b->group) return false;
  if (a->process_index == b->process_index) return a->info->peer_access && b->info->peer_access;
  return a->info->direct && b->info->direct && remote_maps(a, b, REACH_DEVICE);
}

/* The first set whose ranks all match this one; its first rank identifies it. */
static uint32_t set_find(const struct remote *remote, const uint32_t *sets, uint32_t rank,
                         bool (*matches)(const struct remote_rank *a, const struct remote_rank *b)) {
  for (uint32_t first = 0; first < rank; first++) {
    bool fits = sets[first] == first;
    for (uint32_t i = first; fits && i < rank; i++)
      fits = sets[i] != first || matches(&remote->ranks[i], &remote->ranks[rank]);
    if (fits) return first;
  }
  return rank;
}

static void remote_find_groups(struct remote *remote) {
  for (uint32_t rank = 0; rank < remote->shared->rank_count; rank++) {
    const uint32_t first = set_find(remote, remote->groups, rank, remote_same_group);
    remote->ranks[rank].group = remote->groups[rank] = first;
    remote->networked = remote->networked || first != 0;
  }
}

static void remote_find_p2p_domains(struct remote *remote) {
  for (uint32_t rank = 0; rank < remote->shared->rank_count; rank++) {
    const uint32_t first = set_find(remote, remote->p2p_domains, rank, remote_same_p2p_domain);
    remote->p2p_domains[rank] = first;
    remote->shows =
        remote->shows || (remote->ranks[first].process_index != remote->ranks[rank].process_index &&
                          remote->shared->ops->process->conn_both_ends());
    for (uint32_t i = 0; i < rank && !remote->on_host; i++) remote->on_host = remote_on_host(remote, i, rank);
  }
}

bool remote_on_host(const struct remote *remote, uint32_t own_rank, uint32_t rank) {
  const struct remote_rank *own = &remote->ranks[own_rank], *other = &remote->ranks[rank];
  return own->group == other->group && own->process_index != other->process_index &&
         !remote_maps(own, other, REACH_DEVICE);
}

enum remote_transport remote_transport_to(const struct remote *remote, uint32_t own_rank, uint32_t rank) {
  const struct remote_rank *own = &remote->ranks[own_rank], *other = &remote->ranks[rank];
  if (own->group != other->group) return TRANSPORT_NETWORK;
  return own->process_index == other->process_index ? TRANSPORT_LOCAL : TRANSPORT_SHARED;
}

static const char *order_name(const struct peer_info *info) { return info->rank_order ? "rank" : "any"; }

static ncclResult_t remote_check_settings(const struct remote *remote) {
  for (uint32_t rank = 1; rank < remote->shared->rank_count; rank++) {
    const struct peer_info *first = &remote->infos[0], *info = &remote->infos[rank];
    if (info->first_step != first->first_step)
      return log_fail(ncclInvalidUsage,
                      "rank 0 (process %d on %s) has TUTTI_FIRST_STEP=%u and rank %u (process %d on %s) %u; "
                      "give it the same value everywhere",
                      first->process, first->host_name, first->first_step, rank, info->process,
                      info->host_name, info->first_step);
    if (info->rank_order != first->rank_order)
      return log_fail(ncclInvalidUsage,
                      "TUTTI_SUM_ORDER is %s on rank 0 (process %d on %s) and %s on rank %u (process %d on "
                      "%s); give it the same value everywhere",
                      order_name(first), first->process, first->host_name, order_name(info), rank,
                      info->process, info->host_name);
    if (info->reads_slots != first->reads_slots)
      return log_fail(
          ncclInvalidUsage,
          "NCCL_P2P_READ_ENABLE is %u on rank 0 (process %d on %s) and %u on rank %u (process %d on "
          "%s); give it the same value everywhere",
          first->reads_slots, first->process, first->host_name, info->reads_slots, rank, info->process,
          info->host_name);
    if (info->graph_file != first->graph_file)
      return log_fail(ncclInvalidUsage,
                      "rank 0 (process %d on %s) and rank %u (process %d on %s) do not have the same "
                      "NCCL_GRAPH_FILE; give all of them a file of the same content, or none",
                      first->process, first->host_name, rank, info->process, info->host_name);
    if (info->settings == first->settings) continue;
    return log_fail(ncclInvalidUsage,
                    "rank 0 (process %d on %s) and rank %u (process %d on %s) have different settings of "
                    "buffers, algorithms or protocols; give NCCL_BUFFSIZE, NCCL_ALGO, NCCL_PROTO and their "
                    "kin the same values, and NCCL_TUNER_PLUGIN the same plugin, everywhere",
                    first->process, first->host_name, rank, info->process, info->host_name);
  }
  return ncclSuccess;
}

static int by_device(const void *a, const void *b) {
  const struct peer_info *one = *(const struct peer_info *const *)a;
  const struct peer_info *other = *(const struct peer_info *const *)b;
  if (one->host != other->host) return one->host < other->host ? -1 : 1;
  if (one->device_id != other->device_id) return one->device_id < other->device_id ? -1 : 1;
  return one < other ? -1 : one > other; /* by rank */
}

static ncclResult_t devices_fail(const struct remote *remote, const struct peer_info *one,
                                 const struct peer_info *other) {
  return log_fail(ncclInvalidUsage,
                  "Duplicate GPU detected : rank %zu and rank %zu both on CUDA device %u of %s (processes %d "
                  "and %d, where the latter has number %u); call cudaSetDevice with the process's number on "
                  "its host before ncclCommInitRank, or set NCCL_MULTI_RANK_GPU_ENABLE=1",
                  (size_t)(one - remote->infos), (size_t)(other - remote->infos), one->device_index,
                  one->host_name, one->process, other->process, other->device_index);
}

/* Processes that have forgotten to select their own device. */
static ncclResult_t remote_check_devices(const struct remote *remote) {
  const uint32_t rank_count = remote->shared->rank_count;
  ncclResult_t result = ncclSuccess;
  if (param_int(PARAM_MULTI_RANK_GPU_ENABLE) != 0) return ncclSuccess;
  const struct peer_info **sorted = (const struct peer_info **)os_alloc(rank_count * sizeof *sorted);
  if (!sorted) return log_no_memory("the devices of %u ranks", rank_count);
  for (uint32_t rank = 0; rank < rank_count; rank++) sorted[rank] = &remote->infos[rank];
  qsort(sorted, rank_count, sizeof *sorted, by_device);
  for (uint32_t i = 1; i < rank_count && result == ncclSuccess; i++) {
    const struct peer_info *one = sorted[i - 1], *other = sorted[i];
    if (one->host == other->host && one->device_id == other->device_id && one->device_id != 0 &&
        remote->ranks[one - remote->infos].process_index !=
            remote->ranks[other - remote->infos].process_index)
      result = devices_fail(remote, one, other);
  }
  os_free(sorted);
  return result;
}

static bool infos_share_device(const struct peer_info *one, const struct peer_info *other) {
  if (one->host != other->host) return false;
  if (one->device_id != 0) return one->device_id == other->device_id;
  return one->process == other->process && one->device_index == other->device_index;
}

/* Of all communicators that the call makes: a split makes several. */
static uint32_t sharers_count(const struct gather_rank *said, uint32_t said_count,
                              const struct peer_info *info) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < said_count; i++) {
    struct peer_info other;
    if (said[i].info_bytes != sizeof other) continue;
    memcpy(&other, said[i].info, sizeof other);
    count += other.present && infos_share_device(&other, info);
  }
  return count;
}

static ncclResult_t remote_take_infos(struct remote *remote, const struct gather *gather,
                                      const uint32_t *ranks, const struct reach *reach) {
  const struct gather_rank *said = gather_ranks(gather);
  const uint32_t said_count = gather_rank_count(gather);
  const bool shares = param_int(PARAM_MULTI_RANK_GPU_ENABLE) != 0;
  for (uint32_t rank = 0; rank < remote->shared->rank_count; rank++) {
    const struct gather_rank *gathered = &said[ranks[rank]];
    if (gathered->info_bytes != sizeof remote->infos[rank])
      return log_fail(ncclInvalidUsage,
                      "rank %u described itself with %u bytes, this library does with %zu; load the same "
                      "library everywhere",
                      rank, gathered->info_bytes, sizeof remote->infos[rank]);
    memcpy(&remote->infos[rank], gathered->info, sizeof remote->infos[rank]);
    remote->infos[rank].host_name[sizeof remote->infos[rank].host_name - 1] = '\0';
    remote->ranks[rank].info = &remote->infos[rank];
    remote->ranks[rank].sharers = shares ? sharers_count(said, said_count, &remote->infos[rank]) : 0;
    remote->ranks[rank].process_index = gathered->process_index;
    remote->ranks[rank].process = reach->processes[gathered->process_index];
  }
  TRY(remote_check_settings(remote));
  return remote_check_devices(remote);
}

static bool remote_alloc(struct remote *remote, uint32_t rank_count) {
  remote->addresses = (struct sock_address *)os_alloc(remote->process_count * sizeof *remote->addresses);
  remote->ranks = (struct remote_rank *)os_alloc(rank_count * sizeof *remote->ranks);
  remote->groups = (uint32_t *)os_alloc(rank_count * sizeof *remote->groups);
  remote->p2p_domains = (uint32_t *)os_alloc(rank_count * sizeof *remote->p2p_domains);
  remote->remotes = (uint8_t **)os_alloc(rank_count * sizeof *remote->remotes);
  remote->comms = (struct ncclComm **)os_alloc(rank_count * sizeof *remote->comms);
  remote->left = (uint64_t *)os_alloc(rank_count * sizeof *remote->left);
  remote->proxies = (struct proxy_comm **)os_alloc(rank_count * sizeof *remote->proxies);
  remote->infos = (struct peer_info *)os_alloc(rank_count * sizeof *remote->infos);
  return remote->addresses && remote->ranks && remote->groups && remote->p2p_domains && remote->remotes &&
         remote->comms && remote->left && remote->proxies && remote->infos;
}

/* A rank's index among those of its host. */
static uint32_t remote_place(const struct remote *remote, uint32_t rank) {
  uint32_t place = 0;
  for (uint32_t i = 0; i < rank; i++) place += remote->infos[i].host == remote->infos[rank].host;
  return place;
}

static ncclResult_t rails_of_machine(struct remote *remote, const struct rails_place *places) {
  const struct net_ops *net = NULL;
  uint32_t net_count = 0;
  TRY(net_choose(&net, &net_count));
  if (net_count < 2 && !proxy_device_possible(net, net_count)) return ncclSuccess; /* nothing to choose */
  return rails_create_of_machine(remote->shared->ops, net, net_count, places, remote->shared->rank_count,
                                 &remote->rails);
}

/* Within one process the backend's nodes give the places of NICs. Of several processes each looks at its
 * machine, where devices are real ones, else at the user's topology file, if any. */
static ncclResult_t remote_find_rails(struct remote *remote) {
  const uint32_t rank_count = remote->shared->rank_count;
  const bool several = remote->process_count > 1;
  uint32_t nodes = 0;
  TRY(remote->shared->ops->device->nodes(&nodes));
  const bool real = nodes == 0;
  if (several && (!remote->networked || (!real && param_text(PARAM_TOPO_FILE)[0] == '\0')))
    return ncclSuccess;
  struct rails_place *places = (struct rails_place *)os_alloc(rank_count * sizeof *places);
  if (!places) return log_no_memory("the places of %u ranks", rank_count);
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    const struct peer_info *info = &remote->infos[rank];
    places[rank].device = several ? remote_place(remote, rank) : info->device_index;
    places[rank].here = remote->ranks[rank].process_index == remote->own_process;
    places[rank].node = several ? remote->ranks[rank].group : info->node;
    places[rank].pci_id = info->pci_id;
  }
  const ncclResult_t result = real ? rails_of_machine(remote, places)
                                   : rails_create(remote->shared->ops, places, rank_count, &remote->rails);
  os_free(places);
  return result;
}

ncclResult_t remote_create(struct comm_shared *shared, const struct secret *secret,
                           const struct gather *gather, const uint32_t *ranks, const struct reach *reach,
                           struct remote **out) {
  struct remote *remote = (struct remote *)os_alloc(sizeof *remote);
  if (!remote) return log_no_memory("a table of %u ranks", shared->rank_count);
  os_mutex_init(&remote->lock);
  remote->shared = shared;
  remote->secret = *secret;
  remote->wire_key = secret_name(secret);
  remote->process_count = gather_process_count(gather);
  remote->own_process = gather_own_process(gather);
  ncclResult_t result = ncclSuccess;
  if (!remote_alloc(remote, shared->rank_count))
    result = log_no_memory("a table of %u ranks", shared->rank_count);
  if (result == ncclSuccess) result = remote_take_infos(remote, gather, ranks, reach);
  if (result != ncclSuccess) {
    remote_free(remote);
    return result;
  }
  for (uint32_t process_index = 0; process_index < remote->process_count; process_index++)
    remote->addresses[process_index] = *gather_address(gather, process_index);
  remote_find_groups(remote);
  remote_find_p2p_domains(remote);
  result = remote_find_rails(remote);
  if (result == ncclSuccess) *out = remote;
  else remote_free(remote);
  return result;
}

static ncclResult_t remote_fill_here(struct remote *remote, struct ncclComm *const *comms) {
  for (uint32_t rank = 0; rank < remote->shared->rank_count; rank++) {
    TRY(peer_info_fill(comms[rank], NULL, &remote->infos[rank]));
    remote->ranks[rank].info = &remote->infos[rank];
  }
  remote_find_groups(remote);
  remote_find_p2p_domains(remote);
  return ncclSuccess;
}

static bool nodes_differ(struct ncclComm *const *comms, uint32_t count) {
  uint32_t first = 0, node = 0;
  for (uint32_t i = 0; i < count; i++)
    if (comms[i]->ops->device->node(comms[i]->device_index, i == 0 ? &first : &node) != ncclSuccess ||
        (i > 0 && node != first))
      return true;
  return false;
}

ncclResult_t remote_create_here(struct comm_shared *shared, struct ncclComm *const *comms,
                                struct remote **out) {
  if (!nodes_differ(comms, shared->rank_count)) return ncclSuccess;
  struct remote *remote = (struct remote *)os_alloc(sizeof *remote);
  if (!remote) return log_no_memory("a table of %u ranks", shared->rank_count);
  os_mutex_init(&remote->lock);
  remote->shared = shared;
  remote->wire_key = shared->comm_id; /* equal in every run */
  if (!secret_draw(&remote->secret)) memset(&remote->secret, 0, sizeof remote->secret);
  remote->process_count = 1;
  ncclResult_t result = ncclSuccess;
  if (!remote_alloc(remote, shared->rank_count))
    result = log_no_memory("a table of %u ranks", shared->rank_count);
  if (result == ncclSuccess) result = remote_fill_here(remote, comms);
  if (result == ncclSuccess) result = remote_find_rails(remote);
  if (result == ncclSuccess) *out = remote;
  else remote_free(remote);
  return result;
}

/* With peer info, a rank of another process may send (PXN). Equal on all ranks. */
static bool remote_has_ll(const struct remote *remote) {
  return remote->shared->ops->network->net_ll(rails_over_processes(remote->rails) &&
                                              remote->process_count > 1);
}

/* A process is counted with its first rank on the device. */
static void device_add_rank(const struct remote *remote, uint32_t rank, struct settings_device *device) {
  const uint32_t process = remote->ranks[rank].process_index;
  device->rank_count += 1;
  device->own_count += process == remote->own_process;
  for (uint32_t i = 0; i < rank; i++)
    if (remote->ranks[i].process_index == process &&
        infos_share_device(&remote->infos[rank], &remote->infos[i]))
      return;
  device->use.rank_count += remote->infos[rank].use.rank_count;
  device->use.shared_blocks += remote->infos[rank].use.shared_blocks;
  device->use.single_blocks += remote->infos[rank].use.single_blocks;
}

static void remote_add_devices(const struct remote *remote, struct settings_ranks *ranks) {
  if (param_int(PARAM_MULTI_RANK_GPU_ENABLE) == 0) return; /* no two ranks are on one */
  for (uint32_t rank = 0; rank < ranks->rank_count; rank++) {
    struct settings_device device;
    memset(&device, 0, sizeof device);
    device.blocks = remote->infos[rank].blocks;
    device.sharers = remote->ranks[rank].sharers;
    for (uint32_t i = 0; i < ranks->rank_count; i++)
      if (infos_share_device(&remote->infos[rank], &remote->infos[i])) device_add_rank(remote, i, &device);
    settings_add_device(ranks, &device);
  }
}

ncclResult_t remote_settle(const struct remote *remote, struct settings *settings) {
  struct settings_ranks ranks = {.rank_count = remote->shared->rank_count,
                                 .paths = {true, true},
                                 .on_host = remote->on_host,
                                 .networked = remote->networked,
                                 .net_ll = remote_has_ll(remote)};
  uint32_t domain_count = 0;
  struct settings other;
  memset(&other, 0, sizeof other);
  for (uint32_t rank = 0; rank < remote->shared->rank_count; rank++) {
    const struct peer_info *info = &remote->infos[rank];
    other.plan.limits.channel_count = info->channel_count;
    other.plan.limits.p2p_channel_count = info->p2p_channel_count;
    other.plan.limits.p2p_channels_per_peer = info->p2p_channels_per_peer;
    settings_agree(settings, &other);
    ranks.paths.ll128 = ranks.paths.ll128 && info->ll128 && !remote->on_host;
    domain_count += remote->p2p_domains[rank] == rank;
  }
  /* With memory of the host alone, kernels are those of devices without peer access. */
  if (remote->on_host && domain_count == ranks.rank_count) ranks.paths.peer_access = false;
  remote_add_devices(remote, &ranks);
  TRY(settings_check_devices(&ranks));
  if (settings_settle(settings, &ranks).named)
    log_info(LOG_NET, "NCCL_PROTO names what ranks on several hosts do not speak: they use %s",
             ranks.net_ll ? "LL and Simple" : "Simple alone");
  return ncclSuccess;
}

/* ---- Connections that other processes request ---- */

struct remote_message {
  uint32_t kind; /* REMOTE_CALL_CONNECT */
  uint32_t count;
  struct remote_request requests[REMOTE_REQUESTS_MOST];
};
static_assert(sizeof(struct remote_message) <= CONTROL_REQUEST_MOST, "a call holds it");
static_assert(REMOTE_REQUESTS_MOST * sizeof(union remote_answer) <= CONTROL_REPLY_MOST, "an answer holds it");

/* True if the receiver requests the sender's end, too. */
static bool sends_too(const struct remote *remote, const struct remote_request *request) {
  return request->transport == TRANSPORT_SHARED &&
         (request->name.proto == SLOTS_AT_SENDER || remote->shared->ops->process->conn_both_ends());
}

static bool slots_are_sane(const struct remote_request *request) {
  return request->name.proto < PROTO_COUNT ||
         (request->name.proto == SLOTS_AT_SENDER && request->transport == TRANSPORT_SHARED);
}

static bool request_is_sane(const struct remote *remote, const struct remote_request *request) {
  const uint32_t rank_count = remote->shared->rank_count;
  return request->rank < rank_count && request->name.peer < rank_count &&
         remote->ranks[request->rank].process_index == remote->own_process &&
         request->name.channel_index < PLAN_CHANNELS_MAX && request->name.conn_index < 4 &&
         slots_are_sane(request) && (!request->name.sends || sends_too(remote, request)) &&
         request->transport == remote_transport_to(remote, request->rank, request->name.peer) &&
         request->name.on_host == remote_on_host(remote, request->rank, request->name.peer) &&
         request->transport != TRANSPORT_LOCAL;
}

static ncclResult_t listener_open(struct proxy_comm *proxy, const struct device_conn_name *name,
                                  struct remote_listener *listener) {
  const struct net_ops *net = NULL;
  uint32_t device_count = 0;
  TRY(net_choose(&net, &device_count));
  snprintf(listener->network, sizeof listener->network, "%s", net->name);
  listener->apart = proxy_takes_apart(proxy);
  return proxy_receive_open(proxy, name, &listener->handle);
}

static ncclResult_t request_carry_out(struct remote *remote, const struct remote_request *request,
                                      union remote_answer *answer) {
  struct ncclComm *comm = remote->comms[request->rank];
  memset(answer, 0, sizeof *answer);
  if (!comm)
    return log_fail(ncclRemoteError,
                    "rank %u has destroyed its communicator; all ranks must take part until "
                    "the last operation",
                    request->rank);
  if (request->transport == TRANSPORT_SHARED)
    return comm->ops->process->conn_export(comm->device_comm, &request->name, &answer->shared);
  return listener_open(remote->proxies[request->rank], &request->name, &answer->network);
}

static ncclResult_t answer_requests(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                                    uint32_t *reply_bytes) {
  const struct remote_message *message = (const struct remote_message *)request;
  const uint32_t head_bytes = (uint32_t)offsetof(struct remote_message, requests);
  if (bytes < head_bytes || message->kind != REMOTE_CALL_CONNECT || message->count > REMOTE_REQUESTS_MOST ||
      bytes != head_bytes + message->count * sizeof message->requests[0])
    return log_fail(ncclRemoteError,
                    "a call for connections of %u bytes makes no sense; load the same "
                    "library everywhere",
                    bytes);
  for (uint32_t i = 0; i < message->count; i++) {
    if (!request_is_sane(remote, &message->requests[i]))
      return log_fail(ncclRemoteError, "rank %u asks rank %u for an impossible connection",
                      message->requests[i].name.peer, message->requests[i].rank);
    os_mutex_lock(&remote->lock);
    const ncclResult_t result =
        request_carry_out(remote, &message->requests[i], &((union remote_answer *)reply)[i]);
    os_mutex_unlock(&remote->lock);
    TRY(result);
  }
  *reply_bytes = (uint32_t)(message->count * sizeof(union remote_answer));
  return ncclSuccess;
}

/* A control_handler; runs on the thread that answers calls. */
static ncclResult_t remote_answer_call(void *argument, const void *request, uint32_t bytes, void *reply,
                                       uint32_t *reply_bytes) {
  struct remote *remote = (struct remote *)argument;
  uint32_t kind = REMOTE_CALL_CONNECT;
  if (bytes >= sizeof kind) memcpy(&kind, request, sizeof kind);
  if (kind == REMOTE_CALL_REGION) return remote_region_answer(remote, request, bytes, reply, reply_bytes);
  if (kind == REMOTE_CALL_MATCH) return remote_match_answer(remote, request, bytes, reply, reply_bytes);
  if (kind == REMOTE_CALL_WINDOW) return remote_window_answer(remote, request, bytes, reply, reply_bytes);
  if (kind == REMOTE_CALL_PXN) return remote_pxn_answer(remote, request, bytes, reply, reply_bytes);
  if (kind == REMOTE_CALL_STALL || kind == REMOTE_CALL_ALARM || kind == REMOTE_CALL_REPORTED)
    return remote->watcher->answer(remote, kind, request, bytes, reply, reply_bytes);
  return answer_requests(remote, request, bytes, reply, reply_bytes);
}

static bool comm_is_broken(const struct ncclComm *comm) {
  return __atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE) == 2;
}

/* If a call was cancelled because the communicator broke, reports the reason of the break. If the other end
 * has gone or no longer listens, its own reason usually arrives soon. */
static ncclResult_t ask_result(const struct ncclComm *comm, const char *what, ncclResult_t result) {
  if (result == ncclSuccess) return result;
  for (uint32_t ms = 0; result == ncclRemoteError && ms < REASON_WAIT_MS && !comm_is_broken(comm); ms++) {
    if (__atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE)) return result;
    os_sleep_ms(1);
  }
  return comm_is_broken(comm) ? log_fail(comm->reason_code, "%s: %s", what, comm->reason) : result;
}

static ncclResult_t remote_ask_some(struct ncclComm *comm, const struct remote_request *requests,
                                    uint32_t count, union remote_answer *answers) {
  const struct remote *remote = comm->shared->remote;
  const struct sock_address *to = &remote->addresses[remote->ranks[requests[0].rank].process_index];
  struct remote_message *message = (struct remote_message *)os_alloc(sizeof *message);
  char what[256], at[SOCK_TEXT_BYTES];
  const struct sock_wait wait = {
      os_time_ns() + (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * 1000000000u, &comm->called_off,
      what};
  uint32_t reply_bytes = (uint32_t)(count * sizeof *answers); /* capacity */
  if (!message) return log_no_memory("rank %u of comm '%s': asking for connections", comm->rank, comm->name);
  snprintf(what, sizeof what, "rank %u of comm '%s' asking rank %u (%s, %s) for connections", comm->rank,
           comm->name, requests[0].rank, remote->infos[requests[0].rank].host_name,
           sock_address_text(to, at));
  message->kind = REMOTE_CALL_CONNECT;
  message->count = count;
  memcpy(message->requests, requests, count * sizeof *requests);
  comm->ops->process->order_hold(1);
  const ncclResult_t result =
      control_call(to, &remote->secret, &wait, message,
                   (uint32_t)(offsetof(struct remote_message, requests) + count * sizeof *requests), answers,
                   &reply_bytes);
  comm->ops->process->order_hold(-1);
  os_free(message);
  TRY(ask_result(comm, what, result));
  if (reply_bytes == count * sizeof *answers) return ncclSuccess;
  return log_fail(ncclRemoteError,
                  "%s: %u bytes came back for %u connections; load the same library "
                  "everywhere",
                  what, reply_bytes, count);
}

/* For receivers in this process, on another of its nodes. */
static ncclResult_t remote_ask_here(struct remote *remote, const struct remote_request *requests,
                                    uint32_t count, union remote_answer *answers) {
  ncclResult_t result = ncclSuccess;
  os_mutex_lock(&remote->lock);
  for (uint32_t i = 0; result == ncclSuccess && i < count; i++)
    result = request_carry_out(remote, &requests[i], &answers[i]);
  os_mutex_unlock(&remote->lock);
  return result;
}

ncclResult_t remote_ask(struct ncclComm *comm, const struct remote_request *requests, uint32_t count,
                        union remote_answer *answers) {
  struct remote *remote = comm->shared->remote;
  if (remote->ranks[requests[0].rank].process_index == remote->own_process)
    return remote_ask_here(remote, requests, count, answers);
  for (uint32_t done = 0; done < count;) {
    const uint32_t some = count - done < REMOTE_REQUESTS_MOST ? count - done : REMOTE_REQUESTS_MOST;
    TRY(remote_ask_some(comm, requests + done, some, answers + done));
    done += some;
  }
  return ncclSuccess;
}

/* ---- Opening and closing ---- */

void remote_give_up(struct ncclComm *comm, ncclResult_t code, const char *text) {
  const struct comm_shared *shared = comm->shared;
  char sentence[COMM_REASON_BYTES];
  snprintf(sentence, sizeof sentence, "rank %u: %s", comm->rank, text);
  comm_break(comm, code, text);
  for (uint32_t rank = 0; rank < shared->rank_count; rank++)
    if (shared->device_comms[rank]) comm->ops->device->comm_fail(shared->device_comms[rank], code);
  remote_fail(shared->remote, code, sentence);
}

/* The process's last error is that of the failure, unless something else has failed meanwhile. */
void remote_report_error(struct ncclComm *comm) {
  char text[COMM_REASON_BYTES];
  const ncclResult_t error = comm_async_error(comm);
  if (error == ncclSuccess || __atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE) != 0) return;
  snprintf(text, sizeof text, "its kernels have failed: %s", log_last_error());
  remote_give_up(comm, error, text);
}

/* Called on the proxy engine's thread, while the rank's proxy is open. */
static void remote_proxy_failed(void *argument, ncclResult_t code, const char *text) {
  remote_give_up((struct ncclComm *)argument, code, text);
}

static ncclResult_t remote_note_networked(struct remote *remote, uint32_t own_rank) {
  const uint32_t rank_count = remote->shared->rank_count;
  remote->remotes[own_rank] = (uint8_t *)os_alloc(rank_count);
  if (!remote->remotes[own_rank]) return log_no_memory("the ways to %u ranks", rank_count);
  for (uint32_t rank = 0; rank < rank_count; rank++)
    remote->remotes[own_rank][rank] = remote_transport_to(remote, own_rank, rank) == TRANSPORT_NETWORK;
  return ncclSuccess;
}

void remote_grow_secret(const struct remote *remote, uint64_t turn, struct secret *secret) {
  secret_derive(&remote->secret, "tutti grow", &turn, sizeof turn, secret);
}

ncclResult_t remote_grow_admit(struct remote *remote, uint64_t turn) {
  struct secret secret;
  ncclResult_t result = ncclSuccess;
  if (remote->ranks[0].process_index != remote->own_process) return ncclSuccess;
  remote_grow_secret(remote, turn, &secret);
  os_mutex_lock(&remote->lock);
  if (remote->admitted < turn) result = control_admit(&secret);
  if (remote->admitted < turn && result == ncclSuccess) remote->admitted = turn;
  os_mutex_unlock(&remote->lock);
  secret_wipe(&secret);
  return result;
}

/* The rendezvous of earlier grows forget theirs. */
static void grow_forget(const struct remote *remote) {
  struct secret secret;
  if (remote->admitted == 0) return;
  remote_grow_secret(remote, remote->admitted, &secret);
  control_unserve(secret_name(&secret));
  secret_wipe(&secret);
}

ncclResult_t remote_open(struct remote *remote, struct ncclComm *const *comms,
                         const struct remote_watcher *watcher) {
  struct sock_address unused;
  for (uint32_t rank = 0; rank < remote->shared->rank_count; rank++) {
    struct ncclComm *comm = remote->comms[rank] = comms[rank];
    if (!comm || !remote->networked) continue;
    TRY(remote_note_networked(remote, rank));
    const struct proxy_comm_call call = {.ops = comm->ops,
                                         .device_comm = comm->device_comm,
                                         .comm_key = remote->wire_key,
                                         .secret = remote->secret,
                                         .rank = rank,
                                         .rank_count = comm->rank_count,
                                         .device_index = comm->device_index,
                                         .name = comm->name,
                                         .live = recorder_live(&comm->recorder),
                                         .failed = remote_proxy_failed,
                                         .argument = comm,
                                         .traffic_class = comm_traffic_class(comm),
                                         .rails = remote->rails};
    TRY(proxy_comm_open(&call, &remote->proxies[rank]));
  }
  if (remote->process_count == 1) return ncclSuccess; /* no other process will call */
  TRY(control_use(&unused));
  remote->watcher = watcher;
  remote_match_open(remote);
  const ncclResult_t result = control_serve(&remote->secret, remote_answer_call, remote);
  remote->serving = result == ncclSuccess;
  if (!remote->serving) control_leave();
  if (!remote->serving) return result;
  TRY(remote_grow_admit(remote, 1));
  TRY(watcher->open(remote, &remote->watcher_state));
  return remote->shows ? remote_lease_open(remote) : ncclSuccess;
}

void remote_leave(struct remote *remote, uint32_t rank) {
  os_mutex_lock(&remote->lock);
  const struct ncclComm *comm = remote->comms[rank];
  const bool broken = comm && (comm_async_error(comm) != ncclSuccess ||
                               __atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE) != 0);
  struct proxy_comm *proxy = remote->proxies[rank];
  remote->proxies[rank] = NULL;
  if (remote->comms[rank])
    remote->left[rank] = __atomic_load_n(&remote->comms[rank]->sequence, __ATOMIC_RELAXED);
  remote->comms[rank] = NULL;
  remote->broken = remote->broken || broken;
  os_mutex_unlock(&remote->lock);
  if (broken) proxy_pxn_break(remote->wire_key, rank, "it has given the communicator up");
  if (proxy) proxy_comm_close(proxy);
}

void remote_free(struct remote *remote) {
  if (!remote) return;
  if (remote->watcher) remote->watcher->leave(remote);
  if (remote->serving && !remote->broken) remote_match_leave(remote);
  if (remote->serving) control_unserve(remote->wire_key); /* its handler reads what is freed next */
  grow_forget(remote);
  if (remote->watcher) remote->watcher->close(remote->watcher_state);
  remote_lease_close(remote);
  if (remote->serving) control_leave();
  for (uint32_t rank = 0; remote->proxies && rank < remote->shared->rank_count; rank++)
    if (remote->proxies[rank]) proxy_comm_close(remote->proxies[rank]);
  for (uint32_t rank = 0; remote->remotes && rank < remote->shared->rank_count; rank++)
    os_free(remote->remotes[rank]);
  rails_free(remote->rails);
  os_mutex_destroy(&remote->lock);
  os_free(remote->addresses);
  os_free(remote->ranks);
  os_free(remote->groups);
  os_free(remote->p2p_domains);
  os_free(remote->remotes);
  os_free(remote->comms);
  os_free(remote->left);
  os_free(remote->proxies);
  os_free(remote->infos);
  os_free(remote);
}

void remote_free_shared(struct comm_shared *shared) {
  if (shared) remote_free(shared->remote);
  comm_shared_free(shared);
}

/* ---- Lost processes ---- */

struct remote_watch {
  struct watch *watch;
  os_mutex lock;        /* taken before a communicator's, and before the backend's */
  struct remote *first; /* communicators that are notified */
  uint32_t share_count; /* references: the creator's and the communicators' */
};

static bool remote_find_process(const struct remote *remote, uint32_t process_index, uint32_t *rank) {
  for (*rank = 0; *rank < remote->shared->rank_count; *rank += 1)
    if (remote->ranks[*rank].process_index == process_index) return true;
  return false;
}

static void remote_report(struct remote *remote, uint32_t rank, ncclResult_t code, const char *text) {
  const struct peer_info *info = &remote->infos[rank];
  char sentence[COMM_REASON_BYTES];
  snprintf(sentence, sizeof sentence, "rank %u (process %d on %s): %s", rank, info->process, info->host_name,
           text);
  os_mutex_lock(&remote->lock);
  for (uint32_t i = 0; i < remote->shared->rank_count; i++) {
    if (!remote->comms[i]) continue;
    comm_break(remote->comms[i], code, sentence);
    proxy_pxn_break(remote->wire_key, i, sentence);
  }
  os_mutex_unlock(&remote->lock);
}

/* A watch_lost; runs on the server's thread. */
static void remote_lost(void *argument, uint32_t process_index, uint64_t key, ncclResult_t code,
                        const char *text) {
  struct remote_watch *watch = (struct remote_watch *)argument;
  uint32_t rank;
  os_mutex_lock(&watch->lock);
  for (struct remote *remote = watch->first; remote; remote = remote->next) {
    if (key != 0 && key != remote->wire_key) continue;
    if (remote_find_process(remote, process_index, &rank)) remote_report(remote, rank, code, text);
  }
  os_mutex_unlock(&watch->lock);
}

ncclResult_t remote_watch_create(struct remote_watch **out) {
  struct remote_watch *watch = (struct remote_watch *)os_alloc(sizeof *watch);
  if (!watch) return log_no_memory("watching over other processes");
  os_mutex_init(&watch->lock);
  watch->share_count = 1;
  *out = watch;
  return ncclSuccess;
}

ncclResult_t remote_watch_begin(struct remote_watch *watch, struct gather *gather) {
  return gather_watch(gather, remote_lost, watch, &watch->watch);
}

void remote_watch_join(struct remote_watch *watch, struct remote *remote) {
  os_mutex_lock(&watch->lock);
  remote->watch = watch;
  remote->next = watch->first;
  watch->first = remote;
  watch->share_count += 1;
  os_mutex_unlock(&watch->lock);
}

/* Removes the communicator from the list, if it is in it. */
static void watch_unlist(struct remote_watch *watch, struct remote *remote) {
  struct remote **link = &watch->first;
  while (*link && *link != remote) link = &(*link)->next;
  if (*link) *link = remote->next;
}

static void watch_give_back(struct remote_watch *watch, struct remote *remote) {
  os_mutex_lock(&watch->lock);
  watch_unlist(watch, remote);
  const bool last = --watch->share_count == 0;
  os_mutex_unlock(&watch->lock);
  if (!last) return;
  watch_leave(watch->watch);
  os_mutex_destroy(&watch->lock);
  os_free(watch);
}

void remote_watch_drop(struct remote_watch *watch) { watch_give_back(watch, NULL); }

void remote_watch_leave(struct remote *remote) {
  if (remote->watch) watch_give_back(remote->watch, remote);
  remote->watch = NULL;
}

void remote_fail(struct remote *remote, ncclResult_t code, const char *text) {
  if (remote->watch && remote->watch->watch) watch_fail(remote->watch->watch, remote->wire_key, code, text);
}
