/* order.c: the page of an order of several processes (see order.h). Every word of it is read and written
 * atomically. A process writes its own row; the process that has the turn also writes the state, marks the
 * rows of others as touched, and passes the turn on. */
#include "backends/emu/order.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"

#define ORDER_MAGIC UINT64_C(0x74757474696f7264)

/* How often a busy process must be seen idle, and how long apart, until it is excused. */
#define IDLE_LOOKS 4
#define IDLE_APART_NS 8000000u
/* Of a process that polls: naps between two looks, at least, and time of a core for each, at most. */
#define POLL_NAPS 4
#define POLL_CPU_NS 100000u

/* Rendezvous at a time that ranks of one process have come to; of more than these nothing is known. */
#define RENDEZVOUS_MOST 16

enum slot_life { SLOT_FREE, SLOT_LIVE, SLOT_LEFT, SLOT_LOST };

struct order_rendezvous {
  uint64_t name;    /* 0: none */
  uint32_t arrived; /* ranks of the process */
};

/* One process. */
struct order_slot {
  uint64_t member; /* 0: free */
  uint64_t best, event_limit;
  uint64_t shares;            /* processes of its communicators that have not failed, a bit for each */
  uint32_t life;              /* enum slot_life */
  uint32_t word;              /* its sleeping thread waits for a change of this */
  uint32_t busy;              /* a thread of it is outside waiting calls */
  uint32_t holds;             /* rendezvous that end soon */
  uint32_t due;               /* a bit for each rendezvous that all ranks have come to */
  uint32_t excused, returned; /* others go on without its threads; one of them has come back */
  uint32_t ready, touched;
  uint32_t waiting, alone, outside;
  uint32_t reported; /* the last deadlock that it has reported */
  uint32_t parks;    /* how often its threads all waited */
  struct os_process process;
  struct order_rendezvous rendezvous[RENDEZVOUS_MOST];
};

struct order_page {
  uint64_t magic;
  uint32_t holder, slot_count;
  uint32_t stops, ends; /* deadlocks that were found, and that all processes have reported */
  struct emu_order_state state;
  struct order_slot slots[EMU_ORDER_PROCESSES_MOST];
};

/* Whole pages, as share_alloc() takes. */
#define ORDER_BYTES ((sizeof(struct order_page) + 4095) / 4096 * (size_t)4096)

/* What a process that watches knows of another one. */
struct watched {
  uint32_t parks, idle; /* looks in a row that found it idle */
  uint64_t since_ns, looked_ns;
  uint64_t since_cpu_ns; /* that it had used at the first look */
  struct os_activity last;
};

/* Communicators of the same processes. */
#define NAMES_MOST 256
struct comm_name {
  uint64_t hash, comm_id; /* comm_id: of the newest */
  uint32_t count;         /* of those before it */
};

static struct {
  struct order_page *page; /* atomic; NULL: in no order */
  uint32_t own;            /* this process's slot */
  uint32_t comm_count;     /* communicators that joined */
  uint32_t ends_seen;
  uint32_t holds; /* of this process, in an order or not */
  bool sleeping;  /* a thread sleeps, or is about to */
  struct share_ticket ticket;
  struct order_page *prepared, *unmap;    /* before the join; to be unmapped by the thread that sleeps */
  bool cancels[EMU_ORDER_PROCESSES_MOST]; /* slots that this process has filled for a join */
  /* the page that this process offers */
  struct order_page *offer;
  struct share_ticket offer_ticket;
  uint64_t member;
  struct watched watched[EMU_ORDER_PROCESSES_MOST];
  struct comm_name names[NAMES_MOST];
  uint32_t name_count;
} order;

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_SEQ_CST)
#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_SEQ_CST)

static struct order_page *page_now(void) { return LOAD(order.page); }

bool emu_order_on(void) { return page_now() != NULL; }

static struct order_slot *own_slot(void) { return &page_now()->slots[order.own]; }

uint32_t emu_order_own(void) { return order.own; }

static bool slot_live(const struct order_slot *slot) { return LOAD(slot->life) == SLOT_LIVE; }

static void slot_wake(struct order_slot *slot) {
  __atomic_add_fetch(&slot->word, 1, __ATOMIC_SEQ_CST);
  os_futex_wake(&slot->word);
}

