/* comm_ranks.c: text helpers, lists of ranks, and lookups that the diagnoses share. */
#include "explain/comm_ranks.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "trace/record_text.h"

void say(char *out, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(out, DIAGNOSIS_TEXT_BYTES, format, arguments);
  va_end(arguments);
}

void show(struct diagnosis *diagnosis, const char *format, ...) {
  va_list arguments;
  if (diagnosis->evidence_count == DIAGNOSIS_EVIDENCE_MOST) return;
  va_start(arguments, format);
  vsnprintf(diagnosis->evidence[diagnosis->evidence_count++], DIAGNOSIS_TEXT_BYTES, format, arguments);
  va_end(arguments);
}

const char *ranks_comm_name(const struct comm_ranks *ranks, char out[64]) {
  const struct record_comm *comm = ranks->states[0].view->comm;
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

void rank_place(const struct rank_state *state, char out[160]) {
  const struct record_header *header = &state->file->header;
  char global[48] = "", process[96] = "";
  if (state->global != UINT32_MAX)
    snprintf(global, sizeof global, "global rank %u, device %u", state->global, state->view->comm->device);
  if (header->host[0] != '\0')
    snprintf(process, sizeof process, "process %u on %.64s", header->process, header->host);
  const bool says = global[0] != '\0' || process[0] != '\0';
  snprintf(out, 160, "rank %u%s%s%s%s%s", rank_number(state), says ? " (" : "", global,
           global[0] != '\0' && process[0] != '\0' ? ", " : "", process, says ? ")" : "");
}

void call_text(const struct record_call *call, char out[160]) {
  const bool reduces = func_reduces(call->func), rooted = func_has_root(call->func);
  int used = snprintf(out, 160, "%s of %" PRIu64 " %s", record_func_name(call->func), call->count,
                      record_type_name(call->dtype));
  if (reduces) used += snprintf(out + used, 160 - (size_t)used, ", %s", record_op_name(call->op));
  if (rooted) used += snprintf(out + used, 160 - (size_t)used, ", root %u", call->peer);
  if (is_message(call->func))
    snprintf(out + used, 160 - (size_t)used, " %s rank %u", call->func == FUNC_SEND ? "to" : "from",
             call->peer);
}

/* Names the first argument in which two calls of one collective differ; NULL if they match. */
const struct rank_state *ranks_find(const struct comm_ranks *ranks, uint32_t rank) {
  uint32_t low = 0, high = ranks->count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (rank_number(&ranks->states[middle]) < rank) low = middle + 1;
    else high = middle;
  }
  return low < ranks->count && rank_number(&ranks->states[low]) == rank ? &ranks->states[low] : NULL;
}

void gone_text(const struct rank_state *state, char out[64]) {
  const struct record_header *header = &state->file->header;
  if (header->exits != 0) snprintf(out, 64, "exited with status %u", header->exit_status);
  else if (header->state == RECORD_ENDED) snprintf(out, 64, "has exited");
  else if (header->ended_by != 0)
    snprintf(out, 64, "was killed or crashed (signal %u, %.24s)", header->ended_by % 128,
             strsignal((int)header->ended_by));
  else snprintf(out, 64, "was killed or crashed");
}

/* From the call to the last sign of life of the process; below one second it says little. */
void waited_text(const struct comm_ranks *ranks, const struct record_call *call, char out[64]) {
  double seconds = 0;
  out[0] = '\0';
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct record_file *file = ranks->states[i].file;
    const struct record_call *own = ranks->states[i].first;
    if (own == NULL || own->collective != call->collective) continue;
    const double end_ns = (double)file->taken_ns - (double)file->header.first_ns;
    const double own_seconds = (end_ns - record_elapsed_ns(&file->header, own->ticks)) / 1e9;
    if (own_seconds > seconds) seconds = own_seconds;
  }
  if (seconds >= 1 && seconds < 1e9) snprintf(out, 64, ", for %.0f s when the files were taken", seconds);
}

/* Describes what a rank does that has not made a call which other ranks have made. */
void absent_text(const struct rank_state *state, char *out, size_t out_bytes) {
  const struct record_comm *comm = state->view->comm;
  if (comm->state == RECORD_ABORTED)
    snprintf(out, out_bytes, "it has aborted its communicator after %" PRIu64 " operations", state->called);
  else if (comm->state == RECORD_ENDED)
    snprintf(out, out_bytes, "it has destroyed its communicator after %" PRIu64 " operations", state->called);
  else if (rank_is_gone(state)) {
    char how[64];
    gone_text(state, how);
    snprintf(out, out_bytes, "its process %s while this communicator was open, after %" PRIu64 " operations",
             how, state->called);
  } else if (state->file->stopped)
    snprintf(out, out_bytes,
             "its process is stopped, by a signal or a debugger, after %" PRIu64 " operations",
             state->called);
  else if (state->called == 0) snprintf(out, out_bytes, "it has called nothing on it");
  else if (rank_knows_ends(state) && state->done >= state->called)
    snprintf(out, out_bytes, "its last call, #%" PRIu64 ", has ended: it is elsewhere in its program",
             state->called - 1);
  else if (!rank_knows_ends(state))
    snprintf(out, out_bytes, "its last call was #%" PRIu64, state->called - 1);
  else snprintf(out, out_bytes, "it is still in #%" PRIu64, state->done);
}

/* Lists the ranks that left no file, at most 64; returns the number listed. */
uint32_t ranks_missing(const struct comm_ranks *ranks, struct rank_list *list) {
  uint32_t at = 0, missing = 0;
  for (uint32_t rank = 0; rank < ranks->rank_count && missing < 64; rank++) {
    while (at < ranks->count && rank_number(&ranks->states[at]) < rank) at++;
    if (at < ranks->count && rank_number(&ranks->states[at]) == rank) continue;
    list_add(list, rank);
    missing++;
  }
  list_end(list);
  return missing;
}

void blame(struct comm_ranks *ranks, enum diagnosis_kind kind, const char *detail,
           const struct rank_state *state) {
  ranks->diagnosis->kind = kind;
  ranks->diagnosis->detail = detail;
  ranks->diagnosis->cited_count = 0;
  ranks->diagnosis->rank = state != NULL ? rank_number(state) : DIAGNOSIS_NOBODY;
}

void cite_last(struct comm_ranks *ranks, const struct rank_state *state) {
  if (state->called > 0) cite(ranks->diagnosis, state, rank_find_call(state, (uint32_t)(state->called - 1)));
}

void cite_of(struct comm_ranks *ranks, const struct record_call *call) {
  const uint8_t *at = (const uint8_t *)call;
  for (uint32_t i = 0; i < ranks->count && call != NULL; i++) {
    const struct record_view *view = ranks->states[i].view;
    const uint64_t records = view->end - view->first; /* a reduced ring is no longer than that */
    if (records > 0 && at >= view->ring && at < view->ring + records * RECORD_BYTES)
      cite(ranks->diagnosis, &ranks->states[i], call);
  }
}

const struct record_call *ranks_first_pending(const struct comm_ranks *ranks) {
  const struct record_call *first = NULL;
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct record_call *own = ranks->states[i].first;
    if (own != NULL && (first == NULL || (int32_t)(own->collective - first->collective) < 0)) first = own;
  }
  return first;
}
