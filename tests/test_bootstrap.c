/* test_bootstrap.c: unique ids: their contents, the lifetime of their roots; several ids for one
 * communicator, NCCL_COMM_ID, and processes that are killed at any step. */
/* sanitizers: address thread */
/* runner: 11 s, waits */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"
#include "joiner.h"
#include "random.h"
#include "skip.h"

static struct joiner processes[PROCESSES_MOST];
static uint32_t descriptors_before, threads_before;
static uint64_t blocks_before;

static int set_up(void **state) {
  (void)state;
  joiner_environment(NULL);
  bootstrap_restart_numbers();
  descriptors_before = joiner_descriptors();
  blocks_before = os_alloc_live();
  threads_before = os_thread_count();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  if (joiner_descriptors() == descriptors_before && os_alloc_live() == blocks_before &&
      os_thread_count() == threads_before)
    return 0;
  print_error("left behind: %d descriptors, %d blocks, %d threads\n",
              (int)(joiner_descriptors() - descriptors_before), (int)(os_alloc_live() - blocks_before),
              (int)(os_thread_count() - threads_before));
  return -1;
}

static void test_ids(void **state) {
  ncclUniqueId id;
  struct bootstrap_id first, second;
  (void)state;
  assert_int_equal(bootstrap_id_create(&id), ncclSuccess);
  assert_int_equal(bootstrap_id_read(&id, "test", 0, &first), ncclSuccess);
  assert_true(first.own);
  assert_int_equal(first.number, 1);
  assert_int_equal(first.root.family, 4);
  assert_int_not_equal(first.root.port, 0);
  second = joiner_id();
  assert_int_equal(second.number, 2);
  assert_int_not_equal(first.nonce, second.nonce);
  assert_memory_not_equal(&first.secret, &second.secret, sizeof first.secret);
  assert_true(sock_address_equal(&first.root, &second.root)); /* one server for all */
  id.internal[0] ^= 1;
  assert_int_equal(bootstrap_id_read(&id, "test", 0, &first), ncclInvalidArgument);
  id.internal[0] ^= 1;
  id.internal[32] ^= 1; /* its version */
  assert_int_equal(bootstrap_id_read(&id, "test", 0, &second), ncclInvalidUsage);
  id.internal[32] ^= 1;
  bootstrap_id_over(first.nonce);
  bootstrap_id_over(first.nonce); /* again: no effect */
  bootstrap_id_over(second.nonce);
}

static void test_local_id(void **state) {
  ncclUniqueId id;
  struct bootstrap_id content;
  (void)state;
  bootstrap_id_local(&id);
  assert_int_equal(joiner_descriptors(), descriptors_before);
  assert_int_equal(bootstrap_id_read(&id, "test", 0, &content), ncclSuccess);
  assert_true(content.own);
  bootstrap_id_over(content.nonce);
}

/* Without a network interface an id is valid only inside its process, and other processes are told so. */
static void test_no_interface(void **state) {
  ncclUniqueId id;
  struct bootstrap_id content;
  int status;
  (void)state;
  SKIP_FORK();
  joiner_environment("NCCL_SOCKET_IFNAME", "=none0", NULL);
  assert_int_equal(bootstrap_id_create(&id), ncclSuccess);
  assert_int_equal(bootstrap_id_read(&id, "test", 0, &content), ncclSuccess);
  assert_true(content.own);
  assert_int_equal(content.root.family, 0);
  const pid_t child = fork();
  if (child == 0) _exit(bootstrap_id_read(&id, "test", 1, &content) == ncclInvalidUsage ? 0 : 1);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  bootstrap_id_over(content.nonce);
}

/* More ids than any program needs: the oldest are dropped, and nothing leaks. */
static void test_many_ids(void **state) {
  static uint64_t nonces[5000];
  (void)state;
  for (int i = 0; i < 5000; i++) {
    const struct bootstrap_id id = joiner_id();
    assert_int_equal(id.root.family, 4);
    nonces[i] = id.nonce;
  }
  for (int i = 0; i < 5000; i++) bootstrap_id_over(nonces[i]);
}

