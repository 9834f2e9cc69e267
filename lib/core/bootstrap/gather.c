/* gather.c: see gather.h: a gather's life, and its messages to and from its root. */
#include "core/bootstrap/gather_inner.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "core/bootstrap/control.h"
#include "core/bootstrap/root.h"

#define SECOND_NS 1000000000ull
#define GRACE_NS SECOND_NS /* wait for the root's message after a deadline */
#define OVERSLEPT_NS (SECOND_NS / 50)
#define TELL_NS (2 * SECOND_NS)
#define TRY_NS (5 * SECOND_NS) /* per attempt to connect to an address at which rank 0 may start */
#define PAUSE_LEAST_NS (SECOND_NS / 1000)
#define PAUSE_MOST_NS (SECOND_NS / 10)
#define STATUS_FIRST_NS (5 * SECOND_NS)
#define STATUS_MOST_NS (60 * SECOND_NS)
#define UNREAD_BYTES_MOST ((size_t)64 << 20)

static struct gather *gathers;

bool gather_secret(uint64_t uid, struct secret *secret) {
  const struct gather *gather = gather_find(uid);
  if (gather) *secret = gather->secret;
  return gather != NULL;
}

struct gather *gather_find(uint64_t uid) {
  struct gather *gather = gathers;
  while (gather && gather->uid != uid) gather = gather->next;
  return gather;
}

const char *wire_process_text(const struct wire_process *process, char *text, size_t bytes) {
  char at[SOCK_TEXT_BYTES];
  snprintf(text, bytes, "process %u on host %s (%s)", process->pid, process->host,
           sock_address_text(&process->address, at));
  return text;
}

/* ---- how it ends early ---- */

static void gather_end(struct gather *gather, ncclResult_t code, const char *text) {
  if (gather->code != ncclSuccess) return;
  gather->code = code;
  snprintf(gather->reason, sizeof gather->reason, "%s", text);
  __atomic_store_n(&gather->cancel, 1, __ATOMIC_RELEASE);
  os_cond_broadcast(&gather->changed);
}

static void gather_report(struct gather *gather, ncclResult_t code, const char *text) {
  const struct wire_fail fail = {0, (int32_t)code, 0};
  gather->reported = control_send(gather->root, FRAME_FAIL, &fail, sizeof fail, text, strlen(text));
}

void gather_fail(struct gather *gather, ncclResult_t code, const char *format, ...) {
  char text[WIRE_TEXT_MOST];
  va_list arguments;
  if (gather->code != ncclSuccess) return;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  gather_report(gather, code, text);
  gather_end(gather, code, text);
}

bool gather_await(struct gather *gather) {
  if (control_wait(&gather->changed, gather->deadline_ns)) return true;
  const uint64_t now_ns = os_time_ns();
  const bool slept = now_ns - gather->deadline_ns > OVERSLEPT_NS;
  if (slept) gather->deadline_ns = now_ns + GRACE_NS;
  return slept;
}

void gather_suspect(struct gather *gather, const struct wire_process *peer, const char *why) {
  char text[WIRE_TEXT_MOST], who[256];
  if (gather->code != ncclSuccess) return;
  snprintf(text, sizeof text, "%s %s", wire_process_text(peer, who, sizeof who), why);
  if (control_send(gather->root, FRAME_SUSPECT, &peer->uid, sizeof peer->uid, text, strlen(text))) {
    const uint64_t limit_ns = os_time_ns() + 2 * SECOND_NS;
    if (limit_ns < gather->deadline_ns) gather->deadline_ns = limit_ns;
    snprintf(gather->missing, sizeof gather->missing, "%.255s", text);
    os_cond_broadcast(&gather->changed);
  } else {
    gather_end(gather, ncclRemoteError, text);
  }
}

void gather_cancel(struct gather *gather, ncclResult_t code, const char *why) {
  control_lock();
  gather->cancelled = true;
  gather_fail(gather, code, "%s", why);
  control_unlock();
}

