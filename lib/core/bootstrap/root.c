/* root.c: the root's side of a gather: who has come, what they say, who is missing. Parties check in at any
 * time and in any order over connections that stay until they leave, so that whatever goes wrong is told to
 * all of them: a contradiction, the deadline, a party lost. Runs on the server's thread. Does not know what
 * cards are. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "core/bootstrap/control_conn.h"
#include "core/bootstrap/root.h"

#define ROOTS_MOST 4096u
#define PARTIES_MOST (1u << 16)
#define SEATS_MOST (1u << 20)
#define SECOND_NS 1000000000ull
#define STATUS_FIRST_NS (5 * SECOND_NS)
#define STATUS_MOST_NS (60 * SECOND_NS)
#define SUSPECT_NS (SECOND_NS / 3) /* for a better reason than that a link broke */
#define KEEP_NS (60 * SECOND_NS)   /* a verdict, for those who come later */

static struct root *roots;
static uint32_t root_count;
static void (*root_called)(uint64_t key);

void root_set_called(void (*called)(uint64_t key)) {
  control_lock();
  root_called = called;
  control_unlock();
}

struct root *root_first(void) {
  return roots;
}

struct root *root_find(uint64_t key) {
  for (struct root *root = roots; root; root = root->next) {
    if (root->key == key && !root->detached) return root;
  }
  return NULL;
}

bool root_waits(uint64_t key) {
  const struct root *root = root_find(key);
  return root && root->registered && !root->over && root->phase < ROOT_EXCHANGE;
}

static struct root *root_create(uint64_t key) {
  if (root_count >= ROOTS_MOST) return NULL;
  struct root *root = (struct root *)os_alloc(sizeof *root);
  if (!root) return NULL;
  root->key = key;
  root->next = roots;
  roots = root;
  root_count++;
  return root;
}

static void root_free(struct root *root) {
  struct root **link = &roots;
  while (*link != root) link = &(*link)->next;
  *link = root->next;
  for (uint32_t i = 0; i < root->party_count; i++) os_free(root->parties[i]);
  os_free(root->parties);
  os_free(root->seats);
  wire_free(&root->pending);
  os_free(root);
  root_count--;
}

/* ---- texts ---- */

/* "rank 3 (process 4711 on host b, 10.0.0.2:4000)". */
static const char *party_text(const struct root_party *party, char *text, size_t bytes) {
  char at[SOCK_TEXT_BYTES];
  size_t used = 0;
  if (party->seat_count > 0) used = (size_t)snprintf(text, bytes, "rank %u", party->first_seat);
  if (party->seat_count > 1 && used < bytes)
    used += (size_t)snprintf(text + used, bytes - used, " and %u more", party->seat_count - 1);
  if (used < bytes) {
    snprintf(text + used, bytes - used, "%sprocess %u on host %s, %s%s", used ? " (" : "", party->about.pid,
             party->about.host, sock_address_text(&party->about.address, at), used ? ")" : "");
  }
  return text;
}

/* ---- to parties ---- */

static void party_send(const struct root_party *party, enum frame_kind kind, const void *head,
                       size_t head_bytes, const void *body, size_t bytes) {
  if (!party->conn) return;
  if (!party->relayed) {
    party->root->bytes += sizeof(struct frame_head) + head_bytes + bytes;
    control_send(party->conn, kind, head, head_bytes, body, bytes);
    return;
  }
  struct wire_writer writer = {NULL, 0, 0, false};
  const struct wire_relay relay = {party->about.uid, (uint32_t)kind, 0};
  wire_put(&writer, &relay, sizeof relay);
  wire_put(&writer, head, head_bytes);
  if (!writer.failed) control_send(party->conn, FRAME_RELAY, writer.bytes, writer.used, body, bytes);
  wire_free(&writer);
}

static void root_send_all(struct root *root, enum frame_kind kind, const void *head, size_t head_bytes,
                          const char *text) {
  for (uint32_t i = 0; i < root->party_count; i++) {
    party_send(root->parties[i], kind, head, head_bytes, text, strlen(text));
  }
}