static void wake_holder(void) {
  struct order_page *page = page_now();
  const uint32_t holder = LOAD(page->holder);
  if (holder != order.own) slot_wake(&page->slots[holder]);
}

/* ---- joining ---- */

static uint64_t member_id(void) {
  while (order.member == 0) order.member = os_entropy();
  return order.member;
}

static bool order_wanted(void) { return emu_options()->mode == EMU_GUARDED && emu_options()->order; }

void emu_order_offer(void) {
  void *memory = NULL;
  if (!order_wanted()) return;
  emu_lock();
  if (!emu_order_on() && order.offer == NULL &&
      share_alloc(ORDER_BYTES, &memory, &order.offer_ticket) == ncclSuccess)
    order.offer = (struct order_page *)memory;
  emu_unlock();
}

static void offer_drop(void) {
  if (order.offer != NULL) share_free(order.offer);
  order.offer = NULL;
  memset(&order.offer_ticket, 0, sizeof order.offer_ticket);
}

void emu_order_describe(struct emu_order_peer *peer) {
  memset(peer, 0, sizeof *peer);
  if (!order_wanted()) return;
  emu_lock();
  peer->member = member_id();
  peer->joined = emu_order_on();
  peer->page = peer->joined ? order.ticket : order.offer_ticket;
  emu_unlock();
}

/* The page that all of them use: that of the order that some are in already, else that of the first. NULL if
 * one has none, or if they are in several orders. */
static const struct emu_order_peer *peers_choose(const struct emu_order_peer *const *peers, uint32_t count) {
  const struct emu_order_peer *first = NULL, *joined = NULL;
  bool several = false;
  for (uint32_t i = 0; i < count; i++) {
    if (peers[i] == NULL) continue;
    if (peers[i]->page.bytes != ORDER_BYTES || !share_possible(&peers[i]->page)) return NULL;
    if (first == NULL) first = peers[i];
    several = several || peers[i]->member != first->member;
    if (!peers[i]->joined) continue;
    if (joined != NULL && joined->page.number != peers[i]->page.number) return NULL;
    joined = peers[i];
  }
  return joined != NULL ? joined : several ? first : NULL;
}

static uint32_t slot_find(const struct order_page *page, uint64_t member) {
  for (uint32_t i = 0; i < EMU_ORDER_PROCESSES_MOST; i++)
    if (LOAD(page->slots[i].member) == member && slot_live(&page->slots[i])) return i;
  return EMU_ORDER_NOBODY;
}

/* A process that is new counts as busy until it has joined and its threads wait. */
static bool slot_take(struct order_page *page, uint64_t member) {
  for (uint32_t i = 0; i < EMU_ORDER_PROCESSES_MOST; i++) {
    struct order_slot *slot = &page->slots[i];
    if (LOAD(slot->life) != SLOT_FREE) continue;
    memset(slot, 0, sizeof *slot);
    slot->member = member;
    slot->event_limit = UINT64_MAX;
    slot->holds = 1;
    order.cancels[i] = true;
    STORE(slot->life, SLOT_LIVE);
    if (LOAD(page->slot_count) <= i) STORE(page->slot_count, i + 1);
    return true;
  }
  return false;
}

static void page_begin(struct order_page *page) {
  uint64_t state = emu_options()->seed;
  page->state.random[0] = hash_draw(&state);
  page->state.random[1] = hash_draw(&state);
  page->magic = ORDER_MAGIC;
}

/* By the process of the first rank: numbers the processes in the order of their ranks. */
static bool page_fill(struct order_page *page, const struct emu_order_peer *const *peers, uint32_t count) {
  if (page->magic != ORDER_MAGIC) page_begin(page);
  for (uint32_t i = 0; i < count; i++)
    if (peers[i] != NULL && slot_find(page, peers[i]->member) == EMU_ORDER_NOBODY &&
        !slot_take(page, peers[i]->member))
      return false;
  return true;
}

static uint32_t process_count(const struct emu_order_peer *const *peers, uint32_t count) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < count; i++) {
    bool first = peers[i] != NULL;
    for (uint32_t k = 0; first && k < i; k++)
      first = peers[k] == NULL || peers[k]->member != peers[i]->member;
    found += first;
  }
  return found;
}

static void prepared_take(struct order_page *page, const struct share_ticket *ticket) {
  if (order.prepared != NULL) share_unmap(order.prepared, ORDER_BYTES);
  else memset(order.cancels, 0, sizeof order.cancels);
  order.prepared = page;
  order.ticket = *ticket;
}

