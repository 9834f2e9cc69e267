/* share.c: see share.h. Requests and answers are datagrams, so no client can block the owner's thread, which
 * keeps no state per client. The kernel states the sender of a datagram (SCM_CREDENTIALS); addresses and
 * block numbers are random. Requests are repeated until an answer arrives or the deadline passes. */
#include "base/share.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/wake.h"

#define SHARE_MAGIC UINT64_C(0x7475747469736872)
#define SHARE_RING UINT64_MAX /* instead of a block's size */
#define SHARE_WAIT_SECONDS 10 /* maximum wait for an owner's answer, unless the owner ends earlier */
#define SHARE_RETRY_MS 200
#define SHARE_CHECK_BYTES (1u << 20) /* bytes reserved between two checks of the free memory */
#define SHARE_PIECE_BYTES (4u << 20)
#define LOCK_MS 500u
#define PASSED_BYTES 1u /* in tickets of what is passed on: its size is not known here */
#define MIB (1024.0 * 1024.0)

struct block {
  struct block *next;
  void *memory;
  size_t bytes;
  int fd; /* -1: inherited over a fork and private since */
  bool offered;
  uint64_t number;
};

/* Another library's memory. */
struct passed {
  struct passed *next;
  int fd; /* the caller's */
  uint64_t number;
};

/* A block of another process. */
struct mapped {
  struct mapped *next;
  struct share_ticket ticket;
  void *memory;
  uint32_t count;
};

struct share_message {
  uint64_t magic, number;
  uint64_t bytes; /* in an answer: size, 0: no such block. In a request: 0 or SHARE_RING */
};

struct server {
  int fd;
  bool stopped; /* atomic */
  os_thread thread;
  uint64_t owner[2];
};

static struct {
  os_mutex lock;
  struct block *blocks;
  struct passed *passed;
  struct mapped *mapped;
  struct server *server; /* while a block is shared */
  bool at_fork;
  int wake; /* signalled by rings; -1: none */
} share = {.lock = OS_MUTEX_INITIALIZER, .wake = -1};

/* ---- names of resources, for messages ---- */

static ncclResult_t no_descriptor(const char *what) {
  struct rlimit limit = {0, 0};
  getrlimit(RLIMIT_NOFILE, &limit);
  return log_fail(ncclSystemError,
                  "shared memory: no file descriptor is left for %s; this process may have %llu: raise "
                  "`ulimit -n`, or close what is not needed",
                  what, (unsigned long long)limit.rlim_cur);
}

static ncclResult_t failed_call(const char *call, size_t bytes, int cause) {
  if (cause == EMFILE || cause == ENFILE) return no_descriptor(call);
  return log_fail(ncclSystemError, "shared memory: %s of %.1f MiB: %s", call, (double)bytes / MIB,
                  strerror(cause));
}

/* ---- free memory ---- */

static bool file_number(const char *path, const char *label, uint64_t *value) {
  char *text = os_file_read(path, NULL);
  const char *place = text == NULL || label == NULL ? text : strstr(text, label);
  if (place != NULL && label != NULL) place += strlen(label);
  char *end = NULL;
  const unsigned long long number = place == NULL ? 0 : strtoull(place, &end, 10);
  const bool found = place != NULL && end != place;
  if (found) *value = number;
  os_free(text);
  return found;
}

/* Free memory of a control group: its limit minus its use; cached file pages count as free. */
static void group_left(const char *folder, const char *limit_name, const char *used_name, const char *cached,
                       uint64_t *left) {
  char path[600];
  uint64_t limit = 0, used = 0, files = 0;
  snprintf(path, sizeof path, "%s/%s", folder, limit_name);
  if (!file_number(path, NULL, &limit)) return;
  snprintf(path, sizeof path, "%s/%s", folder, used_name);
  if (!file_number(path, NULL, &used)) return;
  snprintf(path, sizeof path, "%s/memory.stat", folder);
  if (file_number(path, cached, &files)) used -= files < used ? files : used;
  const uint64_t free_bytes = limit > used ? limit - used : 0;
  if (free_bytes < *left) *left = free_bytes;
}

/* Examines this process's control group and all its ancestors. */
static void groups_left(const char *line, bool unified, uint64_t *left) {
  const char *root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
  char folder[512];
  const int length = (int)strcspn(line, "\n");
  snprintf(folder, sizeof folder, "%s%.*s", root, length, line);
  for (int depth = 0; depth < 32 && strlen(folder) >= strlen(root); depth++) {
    if (unified) group_left(folder, "memory.max", "memory.current", "\ninactive_file ", left);
    else group_left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "\ninactive_file ", left);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) break;
    *slash = '\0';
  }
}

