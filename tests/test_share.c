/* test_share.c: memory shared between processes: mapped by ticket, once per peer, private after a fork,
 * refused to other users, and every shortage reported with its fix. Then the arena and the handles of
 * connections, with both ends in this process. */
/* sanitizers: address thread */
/* runner: tsan 22 s */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/emu/block.h"
#include "backends/emu/cudart/memory_impl.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/share.h"
#include "processes.h"
#include "skip.h"

#define BLOCK_BYTES (1u << 20)

/* Children of this program start threads although it has one; ThreadSanitizer then misses only errors in
 * them. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }

static uint64_t live_before;
static uint32_t descriptors_before, mappings_before;

static int begin(void **state) {
  (void)state;
  live_before = os_alloc_live();
  descriptors_before = process_descriptors();
  mappings_before = process_mappings();
  return 0;
}

static int end(void **state) {
  (void)state;
  for (int tries = 0; tries < 15000 && os_thread_count() > THREADS_AT_REST; tries++) os_sleep_ms(1);
  if (os_alloc_live() != live_before) print_error("blocks are left\n");
  if (process_descriptors() != descriptors_before) print_error("descriptors are left\n");
  if (process_mappings() != mappings_before) print_error("mappings are left\n");
  return os_alloc_live() != live_before || process_descriptors() != descriptors_before ||
         process_mappings() != mappings_before;
}

/* Runs body() in a child; returns the child's exit status. */
static int in_child(int (*body)(void *argument), void *argument) {
  int status = 0;
  fflush(NULL);
  const pid_t pid = fork();
  if (pid == 0) _exit(body(argument));
  if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return 255;
  return WEXITSTATUS(status);
}

/* ---- blocks ---- */

struct block {
  uint8_t *memory;
  struct share_ticket ticket;
};

static struct block block_make(void) {
  struct block block;
  void *memory = NULL;
  assert_int_equal(share_alloc(BLOCK_BYTES, &memory, &block.ticket), ncclSuccess);
  block.memory = (uint8_t *)memory;
  return block;
}

/* Maps the block, compares the owner's data, answers. */
static int child_maps(void *argument) {
  const struct block *block = (const struct block *)argument;
  void *first = NULL, *second = NULL;
  const uint32_t descriptors = process_descriptors();
  if (!share_possible(&block->ticket)) return 2;
  if (share_map(&block->ticket, &first) != ncclSuccess) return 3;
  if (share_map(&block->ticket, &second) != ncclSuccess || first != second) return 4;
  if (process_mappings() != 2) return 5; /* the inherited mapping, and one for both */
  if (process_descriptors() != descriptors) return 9;
  if (((uint8_t *)first)[12345] != 77) return 6;
  ((uint8_t *)first)[54321] = 88;
  share_unmap(first, BLOCK_BYTES);
  if (((uint8_t *)second)[54321] != 88) return 7;
  share_unmap(second, BLOCK_BYTES);
  return process_mappings() == 1 ? 0 : 8;
}

/* The descriptor of the only block; another process with such a descriptor must not be able to truncate it.
 */
static int block_descriptor(void) {
  char path[64], target[64];
  for (int fd = 0; fd < 1024; fd++) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const ssize_t bytes = readlink(path, target, sizeof target - 1);
    target[bytes > 0 ? bytes : 0] = '\0';
    if (strstr(target, "memfd:tutti")) return fd;
  }
  return -1;
}

static void test_map(void **state) {
  (void)state;
  struct block block = block_make();
  block.memory[12345] = 77;
  assert_int_not_equal(block_descriptor(), -1);
  assert_int_equal(ftruncate(block_descriptor(), 0), -1);
  assert_int_equal(in_child(child_maps, &block), 0);
  assert_int_equal(block.memory[54321], 88);
  share_trim(block.memory, 0, BLOCK_BYTES);
  assert_int_equal(block.memory[12345], 0);
  assert_int_equal(block.memory[54321], 0);
  share_free(block.memory);
}