/* ---- messages from the root ---- */

static uint32_t root_limit(struct control_conn *conn, uint32_t kind) {
  (void)conn;
  switch (kind) {
    case FRAME_STATUS: return sizeof(struct wire_status) + WIRE_TEXT_MOST;
    case FRAME_ROSTER: return sizeof(struct wire_roster) + ROUNDS_MOST * sizeof(struct wire_process);
    case FRAME_AGREED: return sizeof(struct wire_agreement) + WIRE_TEXT_MOST;
    case FRAME_FAIL: return sizeof(struct wire_fail) + WIRE_TEXT_MOST;
    default: return CONTROL_UNKNOWN;
  }
}

static void roster_read(struct gather *gather, struct wire_reader *reader) {
  struct wire_roster roster;
  uint32_t rounds = 0;
  if (gather->rostered || !wire_take(reader, &roster, sizeof roster)) return;
  while (rounds < ROUNDS_MOST && 1u << rounds < roster.process_count) rounds++;
  const bool sane = roster.process_index < roster.process_count &&
                    roster.process_count <= gather->rank_count && roster.round_count == rounds &&
                    reader->left == rounds * sizeof(struct wire_process);
  if (!sane) {
    gather_fail(gather, ncclInternalError,
                "the root's answer cannot be read; load the same library everywhere");
    return;
  }
  for (uint32_t i = 0; i < rounds; i++) {
    wire_take(reader, &gather->to[i].peer, sizeof gather->to[i].peer);
    text_clean(gather->to[i].peer.host, sizeof gather->to[i].peer.host);
    gather->to[i].process_index =
        (roster.process_index + roster.process_count - (1u << i)) % roster.process_count;
  }
  gather->roster = roster;
  gather->rostered = true;
}

static void root_frame(struct control_conn *conn, uint32_t kind, const uint8_t *body, uint32_t bytes) {
  struct gather *gather = (struct gather *)conn->owner;
  struct wire_reader reader = {body, bytes};
  struct wire_agreement agreement;
  struct wire_fail fail;
  char text[WIRE_TEXT_MOST];
  if (!gather) return;
  gather->cost.received_bytes += bytes + sizeof(struct frame_head);
  if (kind == FRAME_ROSTER) {
    roster_read(gather, &reader);
  } else if (kind == FRAME_STATUS && wire_take(&reader, &gather->status, sizeof gather->status)) {
    wire_take_text(&reader, gather->missing, sizeof gather->missing);
    gather->status_new = true;
  } else if (kind == FRAME_AGREED && wire_take(&reader, &agreement, sizeof agreement)) {
    wire_take_text(&reader, gather->agree_text, sizeof gather->agree_text);
    gather->agree_code = agreement.code;
    gather->agree_about =
        agreement.process_index < gather->roster.process_count ? agreement.process_index : 0;
    gather->agree_detail = agreement.detail;
    gather->agree_turn = agreement.turn;
  } else if (kind == FRAME_FAIL && wire_take(&reader, &fail, sizeof fail)) {
    wire_take_text(&reader, text, sizeof text);
    const bool known = fail.code > ncclSuccess && fail.code < ncclNumResults;
    gather_end(gather, known ? (ncclResult_t)fail.code : ncclRemoteError, text);
  }
  os_cond_broadcast(&gather->changed);
}

static void root_gone(struct control_conn *conn, const char *why) {
  struct gather *gather = (struct gather *)conn->owner;
  char text[256], at[SOCK_TEXT_BYTES];
  if (!gather) return;
  gather->root = NULL;
  if (gather->fixed && !why && !gather->rostered) { /* its process was ending; a new server follows */
    os_cond_broadcast(&gather->changed);
    return;
  }
  snprintf(text, sizeof text, "the root at %s, the process that made the unique id, %s",
           sock_address_text(&gather->root_address, at), why ? why : "left before all were done");
  gather_end(gather, ncclRemoteError, text);
}

