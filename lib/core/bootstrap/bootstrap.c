/* bootstrap.c: the contents of a unique id, and its root. Promises numbers that depend only on the order of
 * the calls. Does not know which ranks use an id. */
#include "core/bootstrap/bootstrap.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/bootstrap/control.h"
#include "core/bootstrap/control_conn.h"
#include "core/bootstrap/root.h"

#define ID_MAGIC 0x74757474692d6964ull
#define ID_PLACE_BYTES 64
#define ID_OF_MANY 1 /* as `process`: an id that several processes make alike */

/* The contents of an ncclUniqueId. */
struct id_content {
  uint64_t magic, salt, number; /* salt: of a text's id */
  uint64_t process;             /* the process that made it, or ID_OF_MANY; 0: made from a text */
  int32_t version, lasting;
  struct sock_address root; /* of a process */
  union {
    struct {
      struct secret secret; /* of a process's id */
      uint32_t grown;       /* ranks of the communicator that grows; 0: of ncclGetUniqueId */
    };
    char place[ID_PLACE_BYTES]; /* host:port of the text; other hosts may resolve it differently */
  };
};
static_assert(sizeof(struct id_content) <= sizeof(ncclUniqueId), "an id holds it");

static uint64_t last_number; /* read and written atomically */

static uint64_t own_process(void) {
  control_lock();
  const uint64_t process = control_process();
  control_unlock();
  return process;
}

static ncclResult_t id_write(const struct id_content *content, ncclUniqueId *id) {
  memset(id, 0, sizeof *id);
  memcpy(id->internal, content, sizeof *content);
  return ncclSuccess;
}

static void id_begin(struct id_content *content) {
  memset(content, 0, sizeof *content);
  content->magic = ID_MAGIC;
  content->version = NCCL_VERSION_CODE;
}

/* Names a rendezvous of this process's threads alone, so it need not be hard to guess. */
void bootstrap_id_local(ncclUniqueId *id) {
  struct id_content content;
  id_begin(&content);
  const uint64_t random = os_entropy();
  memcpy(content.secret.bytes, &random, sizeof random);
  content.process = own_process();
  content.number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
  id_write(&content, id);
}

/* On failure the caller no longer uses the server. */
static ncclResult_t id_register(const struct secret *secret, bool lasting, bool local) {
  bool dropped = false;
  const ncclResult_t result = root_register(secret, lasting, local, &dropped);
  if (dropped) {
    log_info(LOG_BOOTSTRAP,
             "the oldest of too many unused unique ids is from now on good inside this process alone");
    control_leave();
  }
  if (result != ncclSuccess) control_leave();
  return result;
}

ncclResult_t bootstrap_id_create(ncclUniqueId *id) {
  struct id_content content;
  const char *text = param_text(PARAM_COMM_ID);
  if (*text) return bootstrap_id_at(text, "NCCL_COMM_ID", 0, id);
  id_begin(&content);
  if (!secret_draw(&content.secret))
    return log_fail(ncclSystemError, "the kernel has no random bytes for a unique id");
  content.process = own_process();
  if (control_use(&content.root) != ncclSuccess) {
    memset(&content.root, 0, sizeof content.root);
    log_info(LOG_BOOTSTRAP, "this unique id is good inside this process alone: it has no address");
  } else {
    TRY(id_register(&content.secret, false, false));
  }
  content.number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
  return id_write(&content, id);
}

void bootstrap_grow_id(const struct bootstrap_grow *grow, ncclUniqueId *id) {
  struct id_content content;
  id_begin(&content);
  content.process = ID_OF_MANY;
  content.number = grow->number;
  content.root = grow->root;
  content.secret = grow->secret;
  content.grown = grow->rank_count;
  id_write(&content, id);
}

/* A secret of this process alone, which is drawn once; a fork has another process number. */
static ncclResult_t local_secret(const uint64_t *numbers, size_t bytes, struct secret *secret) {
  static struct secret drawn;
  static bool is_drawn;
  const uint64_t process = own_process();
  if (!is_drawn && !secret_draw(&drawn))
    return log_fail(ncclSystemError, "the kernel has no random bytes for a unique id");
  is_drawn = true;
  secret_derive(&drawn, "tutti process", &process, sizeof process, secret);
  secret_derive(secret, "tutti grow", numbers, bytes, secret);
  return ncclSuccess;
}

static ncclResult_t grow_open(const struct id_content *content) {
  const uint64_t nonce = secret_name(&content->secret);
  control_lock();
  const struct root *root = root_find(nonce);
  const bool open = root && root->registered;
  control_unlock();
  if (!open) return id_register(&content->secret, false, false);
  control_leave();
  return ncclSuccess;
}

static ncclResult_t grow_id_local(const struct bootstrap_grow *grow, const uint64_t *numbers, size_t bytes,
                                  ncclUniqueId *id) {
  struct id_content content;
  id_begin(&content);
  content.process = own_process();
  content.number = grow->number;
  content.grown = grow->rank_count;
  TRY(local_secret(numbers, bytes, &content.secret));
  if (control_use(&content.root) != ncclSuccess) memset(&content.root, 0, sizeof content.root);
  else TRY(grow_open(&content));
  return id_write(&content, id);
}

ncclResult_t bootstrap_grow_id_local(const struct bootstrap_grow *grow, uint64_t serial, uint64_t turn,
                                     ncclUniqueId *id) {
  static os_mutex mutex = OS_MUTEX_INITIALIZER; /* one thread draws the secret, and opens the root */
  const uint64_t numbers[2] = {serial, turn};
  os_mutex_lock(&mutex);
  const ncclResult_t result = grow_id_local(grow, numbers, sizeof numbers, id);
  os_mutex_unlock(&mutex);
  return result;
}

