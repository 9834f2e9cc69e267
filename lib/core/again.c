/* again.c: a small table of calls, by a hash of their arguments; a call that finds its place taken takes it.
 * Groups lie in a list, which is short. Promises that nothing is launched that the long way would refuse. */
#include "core/again.h"

#include <assert.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "core/collective.h"
#include "core/record.h"

static struct again_call *again_place(struct again *again, const struct collective_call *call) {
  const uint64_t mixed = (uintptr_t)call->in ^ (uintptr_t)call->out >> 3 ^ (uintptr_t)call->stream ^
                         (uint64_t)call->count << 9 ^ (uint64_t)call->func << 5;
  return &again->calls[mixed * HASH_STEP >> 61];
}
static_assert(AGAIN_CALLS == 8, "three bits of the hash choose");

static bool args_are(const struct again_args *args, const struct collective_call *call) {
  return args->in == call->in && args->out == call->out && args->count == call->count &&
         args->stream == call->stream && args->peer == call->peer && args->func == call->func &&
         args->dtype == (uint32_t)call->dtype && args->op == (uint32_t)call->op;
}

static void args_set(struct again_args *args, const struct collective_call *call) {
  *args = (struct again_args){call->name,        call->in,   call->out,  call->count,
                              call->stream,      call->peer, call->func, (uint8_t)call->dtype,
                              (uint8_t)call->op, 0};
}

/* Operators of the user may change their meaning; a call for nothing may be none. */
static bool call_keeps(const struct collective_call *call) {
  return (uint32_t)call->op < ncclNumOps && call->count != 0 && !call->comm->settings.check_pointers;
}

/* Whoever reads the log wants to see the call. */
static bool call_is_quiet(const struct collective_call *call) {
  return call->comm && comm_is_ready(call->comm) && !log_enabled(LOG_INFO, LOG_COLL | LOG_CALL);
}

/* ---- a call ---- */

static bool launch(struct ncclComm *comm, uint64_t serial, const struct plan_buffers *buffers,
                   const struct again_args *args, uint32_t call_count, ncclResult_t *result) {
  comm_own(comm);
  const struct device_again again = {serial, comm->sequence, buffers, args->stream};
  if (!comm->ops->launch_again(comm->device_comm, &again, result)) return false;
  if (*result == ncclSuccess)
    __atomic_store_n(&comm->sequence, comm->sequence + call_count, __ATOMIC_RELAXED);
  return true;
}

bool again_launch(const struct collective_call *call, ncclResult_t *result) {
  if (!call_is_quiet(call)) return false;
  const struct again_call *entry = again_place(&call->comm->again, call);
  if (entry->serial == 0 || !args_are(&entry->args, call)) return false;
  const uint64_t ticks = ticks_now(), launched = record_launched(call->comm);
  if (!launch(call->comm, entry->serial, entry->buffers, &entry->args, 1, result)) return false;
  if (*result == ncclSuccess) record_again(call, ticks, launched, entry->serial);
  return true;
}

/* Proxies must hear of each launch; a plan that is not kept cannot be launched again. */
void again_note_launch(struct ncclComm *comm, const struct plan *plan, uint32_t stream_count) {
  const bool kept = plan->work_count <= AGAIN_WORKS && stream_count == 1 && plan->hook == NULL;
  comm->again.serial = kept ? plan->serial : 0;
  comm->again.sequence = comm->queue.first_sequence;
  comm->again.work_count = plan->work_count;
  comm->again.buffers = plan->buffers;
}

/* Takes the plan that so many calls have just come to; 0: none that can be launched again. */
static uint64_t take_serial(struct ncclComm *comm, uint32_t call_count) {
  const uint64_t serial = comm->again.serial;
  comm->again.serial = 0;
  return comm->again.sequence + call_count == comm->sequence ? serial : 0;
}

void again_note(const struct collective_call *call) {
  struct again *again = &call->comm->again;
  const uint64_t serial = take_serial(call->comm, 1);
  if (serial == 0 || again->work_count > AGAIN_CALL_WORKS || !call_keeps(call)) return;
  struct again_call *entry = again_place(again, call);
  args_set(&entry->args, call);
  entry->serial = serial;
  for (uint32_t i = 0; i < again->work_count; i++) entry->buffers[i] = again->buffers[i];
}