uint64_t share_memory_left(const char **whose) {
  uint64_t available = UINT64_MAX, swap = 0;
  if (file_number("/proc/meminfo", "MemAvailable:", &available)) available *= 1024;
  if (available != UINT64_MAX && file_number("/proc/meminfo", "SwapFree:", &swap)) available += swap * 1024;
  *whose = "of this machine: end other programs";
  uint64_t left = available;
  char *groups = os_file_read("/proc/self/cgroup", NULL);
  const char *unified = groups == NULL ? NULL : strstr(groups, "0::");
  const char *memory = groups == NULL ? NULL : strstr(groups, ":memory:");
  if (unified != NULL) groups_left(unified + 3, true, &left);
  if (memory != NULL) groups_left(memory + 8, false, &left);
  os_free(groups);
  if (left < available) *whose = "of this container or control group: raise its memory limit";
  return left;
}

static ncclResult_t no_pages(size_t bytes) {
  const char *whose;
  const uint64_t left = share_memory_left(&whose);
  return log_fail(ncclSystemError,
                  "shared memory: %.1f MiB are needed, %.1f MiB are left %s, or lower NCCL_BUFFSIZE or the "
                  "number of channels",
                  (double)bytes / MIB, (double)left / MIB, whose);
}

/* ---- the owner's thread ---- */

static socklen_t owner_address(const uint64_t owner[2], struct sockaddr_un *address) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  const int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                              "tutti-%016" PRIx64 "%016" PRIx64, owner[0], owner[1]);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Buffer for the sender's credentials, or for one descriptor. */
union control {
  struct cmsghdr header;
  uint8_t bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))];
};

/* Reads a message's control data: the descriptor (-1: none), and whether the sender has this process's user.
 */
static bool control_read(struct msghdr *header, int *fd) {
  bool same_user = false;
  *fd = -1;
  for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part != NULL; part = CMSG_NXTHDR(header, part)) {
    if (part->cmsg_level != SOL_SOCKET) continue;
    if (part->cmsg_type == SCM_CREDENTIALS) {
      struct ucred who;
      memcpy(&who, CMSG_DATA(part), sizeof who);
      same_user = who.uid == geteuid();
    } else if (part->cmsg_type == SCM_RIGHTS) {
      if (*fd >= 0) close(*fd);
      memcpy(fd, CMSG_DATA(part), sizeof *fd);
    }
  }
  return same_user;
}

/* The descriptor of a block or of what is passed on, and its size; -1: there is none. Locked. */
static int offer_find(uint64_t number, uint64_t *bytes) {
  for (const struct block *block = share.blocks; block != NULL; block = block->next) {
    if (!block->offered || block->number != number) continue;
    *bytes = block->bytes;
    return block->fd;
  }
  for (const struct passed *passed = share.passed; passed != NULL; passed = passed->next) {
    if (passed->number != number) continue;
    *bytes = PASSED_BYTES;
    return passed->fd;
  }
  return -1;
}

/* Sends a descriptor; never blocks. If the answer cannot be sent, the client asks again. */
static void server_answer(int fd, const struct share_message *question, bool same_user,
                          const struct sockaddr_un *to, socklen_t to_bytes) {
  struct share_message answer = {SHARE_MAGIC, question->number, 0};
  struct iovec part = {&answer, sizeof answer};
  union control control;
  struct msghdr header;
  memset(&header, 0, sizeof header);
  memset(&control, 0, sizeof control);
  header.msg_name = (void *)(uintptr_t)to;
  header.msg_namelen = to_bytes;
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  os_mutex_lock(&share.lock);
  const int offered = same_user ? offer_find(question->number, &answer.bytes) : -1;
  if (offered >= 0) {
    header.msg_control = &control;
    header.msg_controllen = CMSG_SPACE(sizeof(int));
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &offered, sizeof offered);
  }
  sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  os_mutex_unlock(&share.lock);
}

static void server_ring(bool same_user) {
  os_mutex_lock(&share.lock);
  if (same_user && share.wake >= 0) wake_signal(share.wake);
  os_mutex_unlock(&share.lock);
}

