/* explain_messages.c: see explain_messages.h. */
#include "explain_messages.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/os.h"
#include "core/plan/names.h"
#include "schedule/p2p.h"

/* All parts of the rank's messages with one peer in one direction. */
struct message {
  uint32_t round, peer, parts;
  bool sends, copies;
  uint8_t proto;
  uint64_t channels;              /* set */
  size_t part_bytes, chunk_bytes; /* of the longest part */
};

struct messages {
  struct message *rows;
  uint32_t count;
};

static uint32_t round_of(const struct plan *plan, uint32_t peer, bool sends) {
  struct p2p_schedule schedule;
  uint32_t round = 0, to, from;
  p2p_schedule_begin(&schedule, plan->rank, plan->rank_count, plan->rank_count);
  while (p2p_schedule_next(&schedule, &round, &to, &from) && (sends ? to : from) != peer) continue;
  return round;
}

static int message_compare(const void *left, const void *right) {
  const struct message *a = (const struct message *)left, *b = (const struct message *)right;
  if (a->round != b->round) return a->round < b->round ? -1 : 1;
  return (int)b->sends - (int)a->sends;
}

static void messages_add(struct messages *messages, const struct plan *plan, const struct work *work) {
  const bool copies = work->func == FUNC_COPY, sends = work->func == FUNC_SEND;
  const uint32_t peer = copies ? work->rank : sends ? work->send_peer[0] : work->recv_peer[0];
  const size_t bytes = work->part_count * work->element_bytes;
  uint32_t at = 0;
  while (at < messages->count && (messages->rows[at].peer != peer || messages->rows[at].sends != sends)) at++;
  struct message *row = &messages->rows[at];
  if (at == messages->count) {
    const struct message fresh = {.round = copies ? 0 : round_of(plan, peer, sends),
                                  .peer = peer,
                                  .sends = sends,
                                  .copies = copies,
                                  .proto = work->proto,
                                  .chunk_bytes = work->chunk_count * work->element_bytes};
    *row = fresh;
    messages->count += 1;
  }
  row->parts += 1;
  row->channels |= UINT64_C(1) << work->channel_index;
  if (bytes > row->part_bytes) row->part_bytes = bytes;
}

/* In the order of rounds; no rows when memory is out. */
static struct messages messages_sum(const struct plan *plan) {
  struct messages messages = {NULL, 0};
  messages.rows = (struct message *)os_alloc((2 * (size_t)plan->rank_count + 1) * sizeof *messages.rows);
  for (uint32_t i = 0; messages.rows && i < plan->work_count; i++)
    messages_add(&messages, plan, &plan->works[i]);
  if (messages.rows) qsort(messages.rows, messages.count, sizeof *messages.rows, message_compare);
  return messages;
}

bool messages_only(const struct plan *plan) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const uint8_t func = plan->works[i].func;
    if (func != FUNC_SEND && func != FUNC_RECV && func != FUNC_COPY) return false;
  }
  return true;
}

/* "3,5,7-9". */
static void channels_print(uint64_t set) {
  const char *before = "";
  for (uint32_t i = 0; i < 64; i++) {
    uint32_t last = i;
    if ((set >> i & 1) == 0) continue;
    while (last + 1 < 64 && (set >> (last + 1) & 1) != 0) last++;
    printf("%s%u", before, i);
    if (last > i) printf("-%u", last);
    before = ",";
    i = last;
  }
}

static void message_print(const struct message *row) {
  printf("  round %3u ", row->round);
  if (row->copies) printf("to itself: a copy");
  else printf("%s %u: %s", row->sends ? "to" : "from", row->peer, names_proto[row->proto]);
  printf(", %u part%s of %zu bytes", row->parts, row->parts > 1 ? "s" : "", row->part_bytes);
  if (!row->copies) printf(" in chunks of %zu", row->chunk_bytes);
  printf(", channel%s ", row->parts > 1 ? "s" : "");
  channels_print(row->channels);
  putchar('\n');
}

void messages_list(const struct plan *plan) {
  const struct messages messages = messages_sum(plan);
  for (uint32_t i = 0; i < messages.count; i++) message_print(&messages.rows[i]);
  os_free(messages.rows);
}

void messages_print(const struct plan_request *request, const struct plan *plan) {
  printf("messages, %.1f us, in the rounds in which both ends meet, on at most %u channels\n",
         plan_time_us(request), request->settings.limits.p2p_channel_count);
  printf("plan of rank %u: %u works in %u batches\n", plan->rank, plan->work_count, plan->batch_count);
  messages_list(plan);
}

void messages_json(struct json *json, const struct plan_request *request, const struct plan *plan) {
  const struct messages messages = messages_sum(plan);
  json_decimal(json, "time_us", plan_time_us(request));
  json_open(json, "messages", '[');
  for (uint32_t i = 0; i < messages.count; i++) {
    const struct message *row = &messages.rows[i];
    json_open(json, NULL, '{');
    json_number(json, "round", row->round);
    json_text(json, "kind", row->copies ? "copy" : row->sends ? "send" : "recv");
    json_number(json, "peer", row->peer);
    json_text(json, "proto", names_proto[row->proto]);
    json_number(json, "parts", row->parts);
    json_number(json, "part_bytes", (int64_t)row->part_bytes);
    json_number(json, "chunk_bytes", (int64_t)row->chunk_bytes);
    json_open(json, "channels", '[');
    for (uint32_t channel = 0; channel < 64; channel++)
      if ((row->channels >> channel & 1) != 0) json_number(json, NULL, channel);
    json_close(json, ']');
    json_close(json, '}');
  }
  json_close(json, ']');
  os_free(messages.rows);
}