ncclResult_t emu_order_prepare(const struct emu_order_peer *const *peers, uint32_t rank_count, bool *joins) {
  const struct emu_order_peer *chosen = peers_choose(peers, rank_count);
  void *memory = NULL;
  uint32_t first = 0;
  *joins = chosen != NULL && process_count(peers, rank_count) <= EMU_ORDER_PROCESSES_MOST;
  if (!*joins) return ncclSuccess;
  if (!emu_order_on()) TRY(share_map(&chosen->page, &memory));
  while (peers[first] == NULL) first += 1;
  emu_lock();
  if (memory != NULL) prepared_take((struct order_page *)memory, &chosen->page);
  struct order_page *page = order.prepared != NULL ? order.prepared : page_now();
  const bool fits = peers[first]->member != member_id() || page_fill(page, peers, rank_count);
  emu_unlock();
  if (fits) return ncclSuccess;
  emu_order_cancel();
  return log_fail(
      ncclSystemError,
      "more than %d processes of this host would share one order of events; set TUTTI_EMU=order=0",
      EMU_ORDER_PROCESSES_MOST);
}

/* The number of events continues with the largest of the processes', so that no clock goes back. */
static void events_raise(struct order_page *page) {
  uint64_t seen = LOAD(page->state.events);
  while (seen < emu_events && !__atomic_compare_exchange_n(&page->state.events, &seen, emu_events, false,
                                                           __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}

static void join_first(struct order_page *page) {
  struct order_slot *slot = &page->slots[order.own];
  os_process_self(&slot->process);
  STORE(slot->busy, 1);
  STORE(slot->holds, order.holds); /* at least that of the rendezvous */
  order.ends_seen = LOAD(page->ends);
  STORE(slot->reported, LOAD(page->stops));
  memset(order.watched, 0, sizeof order.watched);
  order.name_count = 0;
  events_raise(page);
  STORE(order.page, page);
  if (order.offer != NULL && order.offer_ticket.number != order.ticket.number) offer_drop();
}

void emu_order_join(const struct emu_order_peer *const *peers, uint32_t rank_count, uint32_t *slots) {
  emu_lock();
  struct order_page *page = order.prepared != NULL ? order.prepared : page_now();
  order.prepared = NULL;
  for (uint32_t i = 0; i < rank_count; i++)
    slots[i] = peers[i] != NULL ? slot_find(page, peers[i]->member) : EMU_ORDER_NOBODY;
  if (!emu_order_on()) {
    order.own = slot_find(page, member_id());
    join_first(page);
  }
  order.comm_count += 1;
  emu_unlock();
}

uint64_t emu_order_comm(const uint32_t *slots, uint32_t rank_count, uint64_t comm_id) {
  const uint64_t hash = hash_bytes(HASH_SEED, slots, rank_count * sizeof *slots);
  emu_lock();
  uint32_t place = 0;
  while (place < order.name_count && order.names[place].hash != hash) place += 1;
  if (place == NAMES_MOST) order.name_count = place = 0;
  struct comm_name *name = &order.names[place];
  if (place == order.name_count) {
    *name = (struct comm_name){hash, comm_id, 0};
    order.name_count += 1;
  }
  name->count += name->comm_id != comm_id;
  name->comm_id = comm_id;
  const uint64_t number = hash_mix(hash, name->count);
  emu_unlock();
  return number;
}

void emu_order_cancel(void) {
  emu_lock();
  struct order_page *page = order.prepared;
  order.prepared = NULL;
  for (uint32_t i = 0; page != NULL && i < EMU_ORDER_PROCESSES_MOST; i++)
    if (order.cancels[i]) STORE(page->slots[i].life, SLOT_FREE);
  if (page != NULL) share_unmap(page, ORDER_BYTES);
  if (!emu_order_on()) offer_drop();
  emu_unlock();
}

/* ---- leaving ---- */

static uint32_t first_live(const struct order_page *page) {
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++)
    if (slot_live(&page->slots[i])) return i;
  return EMU_ORDER_NOBODY;
}

/* The process that leaves had the turn: the first of the others has it next. */
static void give_away(struct order_page *page, uint32_t from) {
  uint32_t expected = from;
  const uint32_t next = first_live(page);
  if (next != EMU_ORDER_NOBODY)
    __atomic_compare_exchange_n(&page->holder, &expected, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void wake_all(struct order_page *page) {
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++)
    if (i != order.own && slot_live(&page->slots[i])) slot_wake(&page->slots[i]);
}

void emu_order_leave(void) {
  struct order_page *page = page_now();
  if (page == NULL || --order.comm_count > 0) return;
  STORE(page->slots[order.own].life, SLOT_LEFT);
  give_away(page, order.own);
  wake_all(page);
  STORE(order.page, NULL);
  if (order.sleeping) {
    order.unmap = page;
    slot_wake(&page->slots[order.own]);
  } else {
    share_unmap(page, ORDER_BYTES);
  }
  offer_drop();
}

void emu_order_withdraw(void) {
  if (!emu_order_on()) offer_drop();
}

void emu_order_forked(void) {
  STORE(order.page, NULL);
  order.offer = NULL;
  order.member = 0;
  order.comm_count = order.holds = 0;
  order.sleeping = false;
}

/* ---- turns ---- */

void emu_order_hold(int more) {
  order.holds += (uint32_t)more; /* also before this process joins, which may happen meanwhile */
  if (!emu_order_on()) return;
  STORE(own_slot()->holds, order.holds);
  if (more < 0) wake_holder();
}

void emu_order_busy(void) {
  if (emu_order_on()) STORE(own_slot()->busy, 1);
}

bool emu_order_is_busy(void) { return LOAD(own_slot()->busy) != 0; }

static void report_store(struct order_slot *slot, const struct emu_order_report *report) {
  STORE(slot->ready, report->ready);
  STORE(slot->best, report->best);
  STORE(slot->event_limit, report->event_limit);
  STORE(slot->waiting, report->waiting);
  STORE(slot->alone, report->alone);
  STORE(slot->outside, report->outside);
}

void emu_order_park(const struct emu_order_report *report) {
  struct order_slot *slot = own_slot();
  if (LOAD(slot->busy) == 0 || LOAD(slot->returned) != 0) return;
  report_store(slot, report);
  STORE(slot->parks, slot->parks + 1);
  if (LOAD(slot->excused)) {
    STORE(slot->returned, 1);
  } else {
    STORE(slot->busy, 0);
  }
  wake_holder();
}

/* ---- rendezvous ---- */

static uint32_t rendezvous_index(const struct order_slot *slot, uint64_t name) {
  for (uint32_t i = 0; i < RENDEZVOUS_MOST; i++)
    if (LOAD(slot->rendezvous[i].name) == name) return i;
  return RENDEZVOUS_MOST;
}

/* Ranks that have come. One that is due is over, and its name may be used again. */
static uint32_t rendezvous_arrived(const struct order_slot *slot, uint64_t name) {
  const uint32_t i = rendezvous_index(slot, name);
  return i == RENDEZVOUS_MOST || (LOAD(slot->due) >> i & 1) != 0 ? 0 : LOAD(slot->rendezvous[i].arrived);
}

static void rendezvous_due(struct order_slot *slot, uint64_t name) {
  const uint32_t i = rendezvous_index(slot, name);
  if (i < RENDEZVOUS_MOST) __atomic_or_fetch(&slot->due, 1u << i, __ATOMIC_SEQ_CST);
}

void emu_order_arrive(uint64_t name, uint32_t rank_count) {
  struct order_page *page = page_now();
  uint32_t total = 0;
  if (page == NULL) return;
  struct order_slot *own = own_slot();
  uint32_t i = rendezvous_index(own, name);
  if (i == RENDEZVOUS_MOST) i = rendezvous_index(own, 0);
  if (i == RENDEZVOUS_MOST) return;
  STORE(own->rendezvous[i].arrived, own->rendezvous[i].arrived + 1);
  STORE(own->rendezvous[i].name, name);
  for (uint32_t k = 0; k < LOAD(page->slot_count); k++)
    if (slot_live(&page->slots[k])) total += rendezvous_arrived(&page->slots[k], name);
  for (uint32_t k = 0; total == rank_count && k < LOAD(page->slot_count); k++)
    if (slot_live(&page->slots[k])) rendezvous_due(&page->slots[k], name);
}

void emu_order_met(uint64_t name) {
  if (!emu_order_on()) return;
  struct order_slot *own = own_slot();
  const uint32_t i = rendezvous_index(own, name);
  if (i == RENDEZVOUS_MOST) return;
  STORE(own->rendezvous[i].arrived, 0);
  STORE(own->rendezvous[i].name, 0);
  __atomic_and_fetch(&own->due, ~(1u << i), __ATOMIC_SEQ_CST);
  wake_holder();
}

/* A rendezvous of it ends soon. */
static bool slot_held(const struct order_slot *slot) { return LOAD(slot->holds) > 0 || LOAD(slot->due) != 0; }

/* ---- whose turn it is ---- */

bool emu_order_mine(void) { return LOAD(page_now()->holder) == order.own; }

/* The others wait for a thread of it. */
static bool slot_works(const struct order_slot *slot) { return LOAD(slot->busy) && !LOAD(slot->excused); }

static bool slot_blocks(const struct order_slot *slot) {
  return slot_live(slot) && (slot_held(slot) || slot_works(slot));
}

bool emu_order_free(void) {
  const struct order_page *page = page_now();
  if (slot_held(own_slot())) return false;
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++)
    if (i != order.own && slot_blocks(&page->slots[i])) return false;
  return true;
}

bool emu_order_only(void) {
  const struct order_page *page = page_now();
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++)
    if (i != order.own && slot_live(&page->slots[i])) return false;
  return true;
}