const struct control_class gather_root_class = {"root", root_limit,        root_frame, root_gone,
                                                false,  UNREAD_BYTES_MOST, 0};

/* ---- messages to the root ---- */

static ncclResult_t root_unreached(const struct sock_address *at, ncclResult_t result) {
  char why[WIRE_TEXT_MOST];
  snprintf(why, sizeof why, "%s", log_own_error());
  return log_fail(result, "%s; this root is gone or out of reach: look at what its process said last%s", why,
                  sock_is_loopback(at) ? ", and set NCCL_SOCKET_IFNAME there if it is on another host" : "");
}

ncclResult_t gather_dial(struct gather *gather, const struct sock_address *to, enum handshake_kind kind,
                         uint64_t key, const struct secret *secret, const char *what, int *fd,
                         struct session *session) {
  control_lock();
  const struct sock_wait wait = {gather->deadline_ns, &gather->cancel, what};
  control_unlock();
  enum handshake_refusal refusal = REFUSAL_NONE;
  const ncclResult_t result = handshake_connect(to, kind, key, secret, &wait, fd, session, &refusal);
  if (result == ncclSuccess || kind != HANDSHAKE_CHECK_IN) return result;
  if (refusal == REFUSAL_KEY) return ncclInvalidUsage;
  const bool called_off = __atomic_load_n(&gather->cancel, __ATOMIC_ACQUIRE) != 0;
  return refusal == REFUSAL_NONE && !called_off ? root_unreached(to, result) : result;
}

/* Distributes ranks evenly, in order: the first rank_count mod root_count roots have one more. */
static uint32_t root_of(uint32_t rank, uint32_t rank_count, uint32_t root_count) {
  const uint32_t each = rank_count / root_count, more = rank_count % root_count;
  const uint32_t wide = more * (each + 1);
  if (rank < wide) return rank / (each + 1);
  return each == 0 ? root_count - 1 : more + (rank - wide) / each;
}

static void ranks_send(struct gather *gather) {
  const uint32_t count = gather->own_count - gather->sent_count;
  if (!gather->root || count == 0) return;
  control_send(gather->root, FRAME_RANKS, NULL, 0, gather->own_ranks + gather->sent_count,
               count * sizeof(uint32_t));
  gather->sent_count = gather->own_count;
  gather->cost.sent_bytes += count * sizeof(uint32_t) + sizeof(struct frame_head);
}

static void check_in_send(struct gather *gather) {
  struct wire_check_in said;
  memset(&said, 0, sizeof said);
  said.uid = gather->uid;
  said.process = gather->process;
  said.signature = gather->signature;
  said.key = gather->key;
  said.version = NCCL_VERSION_CODE;
  said.rank_count = gather->rank_count;
  said.pid = (uint32_t)os_pid();
  said.child = gather->child;
  said.first = sock_address_equal(&gather->root_address, &gather->roots[0].address);
  said.lasting = gather->lasting;
  said.address = gather->address;
  said.first_root = gather->roots[0].address;
  if (!said.first) root_forward_secret(&gather->secret, &said.forward);
  os_host_name(said.host, sizeof said.host);
  control_send(gather->root, FRAME_CHECK_IN, NULL, 0, &said, sizeof said);
  secret_wipe(&said.forward);
  gather->cost.sent_bytes += sizeof said + sizeof(struct frame_head);
}

/* ---- opening and checking in ---- */

static void gather_free(struct gather *gather) {
  os_cond_destroy(&gather->changed);
  wire_free(&gather->own_infos);
  for (uint32_t i = 0; i < ROUNDS_MOST; i++) os_free(gather->raw[i]);
  os_free(gather->own_block);
  os_free((void *)gather->blocks);
  os_free(gather->ranks);
  os_free(gather->addresses);
  os_free(gather->own_ranks);
  if (gather->roots) explicit_bzero(gather->roots, gather->root_count * sizeof *gather->roots);
  os_free(gather->roots);
  secret_wipe(&gather->secret);
  os_free(gather);
}

