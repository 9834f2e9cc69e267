/* rma.c: ncclPutSignal, ncclSignal and ncclWaitSignal: checks a call, queues it in the group, and launches
 * what the group has queued. The backend moves the data; this file finds the peer's window and counts
 * signals: the n-th signal of a rank for another one has the number n on both. */
#include "core/rma.h"

#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/callsite.h"
#include "base/log.h"
#include "base/open_group.h"
#include "base/os.h"
#include "base/param.h"
#include "core/api.h"
#include "core/collective.h"
#include "core/group.h"
#include "core/register.h"
#include "core/comm/handles.h"
#include "core/comm/record.h"
#include "core/comm/use.h"
#include "core/remote/remote.h"
#include "kernels/kernels.h"

/* A call as the program made it. */
struct rma_request {
  struct collective_call call; /* of a wait: `peer` is the first one's, `count` all its signals */
  ncclWindow_t window;
  size_t offset;
  int sig_index, context;
  unsigned int flags;
  const ncclWaitSignalDesc_t *descs;
  int desc_count;
};

static ncclResult_t rma_fail(const struct collective_call *call, ncclResult_t code, const char *text) {
  return log_fail(code, "%s: rank %u of comm '%s': %s", call->name, call->comm->rank, call->comm->name, text);
}

/* ---- checks ---- */

static ncclResult_t check_peer(const struct collective_call *call, int peer) {
  char text[96];
  if (peer >= 0 && (uint32_t)peer < call->comm->rank_count) return ncclSuccess;
  snprintf(text, sizeof text, "peer %d is no rank; ranks are 0..%u", peer, call->comm->rank_count - 1);
  return rma_fail(call, ncclInvalidArgument, text);
}

static ncclResult_t check_zero(const struct collective_call *call, const char *what, long long value) {
  char text[96];
  if (value == 0) return ncclSuccess;
  snprintf(text, sizeof text, "%s is %lld; the only one there is, is 0", what, value);
  return rma_fail(call, ncclInvalidArgument, text);
}

/* Signals are numbered when they are launched, and a graph would make the same ones each time. */
static ncclResult_t check_capture(const struct collective_call *call) {
  uint64_t graph = 0;
  TRY(collective_check_stream(call));
  TRY(call->comm->ops->device->stream_capture(call->stream, &graph));
  if (graph == 0) return ncclSuccess;
  return rma_fail(
      call, ncclInvalidUsage,
      "the stream is being captured into a graph, and signals are counted one by one; make the call "
      "outside of the capture");
}

static bool peer_is_here(const struct ncclComm *comm, uint32_t peer) {
  const struct comm_shared *shared = comm->shared;
  return shared->device_comms[peer] &&
         (!shared->remote || remote_transport_to(shared->remote, comm->rank, peer) == TRANSPORT_LOCAL);
}

static bool peer_is_mapped(const struct ncclComm *comm, uint32_t peer) {
  const struct remote *remote = comm->shared->remote;
  return remote && remote_transport_to(remote, comm->rank, peer) == TRANSPORT_SHARED &&
         !remote_on_host(remote, comm->rank, peer) && comm->ops->process->puts_between();
}

/* Only memory that both reach, for now. */
static ncclResult_t check_reach(const struct collective_call *call) {
  const struct ncclComm *comm = call->comm;
  const uint32_t peer = (uint32_t)call->peer;
  char text[240];
  if (peer_is_here(comm, peer) || peer_is_mapped(comm, peer)) return ncclSuccess;
  snprintf(
      text, sizeof text,
      "one-sided calls need memory that both ranks reach, and rank %u is %s; use ncclSend on rank %u and "
      "ncclRecv on rank %u",
      peer,
      comm->shared->remote && remote_on_host(comm->shared->remote, comm->rank, peer)
          ? "on a GPU whose memory this process cannot map"
          : "behind a network",
      comm->rank, peer);
  return rma_fail(call, ncclInvalidUsage, text);
}

static ncclResult_t check_local(const struct collective_call *call, size_t bytes) {
  char text[CHECK_TEXT_BYTES] = "";
  if (!call->in) return rma_fail(call, ncclInvalidArgument, "localbuff is NULL; pass device memory");
  if (!call->comm->settings.check_pointers) return ncclSuccess;
  TRY(check_memory(call->comm, "localbuff", call->in, bytes, text));
  return text[0] == '\0' ? ncclSuccess : rma_fail(call, ncclInvalidArgument, text);
}

/* ---- the peer's window ---- */