void emu_order_load(struct emu_order_state *state) {
  const struct order_page *page = page_now();
  state->random[0] = LOAD(page->state.random[0]);
  state->random[1] = LOAD(page->state.random[1]);
  state->events = LOAD(page->state.events);
  state->picked = LOAD(page->state.picked);
}

static void state_store(const struct emu_order_state *state) {
  struct order_page *page = page_now();
  STORE(page->state.random[0], state->random[0]);
  STORE(page->state.random[1], state->random[1]);
  STORE(page->state.events, state->events);
  STORE(page->state.picked, state->picked);
}

void emu_order_settle(const struct emu_order_report *own, const struct emu_order_state *state) {
  report_store(own_slot(), own);
  state_store(state);
}

void emu_order_ask(void) {
  STORE(own_slot()->touched, 1);
  wake_holder();
}

void emu_order_tell_alone(bool alone) { STORE(own_slot()->alone, alone); }

/* A process whose connections were touched may have one actor more. */
static uint32_t slot_weight(const struct order_slot *slot) { return LOAD(slot->ready) + LOAD(slot->touched); }

static uint32_t weight_of(const struct order_page *page, uint32_t slot, uint32_t own) {
  if (slot == order.own) return own;
  return slot_live(&page->slots[slot]) ? slot_weight(&page->slots[slot]) : 0;
}