/* Handles one datagram. Ignores other users and malformed requests. */
static void server_turn(int fd) {
  struct share_message question;
  struct sockaddr_un from;
  struct iovec part = {&question, sizeof question};
  union control control;
  struct msghdr header;
  int unasked;
  memset(&header, 0, sizeof header);
  header.msg_name = &from;
  header.msg_namelen = sizeof from;
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = &control;
  header.msg_controllen = sizeof control;
  const ssize_t came = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
  if (came < 0) return;
  const bool same_user = control_read(&header, &unasked);
  if (unasked >= 0) close(unasked);
  if (came != (ssize_t)sizeof question || question.magic != SHARE_MAGIC) return;
  if (question.bytes == SHARE_RING) server_ring(same_user);
  else server_answer(fd, &question, same_user, &from, header.msg_namelen);
}

static void *server_body(void *argument) {
  const struct server *server = (const struct server *)argument;
  while (!__atomic_load_n(&server->stopped, __ATOMIC_ACQUIRE)) server_turn(server->fd);
  return NULL;
}

static int user_socket(void) {
  const int on = 1, fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

static ncclResult_t server_open(struct server *server) {
  struct sockaddr_un address;
  server->owner[0] = os_entropy();
  server->owner[1] = os_entropy();
  const socklen_t bytes = owner_address(server->owner, &address);
  server->fd = user_socket();
  if (server->fd < 0) return failed_call("the socket that hands it out", 0, errno);
  if (bind(server->fd, (const struct sockaddr *)&address, bytes) != 0)
    return failed_call("binding the socket that hands it out", 0, errno);
  if (!os_thread_start_named(&server->thread, "tutti-share", server_body, server))
    return log_fail(ncclSystemError,
                    "shared memory: no thread to hand it out to other processes; raise `ulimit -u`");
  return ncclSuccess;
}

/* Locked. */
static ncclResult_t server_start(void) {
  if (share.server != NULL) return ncclSuccess;
  struct server *server = (struct server *)os_alloc(sizeof *server);
  if (server == NULL) return log_no_memory("shared memory: its thread");
  const ncclResult_t result = server_open(server);
  if (result == ncclSuccess) {
    share.server = server;
    return result;
  }
  if (server->fd >= 0) close(server->fd);
  os_free(server);
  return result;
}

/* Removes the server if nothing is shared any more; the caller stops it without the lock. */
static struct server *server_take_idle(void) {
  for (const struct block *block = share.blocks; block != NULL; block = block->next)
    if (block->offered) return NULL;
  if (share.passed != NULL) return NULL;
  struct server *server = share.server;
  share.server = NULL;
  return server;
}

static void server_stop(struct server *server) {
  if (server == NULL) return;
  __atomic_store_n(&server->stopped, true, __ATOMIC_RELEASE);
  shutdown(server->fd, SHUT_RDWR); /* ends its wait for the next request */
  os_thread_join(server->thread);
  close(server->fd);
  os_free(server);
}

/* ---- forks ---- */

static void fork_prepare(void) { os_mutex_lock(&share.lock); }
static void fork_parent(void) { os_mutex_unlock(&share.lock); }

/* The child must not write to memory that its parent shares: pages become private and copy-on-write. */
static void fork_child(void) {
  for (struct block *block = share.blocks; block != NULL; block = block->next) {
    if (block->fd < 0) continue;
    mmap(block->memory, block->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
         block->fd, 0);
    close(block->fd);
    block->fd = -1;
    block->offered = false;
  }
  for (struct passed *passed = share.passed, *next; passed != NULL; passed = next) {
    next = passed->next;
    os_free(passed);
  }
  share.passed = NULL;
  if (share.server != NULL) {
    close(share.server->fd);
    os_free(share.server);
    share.server = NULL;
  }
  share.wake = -1; /* it was the parent's */
  os_mutex_unlock(&share.lock);
}

/* Locked. */
static void fork_watch(void) {
  if (!share.at_fork) share.at_fork = pthread_atfork(fork_prepare, fork_parent, fork_child) == 0;
}

/* ---- blocks ---- */

static size_t page_round(size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

static ncclResult_t size_check(size_t bytes) {
  const uint64_t most = os_file_bytes_most();
  if (bytes <= most) return ncclSuccess;
  return log_fail(ncclSystemError,
                  "shared memory: %.1f MiB are more than the %.1f MiB that a file of this process may have; "
                  "raise `ulimit -f`",
                  (double)bytes / MIB, (double)most / MIB);
}

/* Tests if that much address space is free in one piece: tools that watch a process reserve some. */
static bool addresses_left(uint64_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) munmap(memory, bytes);
  return memory != MAP_FAILED;
}

uint64_t share_capacity(uint64_t bytes) {
  struct rlimit limit;
  if (os_file_bytes_most() < bytes) bytes = os_file_bytes_most();
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur / 4 < bytes) bytes = limit.rlim_cur / 4;
  const uint64_t wanted = bytes;
  while (bytes > 1u << 20 && !addresses_left(bytes)) bytes /= 2;
  if (bytes < wanted) bytes /= 4; /* leave address space for peers' blocks */
  return bytes / (1u << 20) * (1u << 20);
}

