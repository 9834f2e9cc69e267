/* far.c: the table of a team's ranks in other processes, made from their cards, and what this process answers
 * when they ask for connections. Promises that both ends of any pair come to the same way. Does not know how
 * the cards came here, nor what a connection is made of. */
#include "core/far/far.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/share.h"
#include "core/bootstrap/control.h"
#include "core/comm.h"
#include "core/proxy/net.h"
#include "core/proxy/proxy_relay.h"
#include "core/stall/stall.h"
#include "core/stall/survey.h"
#include "core/stall/watchdog.h"
#include "core/topology/layout.h"
#include "core/topology/rails.h"

#define REASON_WAIT_MS 300 /* for why the other end has gone */

/* ---- Cards ---- */

/* What holds for a rank's device and all others of its host. */
static ncclResult_t card_paths(const struct ncclComm *comm, uint32_t device_count,
                               struct settings_paths *paths) {
  struct device_path_info info;
  TRY(comm->ops->device_far_path(comm->device_index, &info));
  if (info.name) {
    paths->peer_access = info.peer_access;
    paths->lines128 = info.lines128;
  } else if (device_count > 1) {
    settings_add_path(comm->ops, comm->device_index, (comm->device_index + 1) % device_count, paths);
  }
  return ncclSuccess;
}

ncclResult_t far_card_fill(const struct ncclComm *comm, struct device_comm *model, struct far_card *card) {
  const struct device_ops *ops = comm->ops;
  const struct plan_limits *limits = &comm->settings.limits;
  struct settings_paths paths = {true, true};
  uint32_t device_count = 0;
  bool reach = false;
  memset(card, 0, sizeof *card);
  TRY(ops->device_count(&device_count));
  TRY(ops->device_node(comm->device_index, &card->node));
  if (model) {
    TRY(ops->comm_card(model, &card->device));
    TRY(ops->comm_reach(model, comm->rank, &card->device, &reach));
  }
  TRY(card_paths(comm, device_count, &paths));
  card->host = share_host();
  card->settings = settings_digest(&comm->settings);
  card->channel_count = limits->channel_count;
  card->p2p_channel_count = limits->p2p_channel_count;
  card->p2p_channels_per_peer = limits->p2p_channels_per_peer;
  card->device_index = comm->device_index;
  card->process = os_pid();
  card->present = 1;
  card->shareable = reach;
  card->direct = limits->direct && paths.peer_access && param_int(PARAM_P2P_DISABLE) == 0;
  card->lines128 = paths.lines128;
  os_host_name(card->host_name, sizeof card->host_name);
  return ncclSuccess;
}

/* ---- The table ---- */

static bool far_same_group(const struct far_rank *a, const struct far_rank *b) {
  const bool one_node = a->card->host == b->card->host && a->card->node == b->card->node;
  if (a->party == b->party) return one_node;
  return one_node && a->card->shareable && b->card->shareable;
}

/* The first rank that this one belongs with stands for all of its group. */
static void far_find_groups(struct far *far) {
  for (uint32_t rank = 0; rank < far->team->rank_count; rank++) {
    uint32_t first = 0;
    while (!far_same_group(&far->ranks[first], &far->ranks[rank])) first += 1;
    far->ranks[rank].group = far->groups[rank] = first;
    far->networked = far->networked || first != 0;
  }
}

/* Users' memory is mapped within a group, or within a process alone. */
static bool far_same_island(const struct far_rank *a, const struct far_rank *b) {
  return a->group == b->group && (b->card->direct || a->party == b->party);
}

static void far_find_islands(struct far *far) {
  for (uint32_t rank = 0; rank < far->team->rank_count; rank++) {
    uint32_t first = 0;
    while (!far_same_island(&far->ranks[first], &far->ranks[rank])) first += 1;
    far->islands[rank] = first;
    far->shows =
        far->shows || (far->ranks[first].party != far->ranks[rank].party && far->team->ops->conn_both_ends());
  }
}

enum far_way far_way_to(const struct far *far, uint32_t own_rank, uint32_t rank) {
  const struct far_rank *own = &far->ranks[own_rank], *other = &far->ranks[rank];
  if (own->group != other->group) return FAR_NETWORK;
  return own->party == other->party ? FAR_HERE : FAR_SHARED;
}