/* Most events of one process before the next choice. A turn often ends after one event, so that all orders of
 * events are found, and often is long, because passing it on takes as long as many events. */
#define EVENTS_MOST 128

/* The choice, and whether a number is drawn, do not depend on which process has the turn. */
static uint32_t choose_random(const struct order_page *page, uint32_t own, uint32_t (*below)(uint32_t bound),
                              uint32_t *picked) {
  const uint32_t count = LOAD(page->slot_count);
  uint32_t total = 0, candidates = 0, last = EMU_ORDER_NOBODY;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t weight = weight_of(page, i, own);
    total += weight;
    candidates += weight > 0;
    if (weight > 0) last = i;
  }
  if (candidates <= 1) return last;
  if (below(4) != 0) *picked = 1 + below(EVENTS_MOST);
  uint32_t drawn = below(total);
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t weight = weight_of(page, i, own);
    if (drawn < weight) return i;
    drawn -= weight;
  }
  return last;
}

/* Equal priorities: the lowest number. Those that were touched first, because what they would run is not
 * known. */
static uint32_t choose_priority(const struct order_page *page, const struct emu_order_report *own,
                                uint32_t *picked) {
  uint32_t best = EMU_ORDER_NOBODY;
  uint64_t highest = 0;
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++) {
    const struct order_slot *slot = &page->slots[i];
    const bool self = i == order.own;
    if (!self && !slot_live(slot)) continue;
    if (!self && LOAD(slot->touched)) {
      *picked = 0;
      return i;
    }
    const uint32_t ready = self ? own->ready : LOAD(slot->ready);
    const uint64_t priority = self ? own->best : LOAD(slot->best);
    if (ready == 0 || (best != EMU_ORDER_NOBODY && priority <= highest)) continue;
    best = i;
    highest = priority;
  }
  return best;
}