static uint32_t called_count;
static uint64_t called_nonce;

static void called(uint64_t nonce) {
  called_nonce = nonce;
  __atomic_add_fetch(&called_count, 1, __ATOMIC_RELEASE);
}

/* The root's process is notified once when others check in, and not when its own ranks do. */
static void test_called(void **state) {
  (void)state;
  SKIP_FORK();
  struct joiner *shared = joiner_shared(3);
  const struct bootstrap_id id = joiner_id();
  bootstrap_set_called(called);
  joiner_fill(shared, 3, 1, &id);
  joiner_threads_start(shared, 1);
  os_sleep_ms(50);
  assert_int_equal(called_count, 0);
  joiner_fork(&shared[1]);
  joiner_fork(&shared[2]);
  joiner_threads_join(shared, 1);
  assert_int_equal(shared[0].result, ncclSuccess);
  for (int i = 1; i < 3; i++) {
    assert_int_equal(waitpid(shared[i].pid, NULL, 0), shared[i].pid);
    assert_int_equal(shared[i].result, ncclSuccess);
  }
  assert_int_equal(__atomic_load_n(&called_count, __ATOMIC_ACQUIRE), 1);
  assert_int_equal(called_nonce, id.nonce);
  bootstrap_set_called(NULL);
  bootstrap_id_over(id.nonce);
  munmap(shared, 3 * sizeof *shared);
}

/* ---- several roots ---- */

/* Two processes with an id each, and this one with the first; each runs processes of its own. */
struct several {
  struct bootstrap_id ids[3];
  uint32_t ready, go;
  struct joiner processes[9];
};

static void several_fill(struct several *several, uint32_t rank_count) {
  for (int i = 0; i < 9; i++) {
    joiner_fill(&several->processes[i], 1, 1, &several->ids[0]);
    several->processes[i].ranks[0] = (uint32_t)i;
    several->processes[i].call.rank_count = rank_count;
    several->processes[i].call.root_count = 3;
    for (int k = 0; k < 3; k++)
      several->processes[i].roots[k] = (struct gather_root){several->ids[k].root, several->ids[k].secret};
  }
}

static void several_process(struct several *several, uint32_t number) {
  several->ids[number] = joiner_id();
  __atomic_add_fetch(&several->ready, 1, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&several->go, __ATOMIC_ACQUIRE)) os_sleep_ms(2);
  joiner_threads_start(&several->processes[number * 3], 3);
  joiner_threads_join(&several->processes[number * 3], 3);
  bootstrap_id_over(several->ids[number].nonce);
  _exit(0);
}

