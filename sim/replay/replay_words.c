/* replay_words.c: parses events and places: `rank 7 channel 2 send 41`. Any other word is rejected. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/replay.h"
#include "trace/record_text.h"

#define WORDS_MOST 12
#define DIGITS_MOST 19 /* of a number */

static const char *const kinds[] = {"call", "launch", "start", "send", "recv", "move"};

void replay_event_text(const struct replay *replay, const struct replay_event *event,
                       char out[REPLAY_TEXT_BYTES]) {
  char comm[80] = "", channels[32] = "", number[32] = "";
  if (replay->comm_count > 1) snprintf(comm, sizeof comm, " comm %.40s", replay->comms[event->comm].name);
  if (event->kind >= EVENT_SEND && event->last_channel > event->channel)
    snprintf(channels, sizeof channels, " channel %u-%u", event->channel, event->last_channel);
  else if (event->kind >= EVENT_SEND) snprintf(channels, sizeof channels, " channel %u", event->channel);
  if (event->kind >= EVENT_SEND && event->number != REPLAY_SEVERAL)
    snprintf(number, sizeof number, " %" PRIu64, event->number);
  replay_say(out, "rank %u%s%s %s%s", event->rank, comm, channels, kinds[event->kind], number);
}

/* ---- words ---- */

struct words {
  char text[REPLAY_TEXT_BYTES];
  const char *word[WORDS_MOST];
  bool used[WORDS_MOST]; /* the word was recognised */
  uint32_t count;
};