static uint32_t choose_next(const struct order_page *page, uint32_t own_ready, uint64_t events) {
  const uint32_t count = LOAD(page->slot_count);
  for (uint32_t k = 0; k < count; k++) {
    const uint32_t i = (uint32_t)((events + k) % count);
    if (i == order.own ? own_ready > 0 : slot_live(&page->slots[i]) && slot_weight(&page->slots[i]) > 0)
      return i;
  }
  return EMU_ORDER_NOBODY;
}

/* A process with a poll that ends at this event. */
static uint32_t choose_poll(const struct order_page *page, uint64_t events) {
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++)
    if (i != order.own && slot_live(&page->slots[i]) && !LOAD(page->slots[i].busy) &&
        LOAD(page->slots[i].event_limit) <= events)
      return i;
  return EMU_ORDER_NOBODY;
}

uint32_t emu_order_choose(const struct emu_order_report *own, uint64_t events,
                          uint32_t (*below)(uint32_t bound), uint32_t *picked) {
  const struct order_page *page = page_now();
  const uint32_t poll = choose_poll(page, events);
  *picked = poll == EMU_ORDER_NOBODY;
  if (poll != EMU_ORDER_NOBODY) return poll;
  switch (emu_options()->rule) {
    case EMU_RULE_PRIORITY: return choose_priority(page, own, picked);
    case EMU_RULE_ROUND_ROBIN: return choose_next(page, own->ready, events);
    default: return choose_random(page, own->ready, below, picked);
  }
}

void emu_order_pass(uint32_t slot, uint32_t picked, const struct emu_order_report *own,
                    const struct emu_order_state *state) {
  struct order_page *page = page_now();
  emu_order_settle(own, state);
  STORE(page->state.picked, picked);
  STORE(page->holder, slot);
  slot_wake(&page->slots[slot]);
}

bool emu_order_ended(uint32_t slot) {
  const struct order_page *page = page_now();
  return page != NULL && slot < EMU_ORDER_PROCESSES_MOST && !slot_live(&page->slots[slot]);
}

bool emu_order_lost(uint32_t slot) {
  const struct order_page *page = page_now();
  return page != NULL && slot < EMU_ORDER_PROCESSES_MOST && LOAD(page->slots[slot].life) == SLOT_LOST;
}

void emu_order_share(uint64_t slots) {
  if (emu_order_on()) STORE(own_slot()->shares, slots);
}

void emu_order_touch(uint32_t slot) {
  struct order_page *page = page_now();
  if (page != NULL && slot < EMU_ORDER_PROCESSES_MOST && slot != order.own &&
      !LOAD(page->slots[slot].touched))
    STORE(page->slots[slot].touched, 1);
}

bool emu_order_touched(void) {
  struct order_slot *slot = own_slot();
  if (!LOAD(slot->touched)) return false;
  STORE(slot->touched, 0);
  return true;
}

/* ---- nothing can move ---- */

/* Threads that came back may go on. */
static bool returned_go_on(struct order_page *page) {
  bool any = false;
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++) {
    struct order_slot *slot = &page->slots[i];
    if (!slot_live(slot) || !LOAD(slot->returned)) continue;
    STORE(slot->returned, 0);
    STORE(slot->excused, 0);
    slot_wake(slot);
    any = true;
  }
  return any;
}

static bool any_other(const struct order_page *page, bool (*test)(const struct order_slot *slot)) {
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++)
    if (i != order.own && slot_live(&page->slots[i]) && test(&page->slots[i])) return true;
  return false;
}

static bool slot_polls(const struct order_slot *slot) { return LOAD(slot->event_limit) != UINT64_MAX; }
static bool slot_excused(const struct order_slot *slot) { return LOAD(slot->excused) != 0; }
static bool slot_outside(const struct order_slot *slot) { return LOAD(slot->outside) != 0; }
static bool slot_waiting(const struct order_slot *slot) { return LOAD(slot->waiting) != 0; }
static bool slot_accompanied(const struct order_slot *slot) { return LOAD(slot->alone) == 0; }