void root_fail(struct root *root, ncclResult_t code, const char *format, ...) {
  va_list arguments;
  if (root->phase == ROOT_FAILED) return;
  va_start(arguments, format);
  vsnprintf(root->reason, sizeof root->reason, format, arguments);
  va_end(arguments);
  root->phase = ROOT_FAILED;
  root->code = code;
  root->due_ns = os_time_ns() + KEEP_NS;
  log_info(LOG_BOOTSTRAP, "gather %llx: %s", (unsigned long long)root->key, root->reason);
  const struct wire_fail fail = {0, (int32_t)code, 0};
  root_send_all(root, FRAME_FAIL, &fail, sizeof fail, root->reason);
  control_wake();
}

/* A connection that no root stands behind. */
static void conn_refuse(struct control_conn *conn, ncclResult_t code, const char *text) {
  const struct wire_fail fail = {0, (int32_t)code, 0};
  control_send(conn, FRAME_FAIL, &fail, sizeof fail, text, strlen(text));
  control_end(conn);
}

void root_party_refuse(struct root_party *party, ncclResult_t code, const char *text) {
  const struct wire_fail fail = {0, (int32_t)code, 0};
  party_send(party, FRAME_FAIL, &fail, sizeof fail, text, strlen(text));
}

/* ---- the roster ---- */

static void party_send_roster(const struct root *root, const struct root_party *party) {
  struct wire_roster roster = {party->number, root->party_count, 0, 0};
  struct wire_writer writer = {NULL, 0, 0, false};
  for (uint32_t distance = 1; distance < root->party_count; distance *= 2) {
    const uint32_t to = (party->number + root->party_count - distance) % root->party_count;
    wire_put(&writer, &root->parties[to]->about, sizeof root->parties[to]->about);
    roster.round_count++;
  }
  if (writer.failed) {
    root_party_refuse((struct root_party *)party, ncclSystemError, "the root has no memory for its answer");
  } else {
    party_send(party, FRAME_ROSTER, &roster, sizeof roster, writer.bytes, writer.used);
  }
  wire_free(&writer);
}

/* Parties are numbered by their lowest seats, so that numbers depend on nothing but who holds what. */
static void root_complete(struct root *root) {
  uint32_t number = 0;
  for (uint32_t seat = 0; seat < root->seat_count; seat++) {
    struct root_party *party = root->parties[root->seats[seat] - 1];
    if (party->first_seat == seat) party->number = number++;
  }
  if (number != root->party_count) {
    root_fail(root, ncclInternalError, "a process came without a rank");
    return;
  }
  root->phase = ROOT_EXCHANGE;
  log_info(LOG_BOOTSTRAP, "gather %llx: all %u ranks of %u processes have come",
           (unsigned long long)root->key, root->seat_count, root->party_count);
  /* seats[] refers to parties by place, and is not needed any more. */
  os_free(root->seats);
  root->seats = NULL;
  for (uint32_t i = 0; i < root->party_count;) {
    struct root_party *party = root->parties[i];
    if (party->number == i) {
      i++;
      continue;
    }
    root->parties[i] = root->parties[party->number];
    root->parties[party->number] = party;
  }
  for (uint32_t i = 0; i < root->party_count; i++) party_send_roster(root, root->parties[i]);
}

/* ---- what parties say ---- */

static const char *agreement_broken(const struct root *root, const struct root_party *party,
                                    const struct wire_check_in *said, char *text, size_t bytes) {
  char who[256];
  party_text(party, who, sizeof who);
  if (said->version != NCCL_VERSION_CODE) {
    snprintf(text, bytes, "%s is of version %u, others are of %d; load the same library everywhere", who,
             said->version, NCCL_VERSION_CODE);
  } else if (said->seat_count != root->seat_count) {
    snprintf(text, bytes, "%s says %u ranks, others say %u; pass the same number on every rank", who,
             said->seat_count, root->seat_count);
  } else if (said->signature != root->signature) {
    snprintf(text, bytes,
             "%s passes another list (of ids, or of ranks to exclude) than others; pass the same on every "
             "rank",
             who);
  } else {
    return NULL;
  }
  return text;
}