static ncclResult_t block_map(struct block *block) {
  block->fd = memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (block->fd < 0) return failed_call("making a block", block->bytes, errno);
  if (ftruncate(block->fd, (off_t)block->bytes) != 0)
    return failed_call("sizing a block", block->bytes, errno);
  fcntl(block->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL); /* no process can truncate it */
  block->memory = mmap(NULL, block->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, block->fd, 0);
  if (block->memory != MAP_FAILED) return ncclSuccess;
  const int cause = errno;
  block->memory = NULL;
  if (cause != ENOMEM) return failed_call("mapping a block", block->bytes, cause);
  return log_fail(ncclSystemError,
                  "shared memory: no address space for %.1f MiB; raise `ulimit -v`, or free memory",
                  (double)block->bytes / MIB);
}

static void block_close(struct block *block) {
  if (block->memory != NULL) munmap(block->memory, block->bytes);
  if (block->fd >= 0) close(block->fd);
  os_free(block);
}

static struct block *block_of(const void *memory) {
  struct block *block = share.blocks;
  while (block != NULL && block->memory != memory) block = block->next;
  return block;
}

ncclResult_t share_alloc(size_t bytes, void **memory, struct share_ticket *ticket) {
  TRY(size_check(bytes));
  struct block *block = (struct block *)os_alloc(sizeof *block);
  if (block == NULL) return log_no_memory("shared memory: noting a block");
  block->fd = -1;
  block->bytes = page_round(bytes > 0 ? bytes : 1);
  block->number = os_entropy();
  ncclResult_t result = block_map(block);
  if (result != ncclSuccess) {
    block_close(block);
    return result;
  }
  os_mutex_lock(&share.lock);
  fork_watch();
  block->next = share.blocks;
  share.blocks = block;
  os_mutex_unlock(&share.lock);
  if (ticket != NULL) result = share_offer(block->memory, ticket);
  if (result == ncclSuccess) *memory = block->memory;
  else share_free(block->memory);
  return result;
}

ncclResult_t share_offer(void *memory, struct share_ticket *ticket) {
  os_mutex_lock(&share.lock);
  struct block *block = block_of(memory);
  ncclResult_t result =
      block == NULL || block->fd < 0
          ? log_fail(ncclInvalidUsage, "shared memory: %p is no block of this process", memory)
          : server_start();
  if (result == ncclSuccess) {
    block->offered = true;
    *ticket = (struct share_ticket){
        share_host(), {share.server->owner[0], share.server->owner[1]}, block->number, block->bytes};
  }
  os_mutex_unlock(&share.lock);
  return result;
}

static int block_descriptor(const void *memory) {
  os_mutex_lock(&share.lock);
  const struct block *block = block_of(memory);
  const int fd = block == NULL ? -1 : block->fd;
  os_mutex_unlock(&share.lock);
  return fd;
}

/* True once small reservations add up to SHARE_CHECK_BYTES. */
static bool look_is_due(size_t bytes) {
  static uint64_t unseen;
  if (__atomic_add_fetch(&unseen, bytes, __ATOMIC_RELAXED) < SHARE_CHECK_BYTES) return false;
  __atomic_store_n(&unseen, 0, __ATOMIC_RELAXED);
  return true;
}

/* Processes of a host reserve one after another: otherwise two pass the same check, and together exceed the
 * limit. A lock on a folder needs no file, and ends with its process. Whoever holds it for longer than
 * LOCK_MS (it may be stopped, or a stranger) is not waited for. Returns what close() unlocks, or -1. */
static int reserve_lock(void) {
  const int fd = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const uint64_t end_ns = os_time_ns() + LOCK_MS * UINT64_C(1000000);
  while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && os_time_ns() < end_ns) os_sleep_ms(1);
  return fd;
}