static void slot_lose(struct order_page *page, uint32_t index) {
  STORE(page->slots[index].life, SLOT_LOST);
  log_info(LOG_SHM, "guarded emulator: process %d has ended without leaving its communicators",
           (int)page->slots[index].process.number);
  give_away(page, index);
  wake_all(page);
}

/* Marks another process as lost if it has ended; true if it is lost. */
static bool slot_ended(struct order_page *page, uint32_t index) {
  const struct order_slot *slot = &page->slots[index];
  if (slot_live(slot) && slot->process.number != 0 && os_process_gone(&slot->process)) slot_lose(page, index);
  return LOAD(slot->life) == SLOT_LOST;
}

/* Some communicator of a process that ended has not failed yet in another process: the news of the loss is on
 * its way there. Looks at the processes themselves, because the loss may not be noted yet. */
static bool loss_untold(struct order_page *page) {
  uint64_t lost = 0, shares = 0;
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++)
    if (i != order.own && slot_ended(page, i)) lost |= UINT64_C(1) << i;
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++)
    if (slot_live(&page->slots[i])) shares |= LOAD(page->slots[i].shares);
  return (lost & shares) != 0;
}

/* The next process after this one that looks outside, or polls. */
static uint32_t next_that(const struct order_page *page, bool (*test)(const struct order_slot *slot)) {
  const uint32_t count = LOAD(page->slot_count);
  for (uint32_t k = 1; k < count; k++) {
    const uint32_t i = (order.own + k) % count;
    if (slot_live(&page->slots[i]) && test(&page->slots[i])) return i;
  }
  return order.own;
}

void emu_order_pass_to_poll(const struct emu_order_report *own, const struct emu_order_state *state) {
  struct order_page *page = page_now();
  if (any_other(page, slot_polls)) emu_order_pass(next_that(page, slot_polls), 0, own, state);
}

enum emu_order_quiet emu_order_quiet(const struct emu_order_report *own,
                                     const struct emu_order_state *state) {
  struct order_page *page = page_now();
  if (returned_go_on(page)) return EMU_ORDER_CHANGED;
  if (own->event_limit == UINT64_MAX && any_other(page, slot_polls)) {
    emu_order_pass(next_that(page, slot_polls), 0, own, state);
    return EMU_ORDER_CHANGED;
  }
  if (any_other(page, slot_outside)) {
    emu_order_pass(next_that(page, slot_outside), 0, own, state);
    return EMU_ORDER_WAITS;
  }
  if (own->outside || any_other(page, slot_excused) || LOAD(own_slot()->excused)) return EMU_ORDER_WAITS;
  const bool may_come = !own->alone || any_other(page, slot_accompanied) || loss_untold(page);
  return may_come ? EMU_ORDER_THREADS : EMU_ORDER_FINAL;
}

bool emu_order_kernels_wait(const struct emu_order_report *own) {
  return own->waiting || any_other(page_now(), slot_waiting);
}

static void touch_all(struct order_page *page) {
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++) STORE(page->slots[i].touched, 1);
}

void emu_order_stop(void) {
  struct order_page *page = page_now();
  STORE(page->stops, page->stops + 1);
  touch_all(page);
}

static bool all_reported(const struct order_page *page) {
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++)
    if (slot_live(&page->slots[i]) && LOAD(page->slots[i].reported) != LOAD(page->stops)) return false;
  return true;
}

enum emu_order_task emu_order_task(void) {
  struct order_page *page = page_now();
  if (LOAD(page->ends) != order.ends_seen) {
    order.ends_seen = LOAD(page->ends);
    return EMU_ORDER_STOP;
  }
  if (LOAD(own_slot()->reported) == LOAD(page->stops)) return EMU_ORDER_NOTHING;
  STORE(own_slot()->reported, LOAD(page->stops));
  if (!all_reported(page)) return EMU_ORDER_REPORT;
  STORE(page->ends, page->ends + 1);
  touch_all(page);
  return EMU_ORDER_REPORT;
}

/* ---- sleeping ---- */

uint32_t emu_order_word(void) { return LOAD(own_slot()->word); }

void emu_order_asleep(void) { order.sleeping = true; }

bool emu_order_sleep(uint32_t word, uint64_t timeout_ms) {
  struct order_page *page = page_now();
  return page == NULL || os_futex_wait(&page->slots[order.own].word, word, timeout_ms);
}

void emu_order_wake(void) {
  if (order.sleeping && emu_order_on()) slot_wake(own_slot());
}

