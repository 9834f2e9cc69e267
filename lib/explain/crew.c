/* crew.c: what the judges of calls, messages and channels share: words, lists of ranks, who is there. */
#include "explain/crew.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "trace/record_text.h"

void say(char *out, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(out, JUDGE_TEXT_BYTES, format, arguments);
  va_end(arguments);
}

void show(struct verdict *verdict, const char *format, ...) {
  va_list arguments;
  if (verdict->evidence_count == JUDGE_EVIDENCE_MOST) return;
  va_start(arguments, format);
  vsnprintf(verdict->evidence[verdict->evidence_count++], JUDGE_TEXT_BYTES, format, arguments);
  va_end(arguments);
}

const char *crew_name(const struct crew *crew, char out[64]) {
  const struct record_comm *comm = crew->seats[0].view->comm;
  snprintf(out, 64, "'%.40s'", comm->name);
  return out;
}

static void list_flush(struct rank_list *list) {
  if (list->count == 0 || list->used + 32 > sizeof list->text) return;
  const char *comma = list->used > 0 ? ", " : "";
  const int added = list->first == list->last
                        ? snprintf(list->text + list->used, 32, "%s%u", comma, list->first)
                        : snprintf(list->text + list->used, 32, "%s%u-%u", comma, list->first, list->last);
  list->used += (size_t)added;
}

void list_add(struct rank_list *list, uint32_t rank) {
  if (list->count > 0 && rank == list->last + 1) list->last = rank;
  else {
    list_flush(list);
    list->first = list->last = rank;
  }
  list->count += 1;
}

const char *list_end(struct rank_list *list) {
  list_flush(list);
  list->count = list->count > 0;
  list->first = list->last = UINT32_MAX - 1;
  return list->text;
}

void seat_place(const struct seat *seat, char out[160]) {
  const struct record_header *header = &seat->file->header;
  snprintf(out, 160, "rank %u (process %u on %.64s)", seat_rank(seat), header->process, header->host);
}

void call_text(const struct record_call *call, char out[160]) {
  const bool reduces =
      call->func == FUNC_REDUCE || call->func == FUNC_ALL_REDUCE || call->func == FUNC_REDUCE_SCATTER;
  const bool rooted = call->func == FUNC_REDUCE || call->func == FUNC_BROADCAST ||
                      call->func == FUNC_GATHER || call->func == FUNC_SCATTER;
  int used = snprintf(out, 160, "%s of %" PRIu64 " %s", record_func_name(call->func), call->count,
                      record_type_name(call->dtype));
  if (reduces) used += snprintf(out + used, 160 - (size_t)used, ", %s", record_op_name(call->op));
  if (rooted) used += snprintf(out + used, 160 - (size_t)used, ", root %u", call->peer);
  if (is_message(call->func))
    snprintf(out + used, 160 - (size_t)used, " %s rank %u", call->func == FUNC_SEND ? "to" : "from",
             call->peer);
}

/* What two calls of one collective must have in common; NULL: nothing differs. */
const struct seat *crew_seat(const struct crew *crew, uint32_t rank) {
  uint32_t low = 0, high = crew->count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (seat_rank(&crew->seats[middle]) < rank) low = middle + 1;
    else high = middle;
  }
  return low < crew->count && seat_rank(&crew->seats[low]) == rank ? &crew->seats[low] : NULL;
}

/* What a rank is doing that has not called what others have. */
void absent_text(const struct seat *seat, char *out, size_t out_bytes) {
  const struct record_comm *comm = seat->view->comm;
  if (comm->state == RECORD_ABORTED)
    snprintf(out, out_bytes, "it has aborted its communicator after %" PRIu64 " operations", seat->called);
  else if (comm->state == RECORD_ENDED)
    snprintf(out, out_bytes, "it has destroyed its communicator after %" PRIu64 " operations", seat->called);
  else if (seat->file->header.state == RECORD_ENDED)
    snprintf(out, out_bytes, "its process has exited after %" PRIu64 " operations", seat->called);
  else if (seat->called == 0) snprintf(out, out_bytes, "it has called nothing on it");
  else if (seat_knows_ends(seat) && seat->done >= seat->called)
    snprintf(out, out_bytes, "its last call, #%" PRIu64 ", has ended: it is elsewhere in its program",
             seat->called - 1);
  else if (!seat_knows_ends(seat)) snprintf(out, out_bytes, "its last call was #%" PRIu64, seat->called - 1);
  else snprintf(out, out_bytes, "it is still in #%" PRIu64, seat->done);
}

/* Ranks that left no file, the first 64 of them; how many those are. */
uint32_t crew_missing(const struct crew *crew, struct rank_list *list) {
  uint32_t at = 0, missing = 0;
  for (uint32_t rank = 0; rank < crew->rank_count && missing < 64; rank++) {
    while (at < crew->count && seat_rank(&crew->seats[at]) < rank) at++;
    if (at < crew->count && seat_rank(&crew->seats[at]) == rank) continue;
    list_add(list, rank);
    missing++;
  }
  list_end(list);
  return missing;
}

void blame(struct crew *crew, enum verdict_kind kind, const char *detail, const struct seat *seat) {
  crew->verdict->kind = kind;
  crew->verdict->detail = detail;
  crew->verdict->rank = seat != NULL ? seat_rank(seat) : VERDICT_NOBODY;
}

const struct record_call *crew_first(const struct crew *crew) {
  const struct record_call *first = NULL;
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct record_call *own = crew->seats[i].first;
    if (own != NULL && (first == NULL || (int32_t)(own->collective - first->collective) < 0)) first = own;
  }
  return first;
}