static ncclResult_t far_check_settings(const struct far *far) {
  for (uint32_t rank = 1; rank < far->team->rank_count; rank++) {
    const struct far_card *first = &far->cards[0], *card = &far->cards[rank];
    if (card->settings == first->settings) continue;
    return log_fail(ncclInvalidUsage,
                    "rank 0 (process %d on %s) and rank %u (process %d on %s) have different settings of "
                    "buffers, algorithms or protocols; give NCCL_BUFFSIZE, NCCL_ALGO, NCCL_PROTO and their "
                    "kin the same values everywhere",
                    first->process, first->host_name, rank, card->process, card->host_name);
  }
  return ncclSuccess;
}

static ncclResult_t far_take_cards(struct far *far, const struct gather *gather, const uint32_t *seats,
                                   const uint8_t *apart) {
  const struct gather_seat *said = gather_seats(gather);
  for (uint32_t rank = 0; rank < far->team->rank_count; rank++) {
    const struct gather_seat *seat = &said[seats[rank]];
    if (seat->card_bytes != sizeof far->cards[rank])
      return log_fail(ncclInvalidUsage,
                      "rank %u described itself with %u bytes, this library does with %zu; load the same "
                      "library everywhere",
                      rank, seat->card_bytes, sizeof far->cards[rank]);
    memcpy(&far->cards[rank], seat->card, sizeof far->cards[rank]);
    far->cards[rank].host_name[sizeof far->cards[rank].host_name - 1] = '\0';
    far->ranks[rank].card = &far->cards[rank];
    far->ranks[rank].party = seat->party;
    if (apart[seat->party]) far->cards[rank].shareable = 0;
  }
  return far_check_settings(far);
}

static bool far_alloc(struct far *far, uint32_t rank_count) {
  far->addresses = (struct sock_address *)os_alloc(far->party_count * sizeof *far->addresses);
  far->ranks = (struct far_rank *)os_alloc(rank_count * sizeof *far->ranks);
  far->groups = (uint32_t *)os_alloc(rank_count * sizeof *far->groups);
  far->islands = (uint32_t *)os_alloc(rank_count * sizeof *far->islands);
  far->remotes = (uint8_t **)os_alloc(rank_count * sizeof *far->remotes);
  far->comms = (struct ncclComm **)os_alloc(rank_count * sizeof *far->comms);
  far->left = (uint64_t *)os_alloc(rank_count * sizeof *far->left);
  far->proxies = (struct proxy_comm **)os_alloc(rank_count * sizeof *far->proxies);
  far->cards = (struct far_card *)os_alloc(rank_count * sizeof *far->cards);
  return far->addresses && far->ranks && far->groups && far->islands && far->remotes && far->comms &&
         far->left && far->proxies && far->cards;
}

/* A rank's number among those of its host. */
static uint32_t far_place(const struct far *far, uint32_t rank) {
  uint32_t place = 0;
  for (uint32_t i = 0; i < rank; i++) place += far->cards[i].host == far->cards[rank].host;
  return place;
}

/* Within one process the backend's nodes say where the cards lie, else the user's file, or nobody. */
static ncclResult_t far_find_rails(struct far *far) {
  const uint32_t rank_count = far->team->rank_count;
  const bool several = far->party_count > 1;
  if (several && (!far->networked || param_text(PARAM_TOPO_FILE)[0] == '\0')) return ncclSuccess;
  struct rails_place *places = (struct rails_place *)os_alloc(rank_count * sizeof *places);
  if (!places) return log_fail(ncclSystemError, "no memory for the places of %u ranks", rank_count);
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    const struct far_card *card = &far->cards[rank];
    places[rank].device = several ? far_place(far, rank) : card->device_index;
    places[rank].here = far->ranks[rank].party == far->own_party;
    places[rank].node = several ? far->ranks[rank].group : card->node;
  }
  const ncclResult_t result = rails_create(far->team->ops, places, rank_count, &far->rails);
  os_free(places);
  return result;
}

