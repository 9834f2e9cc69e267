/* proxy.c: what proxies would pass over a lane's links, transfer by transfer (schedule/transfer.h), compared
 * with what the lane writes to and reads from their slots. A hook or a fault that changes a lane's steps does
 * not change its proxies'. */
#include <inttypes.h>

#include "check/executor.h"

static uint32_t link_end(const struct work *work, uint32_t link, bool sends) {
  return sends ? work->recv_count + link : link;
}

bool proxies_begin(struct prim *prim) {
  struct check_engine *engine = prim->engine;
  struct check_lane *lane = prim->lane;
  const struct work *work = lane->work;
  const uint32_t step_bytes = engine->input->plans[lane->rank].limits.step_bytes[PROTO_SIMPLE];
  const size_t count = (size_t)work->recv_count + work->send_count;
  lane->transfers = (struct transfer_link *)arena_take_raw(&engine->arena, count * sizeof *lane->transfers);
  if (!lane->transfers) return engine_out_of_memory(engine);
  for (uint32_t i = 0; i < work->recv_count; i++)
    transfer_open(&lane->transfers[i], work, i, false, prim->run->recv[i].step, step_bytes);
  for (uint32_t i = 0; i < work->send_count; i++)
    transfer_open(&lane->transfers[link_end(work, i, true)], work, i, true, prim->run->send[i].step,
                  step_bytes);
  return true;
}

/* Bytes that a slot holds. */
static uint64_t message_bytes(const struct prim *prim, const struct message *message) {
  uint64_t end = 0;
  for (; message; message = message->next)
    if (end < message->place + message->count) end = message->place + message->count;
  return end << prim->engine->memory.unit_shift;
}

/* Bytes in the steps [begin, end) of a connection. */
struct passed {
  uint64_t begin, end, bytes;
  bool shared;
};

/* A difference is reported if everything else is right: most of what makes one breaks another rule too. */
static void transfers_differ(struct prim *prim, const struct conn *conn, struct passed is,
                             struct passed should) {
  struct check_engine *engine = prim->engine;
  struct check_report *report = engine->report;
  const bool sends = conn->sender == prim->lane->rank;
  const uint32_t peer = sends ? conn->receiver : conn->sender;
  engine->report = &engine->proxy;
  engine_fail(engine, CHECK_PROXY, prim->lane, peer,
              "passes %" PRIu64 " bytes in steps %" PRIu64 " to %" PRIu64
              " of the connection %s rank %u, where a proxy would pass %" PRIu64 " bytes in steps %" PRIu64
              " to %" PRIu64,
              is.bytes, is.begin, is.end, sends ? "to" : "from", peer, should.bytes, should.begin,
              should.end);
  engine->report = report;
}

/* The next transfer of the step; nothing if there is no more. */
static struct passed transfer_of(struct prim *prim, struct transfer_link *link) {
  struct passed passed = {link->next_step, link->next_step, 0, false};
  struct transfer transfer;
  if (!transfer_take(link, &transfer)) return passed;
  passed.end = transfer.end + seam_fault(prim, FAULT_PROXY_ONE_MORE);
  passed.bytes = transfer.bytes;
  passed.shared = transfer.shared;
  return passed;
}

static void proxies_left(struct prim *prim, uint32_t end) {
  const struct check_lane *lane = prim->lane;
  const struct conn *conn = &prim->engine->conns[lane->conns[end]];
  const uint64_t step = end < lane->work->recv_count ? conn->recv_step : conn->send_step;
  const struct passed nothing = {step, step, 0, false};
  const struct passed should = transfer_of(prim, &lane->transfers[end]);
  if (should.end != should.begin) transfers_differ(prim, conn, nothing, should);
}

static void proxy_step(struct prim *prim, uint32_t end, const struct step *step) {
  struct transfer_link *link = &prim->lane->transfers[end];
  if (prim->engine->proxy.rule != CHECK_NONE) return;
  if (link->slice_index < link->slice_count) proxies_left(prim, end);
  transfer_add(link, step);
}

void proxies_step(struct prim *prim, const struct step *step) {
  const struct work *work = prim->lane->work;
  FIFO_EACH_LINK(i, work->recv_count, step->recv_links) proxy_step(prim, i, step);
  FIFO_EACH_LINK(i, work->send_count, step->send_links) proxy_step(prim, link_end(work, i, true), step);
}

void proxies_pass(struct prim *prim, uint32_t link, bool sends, const struct message *message) {
  const struct check_lane *lane = prim->lane;
  if (prim->engine->proxy.rule != CHECK_NONE) return;
  const struct passed should = transfer_of(prim, &lane->transfers[link_end(lane->work, link, sends)]);
  const struct passed is = {message->step, message->step + message->steps, message_bytes(prim, message),
                            false};
  const bool omits = !sends && should.shared && should.bytes < is.bytes;
  if (should.begin == is.begin && should.end == is.end && (should.bytes == is.bytes || omits)) return;
  transfers_differ(prim, sends ? seam_send_conn(prim, link) : seam_recv_conn(prim, link), is, should);
}

void proxies_end(struct prim *prim) {
  const struct work *work = prim->lane->work;
  for (uint32_t i = 0; i < (uint32_t)work->recv_count + work->send_count; i++)
    if (prim->engine->proxy.rule == CHECK_NONE) proxies_left(prim, i);
}