struct window_search {
  const struct ncclComm *comm;
  uint32_t peer, number;
  enum window_find found;
  struct window window;
};

static bool window_is_known(void *argument) {
  struct window_search *search = (struct window_search *)argument;
  const struct window_list *lists = search->comm->shared->windows;
  search->found = windows_find(lists ? &lists[search->peer] : NULL, search->number, &search->window);
  return search->found != WINDOW_LATER || __atomic_load_n(&search->comm->aborted, __ATOMIC_RELAXED) != 0 ||
         __atomic_load_n(&search->comm->async_error, __ATOMIC_RELAXED) != ncclSuccess;
}

/* What earlier calls have found out of ranks of other processes. Once something was unmapped, that may have
 * been the window; counters stay. */
static struct one_sided_there *there_known(struct ncclComm *comm, uint32_t peer, uint32_t number,
                                           uint32_t unmapped) {
  struct one_sided_there **link = &comm->one_sided.there;
  while (*link && ((*link)->peer != peer || (*link)->window.number != number)) link = &(*link)->next;
  struct one_sided_there *row = *link;
  if (!row || number == 0 || row->unmapped == unmapped) return row;
  *link = row->next;
  os_free(row);
  return NULL;
}

#define ASK_AGAIN_MS 5

/* Asks until the peer has registered it. */
static ncclResult_t there_ask(struct window_search *search) {
  struct ncclComm *comm = (struct ncclComm *)search->comm;
  const uint32_t unmapped = __atomic_load_n(&comm->one_sided.unmapped, __ATOMIC_ACQUIRE);
  const struct one_sided_there *known = there_known(comm, search->peer, search->number, unmapped);
  const uint64_t limit_ns = (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * 1000000000u;
  const uint64_t begin_ns = os_time_ns();
  if (known) {
    search->found = WINDOW_FOUND;
    search->window = known->window;
    return ncclSuccess;
  }
  for (;; os_sleep_ms(ASK_AGAIN_MS)) {
    TRY(remote_window_ask(comm, search->peer, search->number, &search->found, &search->window));
    if (search->found != WINDOW_LATER || search->number == 0) break;
    if (__atomic_load_n(&comm->called_off, __ATOMIC_RELAXED) || os_time_ns() - begin_ns >= limit_ns)
      return ncclSuccess;
  }
  if (search->found == WINDOW_LEFT || (search->number != 0 && search->found != WINDOW_FOUND))
    return ncclSuccess;
  struct one_sided_there *row = (struct one_sided_there *)os_alloc(sizeof *row);
  if (!row) return log_no_memory("rank %u of comm '%s': noting a window", comm->rank, comm->name);
  search->window.number = search->number;
  *row = (struct one_sided_there){comm->one_sided.there, search->peer, search->window, unmapped};
  comm->one_sided.there = row;
  return ncclSuccess;
}

/* Once the communicator has failed its peers do not answer; then the failure is the reason. */
static ncclResult_t there_find(const struct collective_call *call, struct window_search *search) {
  const ncclResult_t asked = there_ask(search);
  if (asked != ncclSuccess) TRY(comm_check_sound(call->comm, call->name));
  return asked;
}

/* Waits until the peer has registered it. */
static ncclResult_t here_find(struct window_search *search) {
  const struct device_ops *device = search->comm->ops->device;
  const uint64_t limit_ms =
      device->keeps_time() ? (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * 1000 : 0;
  device->wait_until(window_is_known, search, limit_ms);
  return ncclSuccess;
}

ncclResult_t rma_find_window(const struct collective_call *call, uint32_t number, struct window *window) {
  const struct ncclComm *comm = call->comm;
  struct window_search search = {comm, (uint32_t)call->peer, number, WINDOW_LATER, {0}};
  char text[240];
  if (peer_is_here(comm, search.peer)) TRY(here_find(&search));
  else TRY(there_find(call, &search));
  *window = search.window;
  if (search.found == WINDOW_FOUND && window->registration && window->begin) return ncclSuccess;
  snprintf(text, sizeof text, "this is window number %u of each rank, and rank %d %s", number, call->peer,
           search.found == WINDOW_FOUND && window->registration
               ? "has memory for it that this process cannot map, or has freed it; let ncclMemAlloc allocate "
                 "windows, and free them when they are deregistered"
           : search.found == WINDOW_FOUND ? "has registered memory of the host for it; register device memory"
           : search.found == WINDOW_GONE  ? "has deregistered it; do so behind the last put into it"
           : search.found == WINDOW_LEFT
               ? "has left the communicator; let ranks leave behind the last put into their windows"
               : "has not registered so many; call ncclCommWindowRegister on all ranks, in the same order");
  return rma_fail(call, ncclInvalidUsage, text);
}

/* A signal alone for a rank of another process, whose counters are to be mapped. */
static ncclResult_t signals_map(const struct collective_call *call) {
  struct window_search search = {call->comm, (uint32_t)call->peer, 0, WINDOW_LATER, {0}};
  if (peer_is_here(call->comm, search.peer)) return ncclSuccess;
  TRY(there_find(call, &search));
  if (search.found != WINDOW_LEFT) return ncclSuccess;
  return rma_fail(call, ncclInvalidUsage, "the peer has left the communicator");
}

static ncclResult_t window_place(struct rma_request *request, size_t bytes) {
  struct collective_call *call = &request->call;
  const struct window *own;
  struct window theirs;
  char text[240];
  if (!request->window)
    return rma_fail(call, ncclInvalidArgument,
                    "peerWin is NULL; pass what ncclCommWindowRegister has set on this rank");
  TRY(window_check(call->comm, call->name, request->window, &own));
  TRY(rma_find_window(call, own->number, &theirs));
  if (window_has(&theirs, request->offset, bytes)) {
    call->out = (char *)theirs.begin + request->offset;
    return ncclSuccess;
  }
  snprintf(
      text, sizeof text,
      "peerWinOffset %zu and %zu bytes do not fit into the %zu bytes of rank %d's window; offsets are bytes "
      "within the peer's window",
      request->offset, bytes, theirs.bytes, call->peer);
  return rma_fail(call, ncclInvalidArgument, text);
}

/* ---- queueing ---- */

static struct one_sided_call *queue_call(const struct collective_call *call, bool waits,
                                         uint32_t await_count) {
  struct one_sided *queue = &call->comm->one_sided;
  if (!array_grow(&queue->calls, &queue->call_capacity, (uint64_t)queue->call_count + 1,
                  sizeof *queue->calls) ||
      !array_grow(&queue->awaits, &queue->await_capacity, (uint64_t)queue->await_count + await_count,
                  sizeof *queue->awaits)) {
    log_no_memory("%s: rank %u of comm '%s'", call->name, call->comm->rank, call->comm->name);
    return NULL;
  }
  struct one_sided_call *row = &queue->calls[queue->call_count++];
  *row = (struct one_sided_call){
      .stream = call->stream, .first_await = queue->await_count, .await_count = await_count, .waits = waits};
  row->put.call = (struct plan_call){.name = call->name,
                                     .caller = call->caller,
                                     .func = call->func,
                                     .peer = (uint32_t)call->peer,
                                     .sequence = call->comm->sequence};
  queue->await_count += await_count;
  return row;
}

static ncclResult_t put_queue(const struct collective_call *call, size_t bytes, bool copies) {
  struct one_sided_call *row = queue_call(call, false, 0);
  if (!row) return ncclSystemError;
  row->copies = copies;
  row->put.set = copies ? SIGNALS_COLLECTIVE : SIGNALS_PROGRAM;
  row->put.call.in = call->in;
  row->put.call.out = call->out;
  row->put.call.in_bytes = row->put.call.out_bytes = bytes;
  if (peer_is_here(call->comm, (uint32_t)call->peer))
    row->put.target = call->comm->shared->device_comms[call->peer];
  return ncclSuccess;
}

static ncclResult_t put_note(struct rma_request *request) {
  struct collective_call *call = &request->call;
  const uint8_t dtype = (uint8_t)call->dtype;
  TRY(check_peer(call, call->peer));
  TRY(check_zero(call, "sigIdx", request->sig_index));
  TRY(check_zero(call, "ctx", request->context));
  TRY(check_zero(call, "flags", request->flags));
  if ((unsigned)call->dtype >= ncclNumTypes)
    return rma_fail(call, ncclInvalidArgument, "datatype is no ncclDataType_t");
  if (call->count > SIZE_MAX / 2 / kernel_type_bytes(dtype))
    return rma_fail(call, ncclInvalidArgument,
                    "count is more bytes than the address space has; counts are elements");
  TRY(check_reach(call));
  const size_t bytes = call->count * kernel_type_bytes(dtype);
  if (bytes > 0) TRY(check_local(call, bytes));
  TRY(bytes > 0 ? window_place(request, bytes) : signals_map(call));
  TRY(group_hold(call));
  return put_queue(call, bytes, false);
}

static ncclResult_t desc_check(struct collective_call *call, const ncclWaitSignalDesc_t *desc) {
  call->peer = desc->peer;
  TRY(check_peer(call, desc->peer));
  TRY(check_zero(call, "sigIdx", desc->sigIdx));
  TRY(check_zero(call, "ctx", desc->ctx));
  if (desc->opCnt < 0) return rma_fail(call, ncclInvalidArgument, "opCnt is negative; it counts signals");
  TRY(check_reach(call));
  call->count += (size_t)desc->opCnt;
  return ncclSuccess;
}

static ncclResult_t wait_note(struct rma_request *request) {
  struct collective_call *call = &request->call;
  const int count = request->desc_count;
  if (count < 0 || (count > 0 && !request->descs))
    return rma_fail(call, ncclInvalidArgument,
                    "signalDescs is NULL, or nDesc negative; pass an array of nDesc descriptors");
  for (int i = count; i-- > 0;) TRY(desc_check(call, &request->descs[i])); /* the first one's peer is left */
  if (call->count == 0) return ncclSuccess;
  TRY(group_hold(call));
  struct one_sided_call *row = queue_call(call, true, (uint32_t)count);
  if (!row) return ncclSystemError;
  struct device_await *awaits = &call->comm->one_sided.awaits[row->first_await];
  uint32_t used = 0;
  for (int i = 0; i < count; i++) {
    const ncclWaitSignalDesc_t *desc = &request->descs[i];
    if (desc->opCnt > 0)
      awaits[used++] = (struct device_await){(uint32_t)desc->peer, SIGNALS_PROGRAM, (uint32_t)desc->opCnt, 0};
  }
  row->await_count = used;
  return ncclSuccess;
}

/* ---- collectives ---- */

ncclResult_t rma_queue_copy(const struct collective_call *call, uint32_t peer, const struct rma_copy *copy) {
  struct collective_call put = *call;
  struct window theirs;
  put.peer = (int)peer;
  put.in = put.out = NULL;
  TRY(check_reach(&put));
  if (!copy) {
    TRY(signals_map(&put));
    return put_queue(&put, 0, true);
  }
  put.in = copy->in;
  put.out = copy->own_out;
  if (peer != call->comm->rank) {
    TRY(rma_find_window(&put, copy->number, &theirs));
    if (!window_has(&theirs, copy->offset, copy->bytes))
      return rma_fail(
          &put, ncclInvalidUsage,
          "the output does not fit into the symmetric window of another rank; register windows of "
          "the same size on all ranks");
    put.out = (char *)theirs.begin + copy->offset;
  }
  return put_queue(&put, copy->bytes, true);
}

ncclResult_t rma_queue_copy_wait(const struct collective_call *call, uint32_t count,
                                 struct device_await **awaits) {
  struct one_sided_call *row = queue_call(call, true, count);
  if (!row) return ncclSystemError;
  row->copies = true;
  *awaits = &call->comm->one_sided.awaits[row->first_await];
  return ncclSuccess;
}

/* ---- launching ---- */

static ncclResult_t counts_have(struct ncclComm *comm) {
  struct one_sided *own = &comm->one_sided;
  const size_t bytes = (size_t)SIGNAL_SETS * comm->rank_count * sizeof *own->signalled;
  if (!own->signalled) own->signalled = (uint64_t *)os_alloc(bytes);
  if (!own->awaited) own->awaited = (uint64_t *)os_alloc(bytes);
  if (own->signalled && own->awaited) return ncclSuccess;
  return log_no_memory("rank %u of comm '%s': counting signals", comm->rank, comm->name);
}

static ncclResult_t put_launch(struct ncclComm *comm, struct one_sided_call *call) {
  const uint64_t place = signal_place(comm->rank_count, call->put.set, call->put.call.peer);
  uint64_t *count = &comm->one_sided.signalled[place];
  call->put.number = *count + 1;
  TRY(comm->ops->device->put(comm->device_comm, &call->put, call->stream));
  *count += 1;
  return ncclSuccess;
}

static ncclResult_t wait_launch(struct ncclComm *comm, const struct one_sided_call *call) {
  struct one_sided *own = &comm->one_sided;
  struct device_await *awaits = &own->awaits[call->first_await];
  for (uint32_t i = 0; i < call->await_count; i++)
    awaits[i].number = own->awaited[signal_place(comm->rank_count, awaits[i].set, awaits[i].peer)] +=
        awaits[i].count;
  return comm->ops->device->await(comm->device_comm, &call->put.call, awaits, call->await_count,
                                  call->stream);
}

ncclResult_t rma_launch_puts(struct ncclComm *comm) {
  struct one_sided *own = &comm->one_sided;
  if (own->call_count > 0) TRY(counts_have(comm));
  for (uint32_t i = 0; i < own->call_count; i++)
    if (!own->calls[i].waits && !own->calls[i].copies) TRY(put_launch(comm, &own->calls[i]));
  return ncclSuccess;
}

ncclResult_t rma_launch_copies(struct ncclComm *comm) {
  struct one_sided *own = &comm->one_sided;
  for (uint32_t i = 0; i < own->call_count; i++) {
    struct one_sided_call *call = &own->calls[i];
    if (!call->copies) continue;
    TRY(call->waits ? wait_launch(comm, call) : put_launch(comm, call));
  }
  return ncclSuccess;
}

ncclResult_t rma_launch_waits(struct ncclComm *comm) {
  struct one_sided *own = &comm->one_sided;
  for (uint32_t i = 0; i < own->call_count; i++)
    if (own->calls[i].waits && !own->calls[i].copies) TRY(wait_launch(comm, &own->calls[i]));
  return ncclSuccess;
}

void rma_free(struct ncclComm *comm) {
  for (struct one_sided_there *row = comm->one_sided.there, *next; row; row = next) {
    next = row->next;
    os_free(row);
  }
  os_free(comm->one_sided.signalled);
  os_free(comm->one_sided.awaited);
  os_free(comm->one_sided.calls);
  os_free(comm->one_sided.awaits);
}

/* ---- entry points ---- */

static ncclResult_t rma_note(struct rma_request *request) {
  struct collective_call *call = &request->call;
  const uint64_t ticks = ticks_now();
  TRY(comm_check_ready(call->comm, call->name));
  TRY(group_check_owner(call->comm, call->name));
  TRY(check_capture(call));
  const ncclResult_t result = call->func == FUNC_WAIT_SIGNAL ? wait_note(request) : put_note(request);
  if (result == ncclSuccess && group_number() != 0) open_group_add(call->stream, call->comm->device_index);
  if (result == ncclSuccess) record_call(call, ticks, call->comm->sequence, group_number());
  else record_refused(call, result);
  return result;
}

static ncclResult_t rma_run(struct rma_request *request) {
  struct collective_call *call = &request->call;
  struct ncclComm *comm = call->comm;
  const bool begun = comm && handles_has(comm) && use_begin(comm, call->name, call->caller);
  log_call("%s(%p, %zu, %d, %d, %zu, %p, %p)", call->name, call->in, call->count, (int)call->dtype,
           call->peer, request->offset, (void *)comm, call->stream);
  ncclResult_t result = begun ? use_check(comm, call->name, call->caller) : ncclSuccess;
  group_enter();
  if (result == ncclSuccess) result = rma_note(request);
  result = group_leave(result);
  if (begun) use_end(comm);
  return result;
}

ncclResult_t pncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                            unsigned int flags, ncclComm_t comm, cudaStream_t stream) {
  struct rma_request request = {{"ncclPutSignal", FUNC_PUT_SIGNAL, localbuff, NULL, count, datatype, ncclSum,
                                 peer, comm, (device_stream)stream, CALL_PLACE},
                                peerWin,
                                peerWinOffset,
                                sigIdx,
                                ctx,
                                flags,
                                NULL,
                                0};
  return rma_run(&request);
}
API_EXPORT(PutSignal);

ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                         cudaStream_t stream) {
  struct rma_request request = {{"ncclSignal", FUNC_SIGNAL, NULL, NULL, 0, ncclInt8, ncclSum, peer, comm,
                                 (device_stream)stream, CALL_PLACE},
                                NULL,
                                0,
                                sigIdx,
                                ctx,
                                flags,
                                NULL,
                                0};
  return rma_run(&request);
}
API_EXPORT(Signal);

ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
                             cudaStream_t stream) {
  struct rma_request request = {{"ncclWaitSignal", FUNC_WAIT_SIGNAL, NULL, NULL, 0, ncclInt8, ncclSum, 0,
                                 comm, (device_stream)stream, CALL_PLACE},
                                NULL,
                                0,
                                0,
                                0,
                                0,
                                signalDescs,
                                nDesc};
  return rma_run(&request);
}
API_EXPORT(WaitSignal);