ncclResult_t far_create(struct team *team, uint64_t wire_key, const struct gather *gather,
                        const uint32_t *seats, const uint8_t *apart, struct far **out) {
  struct far *far = (struct far *)os_alloc(sizeof *far);
  if (!far) return log_fail(ncclSystemError, "no memory for a table of %u ranks", team->rank_count);
  os_mutex_init(&far->lock);
  far->team = team;
  far->wire_key = wire_key;
  far->party_count = gather_party_count(gather);
  far->own_party = gather_own_party(gather);
  ncclResult_t result = ncclSuccess;
  if (!far_alloc(far, team->rank_count))
    result = log_fail(ncclSystemError, "no memory for a table of %u ranks", team->rank_count);
  if (result == ncclSuccess) result = far_take_cards(far, gather, seats, apart);
  if (result != ncclSuccess) {
    far_free(far);
    return result;
  }
  for (uint32_t party = 0; party < far->party_count; party++)
    far->addresses[party] = *gather_address(gather, party);
  far_find_groups(far);
  far_find_islands(far);
  result = far_find_rails(far);
  if (result == ncclSuccess) *out = far;
  else far_free(far);
  return result;
}

static ncclResult_t far_fill_here(struct far *far, struct ncclComm *const *comms) {
  for (uint32_t rank = 0; rank < far->team->rank_count; rank++) {
    TRY(far_card_fill(comms[rank], NULL, &far->cards[rank]));
    far->ranks[rank].card = &far->cards[rank];
  }
  far_find_groups(far);
  far_find_islands(far);
  return ncclSuccess;
}

static bool nodes_differ(struct ncclComm *const *comms, uint32_t count) {
  uint32_t first = 0, node = 0;
  for (uint32_t i = 0; i < count; i++)
    if (comms[i]->ops->device_node(comms[i]->device_index, i == 0 ? &first : &node) != ncclSuccess ||
        (i > 0 && node != first))
      return true;
  return false;
}

ncclResult_t far_create_here(struct team *team, struct ncclComm *const *comms, struct far **out) {
  if (!nodes_differ(comms, team->rank_count)) return ncclSuccess;
  struct far *far = (struct far *)os_alloc(sizeof *far);
  if (!far) return log_fail(ncclSystemError, "no memory for a table of %u ranks", team->rank_count);
  os_mutex_init(&far->lock);
  far->team = team;
  far->wire_key = team->comm_id; /* the same on every run */
  far->party_count = 1;
  ncclResult_t result = ncclSuccess;
  if (!far_alloc(far, team->rank_count))
    result = log_fail(ncclSystemError, "no memory for a table of %u ranks", team->rank_count);
  if (result == ncclSuccess) result = far_fill_here(far, comms);
  if (result == ncclSuccess) result = far_find_rails(far);
  if (result == ncclSuccess) *out = far;
  else far_free(far);
  return result;
}

/* Where cards are known, a rank of another process may send (PXN). The same answer on all ranks. */
static bool far_has_lines(const struct far *far) {
  return far->team->ops->net_lines(far->rails != NULL && far->party_count > 1);
}

void far_settle(const struct far *far, struct settings *settings) {
  struct settings_paths paths = {true, true};
  struct settings other;
  memset(&other, 0, sizeof other);
  for (uint32_t rank = 0; rank < far->team->rank_count; rank++) {
    const struct far_card *card = &far->cards[rank];
    other.limits.channel_count = card->channel_count;
    other.limits.p2p_channel_count = card->p2p_channel_count;
    other.limits.p2p_channels_per_peer = card->p2p_channels_per_peer;
    settings_agree(settings, &other);
    paths.lines128 = paths.lines128 && card->lines128;
  }
  settings_take_paths(settings, &paths);
  if (far->networked) proxy_limits(&settings->limits);
  if (far->networked && settings_take_network(settings, far_has_lines(far), far->team->rank_count))
    log_info(LOG_NET, "NCCL_PROTO names what ranks on several hosts do not speak: they use %s",
             far_has_lines(far) ? "LL and Simple" : "Simple alone");
}