/* Piece by piece, with a check before each: other programs allocate at the same time, and a process that
 * exceeds its control group's limit gets no error but is killed. */
static ncclResult_t reserve_pieces(int fd, size_t offset, size_t bytes, bool looks) {
  const size_t spare = bytes < SHARE_PIECE_BYTES ? bytes : SHARE_PIECE_BYTES;
  const char *whose;
  for (size_t done = 0, piece; done < bytes; done += piece) {
    int failed;
    piece = bytes - done < SHARE_PIECE_BYTES ? bytes - done : SHARE_PIECE_BYTES;
    if (looks && share_memory_left(&whose) < bytes - done + spare) return no_pages(bytes - done + spare);
    do failed = fallocate(fd, 0, (off_t)(offset + done), (off_t)piece);
    while (failed != 0 && errno == EINTR);
    if (failed != 0) return no_pages(bytes - done);
  }
  return ncclSuccess;
}

ncclResult_t share_reserve(void *memory, size_t offset, size_t bytes) {
  const int fd = block_descriptor(memory);
  if (fd < 0) return log_fail(ncclInvalidUsage, "shared memory: %p is no block of this process", memory);
  const bool looks = look_is_due(bytes);
  const int lock = looks ? reserve_lock() : -1;
  const ncclResult_t result = reserve_pieces(fd, offset, bytes, looks);
  if (lock >= 0) flock(lock, LOCK_UN); /* a child that was forked meanwhile has the descriptor too */
  if (lock >= 0) close(lock);
  return result;
}

void share_trim(void *memory, size_t offset, size_t bytes) {
  const int fd = block_descriptor(memory);
  if (fd >= 0) fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
  else madvise((uint8_t *)memory + offset, bytes, MADV_DONTNEED);
}

void share_free(void *memory) {
  if (memory == NULL) return;
  os_mutex_lock(&share.lock);
  struct block **place = &share.blocks;
  while (*place != NULL && (*place)->memory != memory) place = &(*place)->next;
  struct block *block = *place;
  if (block != NULL) *place = block->next;
  struct server *idle = server_take_idle();
  os_mutex_unlock(&share.lock);
  server_stop(idle);
  if (block != NULL) block_close(block);
}

/* ---- other processes' blocks ---- */