/* True if a process polls: since the last look it went to sleep often and briefly, and ran shorter still. One
 * that gets no core, or waits for a disk, does not. */
static bool seen_polling(const struct os_activity *last, const struct os_activity *now, uint64_t spent_ns) {
  const uint64_t naps = now->naps - last->naps, cpu_ns = now->cpu_ns - last->cpu_ns;
  return last->naps > 0 && !now->reads && naps >= POLL_NAPS && cpu_ns < naps * POLL_CPU_NS &&
         cpu_ns < spent_ns / 4;
}

static bool slot_idle(const struct order_slot *slot, struct watched *seen, uint64_t spent_ns) {
  const struct os_activity last = seen->last;
  return os_process_activity(&slot->process, &seen->last) &&
         (seen->last.asleep || seen_polling(&last, &seen->last, spent_ns));
}

/* It has run for an eighth of the time in which it made no waiting call, or sleeps: it was not kept from
 * running, as on a busy machine. One that cannot be seen counts as asleep. */
static bool slot_had_a_chance(const struct watched *seen, uint64_t stall_ns) {
  return seen->last.asleep || seen->last.cpu_ns - seen->since_cpu_ns >= stall_ns / 8;
}

/* Excuses a process that has been idle for some time, or away for very long. */
static void slot_watch(struct order_slot *slot, struct watched *seen, uint64_t now_ns) {
  const uint64_t stall_ns = emu_options()->stall_seconds * 1000000000u;
  const uint64_t spent_ns = now_ns - seen->looked_ns;
  const uint32_t parks = LOAD(slot->parks);
  const bool away = LOAD(slot->busy) && !slot_held(slot);
  if (!away || seen->since_ns == 0 || seen->parks != parks)
    *seen = (struct watched){.parks = parks, .since_ns = now_ns};
  if (!away || LOAD(slot->excused)) return;
  if (seen->looked_ns != 0 && spent_ns < IDLE_APART_NS) return;
  const bool first = seen->looked_ns == 0;
  seen->looked_ns = now_ns;
  seen->idle = slot_idle(slot, seen, spent_ns) ? seen->idle + 1 : 0;
  if (first) seen->since_cpu_ns = seen->last.cpu_ns;
  if (seen->idle < IDLE_LOOKS && (now_ns - seen->since_ns < stall_ns || !slot_had_a_chance(seen, stall_ns)))
    return;
  if (seen->idle < IDLE_LOOKS)
    log_warn("guarded emulator: process %d has made no waiting call for %" PRIu64
             " s; the other processes go on without it, so this run may not repeat; let it call "
             "cudaStreamSynchronize, or raise TUTTI_STALL_SECONDS",
             (int)slot->process.number, emu_options()->stall_seconds);
  log_info(LOG_SHM,
           "guarded emulator: process %d is away; the others go on, and it waits for them when it is back",
           (int)slot->process.number);
  STORE(slot->touched, 1); /* what its threads have woken enters now, at the same place in every run */
  STORE(slot->excused, 1);
}

void emu_order_awake(bool woken) {
  struct order_page *page = page_now();
  order.sleeping = false;
  if (order.unmap != NULL) share_unmap(order.unmap, ORDER_BYTES);
  order.unmap = NULL;
  if (page == NULL || woken) return;
  const uint64_t now_ns = os_time_ns();
  for (uint32_t i = 0; i < LOAD(page->slot_count); i++) {
    struct order_slot *slot = &page->slots[i];
    if (i == order.own || !slot_live(slot) || slot->process.number == 0) continue;
    if (!slot_ended(page, i)) slot_watch(slot, &order.watched[i], now_ns);
  }
}

static bool slot_keeps_all(const struct order_slot *slot) {
  if (!slot_live(slot) || slot->process.number == 0) return false;
  if (!slot_held(slot) && slot_works(slot)) return true;
  return os_process_stopped(slot->process.number);
}

uint32_t emu_order_awaited(void) {
  const struct order_page *page = page_now();
  for (uint32_t i = 0; page != NULL && i < LOAD(page->slot_count); i++)
    if (i != order.own && slot_keeps_all(&page->slots[i])) return (uint32_t)page->slots[i].process.number;
  return 0;
}

bool emu_order_excused(void) { return emu_order_on() && LOAD(own_slot()->excused) != 0; }