/* Hosts are nodes, in the order of their first ranks. */
ncclResult_t far_lay_out(const struct far *far, uint32_t channel_count, struct graph *graph) {
  const uint32_t rank_count = far->team->rank_count;
  struct graph_place *places = (struct graph_place *)os_alloc(rank_count * sizeof *places);
  if (!places) return log_fail(ncclSystemError, "no memory for the places of %u ranks", rank_count);
  uint32_t node_count = 0;
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    uint32_t first = rank, last = rank;
    for (uint32_t i = rank; i-- > 0;) {
      if (far->cards[i].host != far->cards[rank].host) continue;
      if (last == rank) last = i;
      first = i;
    }
    places[rank].node = first < rank ? places[first].node : node_count++;
    places[rank].gpu = last < rank ? places[last].gpu + 1 : 0;
  }
  const ncclResult_t result = layout_graph_far(places, rank_count, node_count, channel_count, graph);
  os_free(places);
  return result;
}

/* ---- Connections that others ask for ---- */

struct far_message {
  uint32_t kind; /* FAR_CALL_CONNECT */
  uint32_t count;
  struct far_request requests[FAR_REQUESTS_MOST];
};
static_assert(sizeof(struct far_message) <= CONTROL_REQUEST_MOST, "a call holds it");
static_assert(FAR_REQUESTS_MOST * sizeof(union far_answer) <= CONTROL_REPLY_MOST, "an answer holds it");

/* Who receives asks for the sender's end, too. */
static bool sends_too(const struct far *far, enum far_way way) {
  return way == FAR_SHARED && far->team->ops->conn_both_ends();
}

static bool request_is_sane(const struct far *far, const struct far_request *request) {
  const uint32_t rank_count = far->team->rank_count;
  return request->rank < rank_count && request->name.peer < rank_count &&
         far->ranks[request->rank].party == far->own_party &&
         request->name.channel_index < PLAN_CHANNELS_MAX && request->name.conn_index < 4 &&
         request->name.proto < PROTO_COUNT && (!request->name.sends || sends_too(far, request->way)) &&
         request->way == far_way_to(far, request->rank, request->name.peer) && request->way != FAR_HERE;
}

static ncclResult_t listener_open(struct proxy_comm *proxy, const struct device_conn_name *name,
                                  struct far_listener *listener) {
  const struct net_ops *net = NULL;
  uint32_t device_count = 0;
  TRY(net_choose(&net, &device_count));
  snprintf(listener->network, sizeof listener->network, "%s", net->name);
  return proxy_receive_open(proxy, name, &listener->handle);
}

static ncclResult_t request_carry_out(struct far *far, const struct far_request *request,
                                      union far_answer *answer) {
  struct ncclComm *comm = far->comms[request->rank];
  memset(answer, 0, sizeof *answer);
  if (!comm)
    return log_fail(ncclRemoteError,
                    "rank %u has destroyed its communicator; all ranks must take part until "
                    "the last operation",
                    request->rank);
  if (request->way == FAR_SHARED)
    return comm->ops->conn_export(comm->device_comm, &request->name, &answer->shared);
  return listener_open(far->proxies[request->rank], &request->name, &answer->network);
}

static ncclResult_t answer_requests(struct far *far, const void *request, uint32_t bytes, void *reply,
                                    uint32_t *reply_bytes) {
  const struct far_message *message = (const struct far_message *)request;
  const uint32_t head_bytes = (uint32_t)offsetof(struct far_message, requests);
  if (bytes < head_bytes || message->kind != FAR_CALL_CONNECT || message->count > FAR_REQUESTS_MOST ||
      bytes != head_bytes + message->count * sizeof message->requests[0])
    return log_fail(ncclRemoteError,
                    "a call for connections of %u bytes makes no sense; load the same "
                    "library everywhere",
                    bytes);
  for (uint32_t i = 0; i < message->count; i++) {
    if (!request_is_sane(far, &message->requests[i]))
      return log_fail(ncclRemoteError, "rank %u asks rank %u for a connection that cannot be",
                      message->requests[i].name.peer, message->requests[i].rank);
    os_mutex_lock(&far->lock);
    const ncclResult_t result =
        request_carry_out(far, &message->requests[i], &((union far_answer *)reply)[i]);
    os_mutex_unlock(&far->lock);
    TRY(result);
  }
  *reply_bytes = (uint32_t)(message->count * sizeof(union far_answer));
  return ncclSuccess;
}