static bool words_split(struct words *words, const char *from) {
  char *rest = NULL;
  memset(words, 0, sizeof *words);
  if (strlen(from) >= sizeof words->text) return false;
  memcpy(words->text, from, strlen(from));
  for (char *word = strtok_r(words->text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    if (words->count == WORDS_MOST) return false;
    words->word[words->count++] = word;
  }
  return true;
}

static bool words_all_used(const struct words *words) {
  for (uint32_t i = 0; i < words->count; i++)
    if (!words->used[i]) return false;
  return true;
}

static bool word_is_number(const char *word, uint64_t *number) {
  const size_t digits = strspn(word, "0123456789");
  if (digits == 0 || digits > DIGITS_MOST || word[digits] != '\0') return false;
  *number = strtoull(word, NULL, 10);
  return true;
}

/* Whether the word is present; *value becomes the next word, "" if there is none. */
static bool words_have(struct words *words, const char *name, const char **value) {
  for (uint32_t i = 0; i < words->count; i++) {
    if (words->used[i] || strcmp(words->word[i], name) != 0) continue;
    words->used[i] = true;
    const bool more = i + 1 < words->count && !words->used[i + 1];
    *value = more ? words->word[i + 1] : "";
    if (more) words->used[i + 1] = true;
    return true;
  }
  return false;
}

static bool words_number(struct words *words, const char *name, uint64_t *number) {
  const char *value;
  return words_have(words, name, &value) && word_is_number(value, number);
}

bool replay_mark_parse(const char *from, struct replay_mark *mark) {
  struct words words;
  uint64_t rank = 0, channel = 0;
  if (!words_split(&words, from) || !words_number(&words, "rank", &rank) ||
      !words_number(&words, "channel", &channel) || !words_number(&words, "step", &mark->step) ||
      !words_all_used(&words) || rank > UINT32_MAX || channel > UINT32_MAX)
    return false;
  mark->rank = (uint32_t)rank;
  mark->channel = (uint32_t)channel;
  return true;
}

/* `channel 3` matches one of the event's channels, `channel 2-5` exactly those. */
static bool words_mean_channel(const char *said, const struct replay_event *event) {
  char channels[32];
  uint64_t channel = 0;
  snprintf(channels, sizeof channels, "%u-%u", event->channel, event->last_channel);
  if (strcmp(said, channels) == 0) return true;
  return word_is_number(said, &channel) && channel >= event->channel && channel <= event->last_channel;
}

static bool event_is_meant(const struct replay *replay, const struct replay_event *event,
                           struct words words) {
  const char *comm, *channel, *number;
  uint64_t rank = 0, step = 0;
  const bool moves = event->kind >= EVENT_SEND;
  if (!words_number(&words, "rank", &rank) || rank != event->rank) return false;
  if (words_have(&words, "comm", &comm) && strcmp(comm, replay->comms[event->comm].name) != 0) return false;
  if (moves && words_have(&words, "channel", &channel) && !words_mean_channel(channel, event)) return false;
  if (!words_have(&words, kinds[event->kind], &number) || !words_all_used(&words)) return false;
  if (!moves || *number == '\0') return *number == '\0';
  return word_is_number(number, &step) && (event->number == REPLAY_SEVERAL || event->number == step);
}

const struct replay_event *replay_event_find(const struct replay *replay,
                                             const struct replay_outcome *outcome, const char *from) {
  struct words words;
  for (uint32_t i = 0; words_split(&words, from) && i < outcome->event_count; i++)
    if (event_is_meant(replay, &outcome->events[i], words)) return &outcome->events[i];
  return NULL;
}

/* ---- places in a session ---- */

/* `all_reduce`, `AllReduce` and `allreduce` are one name. */
static bool names_equal(const char *one, const char *other) {
  for (;;) {
    while (*one == '_') one++;
    while (*other == '_') other++;
    if (tolower((unsigned char)*one) != tolower((unsigned char)*other)) return false;
    if (*one == '\0') return true;
    one++, other++;
  }
}

static bool place_take_func(struct words *words, struct replay_place *place, char why[REPLAY_TEXT_BYTES]) {
  const char *name;
  if (!words_have(words, "op", &name)) return true;
  for (uint32_t func = 0; func < FUNC_COPY; func++)
    if (names_equal(name, record_func_name(func))) place->func = func;
  if (place->func != REPLAY_NONE) return true;
  if (name[0] == '#' && word_is_number(name + 1, &place->sequence)) return true;
  replay_say(why, "\"op %s\": an operation was expected, as in `op all_reduce #3`, `op send` or `op #3`",
             name);
  return false;
}

static bool place_take_comm(struct words *words, const struct replay *replay, struct replay_place *place,
                            char why[REPLAY_TEXT_BYTES]) {
  const char *name;
  if (!words_have(words, "comm", &name)) return true;
  for (uint32_t c = 0; c < replay->comm_count; c++)
    if (strcmp(name, replay->comms[c].name) == 0) place->comm = c;
  if (place->comm == REPLAY_NONE) replay_say(why, "there is no communicator \"%.60s\"", name);
  return place->comm != REPLAY_NONE;
}

/* Words that are left: `#3` of an operation, and a number. */
static bool place_take_rest(struct words *words, struct replay_place *place, char why[REPLAY_TEXT_BYTES]) {
  for (uint32_t i = 0; i < words->count; i++) {
    const char *word = words->word[i];
    if (words->used[i]) continue;
    words->used[i] =
        (word[0] == '#' && word_is_number(word + 1, &place->sequence)) || word_is_number(word, &place->count);
    if (words->used[i]) continue;
    replay_say(why,
               "\"%.60s\" is none of rank, channel, lane, step, op, comm with its value, #N, and a number",
               word);
    return false;
  }
  return true;
}

static bool place_take_number(struct words *words, const char *name, uint64_t most, uint64_t *number,
                              char why[REPLAY_TEXT_BYTES]) {
  const char *value;
  if (!words_have(words, name, &value)) return true;
  if (word_is_number(value, number) && *number <= most) return true;
  replay_say(why, "\"%s %.60s\": a number up to %" PRIu64 " was expected", name, value, most);
  return false;
}

/* Ranks in a session are those of a communicator. */
static uint64_t ranks_most(const struct replay *replay) {
  uint64_t most = 0;
  for (uint32_t c = 0; c < replay->comm_count; c++)
    if (replay->comms[c].rank_count > most) most = replay->comms[c].rank_count;
  return most - 1;
}

bool replay_place_parse(const struct replay *replay, const char *from, struct replay_place *place,
                        char why[REPLAY_TEXT_BYTES]) {
  struct words words;
  uint64_t rank = REPLAY_NONE, channel = REPLAY_NONE, lane = REPLAY_NONE;
  *place = (struct replay_place){REPLAY_NONE, REPLAY_NONE, REPLAY_NONE, REPLAY_NONE,
                                 UINT64_MAX,  UINT64_MAX,  UINT64_MAX,  REPLAY_NONE};
  if (!words_split(&words, from)) {
    replay_say(why, "at most %d words were expected", WORDS_MOST);
    return false;
  }
  if (!place_take_number(&words, "rank", ranks_most(replay), &rank, why) ||
      !place_take_number(&words, "channel", 255, &channel, why) ||
      !place_take_number(&words, "lane", 255, &lane, why) ||
      !place_take_number(&words, "step", UINT64_MAX - 1, &place->step, why) ||
      !place_take_func(&words, place, why) || !place_take_comm(&words, replay, place, why) ||
      !place_take_rest(&words, place, why))
    return false;
  place->rank = (uint32_t)rank;
  place->channel = (uint32_t)channel;
  place->lane = (uint32_t)lane;
  return true;
}
