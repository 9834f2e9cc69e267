/* lsa.c: views of windows, for kernels of programs: each has where the memory of all ranks of the team lies.
 * Filling one waits until those have registered the window, so a group's end does it for all its ranks. */
#include "core/comm/lsa.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/group.h"
#include "core/rma.h"
#include "core/comm/collective_call.h"
#include "core/comm/use.h"
#include "core/remote/remote.h"
#include "nccl_device.h"
#include "schedule/chunk.h"

/* ---- the team ---- */

struct lsa_team lsa_team_of(const struct ncclComm *comm) {
  const struct comm_shared *shared = comm->shared;
  const struct graph *graph = &shared->graph;
  const bool between = !shared->remote || graph->node_count == comm->rank_count ||
                       (comm->ops->process->puts_between() && param_int(PARAM_SHM_DISABLE) == 0);
  struct lsa_team team = {comm->rank, 1};
  const bool lie_so = graph->node_count == 1 || (graph->nodes_even && graph_ranks_lie_by_node(graph));
  if (!comm->settings.plan.limits.direct || !between || !lie_so) return team;
  team.size = graph->node_ranks_max;
  team.first = comm->rank - graph->local[comm->rank];
  return team;
}

/* ---- memory of views ---- */

#define BLOCK_BYTES 65536u
#define VIEW_ALIGN 64u

static size_t view_bytes(const struct ncclComm *comm) {
  const size_t bytes = offsetof(struct ncclWindow_vidmem, lsa) + lsa_team_of(comm).size * sizeof(char *);
  return size_round_up(bytes, VIEW_ALIGN);
}

static bool view_add(struct lsa *lsa, void *memory) {
  struct lsa_view *view = (struct lsa_view *)os_alloc(sizeof *view);
  if (!view) return false;
  *view = (struct lsa_view){lsa->spare, memory};
  lsa->spare = view;
  return true;
}

/* False: out of memory of the host. */
static bool views_add(struct ncclComm *comm, void *memory) {
  const size_t bytes = view_bytes(comm);
  for (size_t at = 0; at + bytes <= BLOCK_BYTES; at += bytes)
    if (!view_add(&comm->lsa, (char *)memory + at)) return false;
  return true;
}

static ncclResult_t block_take(struct ncclComm *comm) {
  struct lsa_block *block = (struct lsa_block *)os_alloc(sizeof *block);
  if (!block) return log_no_memory("rank %u of comm '%s': memory of windows", comm->rank, comm->name);
  const ncclResult_t result = comm->ops->memory->alloc(comm->device_index, BLOCK_BYTES, &block->memory);
  if (result != ncclSuccess) {
    os_free(block);
    return result;
  }
  block->next = comm->lsa.blocks;
  comm->lsa.blocks = block;
  return views_add(comm, block->memory)
             ? ncclSuccess
             : log_no_memory("rank %u of comm '%s': views of windows", comm->rank, comm->name);
}

static ncclResult_t view_write(const struct ncclComm *comm, const struct window *window) {
  const struct lsa_team team = lsa_team_of(comm);
  const size_t bytes = view_bytes(comm);
  struct ncclWindow_vidmem *image = (struct ncclWindow_vidmem *)os_alloc(bytes);
  if (!image) return log_no_memory("rank %u of comm '%s': writing a window", comm->rank, comm->name);
  image->lsaRank = (int32_t)(comm->rank - team.first);
  image->lsaSize = (int32_t)team.size;
  image->lsaFirst = (int32_t)team.first;
  image->worldSize = (int32_t)comm->rank_count;
  memcpy((char *)image + offsetof(struct ncclWindow_vidmem, lsa), window->lsa,
         team.size * sizeof *window->lsa);
  const ncclResult_t result =
      comm->ops->memory->write(comm->device_index, window->view->memory, image, bytes);
  os_free(image);
  return result;
}