/* A control_handler: on the thread that answers calls. */
static ncclResult_t far_answer_call(void *argument, const void *request, uint32_t bytes, void *reply,
                                    uint32_t *reply_bytes) {
  struct far *far = (struct far *)argument;
  uint32_t kind = FAR_CALL_CONNECT;
  if (bytes >= sizeof kind) memcpy(&kind, request, sizeof kind);
  if (kind == FAR_CALL_STALL) return stall_answer(far, request, bytes, reply, reply_bytes);
  if (kind == FAR_CALL_REGION) return far_region_answer(far, request, bytes, reply, reply_bytes);
  if (kind == FAR_CALL_ALARM || kind == FAR_CALL_TOLD) {
    *reply_bytes = 0;
    if (kind == FAR_CALL_ALARM) return watchdog_alarm();
    watchdog_hear((const char *)request + sizeof kind, bytes - (uint32_t)sizeof kind);
    return ncclSuccess;
  }
  if (kind == FAR_CALL_RELAY) return far_relay_answer(far, request, bytes, reply, reply_bytes);
  return answer_requests(far, request, bytes, reply, reply_bytes);
}

static bool comm_is_broken(const struct ncclComm *comm) {
  return __atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE) == 2;
}

/* A call that was given up because the communicator broke says why that was. Where the other end has gone or
 * listens no more, its own word of why is on its way, as a rule. */
static ncclResult_t ask_result(const struct ncclComm *comm, const char *what, ncclResult_t result) {
  if (result == ncclSuccess) return result;
  for (uint32_t ms = 0; result == ncclRemoteError && ms < REASON_WAIT_MS && !comm_is_broken(comm); ms++) {
    if (__atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE)) return result;
    os_sleep_ms(1);
  }
  return comm_is_broken(comm) ? log_fail(comm->reason_code, "%s: %s", what, comm->reason) : result;
}

static ncclResult_t far_ask_some(struct ncclComm *comm, const struct far_request *requests, uint32_t count,
                                 union far_answer *answers) {
  const struct far *far = comm->team->far;
  const struct sock_address *to = &far->addresses[far->ranks[requests[0].rank].party];
  struct far_message *message = (struct far_message *)os_alloc(sizeof *message);
  char what[256], at[SOCK_TEXT_BYTES];
  const struct sock_wait wait = {
      os_time_ns() + (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * 1000000000u, &comm->called_off,
      what};
  uint32_t reply_bytes = (uint32_t)(count * sizeof *answers); /* the room there is */
  if (!message)
    return log_fail(ncclSystemError, "rank %u of comm '%s': no memory to ask for connections", comm->rank,
                    comm->name);
  snprintf(what, sizeof what, "rank %u of comm '%s' asking rank %u (%s, %s) for connections", comm->rank,
           comm->name, requests[0].rank, far->cards[requests[0].rank].host_name, sock_address_text(to, at));
  message->kind = FAR_CALL_CONNECT;
  message->count = count;
  memcpy(message->requests, requests, count * sizeof *requests);
  const ncclResult_t result = control_call(
      to, far->wire_key, &wait, message,
      (uint32_t)(offsetof(struct far_message, requests) + count * sizeof *requests), answers, &reply_bytes);
  os_free(message);
  TRY(ask_result(comm, what, result));
  if (reply_bytes == count * sizeof *answers) return ncclSuccess;
  return log_fail(ncclRemoteError,
                  "%s: %u bytes came back for %u connections; load the same library "
                  "everywhere",
                  what, reply_bytes, count);
}

/* Receivers of this process, on another of its nodes. */
static ncclResult_t far_ask_here(struct far *far, const struct far_request *requests, uint32_t count,
                                 union far_answer *answers) {
  ncclResult_t result = ncclSuccess;
  os_mutex_lock(&far->lock);
  for (uint32_t i = 0; result == ncclSuccess && i < count; i++)
    result = request_carry_out(far, &requests[i], &answers[i]);
  os_mutex_unlock(&far->lock);
  return result;
}

ncclResult_t far_ask(struct ncclComm *comm, const struct far_request *requests, uint32_t count,
                     union far_answer *answers) {
  struct far *far = comm->team->far;
  if (far->ranks[requests[0].rank].party == far->own_party)
    return far_ask_here(far, requests, count, answers);
  for (uint32_t done = 0; done < count;) {
    const uint32_t some = count - done < FAR_REQUESTS_MOST ? count - done : FAR_REQUESTS_MOST;
    TRY(far_ask_some(comm, requests + done, some, answers + done));
    done += some;
  }
  return ncclSuccess;
}

/* ---- Opening and closing ---- */

void far_give_up(struct ncclComm *comm, ncclResult_t code, const char *text) {
  const struct team *team = comm->team;
  char sentence[COMM_REASON_BYTES];
  snprintf(sentence, sizeof sentence, "rank %u: %s", comm->rank, text);
  comm_break(comm, code, text);
  for (uint32_t rank = 0; rank < team->rank_count; rank++)
    if (team->device_comms[rank]) comm->ops->comm_fail(team->device_comms[rank], code);
  far_fail(team->far, code, sentence);
}

/* The process's last sentence is that of the failure, unless something else has failed meanwhile. */
void far_tell_error(struct ncclComm *comm) {
  char text[COMM_REASON_BYTES];
  const ncclResult_t error = comm_async_error(comm);
  if (error == ncclSuccess || __atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE) != 0) return;
  snprintf(text, sizeof text, "its kernels have failed: %s", log_last_error());
  far_give_up(comm, error, text);
}

