/* root.c: the root's side of a gather: which ranks have checked in, what they reported, which are missing.
 * Processes check in at any time and in any order, over connections that stay open until they leave, so that
 * any failure is reported to all: a contradiction, the deadline, a lost process. Runs on the server's thread.
 * Does not interpret peer info. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "core/bootstrap/control_conn.h"
#include "core/bootstrap/root.h"

#define ROOTS_MOST 4096u
#define PROCESSES_MOST (1u << 16)
#define RANKS_MOST (1u << 20)
#define ROOTS_BY_ONE_MOST 64u /* not registered, by the processes of one id or communicator */
#define SECOND_NS 1000000000ull
#define STATUS_FIRST_NS (5 * SECOND_NS)
#define STATUS_MOST_NS (60 * SECOND_NS)
#define SUSPECT_NS (SECOND_NS / 3) /* wait for a more specific reason than a broken link */
#define KEEP_NS (60 * SECOND_NS)   /* time to keep an agreement for processes that come later */
#define UNREAD_BYTES_MOST ((size_t)64 << 20)

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
  return root && root->registered && !root->over && root->phase < ROOT_ALLGATHER;
}

/* `let_in`: the key that processes must prove to check in. */
static struct root *root_create(uint64_t key, uint64_t let_in) {
  if (root_count >= ROOTS_MOST) return NULL;
  struct root *root = (struct root *)os_alloc(sizeof *root);
  if (!root) return NULL;
  root->key = key;
  root->let_in = let_in;
  root->next = roots;
  roots = root;
  root_count++;
  return root;
}

static void root_free(struct root *root) {
  struct root **link = &roots;
  while (*link != root) link = &(*link)->next;
  *link = root->next;
  for (uint32_t i = 0; i < root->process_count; i++) os_free(root->processes[i]);
  os_free(root->processes);
  os_free(root->ranks);
  wire_free(&root->pending);
  explicit_bzero(root, sizeof *root);
  os_free(root);
  root_count--;
}

/* ---- texts ---- */

/* "rank 3 (process 4711 on host b, 10.0.0.2:4000)". */
static const char *process_text(const struct root_process *process, char *text, size_t bytes) {
  char at[SOCK_TEXT_BYTES];
  size_t used = 0;
  if (process->rank_count > 0) used = (size_t)snprintf(text, bytes, "rank %u", process->first_rank);
  if (process->rank_count > 1 && used < bytes)
    used += (size_t)snprintf(text + used, bytes - used, " and %u more", process->rank_count - 1);
  if (used < bytes) {
    snprintf(text + used, bytes - used, "%sprocess %u on host %s, %s%s", used ? " (" : "", process->about.pid,
             process->about.host, sock_address_text(&process->about.address, at), used ? ")" : "");
  }
  return text;
}

/* ---- messages to processes ---- */

static void process_send(const struct root_process *process, enum frame_kind kind, const void *head,
                         size_t head_bytes, const void *body, size_t bytes) {
  if (!process->conn) return;
  if (!process->forwarded) {
    process->root->bytes += sizeof(struct frame_head) + head_bytes + bytes;
    control_send(process->conn, kind, head, head_bytes, body, bytes);
    return;
  }
  struct wire_writer writer = {NULL, 0, 0, false};
  const struct wire_forward forward = {process->about.uid, (uint32_t)kind, 0};
  wire_put(&writer, &forward, sizeof forward);
  wire_put(&writer, head, head_bytes);
  if (!writer.failed) control_send(process->conn, FRAME_FORWARD, writer.bytes, writer.used, body, bytes);
  wire_free(&writer);
}

