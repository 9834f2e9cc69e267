/* device_api.c: the host's half of the device API (nccl_device.h): teams, device communicators, and where
 * windows of other ranks lie. What kernels call is in the header. */
#include "nccl_device.h"

#include <string.h>

#include "base/callsite.h"
#include "base/log.h"
#include "base/os.h"
#include "core/api.h"
#include "core/register.h"
#include "core/register.h"
#include "core/comm/collective_call.h"
#include "schedule/chunk.h"

#define RESOURCE_ALIGN 128u /* ncclGetResourceBufferOffset() */

/* ---- teams ---- */

static bool has_ranks(struct ncclComm *comm, const char *call) {
  return comm_check_ready(comm, call) == ncclSuccess;
}

ncclTeam_t pncclTeamWorld(ncclComm_t comm) {
  ncclTeam_t team = {0, 0, 1};
  if (has_ranks(comm, "ncclTeamWorld")) team = (ncclTeam_t){(int)comm->rank_count, (int)comm->rank, 1};
  return team;
}
API_EXPORT(TeamWorld);

ncclTeam_t pncclTeamLsa(ncclComm_t comm) {
  ncclTeam_t team = {0, 0, 1};
  if (!has_ranks(comm, "ncclTeamLsa")) return team;
  const struct lsa_team lsa = lsa_team_of(comm);
  return (ncclTeam_t){(int)lsa.size, (int)(comm->rank - lsa.first), 1};
}
API_EXPORT(TeamLsa);

ncclTeam_t pncclTeamRail(ncclComm_t comm) {
  ncclTeam_t team = {0, 0, 1};
  if (!has_ranks(comm, "ncclTeamRail")) return team;
  return ncclTeamOuterFactor(pncclTeamWorld(comm), (int)lsa_team_of(comm).size);
}
API_EXPORT(TeamRail);

/* -1: it is no rank of the communicator, or of the team. */
static int rank_of(struct ncclComm *comm, const char *call, ncclTeam_t team, int rank) {
  if (!has_ranks(comm, call) || rank < 0 || rank >= team.nRanks) return -1;
  return (int)comm->rank + (rank - team.rank) * team.stride;
}

int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  const int found = rank_of(comm, "ncclTeamRankToWorld", team, rank);
  return found >= 0 && (uint32_t)found < comm->rank_count ? found : -1;
}
API_EXPORT(TeamRankToWorld);

int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
  const int found = rank_of(comm, "ncclTeamRankToLsa", team, rank);
  if (found < 0) return -1;
  const struct lsa_team lsa = lsa_team_of(comm);
  const uint32_t member = (uint32_t)found - lsa.first;
  return member < lsa.size ? (int)member : -1;
}
API_EXPORT(TeamRankToLsa);

/* ---- properties ---- */

static ncclResult_t check_struct(const char *call, const char *what, const void *given, unsigned int magic,
                                 const char *initializer) {
  if (given && magic == NCCL_API_MAGIC) return ncclSuccess;
  return log_fail(ncclInvalidArgument, "%s: %s %s; set it with %s first", call, what,
                  given ? "was not initialized" : "is NULL", initializer);
}

ncclResult_t pncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props) {
  TRY(comm_check_ready(comm, "ncclCommQueryProperties"));
  TRY(check_struct("ncclCommQueryProperties", "props", props, props ? props->magic : 0,
                   "NCCL_COMM_PROPERTIES_INITIALIZER"));
  const struct lsa_team team = lsa_team_of(comm);
  props->rank = (int)comm->rank;
  props->nRanks = (int)comm->rank_count;
  props->cudaDev = (int)comm->device_index;
  props->nvmlDev = -1;
  props->deviceApiSupport = comm->ops->device->runs_programs();
  props->multimemSupport = false;
  const bool gin = props->deviceApiSupport && team.size == comm->rank_count;
  props->ginType = props->railedGinType = gin ? NCCL_GIN_TYPE_PROXY : NCCL_GIN_TYPE_NONE;
  props->nLsaTeams = (int)(comm->rank_count / team.size);
  props->hostRmaSupport = team.size == comm->rank_count;
  return ncclSuccess;
}
API_EXPORT(CommQueryProperties);

/* ---- device communicators ---- */

static ncclResult_t refuse(const struct ncclComm *comm, const char *what, const char *instead) {
  return log_fail(ncclInvalidUsage, "ncclDevCommCreate: rank %u of comm '%s': %s; %s", comm->rank, comm->name,
                  what, instead);
}