/* On the proxy engine's thread, while the rank's proxy is open. */
static void far_proxy_failed(void *argument, ncclResult_t code, const char *text) {
  far_give_up((struct ncclComm *)argument, code, text);
}

static ncclResult_t far_note_remote(struct far *far, uint32_t own_rank) {
  const uint32_t rank_count = far->team->rank_count;
  far->remotes[own_rank] = (uint8_t *)os_alloc(rank_count);
  if (!far->remotes[own_rank])
    return log_fail(ncclSystemError, "no memory for the ways to %u ranks", rank_count);
  for (uint32_t rank = 0; rank < rank_count; rank++)
    far->remotes[own_rank][rank] = far_way_to(far, own_rank, rank) == FAR_NETWORK;
  return ncclSuccess;
}

ncclResult_t far_open(struct far *far, struct ncclComm *const *comms) {
  struct sock_address unused;
  for (uint32_t rank = 0; rank < far->team->rank_count; rank++) {
    struct ncclComm *comm = far->comms[rank] = comms[rank];
    if (!comm || !far->networked) continue;
    TRY(far_note_remote(far, rank));
    const struct proxy_comm_call call = {.ops = comm->ops,
                                         .device_comm = comm->device_comm,
                                         .comm_key = far->wire_key,
                                         .rank = rank,
                                         .rank_count = comm->rank_count,
                                         .name = comm->name,
                                         .live = recorder_live(&comm->recorder),
                                         .failed = far_proxy_failed,
                                         .argument = comm,
                                         .rails = far->rails};
    TRY(proxy_comm_open(&call, &far->proxies[rank]));
  }
  if (far->party_count == 1) return ncclSuccess; /* nobody else will ask */
  TRY(control_use(&unused));
  const ncclResult_t result = control_serve(far->wire_key, far_answer_call, far);
  far->serving = result == ncclSuccess;
  if (!far->serving) control_leave();
  if (!far->serving) return result;
  struct stall *stall = NULL;
  TRY(stall_open(far, &stall));
  os_mutex_lock(&far->lock); /* somebody may ask already */
  far->stall = stall;
  os_mutex_unlock(&far->lock);
  return survey_join(far);
}

void far_leave(struct far *far, uint32_t rank) {
  os_mutex_lock(&far->lock);
  const struct ncclComm *comm = far->comms[rank];
  const bool broken = comm && (comm_async_error(comm) != ncclSuccess ||
                               __atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE) != 0);
  struct proxy_comm *proxy = far->proxies[rank];
  far->proxies[rank] = NULL;
  if (far->comms[rank]) far->left[rank] = __atomic_load_n(&far->comms[rank]->sequence, __ATOMIC_RELAXED);
  far->comms[rank] = NULL;
  os_mutex_unlock(&far->lock);
  if (broken) proxy_relay_break(far->wire_key, rank, "it has given the communicator up");
  if (proxy) proxy_comm_close(proxy);
}