static void root_send_all(struct root *root, enum frame_kind kind, const void *head, size_t head_bytes,
                          const char *text) {
  for (uint32_t i = 0; i < root->process_count; i++) {
    process_send(root->processes[i], kind, head, head_bytes, text, strlen(text));
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

/* Refuses a connection that belongs to no root. */
static void conn_refuse(struct control_conn *conn, ncclResult_t code, const char *text) {
  const struct wire_fail fail = {0, (int32_t)code, 0};
  control_send(conn, FRAME_FAIL, &fail, sizeof fail, text, strlen(text));
  control_end(conn);
}

static void root_process_refuse(struct root_process *process, ncclResult_t code, const char *text) {
  const struct wire_fail fail = {0, (int32_t)code, 0};
  process_send(process, FRAME_FAIL, &fail, sizeof fail, text, strlen(text));
}

/* ---- the roster ---- */

static void process_send_roster(const struct root *root, const struct root_process *process) {
  struct wire_roster roster = {process->number, root->process_count, 0, 0, root->instance};
  struct wire_writer writer = {NULL, 0, 0, false};
  for (uint32_t distance = 1; distance < root->process_count; distance *= 2) {
    const uint32_t to = (process->number + root->process_count - distance) % root->process_count;
    wire_put(&writer, &root->processes[to]->about, sizeof root->processes[to]->about);
    roster.round_count++;
  }
  if (writer.failed) {
    root_process_refuse((struct root_process *)process, ncclSystemError,
                        "the root's answer" LOG_OUT_OF_MEMORY);
  } else {
    process_send(process, FRAME_ROSTER, &roster, sizeof roster, writer.bytes, writer.used);
  }
  wire_free(&writer);
}

/* Numbers processes by their lowest ranks, so that numbers depend only on which process has which ranks. */
static void root_complete(struct root *root) {
  uint32_t number = 0;
  for (uint32_t rank = 0; rank < root->rank_count; rank++) {
    struct root_process *process = root->processes[root->ranks[rank] - 1];
    if (process->first_rank == rank) process->number = number++;
  }
  if (number != root->process_count) {
    root_fail(root, ncclInternalError, "a process came without a rank");
    return;
  }
  root->phase = ROOT_ALLGATHER;
  root->instance = os_entropy();
  log_info(LOG_BOOTSTRAP, "gather %llx: all %u ranks of %u processes have come",
           (unsigned long long)root->key, root->rank_count, root->process_count);
  /* ranks[] refers to processes by place, which changes; it is not needed any more. */
  os_free(root->ranks);
  root->ranks = NULL;
  for (uint32_t i = 0; i < root->process_count;) {
    struct root_process *process = root->processes[i];
    if (process->number == i) {
      i++;
      continue;
    }
    root->processes[i] = root->processes[process->number];
    root->processes[process->number] = process;
  }
  for (uint32_t i = 0; i < root->process_count; i++) process_send_roster(root, root->processes[i]);
}

/* ---- messages from processes ---- */

static const char *agreement_broken(const struct root *root, const struct root_process *process,
                                    const struct wire_check_in *said, char *text, size_t bytes) {
  char who[256];
  process_text(process, who, sizeof who);
  if (said->version != NCCL_VERSION_CODE) {
    snprintf(text, bytes, "%s is of version %u, others are of %d; load the same library everywhere", who,
             said->version, NCCL_VERSION_CODE);
  } else if (said->rank_count != root->rank_count) {
    snprintf(text, bytes, "%s says %u ranks, others say %u; pass the same number on every rank", who,
             said->rank_count, root->rank_count);
  } else if (said->signature != root->signature) {
    snprintf(text, bytes,
             "%s passes another list (of ids, or of ranks to exclude) than others, or makes another call; do "
             "the same on every rank",
             who);
  } else {
    return NULL;
  }
  return text;
}

static void process_ranks(struct root *root, struct root_process *process, struct wire_reader *reader) {
  char who[256], other[256];
  uint32_t rank;
  if (root->phase != ROOT_FILLING) return;
  while (wire_take(reader, &rank, sizeof rank)) {
    if (process->rank_count == 0 || rank < process->first_rank) process->first_rank = rank;
    process->rank_count++;
    const char *text = agreement_broken(root, process, &process->said, root->scratch, sizeof root->scratch);
    if (text) {
      root_fail(root, ncclInvalidUsage, "%s", text);
      return;
    }
    if (rank >= root->rank_count) {
      root_fail(root, ncclInvalidUsage, "%s: rank %u is none of %u ranks; ranks count from 0",
                process_text(process, who, sizeof who), rank, root->rank_count);
      return;
    }
    if (root->ranks[rank]) {
      root_fail(root, ncclInvalidUsage,
                "rank %u came twice, from %s and from %s; give every rank a number of its own", rank,
                process_text(root->processes[root->ranks[rank] - 1], other, sizeof other),
                process_text(process, who, sizeof who));
      return;
    }
    root->ranks[rank] = process->place + 1;
    root->present++;
  }
  log_trace(LOG_BOOTSTRAP, "gather %llx: %s has come: %u of %u ranks are here", (unsigned long long)root->key,
            process_text(process, who, sizeof who), root->present, root->rank_count);
  if (root->present == root->rank_count) root_complete(root);
}

static void process_agree(struct root *root, struct root_process *process, struct wire_reader *reader) {
  struct wire_agreement said;
  char who[256];
  if (root->phase != ROOT_ALLGATHER || !wire_take(reader, &said, sizeof said)) return;
  if (said.turn != root->agree_turn + 1 || process->agree_turn >= said.turn) {
    root_fail(root, ncclInternalError, "%s speaks out of turn", process_text(process, who, sizeof who));
    return;
  }
  process->agree_turn = said.turn;
  if (said.code != ncclSuccess &&
      (root->agree_code == ncclSuccess || process->number < root->agree_process)) {
    root->agree_code = said.code;
    root->agree_process = process->number;
    root->agree_about = said.process_index < root->process_count ? said.process_index : process->number;
    root->agree_detail = said.detail;
    wire_take_text(reader, root->scratch, sizeof root->scratch);
    snprintf(root->agree_text, sizeof root->agree_text, "%s", root->scratch);
  }
  if (++root->agree_count < root->process_count) {
    if (root->left == 0) return;
    root_fail(root, ncclRemoteError, "a process left before all had agreed");
    return;
  }
  const struct wire_agreement agreement = {said.turn, root->agree_code, root->agree_about, 0,
                                           root->agree_detail};
  root_send_all(root, FRAME_AGREED, &agreement, sizeof agreement, root->agree_text);
  root->agree_turn = said.turn;
  root->agree_count = 0;
  root->agree_code = ncclSuccess;
  root->agree_text[0] = '\0';
}

static void process_suspects(struct root *root, struct wire_reader *reader) {
  uint64_t uid;
  if (root->phase == ROOT_FAILED || root->suspect_ns || !wire_take(reader, &uid, sizeof uid)) return;
  wire_take_text(reader, root->suspicion, sizeof root->suspicion);
  root->suspect_ns = os_time_ns() + SUSPECT_NS;
  control_wake();
}

static void process_fails(struct root *root, struct wire_reader *reader) {
  struct wire_fail fail;
  if (!wire_take(reader, &fail, sizeof fail)) return;
  wire_take_text(reader, root->scratch, sizeof root->scratch);
  const bool known = fail.code > ncclSuccess && fail.code < ncclNumResults;
  root_fail(root, known ? (ncclResult_t)fail.code : ncclRemoteError, "%s", root->scratch);
}

static void root_retire(struct root *root);

/* why: NULL after a goodbye. */
static void process_gone(struct root *root, struct root_process *process, const char *why) {
  char who[256];
  if (!process->conn) return;
  process->conn = NULL;
  root->left++;
  root->live--;
  process_text(process, who, sizeof who);
  if (root->forwards) {
    root_retire(root); /* the first root handles it */
    return;
  }
  if (root->phase == ROOT_FILLING) {
    root_fail(root, ncclRemoteError, "%s %s before all %u ranks had come", who, why ? why : "left",
              root->rank_count);
  } else if (root->phase == ROOT_ALLGATHER && why) {
    root_fail(root, ncclRemoteError, "%s %s while the communicator was made", who, why);
  } else if (root->phase == ROOT_ALLGATHER && root->agree_count > 0 &&
             process->agree_turn == root->agree_turn) {
    root_fail(root, ncclRemoteError, "%s left before all had agreed", who);
  }
  root_retire(root);
}

void root_process_frame(struct root_process *process, uint32_t kind, struct wire_reader *reader) {
  struct root *root = process->root;
  root->bytes += reader->left + sizeof(struct frame_head);
  if (root->forwards) root_forward_up(root, process, kind, reader);
  else if (kind == FRAME_RANKS) process_ranks(root, process, reader);
  else if (kind == FRAME_AGREE) process_agree(root, process, reader);
  else if (kind == FRAME_SUSPECT) process_suspects(root, reader);
  else if (kind == FRAME_FAIL) process_fails(root, reader);
}

void root_process_gone(struct root_process *process, const char *why) {
  struct root *root = process->root;
  if (root->forwards && process->conn) {
    struct wire_reader reader = {(const uint8_t *)why, why ? strlen(why) : 0};
    root_forward_up(root, process, why ? FRAME_GONE : FRAME_GOODBYE, &reader);
  }
  process_gone(root, process, why);
}

/* ---- checking in ---- */

static bool root_begin(struct root *root, const struct wire_check_in *said) {
  root->ranks = (uint32_t *)os_alloc(said->rank_count * sizeof *root->ranks);
  if (!root->ranks) return false;
  root->phase = ROOT_FILLING;
  root->rank_count = said->rank_count;
  root->signature = said->signature;
  root->forwards = !said->first && !control_is_own(&said->first_root);
  root->first_root = said->first_root;
  root->first_forward = said->forward;
  root->begin_ns = os_time_ns();
  root->due_ns = root->begin_ns + (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * SECOND_NS;
  root->status_gap_ns = STATUS_FIRST_NS;
  root->status_ns = root->begin_ns + STATUS_FIRST_NS;
  control_wake();
  return true;
}

static struct root_process *process_add(struct root *root, struct control_conn *conn,
                                        const struct wire_check_in *said) {
  if (!array_grow(&root->processes, &root->process_capacity, (uint64_t)root->process_count + 1,
                  sizeof *root->processes))
    return NULL;
  struct root_process *process = (struct root_process *)os_alloc(sizeof *process);
  if (!process) return NULL;
  process->root = root;
  process->conn = conn;
  process->said = *said;
  process->about.uid = said->uid;
  process->about.address = said->address;
  process->about.pid = said->pid;
  memcpy(process->about.host, said->host, sizeof process->about.host);
  text_clean(process->about.host, sizeof process->about.host);
  process->place = root->process_count;
  root->processes[root->process_count++] = process;
  root->live++;
  return process;
}

/* NCCL_COMM_ID names one communicator after another: the previous root continues without its key. */
static struct root *root_renew(struct root *root) {
  struct root *fresh = root_create(root->key, root->let_in);
  root->detached = true;
  if (fresh) fresh->secret = root->secret;
  if (fresh) fresh->forward = root->forward;
  if (fresh) fresh->registered = fresh->lasting = true;
  if (fresh) fresh->over = root->over;
  root_retire(root);
  return fresh;
}

/* How many roots of splits, or roots that forward, processes with this key have opened. */
static uint32_t roots_by(uint64_t let_in) {
  uint32_t count = 0;
  for (const struct root *root = roots; root; root = root->next)
    count += root->let_in == let_in && !root->registered;
  return count;
}

/* Opens a root that this process has not registered: of a split, for members of its parent; of a grow, for
 * those who know its secret; or one that forwards, for those who know an id of this process. */
static struct root *root_open_for(uint64_t let_in, const struct wire_check_in *said) {
  const struct root *id = root_find(let_in);
  const bool forwards = !said->first && !control_is_own(&said->first_root);
  const bool allowed = id ? forwards && !id->lasting : said->child != 0;
  return allowed && roots_by(let_in) < ROOTS_BY_ONE_MOST ? root_create(said->key, let_in) : NULL;
}

/* The root for this check-in; NULL, with a code and a message, if there is none. */
static struct root *root_for(uint64_t let_in, const struct wire_check_in *said, ncclResult_t *code,
                             const char **why) {
  struct root *root = root_find(said->key);
  *code = ncclInvalidUsage;
  if (root && root->let_in != let_in && root->forward_key != let_in) {
    *why = "this process is no member of what it checks in for";
    return NULL;
  }
  if (root && root->lasting && root->phase == ROOT_ALLGATHER) root = root_renew(root);
  if (!root) root = root_open_for(let_in, said);
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
  if (root->phase == ROOT_ALLGATHER) {
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
    *why = "so many ranks at the root" LOG_OUT_OF_MEMORY;
    return NULL;
  }
  return root;
}

bool root_secret(uint64_t key, bool local, struct secret *secret) {
  for (const struct root *root = roots; root; root = root->next) {
    if (root->detached || !root->registered || (local && !root->local)) continue;
    if (root->key == key) *secret = root->secret;
    else if (root->forward_key == key) *secret = root->forward;
    else continue;
    /* The id's text may be guessed: nobody can prove a random secret. */
    if (root->local && !local && !handshake_secret()) return secret_draw(secret);
    return true;
  }
  return false;
}

struct root_process *root_check_in(struct control_conn *conn, bool forwarded, struct wire_reader *body,
                                   ncclResult_t *code, const char **why) {
  struct wire_check_in said;
  struct wire_reader reader = *body;
  *code = ncclInvalidUsage;
  *why = "a check-in that cannot be read; load the same library everywhere";
  if (!wire_take(&reader, &said, sizeof said) || said.rank_count == 0 || said.rank_count > RANKS_MOST)
    return NULL;
  said.host[sizeof said.host - 1] = '\0';
  said.first = said.first || forwarded;
  struct root *root = root_for(conn->key, &said, code, why);
  if (!root) return NULL;
  *code = ncclSystemError;
  *why = "another process at the root" LOG_OUT_OF_MEMORY;
  struct root_process *process = root->process_count < PROCESSES_MOST ? process_add(root, conn, &said) : NULL;
  if (!process) return NULL;
  root->bytes += body->left + sizeof(struct frame_head);
  if (!root->called && root->registered && said.process != control_process()) {
    root->called = root->call_due = true;
    control_wake();
  }
  if (root->forwards) {
    root_forward_open(root);
    root_forward_up(root, process, FRAME_CHECK_IN, body);
  }
  return process;
}

/* ---- connections of processes ---- */

static uint32_t process_limit(struct control_conn *conn, uint32_t kind) {
  const struct root_process *process = (const struct root_process *)conn->owner;
  if (kind == FRAME_FORWARD && !process) return root_forward_limit();
  if (!process)
    return kind == FRAME_CHECK_IN && !conn->number ? sizeof(struct wire_check_in) : CONTROL_UNKNOWN;
  switch (kind) {
    case FRAME_RANKS: return process->said.rank_count * (uint32_t)sizeof(uint32_t);
    case FRAME_AGREE: return sizeof(struct wire_agreement) + WIRE_TEXT_MOST;
    case FRAME_SUSPECT: return sizeof(uint64_t) + WIRE_TEXT_MOST;
    case FRAME_FAIL: return sizeof(struct wire_fail) + WIRE_TEXT_MOST;
    default: return CONTROL_UNKNOWN;
  }
}

static void process_frame(struct control_conn *conn, uint32_t kind, const uint8_t *body, uint32_t bytes) {
  struct wire_reader reader = {body, bytes};
  if (conn->owner) {
    root_process_frame((struct root_process *)conn->owner, kind, &reader);
    return;
  }
  if (kind == FRAME_FORWARD) {
    conn->number = conn->beats = true;
    root_forwarded(conn, &reader);
    return;
  }
  ncclResult_t code;
  const char *why;
  struct root_process *process = root_check_in(conn, false, &reader, &code, &why);
  if (!process) {
    conn_refuse(conn, code, why);
    return;
  }
  conn->owner = process;
  conn->beats = true;
}

static void process_conn_gone(struct control_conn *conn, const char *why) {
  if (conn->owner) root_process_gone((struct root_process *)conn->owner, why);
  else if (conn->number) root_forward_lost(conn, why);
}

static const struct control_class process_class = {
    "check-in", process_limit, process_frame, process_conn_gone, true, UNREAD_BYTES_MOST, 0};

const char *root_accept(struct control_conn *conn) {
  conn->conn_class = &process_class;
  conn->owner = NULL;
  return NULL;
}

/* ---- time, and the end ---- */

static void root_retire(struct root *root) {
  if (root->live > 0 || root->calling) return;
  if (root->registered && !root->over && !root->detached) return;
  if (root->phase == ROOT_FAILED && !root->detached && os_time_ns() < root->due_ns) return;
  root->doomed = true; /* its tick frees it, because callers still use it */
  control_wake();
}

static void root_status(struct root *root, uint64_t now_ns) {
  char missing[256];
  uint8_t *taken = (uint8_t *)os_alloc(root->rank_count);
  root->status_ns = now_ns + root->status_gap_ns;
  if (root->status_gap_ns < STATUS_MOST_NS) root->status_gap_ns *= 2;
  if (!taken) return;
  for (uint32_t i = 0; i < root->rank_count; i++) taken[i] = root->ranks[i] != 0;
  wire_ranks_text(taken, false, root->rank_count, missing, sizeof missing);
  os_free(taken);
  const uint32_t seconds = (uint32_t)((now_ns - root->begin_ns) / SECOND_NS);
  if (now_ns >= root->due_ns) {
    root_fail(root, ncclRemoteError,
              "%u of %u ranks came within %u seconds; missing: rank %s; look there first, or raise "
              "TUTTI_INIT_TIMEOUT_SECONDS",
              root->present, root->rank_count, seconds, missing);
    return;
  }
  const struct wire_status status = {seconds, root->present, root->rank_count, 0};
  root_send_all(root, FRAME_STATUS, &status, sizeof status, missing);
}

static uint64_t root_tick_one(struct root *root, uint64_t now_ns) {
  if (root->suspect_ns && now_ns >= root->suspect_ns) {
    root->suspect_ns = 0;
    root_fail(root, ncclRemoteError, "%s", root->suspicion);
  }
  if (root->phase == ROOT_FILLING && !root->forwards) {
    if (now_ns >= root->due_ns || now_ns >= root->status_ns) root_status(root, now_ns);
    return now_ns + SECOND_NS / 4;
  }
  if (root->phase == ROOT_FAILED && now_ns >= root->due_ns) root_retire(root);
  if (root->suspect_ns) return root->suspect_ns;
  return root->phase == ROOT_FAILED ? now_ns + SECOND_NS : UINT64_MAX;
}

/* Requests this process's ranks to check in too; unlocked, because the callee may need the lock. */
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

/* The oldest id without a check-in; the list of roots is newest first. */
static struct root *root_idle(void) {
  struct root *idle = NULL;
  for (struct root *root = roots; root; root = root->next) {
    if (root->registered && root->phase == ROOT_EMPTY && !root->over) idle = root;
  }
  return idle;
}

ncclResult_t root_register(const struct secret *secret, bool lasting, bool local, bool *dropped) {
  const uint64_t key = secret_name(secret);
  *dropped = false;
  control_lock();
  struct root *root = root_find(key);
  if (root && lasting && root->phase >= ROOT_ALLGATHER) root = root_renew(root);
  struct root *idle = !root && root_count >= ROOTS_MOST ? root_idle() : NULL;
  if (idle) {
    root_free(idle);
    *dropped = true;
  }
  if (!root) root = root_create(key, key);
  if (root) {
    root->secret = *secret;
    root_forward_secret(secret, &root->forward);
    root->forward_key = secret_name(&root->forward);
    root->registered = true;
    root->lasting = lasting;
    root->local = local;
    root->over = false;
  }
  control_unlock();
  if (root) return ncclSuccess;
  return log_no_memory("the root of a unique id");
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