/* What asks for ncclGin, which is there where the LSA team has all ranks. */
static bool asks_for_gin(const ncclDevCommRequirements_t *reqs) {
  bool asks = reqs->ginForceEnable || reqs->ginSignalCount > 0 || reqs->ginCounterCount > 0 ||
              reqs->ginConnectionType != NCCL_GIN_CONNECTION_NONE || reqs->railGinBarrierCount > 0 ||
              reqs->worldGinBarrierCount > 0 || reqs->barrierCount > 0;
  for (const ncclDevResourceRequirements_t *row = reqs->resourceRequirementsList; row; row = row->next)
    asks = asks || row->ginSignalCount > 0 || row->ginCounterCount > 0;
  return asks;
}

static bool asks_for_multicast(const ncclDevCommRequirements_t *reqs) {
  bool asks = reqs->lsaMultimem;
  for (const ncclTeamRequirements_t *each = reqs->teamRequirementsList; each; each = each->next)
    asks = asks || each->multimem;
  return asks;
}

static bool counts_are_good(const ncclDevCommRequirements_t *reqs) {
  bool good = reqs->lsaBarrierCount >= 0 && reqs->barrierCount >= 0 && reqs->worldGinBarrierCount >= 0 &&
              reqs->railGinBarrierCount >= 0 && reqs->ginSignalCount >= 0 && reqs->ginCounterCount >= 0;
  for (const ncclDevResourceRequirements_t *row = reqs->resourceRequirementsList; row; row = row->next)
    good = good && row->ginSignalCount >= 0 && row->ginCounterCount >= 0;
  return good;
}

static ncclResult_t check_requirements(const struct ncclComm *comm, const ncclDevCommRequirements_t *reqs) {
  if (!comm->ops->device->runs_programs())
    return refuse(comm, "the emulator runs no kernels of programs",
                  "use the host's calls, such as ncclPutSignal");
  if (asks_for_gin(reqs) && lsa_team_of(comm).size < comm->rank_count)
    return refuse(comm, "kernels have no networks (ncclGin) in this release, and some ranks are out of reach",
                  "set these requirements to 0, and use lsaBarrierCount for barriers within a node");
  if (asks_for_multicast(reqs))
    return refuse(comm, "kernels have no multicast (multimem) in this release", "ask for none");
  if (reqs->lsaLLA2ABlockCount > 0 || reqs->lsaLLA2ASlotCount > 0)
    return refuse(comm, "kernels have no LL all-to-all (ncclLLA2A) in this release",
                  "set lsaLLA2ABlockCount and lsaLLA2ASlotCount to 0");
  return counts_are_good(reqs) ? ncclSuccess
                               : refuse(comm, "a count is negative", "pass how many kernels use at once");
}

static ncclDevResourceHandle_t part_take(size_t *end, size_t align, size_t bytes) {
  const size_t begin = size_round_up(*end, align);
  *end = begin + bytes;
  return (ncclDevResourceHandle_t)(begin / RESOURCE_ALIGN);
}

static ncclLsaBarrierHandle_t barriers_take(size_t *end, uint32_t rank_count, int count) {
  const size_t bytes = ncclLsaBarrierBytes((int)rank_count) * (size_t)count;
  return (ncclLsaBarrierHandle_t){part_take(end, RESOURCE_ALIGN, bytes), count};
}

/* Signals and counters: those of all first, then those of each row. */
static void words_lay_out(const ncclDevCommRequirements_t *reqs, ncclDevComm_t *made, size_t *end) {
  size_t signals = (size_t)reqs->ginSignalCount, counters = (size_t)reqs->ginCounterCount;
  for (const ncclDevResourceRequirements_t *row = reqs->resourceRequirementsList; row; row = row->next) {
    if (row->outGinSignalStart) *row->outGinSignalStart = (ncclGinSignal_t)signals;
    if (row->outGinCounterStart) *row->outGinCounterStart = (ncclGinCounter_t)counters;
    signals += (size_t)row->ginSignalCount;
    counters += (size_t)row->ginCounterCount;
  }
  made->ginSignalCount = (uint32_t)signals;
  made->ginSignals = part_take(end, RESOURCE_ALIGN, 2 * signals * sizeof(uint64_t));
  made->ginCounters = part_take(end, RESOURCE_ALIGN, counters * sizeof(uint64_t));
}

