/* match_p2p.c: a hash table of messages, by sender, receiver and number. */
#include "core/comm/match_p2p.h"

#include <string.h>

#include "base/hash.h"
#include "base/os.h"
#include "schedule/work.h"

#define BUCKETS_FIRST 64u

struct match_message {
  struct match_message *next;
  struct match_entry entry;
};

static uint32_t sender_of(const struct match_entry *entry) {
  return entry->func == FUNC_SEND ? entry->rank : entry->root;
}

static uint32_t receiver_of(const struct match_entry *entry) {
  return entry->func == FUNC_SEND ? entry->root : entry->rank;
}

static struct match_message **bucket_of(const struct match_p2p *p2p, const struct match_entry *entry) {
  const uint64_t ranks = (uint64_t)sender_of(entry) << 32 | receiver_of(entry);
  return &p2p->buckets[hash_scramble(hash_mix(ranks, entry->number)) & (p2p->bucket_count - 1)];
}

static bool same_message(const struct match_entry *one, const struct match_entry *other) {
  return one->number == other->number && sender_of(one) == sender_of(other) &&
         receiver_of(one) == receiver_of(other);
}

/* The link that leads to the message's call by its sender or receiver; to NULL if there is none. */
static struct match_message **link_find(const struct match_p2p *p2p, const struct match_entry *entry,
                                        uint8_t func) {
  struct match_message **link = bucket_of(p2p, entry);
  while (*link && !((*link)->entry.func == func && same_message(&(*link)->entry, entry)))
    link = &(*link)->next;
  return link;
}

static void link_drop(struct match_p2p *p2p, struct match_message **link) {
  struct match_message *message = *link;
  *link = message->next;
  os_free(message);
  p2p->count -= 1;
}

static bool grow(struct match_p2p *p2p) {
  struct match_p2p grown = *p2p;
  if (p2p->count < p2p->bucket_count) return true;
  grown.bucket_count = p2p->bucket_count ? 2 * p2p->bucket_count : BUCKETS_FIRST;
  grown.buckets = (struct match_message **)os_alloc(grown.bucket_count * sizeof(struct match_message *));
  if (!grown.buckets) return false;
  for (uint32_t i = 0; i < p2p->bucket_count; i++) {
    for (struct match_message *message = p2p->buckets[i], *next; message; message = next) {
      struct match_message **bucket = bucket_of(&grown, &message->entry);
      next = message->next;
      message->next = *bucket;
      *bucket = message;
    }
  }
  os_free(p2p->buckets);
  *p2p = grown;
  return true;
}

static bool add(struct match_p2p *p2p, const struct match_entry *entry) {
  struct match_message **link = link_find(p2p, entry, entry->func);
  if (!*link) {
    struct match_message *fresh = (struct match_message *)os_alloc(sizeof *fresh);
    if (!fresh) return false;
    *link = fresh;
    p2p->count += 1;
  }
  (*link)->entry = *entry;
  return true;
}

bool match_p2p_take(struct match_p2p *p2p, const struct match_entry *entry, struct match_entry *other,
                    bool *found) {
  *found = false;
  if (!grow(p2p)) return false;
  struct match_message **link = link_find(p2p, entry, entry->func == FUNC_SEND ? FUNC_RECV : FUNC_SEND);
  if (!*link) return add(p2p, entry);
  *other = (*link)->entry;
  *found = true;
  link_drop(p2p, link);
  return true;
}

void match_p2p_forget(struct match_p2p *p2p, const struct match_entry *entry) {
  if (p2p->count == 0) return;
  struct match_message **link = link_find(p2p, entry, entry->func);
  if (*link) link_drop(p2p, link);
}

static bool is_before(const struct match_entry *one, const struct match_entry *other) {
  if (one->number != other->number) return one->number < other->number;
  if (one->rank != other->rank) return one->rank < other->rank;
  return one->func < other->func;
}

const struct match_entry *match_p2p_waiting_for(const struct match_p2p *p2p, uint32_t rank) {
  const struct match_entry *first = NULL;
  if (p2p->count == 0) return NULL;
  for (uint32_t i = 0; i < p2p->bucket_count; i++) {
    for (const struct match_message *message = p2p->buckets[i]; message; message = message->next) {
      const struct match_entry *entry = &message->entry;
      if (entry->root != rank || entry->rank == rank) continue;
      if (!first || is_before(entry, first)) first = entry;
    }
  }
  return first;
}

uint32_t match_p2p_export(const struct match_p2p *p2p, uint64_t skip, struct match_entry *entries,
                          uint32_t capacity) {
  uint32_t copied = 0;
  uint64_t passed = 0;
  for (uint32_t i = 0; i < p2p->bucket_count; i++) {
    for (const struct match_message *message = p2p->buckets[i]; message && copied < capacity;
         message = message->next)
      if (passed++ >= skip) entries[copied++] = message->entry;
  }
  return copied;
}

void match_p2p_clear(struct match_p2p *p2p) {
  for (uint32_t i = 0; i < p2p->bucket_count; i++)
    for (struct match_message **bucket = &p2p->buckets[i]; *bucket;) link_drop(p2p, bucket);
  os_free(p2p->buckets);
  memset(p2p, 0, sizeof *p2p);
}