static ncclResult_t gather_fill(struct gather *gather, const struct gather_call *call) {
  gather->roots = (struct gather_root *)os_alloc(call->root_count * sizeof *gather->roots);
  gather->own_ranks = (uint32_t *)os_alloc(call->rank_count * sizeof *gather->own_ranks);
  gather->root_count = call->root_count;
  if (!gather->roots || !gather->own_ranks)
    return log_no_memory("%s: gathering %u ranks", call->call, call->rank_count);
  memcpy(gather->roots, call->roots, call->root_count * sizeof *gather->roots);
  gather->call = call->call;
  gather->secret = call->secret;
  gather->key = secret_name(&call->secret);
  gather->signature = call->signature;
  gather->rank_count = call->rank_count;
  gather->child = call->child;
  gather->fixed = call->fixed;
  gather->lasting = call->lasting;
  while (gather->uid == 0) gather->uid = os_entropy();
  gather->deadline_ns =
      os_time_ns() + (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * SECOND_NS + GRACE_NS;
  return control_use(&gather->address);
}

ncclResult_t gather_open(const struct gather_call *call, struct gather **out) {
  if (call->root_count == 0 || call->root_count > call->rank_count || call->rank_count >> RANKS_MOST_BITS)
    return log_fail(ncclInternalError, "%s: %u roots for %u ranks", call->call, call->root_count,
                    call->rank_count);
  struct gather *gather = (struct gather *)os_alloc(sizeof *gather);
  if (!gather) return log_no_memory("%s: gathering %u ranks", call->call, call->rank_count);
  os_cond_init(&gather->changed);
  const ncclResult_t result = gather_fill(gather, call);
  if (result != ncclSuccess) {
    gather_free(gather);
    return result;
  }
  control_lock();
  gather->process = control_process();
  gather->next = gathers;
  gathers = gather;
  control_unlock();
  *out = gather;
  return ncclSuccess;
}

ncclResult_t gather_check_in(struct gather *gather, uint32_t rank, const void *info, uint32_t info_bytes) {
  static const uint8_t zeros[WIRE_ALIGN] = {0};
  const struct wire_info head = {rank, info_bytes};
  if (info_bytes > GATHER_INFO_MOST)
    return log_fail(ncclInternalError, "%s: peer info of %u bytes", gather->call, info_bytes);
  control_lock();
  const bool full = gather->own_count == gather->rank_count;
  if (full) {
    gather_fail(gather, ncclInvalidUsage, "more than %u ranks came from one process", gather->rank_count);
  } else {
    wire_put(&gather->own_infos, &head, sizeof head);
    wire_put(&gather->own_infos, info, info_bytes);
    wire_put(&gather->own_infos, zeros, wire_padding(info_bytes));
    gather->own_ranks[gather->own_count++] = rank;
    ranks_send(gather);
    os_cond_broadcast(&gather->changed);
  }
  const bool failed = gather->own_infos.failed;
  if (failed) gather_fail(gather, ncclSystemError, "rank %u: its peer info" LOG_OUT_OF_MEMORY, rank);
  control_unlock();
  return failed ? log_no_memory("%s: rank %u: its peer info", gather->call, rank) : ncclSuccess;
}

/* ---- waiting ---- */

/* Locked: logs the missing ranks. */
static void status_log(struct gather *gather) {
  const struct wire_status status = gather->status;
  char missing[sizeof gather->missing];
  if (!gather->status_new) return;
  gather->status_new = false;
  memcpy(missing, gather->missing, sizeof missing);
  control_unlock();
  log_warn("%s: for %u seconds %u of %u ranks have come; missing: rank %s", gather->call, status.seconds,
           status.present, status.rank_count, missing);
  control_lock();
}

/* Locked: waits until the first rank is taken. */
static ncclResult_t rank_wait(struct gather *gather) {
  while (gather->code == ncclSuccess && gather->own_count == 0) {
    if (!control_wait(&gather->changed, gather->deadline_ns))
      gather_fail(gather, ncclRemoteError, "no rank of this process came");
  }
  return gather->code;
}

/* Locked: the root is connected; checks in all ranks so far. */
static void root_authenticated(struct gather *gather, int fd, const struct session *session) {
  gather->root = control_adopt(fd, session, &gather_root_class, gather);
  if (!gather->root) return;
  gather->root->beats = true;
  gather->sent_count = 0;
  check_in_send(gather);
  ranks_send(gather);
}

/* Of several ids of one process, the first lets in. */
static const struct secret *root_let_in(const struct gather *gather) {
  const bool first = sock_address_equal(&gather->root_address, &gather->roots[0].address);
  return &gather->roots[first ? 0 : gather->root_index].let_in;
}

/* One attempt to connect and do the handshake within `wait`: *fd is -1 if nothing answers, or rank 0's
 * process has not opened the root yet. */
static ncclResult_t root_try(const struct gather *gather, const struct sock_wait *wait, int *fd,
                             struct session *session) {
  enum handshake_refusal refusal;
  char why[256], at[SOCK_TEXT_BYTES];
  TRY(sock_connect_once(&gather->root_address, wait, fd));
  if (*fd < 0) return ncclSuccess;
  const struct secret *let_in = root_let_in(gather);
  if (handshake_try(*fd, HANDSHAKE_CHECK_IN, secret_name(let_in), let_in, wait, session, &refusal, why,
                    sizeof why) == NULL)
    return ncclSuccess;
  sock_close(*fd);
  *fd = -1;
  if (!why[0] || refusal == REFUSAL_KEY) return ncclSuccess;
  return log_fail(ncclRemoteError, "%s %s: %s", wait->what, sock_address_text(&gather->root_address, at),
                  why);
}

/* Locked, with interruptions: logs that rank 0 is missing; false after the deadline. */
static bool root_absent(struct gather *gather, uint64_t begin_ns, uint64_t *status_ns) {
  const uint64_t now_ns = os_time_ns(), seconds = (now_ns - begin_ns) / SECOND_NS;
  char at[SOCK_TEXT_BYTES];
  sock_address_text(&gather->root_address, at);
  if (now_ns + GRACE_NS >= gather->deadline_ns) {
    gather_fail(gather, ncclRemoteError,
                "nobody answered within %llu seconds at %s, where rank 0 was to wait; missing: rank 0; look "
                "there first, or raise TUTTI_INIT_TIMEOUT_SECONDS",
                (unsigned long long)seconds, at);
    return false;
  }
  if (now_ns < *status_ns) return true;
  *status_ns = now_ns + (now_ns - begin_ns < STATUS_MOST_NS ? now_ns - begin_ns : STATUS_MOST_NS);
  control_unlock();
  log_warn("%s: for %llu seconds nobody has answered at %s, where rank 0 is to wait; missing: rank 0",
           gather->call, (unsigned long long)seconds, at);
  control_lock();
  return true;
}

/* Rank 0's process may not listen yet, or still be ending the previous communicator: retries until it
 * listens. */
static ncclResult_t root_await(struct gather *gather, int *fd, struct session *session) {
  const uint64_t begin_ns = os_time_ns();
  uint64_t status_ns = begin_ns + STATUS_FIRST_NS, pause_ns = PAUSE_LEAST_NS;
  for (bool goes_on = true; goes_on;) {
    control_lock();
    uint64_t until_ns = os_time_ns() + TRY_NS;
    if (until_ns > gather->deadline_ns) until_ns = gather->deadline_ns;
    control_unlock();
    const struct sock_wait wait = {until_ns, &gather->cancel, "checking in with rank 0 at"};
    TRY(root_try(gather, &wait, fd, session));
    if (*fd >= 0) return ncclSuccess;
    control_lock();
    control_wait(&gather->changed, os_time_ns() + pause_ns);
    goes_on = gather->code == ncclSuccess && root_absent(gather, begin_ns, &status_ns);
    control_unlock();
    if (pause_ns < PAUSE_MOST_NS) pause_ns *= 2;
  }
  return ncclRemoteError; /* gather->reason is set */
}

static ncclResult_t root_reach(struct gather *gather) {
  char why[WIRE_TEXT_MOST];
  struct session session;
  int fd = -1;
  control_lock();
  ncclResult_t result = rank_wait(gather);
  const uint32_t rank = result == ncclSuccess ? gather->own_ranks[0] % gather->rank_count : 0;
  gather->root_index = root_of(rank, gather->rank_count, gather->root_count);
  gather->root_address = gather->roots[gather->root_index].address;
  control_unlock();
  TRY(result);
  const struct secret *let_in = root_let_in(gather);
  if (gather->fixed) result = root_await(gather, &fd, &session);
  else
    result = gather_dial(gather, &gather->root_address, HANDSHAKE_CHECK_IN, secret_name(let_in), let_in,
                         "checking in with the process that made the unique id, at", &fd, &session);
  if (result != ncclSuccess) snprintf(why, sizeof why, "%s", log_own_error());
  control_lock();
  if (result != ncclSuccess) {
    gather_fail(gather, result, "%s", why);
  } else if (gather->code != ncclSuccess) {
    sock_close(fd);
  } else {
    root_authenticated(gather, fd, &session);
    if (!gather->root) gather_fail(gather, ncclSystemError, "a connection to the root" LOG_OUT_OF_MEMORY);
  }
  result = gather->code;
  control_unlock();
  return result;
}

/* If a rank gave up before the root was reached, tells the root all the same, so that the others need not
 * wait for their deadline. */
static void root_report(struct gather *gather) {
  const struct sock_wait wait = {os_time_ns() + TELL_NS, NULL, "giving up at the root at"};
  struct session session;
  int fd = -1;
  control_lock();
  const bool due = gather->cancelled && !gather->reported && !gather->root;
  control_unlock();
  if (!due || root_try(gather, &wait, &fd, &session) != ncclSuccess || fd < 0) return;
  control_lock();
  root_authenticated(gather, fd, &session);
  gather_report(gather, gather->code, gather->reason);
  control_unlock();
}

/* Locked: the deadline has passed; names the missing ranks if the root has ever reported them. */
static void roster_late(struct gather *gather) {
  char at[SOCK_TEXT_BYTES];
  const long long seconds = (long long)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS);
  if (gather->missing[0])
    gather_fail(gather, ncclRemoteError,
                "%u of %u ranks came within %lld seconds; missing: rank %s; look there first, or raise "
                "TUTTI_INIT_TIMEOUT_SECONDS",
                gather->status.present, gather->status.rank_count, seconds, gather->missing);
  else
    gather_fail(gather, ncclRemoteError,
                "the root at %s, the process that made the unique id, gave no answer within %lld seconds",
                sock_address_text(&gather->root_address, at), seconds);
}