/* Where everything begins; *bytes: of all. */
static ncclResult_t lay_out(const struct ncclComm *comm, const ncclDevCommRequirements_t *reqs,
                            ncclDevComm_t *made, size_t *bytes) {
  const struct lsa_team team = lsa_team_of(comm);
  size_t end = 0;
  made->lsaBarrier = barriers_take(&end, team.size, reqs->lsaBarrierCount);
  made->allBarrier = barriers_take(&end, team.size, reqs->barrierCount);
  made->worldBarrier = barriers_take(&end, comm->rank_count, reqs->worldGinBarrierCount);
  made->railBarrier = barriers_take(&end, comm->rank_count / team.size, reqs->railGinBarrierCount);
  words_lay_out(reqs, made, &end);
  for (const ncclDevResourceRequirements_t *row = reqs->resourceRequirementsList; row; row = row->next) {
    const size_t align = row->bufferAlign > RESOURCE_ALIGN ? row->bufferAlign : RESOURCE_ALIGN;
    if ((align & (align - 1)) != 0)
      return refuse(comm, "a bufferAlign is no power of two", "pass a power of two, or 0");
    if (row->bufferSize > (size_t)UINT32_MAX * RESOURCE_ALIGN - end)
      return refuse(comm, "its memory has more bytes than handles name", "ask for less than 512 GiB");
    const ncclDevResourceHandle_t begin = part_take(&end, align, row->bufferSize);
    if (row->outBufferHandle) *row->outBufferHandle = begin;
  }
  *bytes = size_round_up(end > 0 ? end : 1, RESOURCE_ALIGN);
  return ncclSuccess;
}

/* Kernels of peers may write into it as soon as they have found it, so it is cleared before. */
static ncclResult_t memory_make(const struct ncclComm *comm, size_t bytes, void **memory) {
  void *zeros = os_alloc(bytes);
  if (!zeros) return log_no_memory("ncclDevCommCreate: clearing %zu bytes", bytes);
  ncclResult_t result = comm->ops->memory->alloc(comm->device_index, bytes, memory);
  if (result == ncclSuccess) {
    result = comm->ops->memory->write(comm->device_index, *memory, zeros, bytes);
    if (result != ncclSuccess) comm->ops->memory->free(*memory);
  }
  os_free(zeros);
  return result;
}

static ncclResult_t resource_make(struct ncclComm *comm, size_t bytes, const void *caller,
                                  struct lsa_resource *row) {
  TRY(memory_make(comm, bytes, &row->memory));
  const ncclResult_t result =
      window_make(comm, "ncclDevCommCreate", row->memory, bytes, true, caller, &row->window);
  if (result != ncclSuccess) comm->ops->memory->free(row->memory);
  return result;
}

struct dev_comm_request {
  const ncclDevCommRequirements_t *reqs;
  ncclDevComm_t *made;
};

static ncclResult_t dev_comm_note(const struct collective_call *call, void *argument) {
  const struct dev_comm_request *request = (const struct dev_comm_request *)argument;
  const ncclDevCommRequirements_t *reqs = request->reqs;
  ncclDevComm_t *made = request->made;
  struct ncclComm *comm = call->comm;
  const struct lsa_team team = lsa_team_of(comm);
  size_t bytes = 0;
  TRY(check_requirements(comm, reqs));
  memset(made, 0, sizeof *made);
  TRY(lay_out(comm, reqs, made, &bytes));
  struct lsa_resource *row = (struct lsa_resource *)os_alloc(sizeof *row);
  if (!row) return log_no_memory("ncclDevCommCreate: rank %u of comm '%s'", comm->rank, comm->name);
  const ncclResult_t result = resource_make(comm, bytes, call->caller, row);
  if (result != ncclSuccess) {
    os_free(row);
    return result;
  }
  row->next = comm->lsa.resources;
  comm->lsa.resources = row;
  comm->lsa.used = true;
  made->rank = (int)comm->rank;
  made->nRanks = (int)comm->rank_count;
  made->lsaRank = (int)(comm->rank - team.first);
  made->lsaSize = (int)team.size;
  made->resourceWindow = (ncclWindow_t)row->window->view->memory;
  made->ginContextCount = team.size == comm->rank_count;
  return ncclSuccess;
}