static void party_seats(struct root *root, struct root_party *party, struct wire_reader *reader) {
  char who[256], other[256];
  uint32_t seat;
  if (root->phase != ROOT_FILLING) return;
  while (wire_take(reader, &seat, sizeof seat)) {
    if (party->seat_count == 0 || seat < party->first_seat) party->first_seat = seat;
    party->seat_count++;
    const char *text = agreement_broken(root, party, &party->said, root->scratch, sizeof root->scratch);
    if (text) {
      root_fail(root, ncclInvalidUsage, "%s", text);
      return;
    }
    if (seat >= root->seat_count) {
      root_fail(root, ncclInvalidUsage, "%s: rank %u is none of %u ranks; ranks count from 0",
                party_text(party, who, sizeof who), seat, root->seat_count);
      return;
    }
    if (root->seats[seat]) {
      root_fail(root, ncclInvalidUsage,
                "rank %u came twice, from %s and from %s; give every rank a number of its own", seat,
                party_text(root->parties[root->seats[seat] - 1], other, sizeof other),
                party_text(party, who, sizeof who));
      return;
    }
    root->seats[seat] = party->place + 1;
    root->present++;
  }
  if (root->present == root->seat_count) root_complete(root);
}

static void party_agree(struct root *root, struct root_party *party, struct wire_reader *reader) {
  struct wire_verdict said;
  char who[256];
  if (root->phase != ROOT_EXCHANGE || !wire_take(reader, &said, sizeof said)) return;
  if (said.turn != root->agree_turn + 1 || party->agree_turn >= said.turn) {
    root_fail(root, ncclInternalError, "%s speaks out of turn", party_text(party, who, sizeof who));
    return;
  }
  party->agree_turn = said.turn;
  if (said.code != ncclSuccess && (root->agree_code == ncclSuccess || party->number < root->agree_party)) {
    root->agree_code = said.code;
    root->agree_party = party->number;
    root->agree_about = said.party < root->party_count ? said.party : party->number;
    wire_take_text(reader, root->scratch, sizeof root->scratch);
    snprintf(root->agree_text, sizeof root->agree_text, "%s", root->scratch);
  }
  if (++root->agree_count < root->party_count) {
    if (root->left == 0) return;
    root_fail(root, ncclRemoteError, "a process left before all had agreed");
    return;
  }
  const struct wire_verdict verdict = {said.turn, root->agree_code, root->agree_about, 0};
  root_send_all(root, FRAME_VERDICT, &verdict, sizeof verdict, root->agree_text);
  root->agree_turn = said.turn;
  root->agree_count = 0;
  root->agree_code = ncclSuccess;
  root->agree_text[0] = '\0';
}

static void party_suspects(struct root *root, struct wire_reader *reader) {
  uint64_t uid;
  if (root->phase == ROOT_FAILED || root->suspect_ns || !wire_take(reader, &uid, sizeof uid)) return;
  wire_take_text(reader, root->suspicion, sizeof root->suspicion);
  root->suspect_ns = os_time_ns() + SUSPECT_NS;
  control_wake();
}

static void party_fails(struct root *root, struct wire_reader *reader) {
  struct wire_fail fail;
  if (!wire_take(reader, &fail, sizeof fail)) return;
  wire_take_text(reader, root->scratch, sizeof root->scratch);
  const bool known = fail.code > ncclSuccess && fail.code < ncclNumResults;
  root_fail(root, known ? (ncclResult_t)fail.code : ncclRemoteError, "%s", root->scratch);
}

static void root_retire(struct root *root);

/* why: NULL for a goodbye. */
static void party_gone(struct root *root, struct root_party *party, const char *why) {
  char who[256];
  if (!party->conn) return;
  party->conn = NULL;
  root->left++;
  root->live--;
  party_text(party, who, sizeof who);
  if (root->relay) {
    root_retire(root); /* the first root judges */
    return;
  }
  if (root->phase == ROOT_FILLING) {
    root_fail(root, ncclRemoteError, "%s %s before all %u ranks had come", who, why ? why : "left",
              root->seat_count);
  } else if (root->phase == ROOT_EXCHANGE && why) {
    root_fail(root, ncclRemoteError, "%s %s while the communicator was made", who, why);
  } else if (root->phase == ROOT_EXCHANGE && root->agree_count > 0 && party->agree_turn == root->agree_turn) {
    root_fail(root, ncclRemoteError, "%s left before all had agreed", who);
  }
  root_retire(root);
}