/* Success without a roster means that the root's process was ending, and must be connected again. */
static ncclResult_t roster_wait(struct gather *gather, bool *rostered) {
  control_lock();
  while (gather->code == ncclSuccess && !gather->rostered && gather->root) {
    status_log(gather);
    if (gather->code != ncclSuccess || gather->rostered || !gather->root) break;
    if (gather->status_new || gather_await(gather)) continue;
    roster_late(gather);
  }
  status_log(gather); /* a status that has arrived but was not logged yet */
  *rostered = gather->rostered;
  const ncclResult_t result = gather->code;
  control_unlock();
  return result;
}

ncclResult_t gather_wait(struct gather *gather, char *reason, size_t reason_bytes) {
  const uint64_t begin_ns = os_time_ns();
  ncclResult_t result = ncclSuccess;
  for (bool rostered = false; result == ncclSuccess && !rostered;) {
    result = root_reach(gather);
    if (result == ncclSuccess) result = roster_wait(gather, &rostered);
  }
  if (result != ncclSuccess) root_report(gather);
  gather->cost.check_in_ns = os_time_ns() - begin_ns;
  if (result == ncclSuccess) result = gather_allgather(gather);
  gather->cost.allgather_ns = os_time_ns() - begin_ns - gather->cost.check_in_ns;
  control_lock();
  if (result != ncclSuccess) snprintf(reason, reason_bytes, "%s", gather->reason);
  control_unlock();
  return result;
}