ncclResult_t pncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs,
                                ncclDevComm_t *outDevComm) {
  struct dev_comm_request request = {reqs, outDevComm};
  struct collective_call call;
  memset(&call, 0, sizeof call);
  call.name = "ncclDevCommCreate";
  call.comm = comm;
  call.caller = CALL_PLACE;
  TRY(comm_check_ready(comm, call.name));
  TRY(check_struct(call.name, "reqs", reqs, reqs ? reqs->magic : 0,
                   "NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER"));
  if (!outDevComm)
    return log_fail(ncclInvalidArgument, "ncclDevCommCreate: outDevComm is NULL; pass where to put it");
  return lsa_run(&call, dev_comm_note, &request);
}
API_EXPORT(DevCommCreate);

ncclResult_t pncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm) {
  TRY(comm_check_handle(comm, "ncclDevCommDestroy"));
  if (!devComm) return ncclSuccess;
  struct lsa_resource **link = &comm->lsa.resources;
  while (*link && (*link)->window->view->memory != (void *)devComm->resourceWindow) link = &(*link)->next;
  struct lsa_resource *row = *link;
  if (!row)
    return log_fail(ncclInvalidUsage,
                    "ncclDevCommDestroy: rank %u of comm '%s' has no such device communicator; pass what its "
                    "ncclDevCommCreate has set, once",
                    comm->rank, comm->name);
  *link = row->next;
  const ncclResult_t dropped = window_drop(comm, "ncclDevCommDestroy", row->window);
  const ncclResult_t freed = comm->ops->memory->free(row->memory);
  os_free(row);
  return dropped != ncclSuccess ? dropped : freed;
}
API_EXPORT(DevCommDestroy);

ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                              ncclLsaBarrierHandle_t *outHandle,
                                              ncclDevResourceRequirements_t *outReq) {
  if (team.nRanks < 1 || nBarriers < 1 || !outHandle || !outReq)
    return log_fail(
        ncclInvalidArgument,
        "ncclLsaBarrierCreateRequirement: %s; pass a team of ranks, how many barriers, and where "
        "to put both results",
        !outHandle || !outReq ? "a result is NULL" : "the team or the number of barriers is empty");
  memset(outReq, 0, sizeof *outReq);
  outReq->bufferSize = ncclLsaBarrierBytes(team.nRanks) * (size_t)nBarriers;
  outReq->outBufferHandle = &outHandle->bufHandle;
  *outHandle = (ncclLsaBarrierHandle_t){0, nBarriers};
  return ncclSuccess;
}
API_EXPORT(LsaBarrierCreateRequirement);

ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                              ncclGinBarrierHandle_t *outHandle,
                                              ncclDevResourceRequirements_t *outReq) {
  ncclLsaBarrierHandle_t handle;
  TRY(comm_check_ready(comm, "ncclGinBarrierCreateRequirement"));
  TRY(pncclLsaBarrierCreateRequirement(team, nBarriers, outHandle ? &handle : NULL, outReq));
  *outHandle = (ncclGinBarrierHandle_t){0, nBarriers};
  outReq->outBufferHandle = &outHandle->bufHandle;
  return ncclSuccess;
}
API_EXPORT(GinBarrierCreateRequirement);

/* ---- windows ---- */

/* `peer`: of the communicator, or, with `in_team`, of the LSA team. */
static ncclResult_t pointer_find(const char *call, ncclWindow_t handle, size_t offset, int peer, bool in_team,
                                 void **pointer) {
  struct ncclComm *comm = NULL;
  struct window *window = NULL;
  if (!pointer)
    return log_fail(ncclInvalidArgument, "%s: outPtr is NULL; pass where to put the address", call);
  *pointer = NULL;
  TRY(window_of_device(call, handle, &comm, &window));
  TRY(lsa_fill(comm, window, call));
  const struct lsa_team team = lsa_team_of(comm);
  const uint32_t count = in_team ? team.size : comm->rank_count;
  const uint32_t member = (uint32_t)peer - (in_team ? 0 : team.first);
  if (peer < 0 || (uint32_t)peer >= count || offset > window->bytes)
    return log_fail(ncclInvalidArgument,
                    "%s: rank %u of comm '%s': rank %d at byte %zu is in no window; there are %u ranks, and "
                    "the window has %zu bytes",
                    call, comm->rank, comm->name, peer, offset, count, window->bytes);
  if (member < team.size) *pointer = (char *)window->lsa[member] + offset;
  return ncclSuccess;
}

ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr) {
  return pointer_find("ncclGetLsaDevicePointer", window, offset, lsaRank, true, outPtr);
}
API_EXPORT(GetLsaDevicePointer);

ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr) {
  return pointer_find("ncclGetPeerDevicePointer", window, offset, peer, false, outPtr);
}
API_EXPORT(GetPeerDevicePointer);
