/* bootstrap.c: what is inside a unique id, and who may use it. Promises numbers that depend on the order of
 * the calls alone. Does not know who meets under an id. */
#include "core/bootstrap.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"

#define ID_MAGIC 0x74757474692d6964ull

/* The contents of an ncclUniqueId. */
struct id_content {
  uint64_t magic, nonce, number, host_hash;
  int32_t pid, version;
};

static uint64_t last_number; /* read and written atomically */

static uint64_t hash_mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

static uint64_t host_hash(void) {
  char name[256];
  uint64_t hash = 1;
  os_host_name(name, sizeof name);
  for (const char *c = name; *c; c++) hash = hash_mix(hash, (unsigned char)*c);
  return hash;
}

ncclResult_t bootstrap_id_create(ncclUniqueId *id) {
  struct id_content content = {ID_MAGIC, os_entropy(), 0, host_hash(), os_pid(), NCCL_VERSION_CODE};
  content.number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
  memset(id, 0, sizeof *id);
  memcpy(id->internal, &content, sizeof content);
  return ncclSuccess;
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
  if (content.pid != os_pid() || content.host_hash != host_hash()) {
    return log_fail(ncclInvalidUsage,
                    "%s: rank %u: the unique id was made by process %d, this is %d; ranks in several "
                    "processes are not supported by this release, use a thread for each rank",
                    call, rank, content.pid, os_pid());
  }
  memset(out, 0, sizeof *out);
  out->number = content.number;
  out->nonce = content.nonce;
  out->own = true;
  return ncclSuccess;
}

void bootstrap_restart_numbers(void) { __atomic_store_n(&last_number, 0, __ATOMIC_RELAXED); }

void bootstrap_id_local(ncclUniqueId *id) { bootstrap_id_create(id); }
bool bootstrap_id_called(uint64_t nonce) { (void)nonce; return false; }
void bootstrap_id_over(uint64_t nonce) { (void)nonce; }
void bootstrap_set_called(void (*called)(uint64_t nonce)) { (void)called; }
ncclResult_t bootstrap_root_open(const struct bootstrap_id *id) { (void)id; return ncclSuccess; }
