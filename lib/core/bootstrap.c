/* bootstrap.c: what is inside a unique id, and the root behind it. Promises numbers that depend on the order
 * of the calls alone. Does not know who meets under an id. */
#include "core/bootstrap.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/control.h"
#include "core/control_conn.h"
#include "core/root.h"

#define ID_MAGIC 0x74757474692d6964ull

/* The contents of an ncclUniqueId. */
struct id_content {
  uint64_t magic, nonce, number;
  uint64_t process; /* who made it; 0: NCCL_COMM_ID */
  int32_t version, zero;
  struct sock_address root;
};

static uint64_t last_number; /* read and written atomically */

static uint64_t own_process(void) {
  control_lock();
  const uint64_t process = control_process();
  control_unlock();
  return process;
}

/* Never 0: the key of the communicators that NCCL_COMM_ID names. */
static uint64_t text_key(const char *text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
  return hash | 1;
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

static ncclResult_t id_of_text(const char *text, ncclUniqueId *id) {
  struct id_content content;
  id_begin(&content);
  TRY(sock_address_parse(text, "NCCL_COMM_ID", &content.root));
  content.nonce = content.number = text_key(text);
  return id_write(&content, id);
}

ncclResult_t bootstrap_id_create(ncclUniqueId *id) {
  struct id_content content;
  const char *text = param_text(PARAM_COMM_ID);
  if (*text) return id_of_text(text, id);
  id_begin(&content);
  while (content.nonce == 0) content.nonce = os_entropy();
  content.process = own_process();
  if (control_use(&content.root) != ncclSuccess) {
    memset(&content.root, 0, sizeof content.root);
    log_info(LOG_BOOTSTRAP, "this unique id is good inside this process alone: it has no address");
  } else if (root_register(content.nonce, false) != ncclSuccess) {
    control_leave();
    return ncclSystemError;
  }
  content.number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
  return id_write(&content, id);
}

ncclResult_t bootstrap_id_at(const char *where, const char *what, uint64_t salt, ncclUniqueId *id) {
  struct id_content content = {ID_MAGIC, salt, 0, host_hash(), os_pid(), NCCL_VERSION_CODE};
  if (!strchr(where, ':')) return log_fail(ncclInvalidUsage, "%s=%s: must be host:port", what, where);
  for (const char *c = where; *c; c++) content.nonce = hash_mix(content.nonce, (unsigned char)*c);
  content.number = content.nonce;
  memset(id, 0, sizeof *id);
  memcpy(id->internal, &content, sizeof content);
  return ncclSuccess;
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
  if (!own && content.root.family == 0) {
    return log_fail(
        ncclInvalidUsage,
        "%s: rank %u: the unique id was made by a process without a network address, so it is good "
        "inside that process alone; see its log for the reason",
        call, rank);
  }
  memset(out, 0, sizeof *out);
  out->number = content.number;
  out->nonce = content.nonce;
  out->root = content.root;
  out->own = own;
  return ncclSuccess;
}

ncclResult_t bootstrap_root_open(const struct bootstrap_id *id) {
  const char *text = param_text(PARAM_COMM_ID);
  if (!*text || id->nonce != text_key(text)) return ncclSuccess;
  TRY(control_use(NULL));
  control_lock();
  const bool held = root_waits(id->nonce);
  ncclResult_t result = held ? ncclSuccess : control_listen(&id->root);
  control_unlock();
  if (result == ncclSuccess && !held) result = root_register(id->nonce, true);
  if (result != ncclSuccess || held) control_leave();
  return result;
}

void bootstrap_set_called(void (*called)(uint64_t nonce)) { root_set_called(called); }

void bootstrap_id_over(uint64_t nonce) {
  if (root_over(nonce)) control_leave();
}

void bootstrap_restart_numbers(void) { __atomic_store_n(&last_number, 0, __ATOMIC_RELAXED); }

void bootstrap_id_local(ncclUniqueId *id) { bootstrap_id_create(id); }
bool bootstrap_id_called(uint64_t nonce) { (void)nonce; return false; }
void bootstrap_id_over(uint64_t nonce) { (void)nonce; }
void bootstrap_set_called(void (*called)(uint64_t nonce)) { (void)called; }
ncclResult_t bootstrap_root_open(const struct bootstrap_id *id) { (void)id; return ncclSuccess; }