/* The secret of a text's id: as well known as the text. */
static void text_secret(const struct id_content *content, struct secret *secret) {
  memset(secret, 0, sizeof *secret);
  secret_derive(secret, "tutti address", content->place, strlen(content->place), secret);
  secret_derive(secret, "tutti salt", &content->salt, sizeof content->salt, secret);
}

/* Once for each process. */
static void open_port_log(const char *what, const char *where) {
  static uint32_t logged;
  if (handshake_secret() || sock_text_is_loopback(where)) return;
  if (__atomic_exchange_n(&logged, 1, __ATOMIC_RELAXED)) return;
  log_info(LOG_BOOTSTRAP,
           "%s=%s: anybody who reaches this address and guesses its text can join the job: set TUTTI_SECRET "
           "to the same random text for all ranks, or use `tutti launch`, which does",
           what, where);
}

/* The UNIX socket that stands for a loopback port. */
static struct sock_address local_root(const struct bootstrap_id *id) {
  struct sock_address at = {SOCK_LOCAL, id->port.port, 0, "id"};
  memcpy(at.bytes + 8, &id->nonce, sizeof id->nonce);
  return at;
}

ncclResult_t bootstrap_id_at(const char *where, const char *what, uint64_t salt, ncclUniqueId *id) {
  struct id_content content;
  struct sock_address parsed;
  id_begin(&content);
  if (sock_address_parse(where, what, &parsed) != ncclSuccess) return ncclInvalidUsage;
  if (strlen(where) >= sizeof content.place)
    return log_fail(ncclInvalidUsage, "%s=%s: at most %zu letters fit into a unique id; use a shorter name",
                    what, where, sizeof content.place - 1);
  snprintf(content.place, sizeof content.place, "%s", where);
  content.salt = salt;
  content.number = hash_text(HASH_SEED ^ salt, where) | 1; /* never 0 */
  content.lasting = salt == 0;
  open_port_log(what, where);
  return id_write(&content, id);
}

ncclResult_t bootstrap_id_read(const ncclUniqueId *id, const char *call, uint32_t rank,
                               struct bootstrap_id *out) {
  struct id_content content;
  memcpy(&content, id->internal, sizeof content);
  if (content.magic != ID_MAGIC) {
    return log_fail(ncclInvalidArgument,
                    "%s: rank %u: the unique id was not made by ncclGetUniqueId of this library; "
                    "pass all 128 bytes of it unchanged to every rank",
                    call, rank);
  }
  if (content.version != NCCL_VERSION_CODE) {
    return log_fail(ncclInvalidUsage,
                    "%s: rank %u: the unique id is of version %d, this library is %d; load the same "
                    "library everywhere",
                    call, rank, content.version, NCCL_VERSION_CODE);
  }
  const bool own = content.process != 0 && content.process == own_process();
  const bool fixed = content.process == 0;
  if (fixed) content.place[sizeof content.place - 1] = '\0';
  if (fixed && sock_address_parse(content.place, call, &content.root) != ncclSuccess) return ncclInvalidUsage;
  if (!own && content.root.family == 0) {
    return log_fail(
        ncclInvalidUsage,
        "%s: rank %u: the unique id was made by a process without a network address, so it is good "
        "inside that process alone; see its log for the reason",
        call, rank);
  }
  memset(out, 0, sizeof *out);
  out->number = content.number;
  out->secret = content.secret;
  if (fixed) text_secret(&content, &out->secret);
  out->nonce = secret_name(&out->secret);
  out->root = content.root;
  out->own = own;
  out->fixed = fixed;
  out->grown = fixed ? 0 : content.grown;
  out->lasting = fixed && content.lasting;
  out->port = content.root;
  out->local = fixed && sock_text_is_loopback(content.place);
  out->named = fixed && !out->local && !sock_text_is_literal(content.place);
  if (out->local && !handshake_secret()) out->root = local_root(out);
  return ncclSuccess;
}

ncclResult_t bootstrap_root_open(const struct bootstrap_id *id) {
  struct sock_address at = id->port;
  const struct sock_address local = local_root(id);
  if (!id->fixed) return ncclSuccess;
  if (id->named) memset(at.bytes, 0, sizeof at.bytes); /* any address */
  TRY(control_use(NULL));
  control_lock();
  const bool held = root_waits(id->nonce);
  ncclResult_t result = held ? ncclSuccess : control_listen(&at);
  if (result == ncclSuccess && !held && id->local) result = control_listen(&local);
  control_unlock();
  if (result == ncclSuccess && !held) return id_register(&id->secret, id->lasting, id->local);
  control_leave();
  return result;
}

void bootstrap_set_called(void (*called)(uint64_t nonce)) { root_set_called(called); }

bool bootstrap_id_called(uint64_t nonce) {
  control_lock();
  const struct root *root = root_find(nonce);
  const bool called = root && root->called;
  control_unlock();
  return called;
}

void bootstrap_id_over(uint64_t nonce) {
  if (root_over(nonce)) control_leave();
}

void bootstrap_forget_ids(void) {
  for (uint64_t key; (key = root_waiting()) != 0;) bootstrap_id_over(key);
}

void bootstrap_restart_numbers(void) { __atomic_store_n(&last_number, 0, __ATOMIC_RELAXED); }