/* ---- groups ---- */

/* A group that begins with the calls that were followed, and has another one, `call`; NULL: that has none. */
static const struct again_group *find_path(const struct again *again, const struct collective_call *call) {
  const uint32_t count = again->followed;
  for (uint32_t i = 0; i < AGAIN_GROUPS; i++) {
    const struct again_group *group = &again->groups->kept[i];
    if (group->serial == 0 || (call ? group->call_count <= count : group->call_count != count)) continue;
    if (call && !args_are(&group->calls[count], call)) continue;
    if (count == 0 || memcmp(group->calls, again->path->calls, count * sizeof *group->calls) == 0)
      return group;
  }
  return NULL;
}

bool again_follow(const struct collective_call *call) {
  if (!call_is_quiet(call) || comm_async_error(call->comm) != ncclSuccess) return false;
  struct again *again = &call->comm->again;
  const struct again_group *path = again->groups != NULL && again->noted == 0 ? find_path(again, call) : NULL;
  if (path == NULL) return false;
  again->path = path;
  again->followed += 1;
  return true;
}

bool again_follow_on(struct again *again, const struct collective_call *call) {
  const struct again_group *path = again->path;
  const uint32_t count = again->followed;
  if (count == 0 || count >= path->call_count || !args_are(&path->calls[count], call)) return false;
  again->followed = count + 1;
  return true;
}

bool again_launch_group(struct ncclComm *comm, ncclResult_t *result) {
  struct again *again = &comm->again;
  const uint32_t count = again->followed;
  if (count == 0 || !comm_is_ready(comm)) return false;
  const struct again_group *path = again->path->call_count == count ? again->path : find_path(again, NULL);
  const uint64_t number = record_launched(comm), sequence = comm->sequence;
  if (path == NULL || !launch(comm, path->serial, path->buffers, path->calls, count, result)) return false;
  if (*result == ncclSuccess) record_launch(comm, number, path->serial, sequence, count, 1, false);
  return true;
}

struct collective_call again_followed(struct ncclComm *comm, uint32_t i) {
  const struct again_args *args = &comm->again.path->calls[i];
  const struct collective_call call = {args->name,
                                       args->func,
                                       args->in,
                                       args->out,
                                       args->count,
                                       (ncclDataType_t)args->dtype,
                                       (ncclRedOp_t)args->op,
                                       args->peer,
                                       comm,
                                       args->stream,
                                       NULL};
  return call;
}

ncclResult_t again_note_call(const struct collective_call *call) {
  struct again *again = &call->comm->again;
  struct again_groups *groups = again->groups;
  if (!call->comm->queue.queued) return ncclSuccess; /* it was for nothing */
  if (again->noted >= AGAIN_GROUP_CALLS || !call_keeps(call)) {
    again->noted = AGAIN_GROUP_CALLS + 1;
    return ncclSuccess;
  }
  if (groups == NULL) groups = again->groups = (struct again_groups *)os_alloc(sizeof *groups);
  if (groups == NULL)
    return log_fail(ncclSystemError, "%s: no memory to remember the group; free some and try again",
                    call->name);
  groups->kept[groups->next].serial = 0;
  args_set(&groups->kept[groups->next].calls[again->noted++], call);
  return ncclSuccess;
}

void again_note_group(struct ncclComm *comm) {
  struct again *again = &comm->again;
  const uint32_t count = again->noted;
  if (count == 0 || count > AGAIN_GROUP_CALLS) return;
  const uint64_t serial = take_serial(comm, count);
  if (serial == 0) return;
  struct again_group *group = &again->groups->kept[again->groups->next];
  again->groups->next = (again->groups->next + 1) % AGAIN_GROUPS;
  group->call_count = count;
  group->serial = serial;
  for (uint32_t i = 0; i < again->work_count; i++) group->buffers[i] = again->buffers[i];
}

void again_end_group(struct ncclComm *comm) { comm->again.followed = comm->again.noted = 0; }

uint64_t again_bytes(const struct again *again) { return again->groups != NULL ? sizeof *again->groups : 0; }

void again_free(struct again *again) { os_free(again->groups); }
