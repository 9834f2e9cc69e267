/* watch.c: detects lost processes of a communicator. Each process watches four others, over a ring and its
 * chords. It forwards each report, the first time that it arrives, to all of them except the one that it came
 * from, so a report reaches every process unless three neighbours of one process are lost at once. Runs on
 * the server's thread. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "core/bootstrap/control.h"
#include "core/bootstrap/gather_inner.h"

#define LINKS_MOST 4u
#define NEWS_MOST 4096u

/* One lost process (key 0), or one failure of one communicator in one process. */
struct news {
  struct news *next;
  struct wire_fail about;
  bool due; /* `lost` must be called */
  char text[WIRE_TEXT_MOST];
};

struct watch {
  struct watch *next;
  uint64_t process;
  watch_lost *lost;
  void *argument;
  uint32_t process_index;
  struct gather_link links[LINKS_MOST];
  bool calling; /* `lost` is running */
  os_cond changed;
  struct news *news; /* newest first; NEWS_MOST at most */
  uint32_t news_count;
  struct news spare; /* for one more report when memory is out */
  bool spare_taken;
};

static struct watch *watches;

static void watch_pass(struct watch *watch, const struct news *news, const struct control_conn *from) {
  for (uint32_t i = 0; i < LINKS_MOST; i++) {
    struct control_conn *conn = watch->links[i].conn;
    if (!conn || conn == from) continue;
    control_send(conn, FRAME_FAIL, &news->about, sizeof news->about, news->text, strlen(news->text));
  }
}

static bool watch_knows(const struct watch *watch, const struct wire_fail *about) {
  for (const struct news *news = watch->news; news; news = news->next)
    if (news->about.process_index == about->process_index && news->about.key == about->key) return true;
  return false;
}

static struct news *news_alloc(struct watch *watch) {
  if (watch->news_count == NEWS_MOST) return NULL;
  struct news *news = (struct news *)os_alloc(sizeof *news);
  if (news || watch->spare_taken) return news;
  watch->spare_taken = true;
  return &watch->spare;
}

/* Records a new report and forwards it. */
static void watch_news(struct watch *watch, const struct wire_fail *about, const char *text,
                       const struct control_conn *from) {
  if (watch_knows(watch, about)) return;
  struct news *news = news_alloc(watch);
  if (!news) return;
  news->about = *about;
  news->due = about->process_index != watch->process_index;
  snprintf(news->text, sizeof news->text, "%s", text);
  news->next = watch->news;
  watch->news = news;
  watch->news_count++;
  watch_pass(watch, news, from);
  if (news->due) control_wake();
}

static void watch_free(struct watch *watch) {
  for (struct news *news = watch->news, *next; news; news = next) {
    next = news->next;
    if (news != &watch->spare) os_free(news);
  }
  os_cond_destroy(&watch->changed);
  os_free(watch);
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
  struct watch *watch = (struct watch *)conn->owner;
  if (fail.process_index != watch->process_index)
    watch_news(watch, &fail, text, conn); /* a report about this process itself is not forwarded */
}

static void watch_gone(struct control_conn *conn, const char *why) {
  struct watch *watch = (struct watch *)conn->owner;
  char text[WIRE_TEXT_MOST], who[256];
  for (uint32_t i = 0; watch && i < LINKS_MOST; i++) {
    struct gather_link *link = &watch->links[i];
    if (link->conn != conn) continue;
    link->conn = NULL;
    if (!why) return;
    const struct wire_fail fail = {link->process_index, ncclRemoteError, 0};
    snprintf(text, sizeof text, "%s %s", wire_process_text(&link->peer, who, sizeof who), why);
    watch_news(watch, &fail, text, conn);
  }
}

#define WATCH_QUEUED_MOST ((size_t)16 << 20)
static const struct control_class watch_class = {
    "watch", watch_limit, watch_frame, watch_gone, false, WATCH_QUEUED_MOST, 0};

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
  if (!watch) return log_no_memory("%s: watching other processes", gather->call);
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
  watch->process_index = gather->roster.process_index;
  watch_take_links(watch, gather);
  watch->next = watches;
  watches = watch;
  *out = watch; /* before the first report: `lost` may be called at once */
  if (gather->news) watch_news(watch, &gather->news_about, gather->news_text, NULL);
  control_unlock();
  return ncclSuccess;
}

void watch_fail(struct watch *watch, uint64_t key, ncclResult_t code, const char *text) {
  const struct wire_fail about = {watch->process_index, (int32_t)code, key};
  control_lock();
  if (watch->process == control_process()) watch_news(watch, &about, text, NULL);
  control_unlock();
}

/* The oldest report that is due. */
static struct news *watch_due(const struct watch *watch) {
  struct news *due = NULL;
  for (struct news *news = watch->news; news; news = news->next)
    if (news->due) due = news;
  return due;
}

void watch_tick(void) {
  for (struct watch *watch = watches; watch;) {
    struct news *news = watch_due(watch);
    if (!news) {
      watch = watch->next;
      continue;
    }
    news->due = false;
    watch->calling = true;
    control_unlock();
    watch->lost(watch->argument, news->about.process_index, news->about.key, (ncclResult_t)news->about.code,
                news->text);
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
  watch_free(watch);
  if (ours) control_leave();
}

void watch_forget(void) { watches = NULL; }