static void several_run(uint32_t rank_count, ncclResult_t code, const char *text) {
  struct several *several = (struct several *)mmap(NULL, sizeof *several, PROT_READ | PROT_WRITE,
                                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t children[3];
  for (uint32_t i = 1; i < 3; i++) {
    children[i] = fork();
    if (children[i] == 0) several_process(several, i);
  }
  several->ids[0] = joiner_id();
  while (__atomic_load_n(&several->ready, __ATOMIC_ACQUIRE) < 2) os_sleep_ms(2);
  several_fill(several, rank_count);
  __atomic_store_n(&several->go, 1, __ATOMIC_RELEASE);
  joiner_threads_start(several->processes, 3);
  joiner_threads_join(several->processes, 3);
  for (uint32_t i = 1; i < 3; i++) assert_int_equal(waitpid(children[i], NULL, 0), children[i]);
  for (int i = 0; i < 9; i++) {
    const struct joiner *process = &several->processes[i];
    if (process->result != code || !strstr(process->reason, text))
      fail_msg("process %d: %d \"%s\"", i, process->result, process->reason);
    if (code == ncclSuccess) assert_true(process->infos_good);
  }
  bootstrap_id_over(several->ids[0].nonce);
  munmap(several, sizeof *several);
}

static void test_several_roots(void **state) {
  (void)state;
  SKIP_FORK();
  several_run(9, ncclSuccess, "");
}

static void test_several_roots_missing(void **state) {
  (void)state;
  SKIP_FORK();
  joiner_environment("TUTTI_INIT_TIMEOUT_SECONDS", "1", NULL);
  several_run(10, ncclRemoteError, "9 of 10 ranks came within 1 seconds; missing: rank 9;");
}

/* ---- NCCL_COMM_ID ---- */

static void comm_id_run(struct joiner *shared, const struct bootstrap_id *id) {
  joiner_fill(shared, 3, 1, id);
  shared[0].delay_ms = 50; /* rank 0's process listens last */
  for (int i = 1; i < 3; i++) joiner_fork(&shared[i]);
  assert_int_equal(bootstrap_root_open(id), ncclSuccess);
  assert_int_equal(bootstrap_root_open(id), ncclSuccess);
  joiner_run(&shared[0]);
  for (int i = 0; i < 3; i++) {
    if (i > 0) assert_int_equal(waitpid(shared[i].pid, NULL, 0), shared[i].pid);
    if (shared[i].result != ncclSuccess) fail_msg("process %d: %s", i, shared[i].reason);
  }
  bootstrap_id_over(id->nonce);
}

static void test_comm_id(void **state) {
  char text[64];
  (void)state;
  SKIP_FORK();
  struct joiner *shared = joiner_shared(3);
  snprintf(text, sizeof text, "127.0.0.1:%d", 20000 + getpid() % 10000);
  joiner_environment("NCCL_COMM_ID", text, "NCCL_SOCKET_RETRY_CNT", "34", NULL);
  const struct bootstrap_id id = joiner_id(), second = joiner_id();
  assert_int_equal(id.nonce, second.nonce);
  assert_false(id.own);
  comm_id_run(shared, &id);
  comm_id_run(shared, &id); /* one communicator after another */
  munmap(shared, 3 * sizeof *shared);
}

/* Two ids of one address, as of one launch: the second id's rank 1 connects while rank 0's process still
 * listens for the first, or just stops. */
static void in_a_row(bool ends) {
  char text[64];
  ncclUniqueId made;
  struct bootstrap_id ids[2];
  struct joiner *shared = joiner_shared(2);
  snprintf(text, sizeof text, "127.0.0.1:%d", 20000 + (getpid() + (ends ? 7 : 8)) % 10000);
  for (uint64_t i = 0; i < 2; i++) {
    assert_int_equal(bootstrap_id_at(text, "test", i + 1, &made), ncclSuccess);
    assert_int_equal(bootstrap_id_read(&made, "test", 0, &ids[i]), ncclSuccess);
    assert_true(ids[i].fixed && !ids[i].lasting && !ids[i].named);
  }
  assert_int_equal(bootstrap_root_open(&ids[0]), ncclSuccess);
  joiner_fill(shared, 2, 1, &ids[1]);
  joiner_fork(&shared[1]);
  os_sleep_ms(200); /* it checks in */
  if (ends) bootstrap_id_over(ids[0].nonce);
  if (ends) assert_int_equal(joiner_descriptors(), descriptors_before);
  assert_int_equal(bootstrap_root_open(&ids[1]), ncclSuccess);
  joiner_run(&shared[0]);
  assert_int_equal(waitpid(shared[1].pid, NULL, 0), shared[1].pid);
  for (int i = 0; i < 2; i++)
    if (shared[i].result != ncclSuccess) fail_msg("process %d: %s", i, shared[i].reason);
  for (int i = 0; i < 2; i++) bootstrap_id_over(ids[i].nonce);
  munmap(shared, 2 * sizeof *shared);
}

static void test_in_a_row(void **state) {
  (void)state;
  SKIP_FORK();
  in_a_row(false);
  in_a_row(true);
}

static enum handshake_refusal stranger_refused(const struct sock_address *to, const struct bootstrap_id *id) {
  const struct sock_wait wait = {os_time_ns() + UINT64_C(5000000000), NULL, "a stranger at"};
  enum handshake_refusal refusal = REFUSAL_NONE;
  struct session session;
  int fd = -1;
  assert_int_equal(
      handshake_connect(to, HANDSHAKE_CHECK_IN, id->nonce, &id->secret, &wait, &fd, &session, &refusal),
      ncclRemoteError);
  return refusal;
}

static struct bootstrap_id loopback_id(void) {
  char text[64];
  ncclUniqueId made;
  struct bootstrap_id id;
  snprintf(text, sizeof text, "localhost:%d", 20000 + (getpid() + 9) % 10000);
  assert_int_equal(bootstrap_id_at(text, "test", 7, &made), ncclSuccess);
  assert_int_equal(bootstrap_id_read(&made, "test", 0, &id), ncclSuccess);
  assert_true(id.fixed && id.local && !id.named && id.root.family == SOCK_LOCAL);
  return id;
}

static void as_nobody(void (*act)(const struct bootstrap_id *id), const struct bootstrap_id *id) {
  int status;
  const pid_t pid = fork();
  if (pid == 0) {
    if (setuid(65534) != 0) _exit(2);
    act(id);
    _exit(0);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
}

static void stranger_checks_in(const struct bootstrap_id *id) {
  if (stranger_refused(&id->root, id) != REFUSAL_NONE) _exit(3); /* closed without a word */
}

/* Whoever guesses the text of a loopback id knows what it has for a secret. */
static void test_comm_id_stranger(void **state) {
  (void)state;
  SKIP_FORK();
  joiner_environment("NCCL_SOCKET_RETRY_CNT", "0", NULL);
  const struct bootstrap_id id = loopback_id();
  assert_int_equal(bootstrap_root_open(&id), ncclSuccess);
  assert_int_equal(stranger_refused(&id.port, &id), REFUSAL_PROOF);
  if (geteuid() == 0) as_nobody(stranger_checks_in, &id);
  bootstrap_id_over(id.nonce);
}

/* Another user listens in rank 0's place. */
static void test_comm_id_squatter(void **state) {
  (void)state;
  SKIP_FORK();
  if (geteuid() != 0) SKIP("another user: only root can be one");
  int pipes[2], status;
  char byte = 0;
  const struct bootstrap_id id = loopback_id();
  assert_int_equal(pipe(pipes), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    struct sock_address bound;
    int fd;
    if (setuid(65534) != 0 || sock_listen(&id.root, &fd, &bound) != ncclSuccess) _exit(2);
    if (write(pipes[1], &byte, 1) != 1) _exit(2);
    for (;;) pause();
  }
  assert_int_equal(read(pipes[0], &byte, 1), 1);
  stranger_refused(&id.root, &id);
  assert_non_null(strstr(log_last_error(), "a process of another user listens there"));
  kill(pid, SIGKILL);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  close(pipes[0]);
  close(pipes[1]);
}

static void test_comm_id_bad(void **state) {
  ncclUniqueId id;
  (void)state;
  joiner_environment("NCCL_COMM_ID", "nonsense", NULL);
  assert_int_equal(bootstrap_id_create(&id), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "NCCL_COMM_ID"));
}

/* ---- forks and faults ---- */

/* A forked child has none of its parent's connections, and may have its own server. */
static void test_fork(void **state) {
  int status;
  (void)state;
  SKIP_FORK();
  const struct bootstrap_id id = joiner_id();
  joiner_fill(processes, 3, 1, &id);
  for (int i = 0; i < 3; i++) processes[i].stays = true;
  joiner_threads_start(processes, 3);
  joiner_threads_join(processes, 3);
  for (int i = 0; i < 3; i++) assert_int_equal(processes[i].result, ncclSuccess);
  const pid_t child = fork();
  if (child == 0) {
    if (joiner_descriptors() != descriptors_before) _exit(1);
    for (int i = 0; i < 3; i++) watch_leave(processes[i].watch); /* the parent's: no goodbye is sent */
    bootstrap_id_over(id.nonce);
    const struct bootstrap_id own = joiner_id();
    joiner_fill(processes, 2, 1, &own);
    joiner_threads_start(processes, 2);
    joiner_threads_join(processes, 2);
    bootstrap_id_over(own.nonce);
    _exit(processes[0].result == ncclSuccess && processes[1].result == ncclSuccess ? 0 : 2);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  for (int i = 0; i < 3; i++) assert_int_equal(processes[i].lost_count, 0);
  for (int i = 0; i < 3; i++) watch_leave(processes[i].watch);
  bootstrap_id_over(id.nonce);
}

static uint32_t settle(struct joiner *shared, uint32_t count, uint32_t victim) {
  uint32_t open = count;
  for (uint32_t waited = 0; open > 0 && waited < 15000; waited += 5) {
    open = 0;
    for (uint32_t i = 0; i < count; i++) {
      const bool ended = __atomic_load_n(&shared[i].result, __ATOMIC_ACQUIRE) != ncclInProgress;
      if (i != victim && !ended) open++;
    }
    if (open > 0) os_sleep_ms(5);
  }
  return open;
}

/* Each seed kills one of a few processes at some moment: no survivor hangs, and none gets a false error. */
static void test_killed_at_random(void **state) {
  (void)state;
  SKIP_FORK();
  joiner_environment("TUTTI_INIT_TIMEOUT_SECONDS", "1", NULL);
  uint64_t random = 1;
  for (uint32_t seed = 0; seed < 12; seed++) {
    random_step(&random);
    const uint32_t count = 2 + (uint32_t)(random >> 40) % 6, victim = (uint32_t)(random >> 50) % count;
    struct joiner *shared = joiner_shared(count);
    const struct bootstrap_id id = joiner_id();
    joiner_fill(shared, count, 1, &id);
    for (uint32_t i = 0; i < count; i++) {
      shared[i].stays = true;
      joiner_fork(&shared[i]);
    }
    const uint64_t until_ns = os_time_ns() + (random >> 33) % 12000000; /* not earlier than a fork takes */
    while (os_time_ns() < until_ns) os_yield();
    kill(shared[victim].pid, SIGKILL);
    assert_int_equal(waitpid(shared[victim].pid, NULL, 0), shared[victim].pid);
    assert_int_equal(settle(shared, count, victim), 0);
    for (uint32_t i = 0; i < count; i++) {
      if (i == victim) continue;
      if (shared[i].result == ncclSuccess) assert_true(joiner_wait_lost(&shared[i], 10000));
      else assert_int_equal(shared[i].result, ncclRemoteError);
      kill(shared[i].pid, SIGKILL);
      assert_int_equal(waitpid(shared[i].pid, NULL, 0), shared[i].pid);
    }
    bootstrap_id_over(id.nonce);
    munmap(shared, count * sizeof *shared);
  }
}

/* The k-th allocation fails, for any k, in any thread: an error or success, and nothing leaks. */
static void test_memory(void **state) {
  (void)state;
  joiner_environment("TUTTI_INIT_TIMEOUT_SECONDS", "1", NULL);
  for (uint64_t k = 1; k < 100; k += 14) {
    os_alloc_fail_at(k);
    ncclUniqueId made;
    struct bootstrap_id id;
    if (bootstrap_id_create(&made) != ncclSuccess) continue;
    assert_int_equal(bootstrap_id_read(&made, "test", 0, &id), ncclSuccess);
    joiner_fill(processes, 3, 1, &id);
    if (id.root.family != 0) {
      joiner_threads_start(processes, 3);
      joiner_threads_join(processes, 3);
    }
    bootstrap_id_over(id.nonce);
    os_alloc_fail_at(0);
  }
  os_alloc_fail_at(0);
}

static void *nothing(void *argument) { return argument; }

int main(void) {
  os_thread thread;
  if (os_thread_start(&thread, nothing, NULL)) os_thread_join(thread); /* a sanitizer's thread starts too */
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(test_ids),
      TEST(test_local_id),
      TEST(test_no_interface),
      TEST(test_many_ids),
      TEST(test_called),
      TEST(test_several_roots),
      TEST(test_comm_id),
      TEST(test_in_a_row),
      TEST(test_several_roots_missing),
      TEST(test_comm_id_bad),
      TEST(test_fork),
      TEST(test_killed_at_random),
      TEST(test_memory),
      TEST(test_comm_id_stranger),
      TEST(test_comm_id_squatter),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