static void test_own(void **state) {
  (void)state;
  struct block block = block_make();
  struct share_ticket second;
  void *mapped = NULL;
  assert_int_equal(share_offer(block.memory, &second), ncclSuccess);
  assert_memory_equal(&second, &block.ticket, sizeof second);
  assert_int_equal(share_map(&block.ticket, &mapped), ncclSuccess);
  block.memory[5] = 5;
  assert_int_equal(((uint8_t *)mapped)[5], 5);
  share_unmap(mapped, BLOCK_BYTES);
  share_free(block.memory);
}

/* The thread and its socket are created with the first ticket, and end with the last block that has one. */
static void test_thread(void **state) {
  (void)state;
  void *quiet = NULL;
  const uint32_t threads = os_thread_count();
  assert_int_equal(share_alloc(BLOCK_BYTES, &quiet, NULL), ncclSuccess);
  assert_int_equal(os_thread_count(), threads);
  struct block one = block_make(), other = block_make();
  assert_int_equal(os_thread_count(), threads + 1);
  share_free(one.memory);
  assert_int_equal(os_thread_count(), threads + 1);
  share_free(other.memory);
  for (int tries = 0; tries < 15000 && os_thread_count() > threads; tries++) os_sleep_ms(1);
  assert_int_equal(os_thread_count(), threads);
  share_free(quiet);
}

static void assert_gone(const struct share_ticket *ticket, const char *words) {
  void *memory = NULL;
  assert_int_equal(share_map(ticket, &memory), ncclRemoteError);
  assert_null(memory);
  assert_non_null(strstr(log_last_error(), words));
}

static void test_gone(void **state) {
  (void)state;
  struct block block = block_make(), other = block_make();
  struct share_ticket wrong = block.ticket;
  wrong.number ^= 1;
  assert_gone(&wrong, "has freed it");
  wrong = block.ticket;
  wrong.bytes *= 2;
  assert_gone(&wrong, "has freed it");
  share_free(block.memory);
  assert_gone(&block.ticket, "has freed it");
  share_free(other.memory);
  assert_gone(&block.ticket, "has ended");
}

/* A child of the owner writes only to its own copy, and can share its own memory. */
static int child_of_owner(void *argument) {
  const struct block *block = (const struct block *)argument;
  struct share_ticket ticket;
  void *own = NULL, *mapped = NULL;
  if (block->memory[7] != 70) return 2;
  block->memory[7] = 71;
  if (share_offer(block->memory, &ticket) == ncclSuccess) return 3;
  if (share_alloc(BLOCK_BYTES, &own, &ticket) != ncclSuccess) return 4;
  if (ticket.owner[0] == block->ticket.owner[0]) return 5;
  if (share_map(&ticket, &mapped) != ncclSuccess) return 6;
  share_unmap(mapped, BLOCK_BYTES);
  share_free(own);
  share_free(block->memory);
  return 0;
}

static void test_fork(void **state) {
  (void)state;
  SKIP_FORK();
  struct block block = block_make();
  void *mapped = NULL;
  block.memory[7] = 70;
  assert_int_equal(in_child(child_of_owner, &block), 0);
  assert_int_equal(block.memory[7], 70);
  assert_int_equal(share_map(&block.ticket, &mapped), ncclSuccess); /* the thread still answers */
  share_unmap(mapped, BLOCK_BYTES);
  share_free(block.memory);
}

/* ---- descriptors of other memory ---- */

struct passed {
  struct share_ticket ticket;
  int end; /* of a pipe */
};

/* Fetches the pipe's end, which it has not inherited. */
static int child_fetches(void *argument) {
  const struct passed *passed = (const struct passed *)argument;
  int fetched = -1;
  if (close(passed->end) != 0) return 2;
  const uint32_t descriptors = process_descriptors();
  if (share_fetch(&passed->ticket, &fetched) != ncclSuccess) return 3;
  if (process_descriptors() != descriptors + 1) return 4;
  return write(fetched, "text", 4) == 4 && close(fetched) == 0 ? 0 : 5;
}