/* Sends one request; true if it was sent. */
static bool question_send(int fd, const struct share_ticket *ticket, int *cause) {
  const struct share_message question = {SHARE_MAGIC, ticket->number, 0};
  if (send(fd, &question, sizeof question, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof question)
    return true;
  *cause = errno;
  return errno == EAGAIN || errno == ENOBUFS || errno == EINTR;
}

enum answer { ANSWER_NONE, ANSWER_BLOCK, ANSWER_GONE, ANSWER_FOREIGN, ANSWER_NO_SPACE };

static enum answer answer_take(int socket_fd, const struct share_ticket *ticket, int *fd) {
  struct share_message answer;
  struct iovec part = {&answer, sizeof answer};
  union control control;
  struct msghdr header;
  memset(&header, 0, sizeof header);
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = &control;
  header.msg_controllen = sizeof control;
  const ssize_t came = recvmsg(socket_fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (came < 0) return ANSWER_NONE;
  const bool own_user = control_read(&header, fd);
  const bool fits =
      came == (ssize_t)sizeof answer && answer.magic == SHARE_MAGIC && answer.number == ticket->number;
  if (fits && own_user && answer.bytes == ticket->bytes && *fd >= 0) return ANSWER_BLOCK;
  if (*fd >= 0) close(*fd);
  if (!fits) return ANSWER_NONE;
  if (!own_user) return ANSWER_FOREIGN;
  return answer.bytes == ticket->bytes && (header.msg_flags & MSG_CTRUNC) != 0 ? ANSWER_NO_SPACE
                                                                               : ANSWER_GONE;
}

static ncclResult_t owner_gone(const char *why) {
  return log_fail(ncclRemoteError,
                  "shared memory: the process that owns it %s; look at the log of that process", why);
}

static uint64_t answer_deadline_ns(void) {
  const int64_t silence = param_int(PARAM_TUTTI_PEER_TIMEOUT_SECONDS);
  const int64_t seconds = silence > 0 && silence < SHARE_WAIT_SECONDS ? silence : SHARE_WAIT_SECONDS;
  return os_time_ns() + (uint64_t)seconds * UINT64_C(1000000000);
}

static ncclResult_t block_ask(int socket_fd, const struct share_ticket *ticket, int *fd) {
  const uint64_t deadline_ns = answer_deadline_ns();
  struct pollfd poll_in = {socket_fd, POLLIN, 0};
  int cause = 0;
  do {
    if (!question_send(socket_fd, ticket, &cause))
      return owner_gone(cause == ECONNREFUSED || cause == ENOENT || cause == ENOTCONN ? "has ended"
                                                                                      : strerror(cause));
    if (poll(&poll_in, 1, SHARE_RETRY_MS) <= 0) continue;
    switch (answer_take(socket_fd, ticket, fd)) {
      case ANSWER_BLOCK: return ncclSuccess;
      case ANSWER_GONE: return owner_gone("has freed it");
      case ANSWER_FOREIGN: return owner_gone("is of another user");
      case ANSWER_NO_SPACE: return no_descriptor("a peer's block");
      case ANSWER_NONE: break;
    }
  } while (os_time_ns() < deadline_ns);
  return owner_gone("does not answer");
}

static ncclResult_t block_fetch(const struct share_ticket *ticket, int *fd) {
  struct sockaddr_un address;
  const sa_family_t family = AF_UNIX;
  const socklen_t bytes = owner_address(ticket->owner, &address);
  const int socket_fd = user_socket();
  if (socket_fd < 0) return failed_call("a socket to ask for a peer's block", ticket->bytes, errno);
  ncclResult_t result = ncclSuccess;
  /* The kernel chooses the address for the answer. */
  if (bind(socket_fd, (const struct sockaddr *)&family, sizeof family) != 0)
    result = failed_call("an address to ask for a peer's block", ticket->bytes, errno);
  else if (connect(socket_fd, (const struct sockaddr *)&address, bytes) != 0)
    result = owner_gone(errno == ECONNREFUSED ? "has ended, or lives in another network namespace"
                                              : strerror(errno));
  if (result == ncclSuccess) result = block_ask(socket_fd, ticket, fd);
  close(socket_fd);
  return result;
}

static ncclResult_t fetched_map(const struct share_ticket *ticket, int fd, struct mapped *mapped) {
  struct stat file;
  if (fstat(fd, &file) != 0 || (uint64_t)file.st_size < ticket->bytes)
    return log_fail(ncclRemoteError, "shared memory: a peer's block is shorter than its ticket says");
  mapped->memory = mmap(NULL, ticket->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (mapped->memory != MAP_FAILED) {
    madvise(mapped->memory, ticket->bytes, MADV_DONTDUMP);
    return ncclSuccess;
  }
  return log_fail(ncclSystemError,
                  "shared memory: no address space to map %.1f MiB of a peer (%s); raise `ulimit -v`",
                  (double)ticket->bytes / MIB, strerror(errno));
}

static bool ticket_same(const struct share_ticket *a, const struct share_ticket *b) {
  return a->number == b->number && a->bytes == b->bytes && a->owner[0] == b->owner[0] &&
         a->owner[1] == b->owner[1];
}

/* Adds a reference to a block that is already mapped. Locked. */
static bool mapped_before(const struct share_ticket *ticket, void **memory) {
  for (struct mapped *mapped = share.mapped; mapped != NULL; mapped = mapped->next) {
    if (!ticket_same(&mapped->ticket, ticket)) continue;
    mapped->count += 1;
    *memory = mapped->memory;
    return true;
  }
  return false;
}

static ncclResult_t map_fresh(const struct share_ticket *ticket, struct mapped *mapped) {
  int fd = -1;
  TRY(block_fetch(ticket, &fd));
  const ncclResult_t result = fetched_map(ticket, fd, mapped);
  close(fd);
  return result;
}

ncclResult_t share_map(const struct share_ticket *ticket, void **memory) {
  os_mutex_lock(&share.lock);
  bool found = mapped_before(ticket, memory);
  os_mutex_unlock(&share.lock);
  if (found) return ncclSuccess;
  struct mapped *mapped = (struct mapped *)os_alloc(sizeof *mapped);
  if (mapped == NULL) return log_no_memory("shared memory: noting a peer's block");
  mapped->ticket = *ticket;
  mapped->count = 1;
  /* Unlocked: the owner may be this process, whose thread needs the lock. */
  const ncclResult_t result = map_fresh(ticket, mapped);
  os_mutex_lock(&share.lock);
  found = result == ncclSuccess && mapped_before(ticket, memory); /* another thread was faster */
  if (result == ncclSuccess && !found) {
    mapped->next = share.mapped;
    share.mapped = mapped;
    *memory = mapped->memory;
  }
  os_mutex_unlock(&share.lock);
  if (found) munmap(mapped->memory, ticket->bytes);
  if (found || result != ncclSuccess) os_free(mapped);
  return result;
}

void share_unmap(void *memory, size_t bytes) {
  os_mutex_lock(&share.lock);
  struct mapped **place = &share.mapped;
  while (*place != NULL && (*place)->memory != memory) place = &(*place)->next;
  struct mapped *mapped = *place;
  if (mapped != NULL) {
    mapped->count -= 1;
    if (mapped->count == 0) *place = mapped->next;
    else mapped = NULL;
  }
  os_mutex_unlock(&share.lock);
  if (mapped == NULL) return;
  munmap(memory, bytes);
  os_free(mapped);
}

/* ---- descriptors of other memory ---- */

ncclResult_t share_pass(int descriptor, struct share_ticket *ticket) {
  struct passed *passed = (struct passed *)os_alloc(sizeof *passed);
  if (passed == NULL) return log_no_memory("shared memory: noting a descriptor");
  passed->fd = descriptor;
  passed->number = os_entropy();
  os_mutex_lock(&share.lock);
  fork_watch();
  const ncclResult_t result = server_start();
  if (result == ncclSuccess) {
    passed->next = share.passed;
    share.passed = passed;
    *ticket = (struct share_ticket){
        share_host(), {share.server->owner[0], share.server->owner[1]}, passed->number, PASSED_BYTES};
  }
  os_mutex_unlock(&share.lock);
  if (result != ncclSuccess) os_free(passed);
  return result;
}

void share_pass_end(const struct share_ticket *ticket) {
  os_mutex_lock(&share.lock);
  struct passed **place = &share.passed;
  while (*place != NULL && (*place)->number != ticket->number) place = &(*place)->next;
  struct passed *passed = *place;
  if (passed != NULL) *place = passed->next;
  struct server *idle = server_take_idle();
  os_mutex_unlock(&share.lock);
  server_stop(idle);
  os_free(passed);
}

ncclResult_t share_fetch(const struct share_ticket *ticket, int *descriptor) {
  return block_fetch(ticket, descriptor);
}

void share_close(int descriptor) {
  if (descriptor >= 0) close(descriptor);
}

/* ---- rings ---- */

bool share_bell(struct share_bell *bell) {
  os_mutex_lock(&share.lock);
  const bool there = share.server != NULL;
  if (there) memcpy(bell->owner, share.server->owner, sizeof bell->owner);
  os_mutex_unlock(&share.lock);
  return there;
}

bool share_ring(const struct share_bell *bell) {
  const struct share_message message = {SHARE_MAGIC, 0, SHARE_RING};
  struct sockaddr_un address;
  const socklen_t bytes = owner_address(bell->owner, &address);
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool taken = sendto(fd, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL,
                            (const struct sockaddr *)&address, bytes) == (ssize_t)sizeof message;
  close(fd);
  return taken;
}

void share_signal_to(int wake) {
  os_mutex_lock(&share.lock);
  share.wake = wake;
  os_mutex_unlock(&share.lock);
}

/* ---- hosts ---- */

/* Abstract sockets are visible within one network namespace, and only one user gets answers. */
static uint64_t realm_mix(uint64_t hash) {
  struct stat realm;
  char text[64];
  const bool known = stat("/proc/self/ns/net", &realm) == 0;
  snprintf(text, sizeof text, "%llu %u", known ? (unsigned long long)realm.st_ino : 0, (unsigned)geteuid());
  return hash_text(hash, text);
}

uint64_t share_host(void) {
  uint64_t hash = realm_mix(HASH_SEED);
  if (param_text(PARAM_HOSTID)[0] != '\0') return hash_text(hash, param_text(PARAM_HOSTID));
  char name[256];
  os_host_name(name, sizeof name);
  char *boot = os_file_read("/proc/sys/kernel/random/boot_id", NULL);
  hash = hash_text(hash_text(hash, name), boot != NULL ? boot : "");
  os_free(boot);
  return hash;
}

bool share_possible(const struct share_ticket *ticket) {
  return ticket->bytes > 0 && ticket->host == share_host();
}