void gather_communicator(const struct gather *gather, struct secret *secret) {
  secret_derive(&gather->secret, "tutti communicator", &gather->roster.instance,
                sizeof gather->roster.instance, secret);
}

const struct gather_rank *gather_ranks(const struct gather *gather) { return gather->ranks; }
uint32_t gather_rank_count(const struct gather *gather) { return gather->rank_count; }
uint32_t gather_process_count(const struct gather *gather) { return gather->roster.process_count; }
uint32_t gather_own_process(const struct gather *gather) { return gather->roster.process_index; }
const struct sock_address *gather_address(const struct gather *gather, uint32_t process_index) {
  return &gather->addresses[process_index];
}

/* ---- agreeing ---- */

ncclResult_t gather_agree_about(struct gather *gather, ncclResult_t own, struct gather_about *about,
                                char *reason, size_t reason_bytes) {
  const uint64_t begin_ns = os_time_ns();
  control_lock();
  const uint32_t turn = gather->agree_turn + 1;
  const struct wire_agreement said = {turn, (int32_t)own, about->process_index, 0, about->detail};
  char text[WIRE_TEXT_MOST] = "";
  if (own != ncclSuccess) snprintf(text, sizeof text, "%s", reason);
  control_send(gather->root, FRAME_AGREE, &said, sizeof said, text, strlen(text));
  gather->cost.sent_bytes += sizeof(struct frame_head) + sizeof said + strlen(text);
  while (gather->code == ncclSuccess && gather->agree_turn != turn) {
    if (gather_await(gather)) continue;
    gather_fail(gather, ncclRemoteError, "%s",
                gather->missing[0] ? gather->missing : "not all processes have agreed within the time");
  }
  /* An agreement that has arrived counts even if the root has closed right after. */
  const bool decided = gather->agree_turn == turn && !gather->cancelled;
  ncclResult_t result = decided ? ncclSuccess : gather->code;
  about->process_index = GATHER_NO_PROCESS;
  if (result != ncclSuccess) {
    snprintf(reason, reason_bytes, "%s", gather->reason);
  } else if (gather->agree_code != ncclSuccess) {
    const bool known = gather->agree_code > ncclSuccess && gather->agree_code < ncclNumResults;
    result = known ? (ncclResult_t)gather->agree_code : ncclRemoteError;
    snprintf(reason, reason_bytes, "%s", gather->agree_text);
    about->process_index = gather->agree_about;
    about->detail = gather->agree_detail;
  }
  gather->cost.agree_ns += os_time_ns() - begin_ns;
  control_unlock();
  return result;
}

ncclResult_t gather_agree(struct gather *gather, ncclResult_t own, char *reason, size_t reason_bytes) {
  struct gather_about about = {gather->roster.process_index, 0};
  return gather_agree_about(gather, own, &about, reason, reason_bytes);
}

/* ---- the end ---- */

void gather_close(struct gather *gather) {
  if (!gather) return;
  control_lock();
  const bool ours = gather->process == control_process();
  struct gather **link = &gathers;
  while (*link && *link != gather) link = &(*link)->next;
  if (*link) *link = gather->next;
  if (ours) {
    control_end_all(gather);
  }
  control_unlock();
  gather_free(gather);
  if (ours) control_leave();
}

void gather_forget(void) { gathers = NULL; }

struct gather_cost gather_costs(const struct gather *gather) {
  struct gather_cost cost = gather->cost;
  cost.rounds = gather->roster.round_count;
  cost.root_bytes = root_bytes(gather->key);
  return cost;
}