ncclResult_t lsa_view_make(struct ncclComm *comm, struct window *window) {
  const struct lsa_team team = lsa_team_of(comm);
  if (!window->symmetric || !window->registration || !comm->ops->device->runs_programs()) return ncclSuccess;
  if (!comm->lsa.spare) TRY(block_take(comm));
  window->lsa = (void **)os_alloc(team.size * sizeof *window->lsa);
  if (!window->lsa) return log_no_memory("rank %u of comm '%s': noting a window", comm->rank, comm->name);
  window->lsa[comm->rank - team.first] = window->begin;
  window->view = comm->lsa.spare;
  comm->lsa.spare = window->view->next;
  window->filled = team.size == 1;
  return view_write(comm, window);
}

void lsa_view_drop(struct ncclComm *comm, struct window *window) {
  os_free(window->lsa);
  window->lsa = NULL;
  if (!window->view) return;
  window->view->next = comm->lsa.spare;
  comm->lsa.spare = window->view;
  window->view = NULL;
}

/* ---- filling ---- */

static ncclResult_t member_find(struct ncclComm *comm, const struct window *window, const char *name,
                                uint32_t peer, void **memory) {
  struct collective_call call;
  struct window theirs;
  memset(&call, 0, sizeof call);
  call.name = name;
  call.comm = comm;
  call.peer = (int)peer;
  TRY(rma_find_window(&call, window->number, &theirs));
  struct device_comm *target = comm->shared->device_comms[peer];
  *memory = theirs.begin;
  if (!target || comm->ops->device->comm_reaches(comm->device_comm, target, theirs.begin, theirs.bytes))
    return ncclSuccess;
  return log_fail(ncclInvalidUsage,
                  "%s: rank %u of comm '%s' on device %u does not reach window number %u of rank %u; let "
                  "ncclMemAlloc allocate windows",
                  name, comm->rank, comm->name, comm->device_index, window->number, peer);
}

ncclResult_t lsa_fill(struct ncclComm *comm, struct window *window, const char *call) {
  const struct lsa_team team = lsa_team_of(comm);
  if (!window->view || window->filled) return ncclSuccess;
  for (uint32_t member = 0; member < team.size; member++)
    if (team.first + member != comm->rank)
      TRY(member_find(comm, window, call, team.first + member, &window->lsa[member]));
  TRY(view_write(comm, window));
  window->filled = true;
  return ncclSuccess;
}

ncclResult_t lsa_run(const struct collective_call *call,
                     ncclResult_t (*note)(const struct collective_call *call, void *argument),
                     void *argument) {
  struct ncclComm *comm = call->comm;
  const bool begun = use_begin(comm, call->name, call->caller);
  ncclResult_t result =
      begun ? use_check(comm, call->name, call->caller) : group_check_owner(comm, call->name);
  group_enter();
  if (result == ncclSuccess && note) result = note(call, argument);
  if (result == ncclSuccess) {
    comm->lsa.pending = true;
    result = group_hold(call);
  }
  result = group_leave(result);
  if (begun) use_end(comm);
  return result;
}

ncclResult_t lsa_settle(struct ncclComm *comm) {
  if (!comm->lsa.pending) return ncclSuccess;
  comm->lsa.pending = false;
  const struct window_list *lists = comm->shared->windows; /* the rank's own list is this thread's */
  for (struct window *each = lists ? lists[comm->rank].first : NULL; each; each = each->next)
    TRY(lsa_fill(comm, each, "ncclDevCommCreate"));
  return ncclSuccess;
}

/* ---- the end ---- */

void lsa_free(struct ncclComm *comm) {
  struct lsa *lsa = &comm->lsa;
  for (struct lsa_resource *row = lsa->resources, *next; row; row = next) {
    next = row->next;
    comm->ops->memory->free(row->memory);
    os_free(row);
  }
  for (struct lsa_view *view = lsa->spare, *next; view; view = next) {
    next = view->next;
    os_free(view);
  }
  for (struct lsa_block *block = lsa->blocks, *next; block; block = next) {
    next = block->next;
    comm->ops->memory->free(block->memory);
    os_free(block);
  }
  memset(lsa, 0, sizeof *lsa);
}