void far_free(struct far *far) {
  if (!far) return;
  survey_leave(far);
  if (far->serving) control_unserve(far->wire_key); /* its handler reads what goes next */
  stall_close(far->stall);
  if (far->serving) control_leave();
  for (uint32_t rank = 0; far->proxies && rank < far->team->rank_count; rank++)
    if (far->proxies[rank]) proxy_comm_close(far->proxies[rank]);
  for (uint32_t rank = 0; far->remotes && rank < far->team->rank_count; rank++) os_free(far->remotes[rank]);
  rails_free(far->rails);
  os_mutex_destroy(&far->lock);
  os_free(far->addresses);
  os_free(far->ranks);
  os_free(far->groups);
  os_free(far->islands);
  os_free(far->remotes);
  os_free(far->comms);
  os_free(far->left);
  os_free(far->proxies);
  os_free(far->cards);
  os_free(far);
}

/* ---- Who is still there ---- */

struct far_watch {
  struct watch *watch;
  os_mutex lock;        /* taken before a team's, and before the backend's */
  struct far *first;    /* teams that listen */
  uint32_t share_count; /* the opener's and the teams' */
};

static bool far_find_party(const struct far *far, uint32_t party, uint32_t *rank) {
  for (*rank = 0; *rank < far->team->rank_count; *rank += 1)
    if (far->ranks[*rank].party == party) return true;
  return false;
}

static void far_tell(struct far *far, uint32_t rank, ncclResult_t code, const char *text) {
  const struct far_card *card = &far->cards[rank];
  char sentence[COMM_REASON_BYTES];
  snprintf(sentence, sizeof sentence, "rank %u (process %d on %s): %s", rank, card->process, card->host_name,
           text);
  os_mutex_lock(&far->lock);
  for (uint32_t i = 0; i < far->team->rank_count; i++) {
    if (!far->comms[i]) continue;
    comm_break(far->comms[i], code, sentence);
    proxy_relay_break(far->wire_key, i, sentence);
  }
  os_mutex_unlock(&far->lock);
}

/* A watch_lost: on the server's thread. */
static void far_lost(void *argument, uint32_t party, uint64_t key, ncclResult_t code, const char *text) {
  struct far_watch *watch = (struct far_watch *)argument;
  uint32_t rank;
  os_mutex_lock(&watch->lock);
  for (struct far *far = watch->first; far; far = far->next) {
    if (key != 0 && key != far->wire_key) continue;
    if (far_find_party(far, party, &rank)) far_tell(far, rank, code, text);
  }
  os_mutex_unlock(&watch->lock);
}

ncclResult_t far_watch_open(struct gather *gather, struct far_watch **out) {
  struct far_watch *watch = (struct far_watch *)os_alloc(sizeof *watch);
  if (!watch)
    return log_fail(ncclSystemError, "no memory to watch over %u processes", gather_party_count(gather));
  os_mutex_init(&watch->lock);
  watch->share_count = 1;
  const ncclResult_t result = gather_watch(gather, far_lost, watch, &watch->watch);
  if (result != ncclSuccess) {
    os_mutex_destroy(&watch->lock);
    os_free(watch);
    return result;
  }
  *out = watch;
  return ncclSuccess;
}

void far_watch_join(struct far_watch *watch, struct far *far) {
  os_mutex_lock(&watch->lock);
  far->watch = watch;
  far->next = watch->first;
  watch->first = far;
  watch->share_count += 1;
  os_mutex_unlock(&watch->lock);
}

/* Takes the team out of the list, if it is in it. */
static void watch_unlist(struct far_watch *watch, struct far *far) {
  struct far **link = &watch->first;
  while (*link && *link != far) link = &(*link)->next;
  if (*link) *link = far->next;
}

static void watch_give_back(struct far_watch *watch, struct far *far) {
  os_mutex_lock(&watch->lock);
  watch_unlist(watch, far);
  const bool last = --watch->share_count == 0;
  os_mutex_unlock(&watch->lock);
  if (!last) return;
  watch_leave(watch->watch);
  os_mutex_destroy(&watch->lock);
  os_free(watch);
}

void far_watch_drop(struct far_watch *watch) { watch_give_back(watch, NULL); }

void far_watch_leave(struct far *far) {
  if (far->watch) watch_give_back(far->watch, far);
  far->watch = NULL;
}

void far_fail(struct far *far, ncclResult_t code, const char *text) {
  if (far->watch) watch_fail(far->watch->watch, far->wire_key, code, text);
}
