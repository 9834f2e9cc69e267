/* watch.c: who of a communicator's parties is still there. Each listens to four others, over a ring and its
 * chords, and passes the first bad news on to all of them but the one it came from; so news reaches everybody
 * as long as no three neighbours of one party are lost at once. Runs on the server's thread. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "core/control.h"
#include "core/gather_inner.h"

#define LINKS_MOST 4u

struct watch {
  struct watch *next;
  uint64_t process;
  watch_lost *lost;
  void *argument;
  uint32_t party;
  struct gather_link links[LINKS_MOST];
  bool known;   /* the first news has come, or has gone out */
  bool due;     /* `lost` is to be called */
  bool calling; /* `lost` runs */
  os_cond changed;
  struct wire_fail about;
  char text[WIRE_TEXT_MOST];
};

static struct watch *watches;

static void watch_pass(struct watch *watch, const struct control_conn *from) {
  for (uint32_t i = 0; i < LINKS_MOST; i++) {
    struct control_conn *conn = watch->links[i].conn;
    if (!conn || conn == from) continue;
    control_send(conn, FRAME_FAIL, &watch->about, sizeof watch->about, watch->text, strlen(watch->text));
  }
}

static void watch_news(struct watch *watch, const struct wire_fail *about, const char *text,
                       const struct control_conn *from) {
  if (watch->known || about->party == watch->party) return;
  watch->known = watch->due = true;
  watch->about = *about;
  snprintf(watch->text, sizeof watch->text, "%s", text);
  watch_pass(watch, from);
  control_wake();
}

static uint32_t watch_limit(struct control_conn *conn, uint32_t kind) {
  (void)conn;
  return kind == FRAME_FAIL ? (uint32_t)sizeof(struct wire_fail) + WIRE_TEXT_MOST : CONTROL_UNKNOWN;
}

static void watch_frame(struct control_conn *conn, uint32_t kind, const uint8_t *body, uint32_t bytes) {
  struct wire_reader reader = {body, bytes};
  struct wire_fail fail;
  char text[WIRE_TEXT_MOST];
  (void)kind;
  if (!conn->owner || !wire_take(&reader, &fail, sizeof fail)) return;
  wire_take_text(&reader, text, sizeof text);
  if (fail.code <= ncclSuccess || fail.code >= ncclNumResults) fail.code = ncclRemoteError;
  watch_news((struct watch *)conn->owner, &fail, text, conn);
}

static void watch_gone(struct control_conn *conn, const char *why) {
  struct watch *watch = (struct watch *)conn->owner;
  char text[WIRE_TEXT_MOST], who[256];
  for (uint32_t i = 0; watch && i < LINKS_MOST; i++) {
    struct gather_link *link = &watch->links[i];
    if (link->conn != conn) continue;
    link->conn = NULL;
    if (!why) return;
    const struct wire_fail fail = {link->party, ncclRemoteError};
    snprintf(text, sizeof text, "%s %s", wire_party_text(&link->peer, who, sizeof who), why);
    watch_news(watch, &fail, text, conn);
  }
}

static const struct control_class watch_class = {"watch", watch_limit, watch_frame, watch_gone, false};

static void watch_take(struct watch *watch, uint32_t place, struct gather_link *link) {
  watch->links[place] = *link;
  link->conn = NULL;
  if (!watch->links[place].conn) return;
  watch->links[place].conn->conn_class = &watch_class;
  watch->links[place].conn->owner = watch;
}

static void watch_take_links(struct watch *watch, struct gather *gather) {
  uint32_t place = 0;
  for (uint32_t round = 0; round < gather->roster.round_count; round++) {
    if (!gather_keeps(gather, round) || place + 2 > LINKS_MOST) continue;
    watch_take(watch, place++, &gather->to[round]);
    watch_take(watch, place++, &gather->from[round]);
  }
}

ncclResult_t gather_watch(struct gather *gather, watch_lost *lost, void *argument, struct watch **out) {
  struct watch *watch = (struct watch *)os_alloc(sizeof *watch);
  if (!watch) return log_fail(ncclSystemError, "%s: no memory to watch other processes", gather->call);
  const ncclResult_t result = control_use(NULL);
  if (result != ncclSuccess) {
    os_free(watch);
    return result;
  }
  os_cond_init(&watch->changed);
  watch->lost = lost;
  watch->argument = argument;
  control_lock();
  watch->process = control_process();
  watch->party = gather->roster.party;
  watch_take_links(watch, gather);
  watch->next = watches;
  watches = watch;
  *out = watch; /* before the first news: `lost` may come at once */
  if (gather->news) watch_news(watch, &gather->news_about, gather->news_text, NULL);
  control_unlock();
  return ncclSuccess;
}

void watch_fail(struct watch *watch, ncclResult_t code, const char *text) {
  control_lock();
  if (!watch->known && watch->process == control_process()) {
    watch->known = true;
    watch->about.party = watch->party;
    watch->about.code = (int32_t)code;
    snprintf(watch->text, sizeof watch->text, "%s", text);
    watch_pass(watch, NULL);
  }
  control_unlock();
}

void watch_tick(void) {
  for (struct watch *watch = watches; watch;) {
    if (!watch->due) {
      watch = watch->next;
      continue;
    }
    watch->due = false;
    watch->calling = true;
    control_unlock();
    watch->lost(watch->argument, watch->about.party, (ncclResult_t)watch->about.code, watch->text);
    control_lock();
    watch->calling = false;
    os_cond_broadcast(&watch->changed);
    watch = watches;
  }
}

void watch_leave(struct watch *watch) {
  if (!watch) return;
  control_lock();
  const bool ours = watch->process == control_process();
  while (ours && watch->calling) control_wait(&watch->changed, os_time_ns() + 1000000000ull);
  struct watch **link = &watches;
  while (*link && *link != watch) link = &(*link)->next;
  if (*link) *link = watch->next;
  for (uint32_t i = 0; ours && i < LINKS_MOST; i++) control_end(watch->links[i].conn);
  control_unlock();
  os_cond_destroy(&watch->changed);
  os_free(watch);
  if (ours) control_leave();
}

void watch_forget(void) { watches = NULL; }