void root_party_frame(struct root_party *party, uint32_t kind, struct wire_reader *reader) {
  struct root *root = party->root;
  root->bytes += reader->left + sizeof(struct frame_head);
  if (root->relay) root_relay_up(root, party, kind, reader);
  else if (kind == FRAME_SEATS) party_seats(root, party, reader);
  else if (kind == FRAME_AGREE) party_agree(root, party, reader);
  else if (kind == FRAME_SUSPECT) party_suspects(root, reader);
  else if (kind == FRAME_FAIL) party_fails(root, reader);
}

void root_party_gone(struct root_party *party, const char *why) {
  struct root *root = party->root;
  if (root->relay && party->conn) {
    struct wire_reader reader = {(const uint8_t *)why, why ? strlen(why) : 0};
    root_relay_up(root, party, why ? FRAME_GONE : FRAME_GOODBYE, &reader);
  }
  party_gone(root, party, why);
}

/* ---- checking in ---- */

static bool root_begin(struct root *root, const struct wire_check_in *said) {
  root->seats = (uint32_t *)os_alloc(said->seat_count * sizeof *root->seats);
  if (!root->seats) return false;
  root->phase = ROOT_FILLING;
  root->seat_count = said->seat_count;
  root->signature = said->signature;
  root->relay = !said->first && !control_is_own(&said->first_root);
  root->first_root = said->first_root;
  root->begin_ns = os_time_ns();
  root->due_ns = root->begin_ns + (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * SECOND_NS;
  root->status_gap_ns = STATUS_FIRST_NS;
  root->status_ns = root->begin_ns + STATUS_FIRST_NS;
  control_wake();
  return true;
}

static struct root_party *party_add(struct root *root, struct control_conn *conn,
                                    const struct wire_check_in *said) {
  if (root->party_count == root->party_room) {
    const uint32_t room = root->party_room ? root->party_room * 2 : 16;
    struct root_party **grown =
        (struct root_party **)os_realloc(root->parties, room * sizeof(struct root_party *));
    if (!grown) return NULL;
    root->parties = grown;
    root->party_room = room;
  }
  struct root_party *party = (struct root_party *)os_alloc(sizeof *party);
  if (!party) return NULL;
  party->root = root;
  party->conn = conn;
  party->said = *said;
  party->about.uid = said->uid;
  party->about.address = said->address;
  party->about.pid = said->pid;
  memcpy(party->about.host, said->host, sizeof party->about.host);
  text_clean(party->about.host, sizeof party->about.host);
  party->place = root->party_count;
  root->parties[root->party_count++] = party;
  root->live++;
  return party;
}

/* NCCL_COMM_ID names one communicator after another: the last one goes on without its name. */
static struct root *root_renew(struct root *root) {
  struct root *fresh = root_create(root->key);
  root->detached = true;
  if (fresh) fresh->registered = fresh->lasting = true;
  if (fresh) fresh->over = root->over;
  root_retire(root);
  return fresh;
}

/* The root that this check-in is for; NULL, with a code and a sentence, when there is none. */
static struct root *root_for(uint64_t key, const struct wire_check_in *said, ncclResult_t *code,
                             const char **why) {
  struct root *root = root_find(key);
  *code = ncclInvalidUsage;
  if (root && root->lasting && root->phase == ROOT_EXCHANGE) root = root_renew(root);
  if (!root && (said->child || (!said->first && !control_is_own(&said->first_root)))) {
    root = root_create(key);
    if (root) root->lasting = said->child && said->lasting;
  }
  if (!root) {
    *why =
        "no communicator is being made here under this unique id: it has made one, or failed to, before, "
        "or was never made; get a new one with ncclGetUniqueId";
    return NULL;
  }
  if (root->over && root->phase != ROOT_FAILED && !root->lasting) {
    *why = "this unique id has made a communicator before; get a new one with ncclGetUniqueId";
    return NULL;
  }
  if (root->phase == ROOT_EXCHANGE) {
    *why =
        "all ranks of this communicator have come already; give every rank a number of its own, and every "
        "communicator a unique id of its own";
    return NULL;
  }
  if (root->phase == ROOT_FAILED) {
    *code = root->code;
    *why = root->reason;
    return NULL;
  }
  if (root->phase == ROOT_EMPTY && !root_begin(root, said)) {
    *code = ncclSystemError;
    *why = "the root has no memory for so many ranks";
    return NULL;
  }
  return root;
}

struct root_party *root_check_in(struct control_conn *conn, bool relayed, struct wire_reader *body,
                                 ncclResult_t *code, const char **why) {
  struct wire_check_in said;
  struct wire_reader reader = *body;
  *code = ncclInvalidUsage;
  *why = "a check-in that cannot be read; load the same library everywhere";
  if (!wire_take(&reader, &said, sizeof said) || said.seat_count == 0 || said.seat_count > SEATS_MOST)
    return NULL;
  said.host[sizeof said.host - 1] = '\0';
  said.first = said.first || relayed;
  struct root *root = root_for(conn->key, &said, code, why);
  if (!root) return NULL;
  *code = ncclSystemError;
  *why = "the root has no memory for another process";
  struct root_party *party = root->party_count < PARTIES_MOST ? party_add(root, conn, &said) : NULL;
  if (!party) return NULL;
  root->bytes += body->left + sizeof(struct frame_head);
  if (!root->called && root->registered && said.process != control_process()) {
    root->called = root->call_due = true;
    control_wake();
  }
  if (root->relay) {
    root_relay_open(root);
    root_relay_up(root, party, FRAME_CHECK_IN, body);
  }
  return party;
}

/* ---- connections of parties ---- */

static uint32_t party_limit(struct control_conn *conn, uint32_t kind) {
  const struct root_party *party = (const struct root_party *)conn->owner;
  if (kind == FRAME_RELAY && !party) return root_relay_limit();
  if (!party) return kind == FRAME_CHECK_IN && !conn->number ? sizeof(struct wire_check_in) : CONTROL_UNKNOWN;
  switch (kind) {
    case FRAME_SEATS: return party->said.seat_count * (uint32_t)sizeof(uint32_t);
    case FRAME_AGREE: return sizeof(struct wire_verdict) + WIRE_TEXT_MOST;
    case FRAME_SUSPECT: return sizeof(uint64_t) + WIRE_TEXT_MOST;
    case FRAME_FAIL: return sizeof(struct wire_fail) + WIRE_TEXT_MOST;
    default: return CONTROL_UNKNOWN;
  }
}

static void party_frame(struct control_conn *conn, uint32_t kind, const uint8_t *body, uint32_t bytes) {
  struct wire_reader reader = {body, bytes};
  if (conn->owner) {
    root_party_frame((struct root_party *)conn->owner, kind, &reader);
    return;
  }
  if (kind == FRAME_RELAY) {
    conn->number = conn->beats = true;
    root_relayed(conn, &reader);
    return;
  }
  ncclResult_t code;
  const char *why;
  struct root_party *party = root_check_in(conn, false, &reader, &code, &why);
  if (!party) {
    conn_refuse(conn, code, why);
    return;
  }
  conn->owner = party;
  conn->beats = true;
}

static void party_conn_gone(struct control_conn *conn, const char *why) {
  if (conn->owner) root_party_gone((struct root_party *)conn->owner, why);
  else if (conn->number) root_relay_lost(conn, why);
}

static const struct control_class party_class = {"check-in", party_limit, party_frame, party_conn_gone, true};

const char *root_accept(struct control_conn *conn) {
  conn->conn_class = &party_class;
  conn->owner = NULL;
  return NULL;
}

/* ---- time, and the end ---- */

static void root_retire(struct root *root) {
  if (root->live > 0 || root->calling) return;
  if (root->registered && !root->over && !root->detached) return;
  if (root->phase == ROOT_FAILED && !root->detached && os_time_ns() < root->due_ns) return;
  root->doomed = true; /* its tick frees it: callers still hold it */
  control_wake();
}

static void root_status(struct root *root, uint64_t now_ns) {
  char missing[256];
  uint8_t *taken = (uint8_t *)os_alloc(root->seat_count);
  root->status_ns = now_ns + root->status_gap_ns;
  if (root->status_gap_ns < STATUS_MOST_NS) root->status_gap_ns *= 2;
  if (!taken) return;
  for (uint32_t i = 0; i < root->seat_count; i++) taken[i] = root->seats[i] != 0;
  wire_seats_text(taken, false, root->seat_count, missing, sizeof missing);
  os_free(taken);
  const uint32_t seconds = (uint32_t)((now_ns - root->begin_ns) / SECOND_NS);
  if (now_ns >= root->due_ns) {
    root_fail(root, ncclRemoteError,
              "%u of %u ranks came within %u seconds; missing: rank %s; look there first, or raise "
              "TUTTI_INIT_TIMEOUT_SECONDS",
              root->present, root->seat_count, seconds, missing);
    return;
  }
  const struct wire_status status = {seconds, root->present, root->seat_count, 0};
  root_send_all(root, FRAME_STATUS, &status, sizeof status, missing);
}

static uint64_t root_tick_one(struct root *root, uint64_t now_ns) {
  if (root->suspect_ns && now_ns >= root->suspect_ns) {
    root->suspect_ns = 0;
    root_fail(root, ncclRemoteError, "%s", root->suspicion);
  }
  if (root->phase == ROOT_FILLING && !root->relay) {
    if (now_ns >= root->due_ns || now_ns >= root->status_ns) root_status(root, now_ns);
    return now_ns + SECOND_NS / 4;
  }
  if (root->phase == ROOT_FAILED && now_ns >= root->due_ns) root_retire(root);
  if (root->suspect_ns) return root->suspect_ns;
  return root->phase == ROOT_FAILED ? now_ns + SECOND_NS : UINT64_MAX;
}

/* Its own ranks must come too: said without the lock, which the answer may need. */
static bool root_call_due(void) {
  for (struct root *root = roots; root; root = root->next) {
    if (!root->call_due) continue;
    const uint64_t key = root->key;
    void (*called)(uint64_t) = root_called;
    root->call_due = false;
    control_unlock();
    if (called) called(key);
    control_lock();
    return true;
  }
  return false;
}

uint64_t root_tick(uint64_t now_ns) {
  uint64_t next_ns = UINT64_MAX;
  while (root_call_due()) continue;
  struct root *next;
  for (struct root *root = roots; root; root = next) {
    next = root->next;
    const uint64_t due_ns = root_tick_one(root, now_ns);
    if (due_ns < next_ns) next_ns = due_ns;
    if (root->doomed) {
      if (root->up) control_end(root->up);
      root_free(root);
    }
  }
  return next_ns;
}

void root_stop(void) {
  while (roots) root_free(roots);
}

void root_forget(void) { root_stop(); }

/* ---- ids ---- */

/* The oldest id that nobody has asked for: roots are listed from the newest. */
static struct root *root_idle(void) {
  struct root *idle = NULL;
  for (struct root *root = roots; root; root = root->next) {
    if (root->registered && root->phase == ROOT_EMPTY && !root->over) idle = root;
  }
  return idle;
}

ncclResult_t root_register(uint64_t key, bool lasting, bool *dropped) {
  *dropped = false;
  control_lock();
  struct root *root = root_find(key);
  if (root && lasting && root->phase >= ROOT_EXCHANGE) root = root_renew(root);
  struct root *idle = !root && root_count >= ROOTS_MOST ? root_idle() : NULL;
  if (idle) {
    root_free(idle);
    *dropped = true;
  }
  if (!root) root = root_create(key);
  if (root) {
    root->registered = true;
    root->lasting = lasting;
    root->over = false;
  }
  control_unlock();
  if (root) return ncclSuccess;
  return log_fail(ncclSystemError, "no memory for the root of a unique id; free some and try again");
}

uint64_t root_waiting(void) {
  uint64_t key = 0;
  control_lock();
  for (const struct root *root = roots; root && key == 0; root = root->next)
    if (root->registered && !root->over) key = root->key;
  control_unlock();
  return key;
}

bool root_over(uint64_t key) {
  control_lock();
  struct root *root = root_find(key);
  const bool held = root && root->registered && !root->over;
  if (held) {
    root->over = true;
    if (root->phase == ROOT_FAILED) root->due_ns = os_time_ns() + KEEP_NS;
    root_retire(root);
  }
  control_unlock();
  return held;
}

uint64_t root_bytes(uint64_t key) {
  control_lock();
  const struct root *root = root_find(key);
  const uint64_t bytes = root ? root->bytes : 0;
  control_unlock();
  return bytes;
}