static void test_pass(void **state) {
  (void)state;
  struct passed passed, other;
  int ends[2], fetched = -1;
  char text[8] = "";
  const uint32_t threads = os_thread_count();
  assert_int_equal(pipe(ends), 0);
  const uint32_t descriptors = process_descriptors();
  passed.end = other.end = ends[1];
  assert_int_equal(share_pass(ends[1], &passed.ticket), ncclSuccess);
  assert_int_equal(share_pass(ends[0], &other.ticket), ncclSuccess);
  assert_true(share_possible(&passed.ticket));
  assert_int_equal(in_child(child_fetches, &passed), 0);
  assert_int_equal(read(ends[0], text, sizeof text), 4);
  assert_string_equal(text, "text");
  share_pass_end(&passed.ticket);
  assert_int_equal(share_fetch(&passed.ticket, &fetched), ncclRemoteError); /* given back */
  assert_int_equal(share_fetch(&other.ticket, &fetched), ncclSuccess);
  close(fetched);
  share_pass_end(&other.ticket);
  share_pass_end(&other.ticket); /* a second time */
  assert_int_equal(process_descriptors(), descriptors);
  for (int tries = 0; tries < 15000 && os_thread_count() > threads; tries++) os_sleep_ms(1);
  assert_int_equal(os_thread_count(), threads);
  close(ends[0]);
  close(ends[1]);
}

/* ---- requests from other processes ---- */

static int owner_socket(const struct share_ticket *ticket) {
  struct sockaddr_un address;
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  const int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "tutti-%016llx%016llx",
                              (unsigned long long)ticket->owner[0], (unsigned long long)ticket->owner[1]);
  assert_int_equal(connect(fd, (struct sockaddr *)&address,
                           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)),
                   0);
  return fd;
}

/* An invalid request with a descriptor: the descriptor is closed. */
static void unasked_send(int to) {
  char letter = 'x';
  struct iovec part = {&letter, 1};
  union {
    struct cmsghdr header;
    uint8_t bytes[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr header;
  memset(&header, 0, sizeof header);
  memset(&control, 0, sizeof control);
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = &control;
  header.msg_controllen = sizeof control;
  struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(rights), &to, sizeof to);
  assert_int_equal(sendmsg(to, &header, MSG_NOSIGNAL), 1);
}

static void test_nonsense(void **state) {
  (void)state;
  struct block block = block_make();
  const int fd = owner_socket(&block.ticket);
  uint8_t bytes[4096];
  void *mapped = NULL;
  unasked_send(fd);
  for (uint32_t i = 0; i < 2000; i++) {
    for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (uint8_t)(i * 31 + k * 7);
    send(fd, bytes, i % 7 == 0 ? 0 : i * 37 % sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  shutdown(fd, SHUT_RDWR);
  close(fd);
  assert_int_equal(share_map(&block.ticket, &mapped), ncclSuccess);
  share_unmap(mapped, BLOCK_BYTES);
  struct share_ticket other = block.ticket;
  other.bytes -= 4096;
  assert_int_equal(share_map(&other, &mapped), ncclRemoteError);
  share_free(block.memory);
}

/* Another user knows the ticket, and is refused. */
static int child_other_user(void *argument) {
  const struct block *block = (const struct block *)argument;
  void *memory = NULL;
  if (setuid(65534) != 0) return 0;
  if (share_map(&block->ticket, &memory) != ncclRemoteError) return 2;
  return strstr(log_last_error(), "another user") != NULL ? 0 : 3;
}

static void test_other_user(void **state) {
  (void)state;
  if (geteuid() != 0) SKIP("not root, so there is no other user to be");
  struct block block = block_make();
  assert_int_equal(in_child(child_other_user, &block), 0);
  share_free(block.memory);
}

static void test_host(void **state) {
  (void)state;
  struct block block = block_make();
  assert_true(share_possible(&block.ticket));
  setenv("NCCL_HOSTID", "another", 1);
  param_reset();
  assert_false(share_possible(&block.ticket));
  unsetenv("NCCL_HOSTID");
  param_reset();
  assert_true(share_possible(&block.ticket));
  share_free(block.memory);
}

/* ---- shortages ---- */

/* A descriptor limit at the current number of open descriptors leaves none. */
static int child_without_descriptors(void *argument) {
  const struct block *block = (const struct block *)argument;
  struct rlimit limit;
  void *memory = NULL;
  const int next = dup(0);
  close(next);
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = (rlim_t)next;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (share_alloc(BLOCK_BYTES, &memory, NULL) != ncclSystemError || !strstr(log_last_error(), "ulimit -n"))
    return 2;
  if (share_map(&block->ticket, &memory) != ncclSystemError || !strstr(log_last_error(), "ulimit -n"))
    return 3;
  limit.rlim_cur = (rlim_t)next + 1; /* enough for the request, but not for the answer */
  setrlimit(RLIMIT_NOFILE, &limit);
  if (share_map(&block->ticket, &memory) != ncclSystemError || !strstr(log_last_error(), "ulimit -n"))
    return 4;
  limit.rlim_cur = (rlim_t)next + 2;
  setrlimit(RLIMIT_NOFILE, &limit);
  return share_map(&block->ticket, &memory) == ncclSuccess ? 0 : 5;
}

static void test_no_descriptors(void **state) {
  (void)state;
  struct block block = block_make();
  assert_int_equal(in_child(child_without_descriptors, &block), 0);
  share_free(block.memory);
}

/* More than any machine has: refused before a page is touched, with the remaining amount and the fix. */
static void test_no_pages(void **state) {
  (void)state;
  void *memory = NULL;
  const size_t bytes = (size_t)1 << 44;
  assert_int_equal(share_alloc(1 << 21, &memory, NULL), ncclSuccess);
  assert_int_equal(share_reserve(memory, 0, bytes), ncclSystemError);
  assert_non_null(strstr(log_last_error(), "are left"));
  assert_non_null(strstr(log_last_error(), "NCCL_BUFFSIZE"));
  assert_int_equal(share_reserve(memory, 4096, 1 << 20), ncclSuccess);
  share_free(memory);
}

static int child_small_files(void *argument) {
  (void)argument;
  struct rlimit limit = {1 << 20, 1 << 20};
  void *memory = NULL;
  setrlimit(RLIMIT_FSIZE, &limit);
  if (share_capacity(1 << 24) != 1 << 20) return 2;
  if (share_alloc(1 << 24, &memory, NULL) != ncclSystemError) return 3;
  if (strstr(log_last_error(), "ulimit -f") == NULL) return 4;
  if (emu_memory_alloc(0, 1 << 24, &memory) != 0) return 5; /* memory that cannot be shared */
  memset(memory, 1, 1 << 24);
  struct share_ticket ticket;
  uint64_t base, offset;
  if (emu_arena_offset(memory, &offset)) return 6;
  if (emu_arena_pin(&ticket, &base) != ncclSystemError) return 7;
  if (strstr(log_last_error(), "ulimit -f") == NULL) return 9;
  return emu_memory_free(memory) == 0 ? 0 : 8;
}

static void test_small_files(void **state) {
  (void)state;
  assert_int_equal(in_child(child_small_files, NULL), 0);
}

/* ---- the arena ---- */

static void test_arena(void **state) {
  (void)state;
  uint8_t *pages[64];
  void *memory;
  uint64_t offset, first = 0;
  for (uint32_t i = 0; i < 64; i++) {
    assert_int_equal(emu_memory_alloc(0, 5000 + i * 4096, &memory), 0);
    pages[i] = (uint8_t *)memory;
    for (size_t k = 0; k < 5000; k++) assert_int_equal(pages[i][k], 0);
    memset(pages[i], 0xff, 5000 + i * 4096);
    assert_true(emu_arena_offset(pages[i], &offset));
    if (i == 0) first = offset;
    assert_true(i == 0 || offset > first);
  }
  assert_int_equal(process_descriptors(), descriptors_before + 1);
  for (uint32_t i = 0; i < 64; i += 2) assert_int_equal(emu_memory_free(pages[i]), 0);
  assert_int_not_equal(emu_memory_free(pages[2]), 0); /* a second time */
  assert_int_equal(emu_memory_alloc(0, 100, &memory), 0);
  assert_int_equal(((uint8_t *)memory)[0], 0);
  assert_int_equal(emu_memory_free(memory), 0);
  for (uint32_t i = 1; i < 64; i += 2) assert_int_equal(emu_memory_free(pages[i]), 0);
}

/* The end of a small arena: freed memory is reused, zeroed; allocations that do not fit are placed elsewhere.
 */
static int child_small_arena(void *argument) {
  (void)argument;
  struct rlimit limit = {64 << 20, 64 << 20};
  void *memory[16], *more = NULL;
  uint64_t offset;
  setrlimit(RLIMIT_FSIZE, &limit);
  for (uint32_t i = 0; i < 16; i++) {
    if (emu_memory_alloc(0, 4 << 20, &memory[i]) != 0 || !emu_arena_offset(memory[i], &offset)) return 2;
    ((uint8_t *)memory[i])[100] = 1;
  }
  if (emu_memory_alloc(0, 4 << 20, &more) != 0 || emu_arena_offset(more, &offset)) return 3;
  if (emu_memory_free(memory[3]) != 0 || emu_memory_free(memory[4]) != 0 || emu_memory_free(more) != 0)
    return 4;
  if (emu_memory_alloc(0, 8 << 20, &more) != 0 || more != memory[3]) return 5;
  if (((uint8_t *)more)[100] != 0 || ((uint8_t *)memory[4])[100] != 0) return 6;
  if (emu_memory_free(memory[0]) != 0 || emu_memory_alloc(0, 4096, &memory[0]) != 0) return 7;
  if (!emu_arena_offset(memory[0], &offset) || offset != 0) return 8;
  void *none = NULL; /* no gap of this size */
  if (emu_memory_alloc(0, 8 << 20, &none) != 0 || emu_arena_offset(none, &offset)) return 11;
  if (emu_memory_free(none) != 0) return 12;
  for (uint32_t i = 0; i < 16; i++)
    if (i != 3 && i != 4 && emu_memory_free(memory[i]) != 0) return 9;
  return emu_memory_free(more) == 0 && process_mappings() == 0 ? 0 : 10;
}

static void test_small_arena(void **state) {
  (void)state;
  assert_int_equal(in_child(child_small_arena, NULL), 0);
}

/* A child sees its parent's device memory, writes only to its copy, and allocates apart from it. */
static int child_of_arena(void *argument) {
  uint8_t *parents = (uint8_t *)argument;
  void *own = NULL;
  uint64_t offset;
  if (parents[0] != 9) return 2;
  if (emu_arena_offset(parents, &offset)) return 6; /* this process cannot share it */
  parents[0] = 10;
  if (emu_memory_alloc(0, 100000, &own) != 0) return 3;
  memset(own, 11, 100000);
  if (parents[0] != 10 || parents[99999] != 9) return 4;
  return emu_memory_free(own) == 0 && emu_memory_free(parents) == 0 ? 0 : 5;
}

static void test_arena_fork(void **state) {
  (void)state;
  void *memory = NULL;
  assert_int_equal(emu_memory_alloc(0, 100000, &memory), 0);
  memset(memory, 9, 100000);
  assert_int_equal(in_child(child_of_arena, memory), 0);
  for (size_t i = 0; i < 100000; i++) assert_int_equal(((uint8_t *)memory)[i], 9);
  assert_int_equal(emu_memory_free(memory), 0);
}

/* ---- handles ---- */

struct pair {
  const struct backend *ops;
  struct device_comm *comms[2];
  struct device_comm_handle handles[2];
};

static ncclResult_t pair_open(struct pair *pair) {
  struct plan_limits limits;
  memset(pair, 0, sizeof *pair);
  pair->ops = emu_backend();
  TRY(pair->ops->device->limits(&limits));
  for (int i = 0; i < 3; i++) limits.step_bytes[i] = 3840;
  for (uint32_t rank = 0; rank < 2; rank++) {
    const struct device_comm_config config = {1, rank, 2, rank, limits, "pair", NULL};
    TRY(pair->ops->device->comm_open(&config, &pair->comms[rank]));
    TRY(pair->ops->process->comm_handle(pair->comms[rank], &pair->handles[rank]));
  }
  return ncclSuccess;
}

static void pair_close(struct pair *pair) {
  for (uint32_t rank = 0; rank < 2; rank++) pair->ops->device->comm_close(pair->comms[rank]);
}

static ncclResult_t pair_connect(struct pair *pair, uint32_t channel, uint8_t proto) {
  const struct device_conn_name at_receiver = {0, channel, 0, proto, false, false},
                                at_sender = {1, channel, 0, proto, true, false};
  struct device_conn_handle handle;
  TRY(pair->ops->process->conn_export(pair->comms[1], &at_receiver, &handle));
  return pair->ops->process->conn_import(pair->comms[0], &at_sender, &handle);
}

/* Slots that rank 1 reads at rank 0: each end has what the other one maps. */
static ncclResult_t pair_connect_reading(struct pair *pair, uint32_t channel) {
  const struct device_conn_name at_receiver = {0, channel, 0, SLOTS_AT_SENDER, false, false},
                                at_sender = {1, channel, 0, SLOTS_AT_SENDER, true, false};
  struct device_conn_handle handle;
  TRY(pair->ops->process->conn_export(pair->comms[0], &at_sender, &handle));
  TRY(pair->ops->process->conn_import(pair->comms[1], &at_receiver, &handle));
  TRY(pair->ops->process->conn_export(pair->comms[1], &at_receiver, &handle));
  return pair->ops->process->conn_import(pair->comms[0], &at_sender, &handle);
}

static ncclResult_t pair_connect_all(struct pair *pair) {
  for (uint32_t channel = 0; channel < PLAN_CHANNELS_MAX; channel++)
    for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) TRY(pair_connect(pair, channel, proto));
  return ncclSuccess;
}

/* Hundreds of connections need no more descriptors and mappings than one. */
static void test_many_connections(void **state) {
  (void)state;
  struct pair pair;
  uint64_t bytes = 0, second = 0;
  assert_int_equal(pair_open(&pair), ncclSuccess);
  assert_int_equal(pair_connect_all(&pair), ncclSuccess);
  assert_int_equal(pair.ops->device->comm_memory(pair.comms[1], &bytes), ncclSuccess);
  assert_true(bytes > PLAN_CHANNELS_MAX * 3 * 8 * 3840);
  const uint32_t descriptors = process_descriptors();
  assert_true(descriptors <= descriptors_before + 2);     /* the arena and the socket */
  assert_int_equal(pair_connect_all(&pair), ncclSuccess); /* the same ends again */
  assert_int_equal(process_descriptors(), descriptors);
  assert_int_equal(pair.ops->device->comm_memory(pair.comms[1], &second), ncclSuccess);
  assert_int_equal(second, bytes);
  pair_close(&pair);
}

static uint64_t held_by(struct pair *pair, uint32_t rank) {
  uint64_t bytes = 0;
  assert_int_equal(pair->ops->device->comm_memory(pair->comms[rank], &bytes), ncclSuccess);
  return bytes;
}

/* Slots that are read at their sender are its memory, and one of the two sets of Simple's slots. */
static void test_reading(void **state) {
  (void)state;
  struct pair pair;
  const uint64_t slots = 8 * 3840;
  assert_int_equal(pair_open(&pair), ncclSuccess);
  uint64_t sender = held_by(&pair, 0), receiver = held_by(&pair, 1);
  for (int turn = 0; turn < 2; turn++) /* the second time it is there */
    assert_int_equal(pair_connect_reading(&pair, 0), ncclSuccess);
  assert_true(held_by(&pair, 0) >= sender + slots && held_by(&pair, 0) < sender + 2 * slots);
  assert_true(held_by(&pair, 1) < receiver + slots);
  sender = held_by(&pair, 0), receiver = held_by(&pair, 1);
  assert_int_equal(pair_connect(&pair, 0, PROTO_SIMPLE), ncclSuccess);
  assert_int_equal(held_by(&pair, 0), sender);
  assert_true(held_by(&pair, 1) >= receiver + slots);
  struct emu_conn *at_sender = emu_conn_find(pair.comms[0], 1, 0, 0, true);
  struct emu_conn *at_receiver = emu_conn_find(pair.comms[1], 0, 0, 0, false);
  at_sender->buffer[SLOTS_AT_SENDER][5] = 17; /* both see the same memory, each at its own address */
  assert_int_equal(at_receiver->buffer[SLOTS_AT_SENDER][5], 17);
  assert_int_equal(at_receiver->buffer[PROTO_SIMPLE][5], 0);
  pair_close(&pair);
}

/* A sender may close while the receiver still reads its slots: they are kept until it has closed too. */
static void test_reading_late(void **state) {
  (void)state;
  struct pair pair;
  assert_int_equal(pair_open(&pair), ncclSuccess);
  assert_int_equal(pair_connect_reading(&pair, 0), ncclSuccess);
  emu_conn_find(pair.comms[0], 1, 0, 0, true)->buffer[SLOTS_AT_SENDER][5] = 17;
  pair.ops->device->comm_close(pair.comms[0]);
  struct emu_conn *at_receiver = emu_conn_find(pair.comms[1], 0, 0, 0, false);
  assert_int_equal(at_receiver->buffer[SLOTS_AT_SENDER][5], 17);
  const uint64_t live = os_alloc_live();
  pair.ops->device->comm_close(pair.comms[1]);
  emu_kept_sweep();
  assert_true(os_alloc_live() < live);
}

static void test_reach(void **state) {
  (void)state;
  struct pair pair;
  bool reach = false;
  assert_int_equal(pair_open(&pair), ncclSuccess);
  assert_int_equal(pair.ops->process->comm_reach(pair.comms[0], 1, &pair.handles[1], &reach), ncclSuccess);
  assert_true(reach);
  setenv("NCCL_SHM_DISABLE", "1", 1);
  param_reset();
  assert_int_equal(pair.ops->process->comm_reach(pair.comms[0], 1, &pair.handles[1], &reach), ncclSuccess);
  assert_true(reach);
  setenv("NCCL_P2P_DISABLE", "1", 1);
  param_reset();
  assert_int_equal(pair.ops->process->comm_reach(pair.comms[0], 1, &pair.handles[1], &reach), ncclSuccess);
  assert_false(reach);
  assert_int_equal(pair.ops->process->comm_handle(pair.comms[1], &pair.handles[1]), ncclSuccess);
  unsetenv("NCCL_SHM_DISABLE");
  unsetenv("NCCL_P2P_DISABLE");
  param_reset();
  reach = true; /* the other end's settings count too */
  assert_int_equal(pair.ops->process->comm_reach(pair.comms[0], 1, &pair.handles[1], &reach), ncclSuccess);
  assert_false(reach);
  memset(&pair.handles[1], 1, sizeof pair.handles[1]);
  assert_int_equal(pair.ops->process->comm_reach(pair.comms[0], 1, &pair.handles[1], &reach),
                   ncclInvalidUsage);
  pair_close(&pair);
}

/* A handle whose receiver has half as many slots as its sender. */
static ncclResult_t refused_slots(struct pair *pair, const struct device_conn_handle *handle) {
  const struct plan_limits *limits = &pair->comms[1]->config.limits;
  const uint32_t wanted[2] = {limits->slots, limits->step_bytes[PROTO_SIMPLE]};
  const struct device_conn_name at_sender = {1, 3, 1, PROTO_SIMPLE, true, false};
  struct device_conn_handle bad = *handle;
  size_t at = 0;
  while (at + sizeof wanted <= sizeof bad.bytes && memcmp(bad.bytes + at, wanted, sizeof wanted) != 0)
    at += 4;
  assert_true(at + sizeof wanted <= sizeof bad.bytes);
  const uint32_t half = limits->slots / 2;
  memcpy(bad.bytes + at, &half, sizeof half);
  return pair->ops->process->conn_import(pair->comms[0], &at_sender, &bad);
}

/* Handles with every bit inverted in turn: accepted, or refused with a message, never used unchecked. */
static void test_bad_handles(void **state) {
  (void)state;
  struct pair pair;
  struct device_conn_handle handle, bad;
  const struct device_conn_name at_receiver = {0, 3, 0, PROTO_SIMPLE, false, false};
  struct device_conn_name at_sender = {1, 3, 0, PROTO_SIMPLE, true, false};
  uint32_t refused = 0;
  assert_int_equal(pair_open(&pair), ncclSuccess);
  assert_int_equal(pair.ops->process->conn_export(pair.comms[1], &at_receiver, &handle), ncclSuccess);
  for (uint32_t bit = 0; bit < 8 * 88; bit++) {
    bad = handle;
    bad.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    at_sender.channel_index = bit % 64; /* a separate connection for each */
    at_sender.conn_index = bit / 64 % 4;
    refused += pair.ops->process->conn_import(pair.comms[0], &at_sender, &bad) != ncclSuccess;
  }
  assert_true(refused > 100);
  assert_int_equal(refused_slots(&pair, &handle), ncclInvalidUsage);
  at_sender.channel_index = PLAN_CHANNELS_MAX;
  assert_int_equal(pair.ops->process->conn_import(pair.comms[0], &at_sender, &handle), ncclInvalidArgument);
  at_sender.channel_index = 0;
  at_sender.peer = 2;
  assert_int_equal(pair.ops->process->conn_import(pair.comms[0], &at_sender, &handle), ncclInvalidArgument);
  pair_close(&pair);
}

/* Every allocation fails once: an error or success, and no leak. */
static void test_failing_allocations(void **state) {
  (void)state;
  struct pair pair;
  uint64_t k = 1;
  for (ncclResult_t result = ncclSystemError; result != ncclSuccess; k++) {
    const uint64_t live = os_alloc_live();
    assert_true(k < 200);
    os_alloc_fail_at(k);
    result = pair_open(&pair);
    for (uint32_t channel = 0; channel < 8 && result == ncclSuccess; channel++)
      result =
          channel % 2 == 0 ? pair_connect(&pair, channel, PROTO_LL) : pair_connect_reading(&pair, channel);
    os_alloc_fail_at(0);
    for (uint32_t rank = 0; rank < 2; rank++) pair.ops->device->comm_close(pair.comms[rank]);
    assert_true(os_alloc_live() <= live + 1); /* each thread that drives ranks is registered once */
  }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
  const struct CMUnitTest tests[] = {
      TEST(test_map),         TEST(test_own),          TEST(test_thread),
      TEST(test_gone),        TEST(test_fork),         TEST(test_nonsense),
      TEST(test_other_user),  TEST(test_host),         TEST(test_no_descriptors),
      TEST(test_no_pages),    TEST(test_small_files),  TEST(test_arena),
      TEST(test_small_arena), TEST(test_arena_fork),   TEST(test_many_connections),
      TEST(test_reach),       TEST(test_bad_handles),  TEST(test_failing_allocations),
      TEST(test_reading),     TEST(test_reading_late), TEST(test_pass),
  };
  alarm(120);
  struct pair pair; /* allocates the emulator's permanent memory before blocks are counted */
  void *memory;
  if (emu_memory_alloc(0, 1, &memory) == 0) emu_memory_free(memory);
  if (pair_open(&pair) == ncclSuccess) pair_close(&pair);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
