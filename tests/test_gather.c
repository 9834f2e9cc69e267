/* test_gather.c: processes that check in with one root, in any order, and all failures on the way; then the
 * watch for lost processes. Processes are threads, or real processes that are killed and stopped. */
/* sanitizers: address thread */
/* runner: 7 s, waits */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/handshake.h"
#include "core/bootstrap/wire.h"
#include "joiner.h"
#include "skip.h"

static struct joiner processes[PROCESSES_MOST];
static uint32_t descriptors_before;
static uint64_t blocks_before;

static int set_up(void **state) {
  (void)state;
  joiner_environment(NULL);
  descriptors_before = joiner_descriptors();
  blocks_before = os_alloc_live();
  return 0;
}

/* Every test ends without open descriptors, memory or server threads. */
static int tear_down(void **state) {
  (void)state;
  if (joiner_descriptors() == descriptors_before && os_alloc_live() == blocks_before) return 0;
  print_error("left behind: %d descriptors, %d blocks\n", (int)(joiner_descriptors() - descriptors_before),
              (int)(os_alloc_live() - blocks_before));
  return -1;
}

static void run(uint32_t count) {
  joiner_threads_start(processes, count);
  joiner_threads_join(processes, count);
}

static void assert_all(uint32_t count, ncclResult_t code, const char *text) {
  for (uint32_t i = 0; i < count; i++) {
    if (processes[i].result != code || !strstr(processes[i].reason, text)) {
      fail_msg("process %u: %d \"%s\" instead of %d \"%s\"", i, processes[i].result, processes[i].reason,
               code, text);
    }
  }
}

static void test_meets(void **state) {
  (void)state;
  for (uint32_t count = 1; count <= 17; count += count < 9 ? 1 : 4) {
    const struct bootstrap_id id = joiner_id();
    joiner_fill(processes, count, 1 + count % 3, &id);
    for (uint32_t i = 0; i < count; i++) processes[i].delay_ms = i * 7 % 5 * 2;
    run(count);
    assert_all(count, ncclSuccess, "");
    for (uint32_t i = 0; i < count; i++) {
      assert_true(processes[i].infos_good);
      assert_int_equal(processes[i].process_count, count);
      assert_int_equal(processes[i].process_index, i);
    }
    bootstrap_id_over(id.nonce);
  }
}

static void test_missing(void **state) {
  (void)state;
  joiner_environment("TUTTI_INIT_TIMEOUT_SECONDS", "1", NULL);
  const struct bootstrap_id id = joiner_id();
  joiner_fill(processes, 4, 2, &id);
  run(3);
  assert_all(3, ncclRemoteError, "6 of 8 ranks came within 1 seconds; missing: rank 6-7;");
  run(1); /* late */
  assert_all(1, ncclRemoteError, "missing: rank 6-7;");
  bootstrap_id_over(id.nonce);
}

static void test_contradictions(void **state) {
  static const struct {
    uint32_t rank, rank_count;
    uint64_t signature;
    const char *text;
  } cases[] = {
      {1, 3, 77, "rank 1 came twice, from "},
      {2, 4, 77, "says "},
      {2, 3, 78, "passes another list"},
      {9, 3, 77, "rank 9 is none of 3 ranks"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct bootstrap_id id = joiner_id();
    joiner_fill(processes, 3, 1, &id);
    processes[2].delay_ms = 50;
    processes[2].ranks[0] = cases[i].rank;
    processes[2].call.rank_count = cases[i].rank_count;
    processes[2].call.signature = cases[i].signature;
    run(3);
    assert_all(3, ncclInvalidUsage, cases[i].text);
    bootstrap_id_over(id.nonce);
  }
}

static void test_late(void **state) {
  (void)state;
  struct bootstrap_id id = joiner_id();
  joiner_fill(processes, 2, 1, &id);
  processes[0].stays = true; /* keeps the root's process alive */
  run(2);
  assert_all(2, ncclSuccess, "");
  struct watch *watch = processes[0].watch;
  processes[0].result = ncclInProgress;
  bootstrap_id_over(id.nonce);
  run(1);
  assert_all(1, ncclInvalidUsage, "get a new one with ncclGetUniqueId");
  watch_leave(watch);
}

/* A hand-made check-in of another version. */
static void test_version(void **state) {
  (void)state;
  const struct bootstrap_id id = joiner_id();
  const struct sock_wait wait = {os_time_ns() + 5000000000ull, NULL, "test"};
  struct wire_check_in said = {.uid = 5, .signature = 77, .version = 21000, .rank_count = 2, .pid = 4711};
  struct session session;
  const uint32_t rank = 1;
  int fd;
  joiner_fill(processes, 2, 1, &id);
  joiner_threads_start(processes, 1);
  said.key = id.nonce;
  said.first = 1;
  said.first_root = said.address = id.root;
  strcpy(said.host, "elsewhere");
  assert_int_equal(sock_connect(&id.root, &wait, &fd), ncclSuccess);
  assert_int_equal(handshake_dial(fd, HANDSHAKE_CHECK_IN, id.nonce, &id.secret, &wait, &session, NULL),
                   ncclSuccess);
  os_sleep_ms(100); /* the process checks in meanwhile */
  assert_int_equal(wire_send(fd, &session.out, FRAME_CHECK_IN, &said, sizeof said, &wait), ncclSuccess);
  assert_int_equal(wire_send(fd, &session.out, FRAME_RANKS, &rank, sizeof rank, &wait), ncclSuccess);
  joiner_threads_join(processes, 1);
  assert_all(1, ncclInvalidUsage, "rank 1 (process 4711 on host elsewhere");
  assert_non_null(strstr(processes[0].reason, "is of version 21000, others are of"));
  sock_close(fd);
  bootstrap_id_over(id.nonce);
}

/* Messages of unauthenticated processes are logged without terminal control characters. */
static void test_texts(void **state) {
  static const char said[] = "a\x1b[2J\nb and more";
  struct wire_reader reader = {(const uint8_t *)said, sizeof said - 1};
  char out[8];
  (void)state;
  wire_take_text(&reader, out, sizeof out);
  assert_string_equal(out, "a?[2J?b");
  assert_int_equal(reader.left, 0);
}

static void test_ranks_come_late(void **state) {
  (void)state;
  const struct bootstrap_id id = joiner_id();
  joiner_fill(processes, 3, 3, &id);
  processes[0].late_ms = 40;
  processes[1].late_ms = 20;
  run(3);
  assert_all(3, ncclSuccess, "");
  for (uint32_t i = 0; i < 3; i++) assert_true(processes[i].infos_good);
  bootstrap_id_over(id.nonce);
}

static void test_agreement(void **state) {
  (void)state;
  const struct bootstrap_id id = joiner_id();
  joiner_fill(processes, 5, 1, &id);
  processes[2].own_result = ncclSystemError;
  processes[4].own_result = ncclInvalidUsage;
  run(5);
  assert_all(5, ncclSystemError, "rank 2 failed");
  bootstrap_id_over(id.nonce);
}

static struct gather *cancelled;

static void *cancel_body(void *argument) {
  (void)argument;
  os_sleep_ms(100);
  gather_cancel(cancelled, ncclInvalidUsage, "rank 2 was aborted");
  return NULL;
}

static void test_cancel(void **state) {
  (void)state;
  const struct bootstrap_id id = joiner_id();
  struct gather_call call;
  os_thread thread;
  char reason[512] = "";
  joiner_fill(processes, 4, 1, &id);
  joiner_threads_start(processes, 2);
  call = processes[2].call;
  call.roots = processes[2].roots;
  assert_int_equal(gather_open(&call, &cancelled), ncclSuccess);
  assert_int_equal(gather_check_in(cancelled, 2, "x", 1), ncclSuccess);
  assert_true(os_thread_start(&thread, cancel_body, NULL));
  assert_int_equal(gather_wait(cancelled, reason, sizeof reason), ncclInvalidUsage);
  assert_string_equal(reason, "rank 2 was aborted");
  os_thread_join(thread);
  gather_close(cancelled);
  joiner_threads_join(processes, 2);
  assert_all(2, ncclInvalidUsage, "rank 2 was aborted");
  bootstrap_id_over(id.nonce);
}

/* Also before it has reached the root, and before any rank checks in. */
static void test_cancel_early(void **state) {
  (void)state;
  const struct bootstrap_id id = joiner_id();
  struct gather_call call;
  char reason[512] = "";
  joiner_fill(processes, 3, 1, &id);
  joiner_threads_start(processes, 2);
  call = processes[2].call;
  call.roots = processes[2].roots;
  assert_int_equal(gather_open(&call, &cancelled), ncclSuccess);
  gather_cancel(cancelled, ncclInvalidUsage, "rank 2 was aborted");
  const uint64_t begin_ns = os_time_ns();
  assert_int_equal(gather_wait(cancelled, reason, sizeof reason), ncclInvalidUsage);
  gather_close(cancelled);
  joiner_threads_join(processes, 2);
  assert_all(2, ncclInvalidUsage, "rank 2 was aborted");
  assert_true(os_time_ns() - begin_ns < 15000000000ull); /* not only at their deadline */
  bootstrap_id_over(id.nonce);
}

/* Child communicators have no id: the first process to check in opens their root. */
static void test_child(void **state) {
  (void)state;
  struct sock_address address;
  assert_int_equal(control_use(&address), ncclSuccess);
  struct bootstrap_id id = {.number = 1, .root = address, .own = true};
  struct secret parent;
  assert_true(secret_draw(&parent));
  assert_int_equal(control_serve(&parent, NULL, NULL), ncclSuccess);
  secret_derive(&parent, "child", NULL, 0, &id.secret);
  for (int second = 0; second < 3; second++) {
    joiner_fill(processes, 4, 1, &id);
    for (uint32_t i = 0; i < 4; i++) processes[i].call.child = true;
    for (uint32_t i = 0; i < 4; i++) processes[i].roots[0].let_in = parent;
    run(4);
    assert_all(4, ncclSuccess, "");
  }
  /* An id's members may not open roots. */
  const struct bootstrap_id other = joiner_id();
  joiner_fill(processes, 1, 1, &id);
  processes[0].call.child = true;
  processes[0].roots[0].let_in = other.secret;
  run(1);
  assert_all(1, ncclInvalidUsage, "get a new one with ncclGetUniqueId");
  bootstrap_id_over(other.nonce);
  control_unserve(secret_name(&parent));
  control_leave();
}

/* ---- processes ---- */

static void reap(struct joiner *process) { assert_int_equal(waitpid(process->pid, NULL, 0), process->pid); }

static bool settled(const struct joiner *process, uint32_t timeout_ms) {
  for (uint32_t waited = 0; waited < timeout_ms; waited += 5) {
    if (__atomic_load_n(&process->result, __ATOMIC_ACQUIRE) != ncclInProgress) return true;
    os_sleep_ms(5);
  }
  return false;
}

/* One of several processes is killed at one of its steps: the others fail with an error that names it, or, if
 * all had agreed, are notified. */
static void test_killed(void **state) {
  (void)state;
  SKIP_FORK();
  for (uint32_t at = 2; at <= 6; at++) {
    joiner_environment("TUTTI_INIT_TIMEOUT_SECONDS", at == 2 ? "1" : "20", NULL);
    struct joiner *shared = joiner_shared(5);
    const struct bootstrap_id id = joiner_id();
    char who[32];
    joiner_fill(shared, 5, 1, &id);
    shared[at % 5].die_at = at;
    for (uint32_t i = 0; i < 5; i++) {
      shared[i].stays = true;
      joiner_fork(&shared[i]);
    }
    snprintf(who, sizeof who, "process %d ", shared[at % 5].pid);
    for (uint32_t i = 0; i < 5; i++) {
      if (i == at % 5) continue;
      assert_true(settled(&shared[i], 10000));
      if (at == 2) assert_int_equal(shared[i].result, ncclRemoteError);
      else if (shared[i].result == ncclSuccess) assert_true(joiner_wait_lost(&shared[i], 10000));
      const char *said = shared[i].result == ncclSuccess ? shared[i].lost_text : shared[i].reason;
      if (at > 2 && !strstr(said, who))
        fail_msg("step %u, process %u: %d %s: \"%s\"", at, i, shared[i].result, who, said);
      if (at > 2 && shared[i].result != ncclSuccess) assert_int_equal(shared[i].result, ncclRemoteError);
    }
    for (uint32_t i = 0; i < 5; i++) {
      kill(shared[i].pid, SIGKILL);
      reap(&shared[i]);
    }
    bootstrap_id_over(id.nonce);
    munmap(shared, 5 * sizeof *shared);
  }
}

static struct joiner *watchers_start(uint32_t count, struct bootstrap_id *id) {
  struct joiner *shared = joiner_shared(count);
  *id = joiner_id();
  joiner_fill(shared, count, 1, id);
  for (uint32_t i = 0; i < count; i++) {
    shared[i].stays = true;
    joiner_fork(&shared[i]);
  }
  for (uint32_t i = 0; i < count; i++) {
    assert_true(settled(&shared[i], 10000));
    assert_int_equal(shared[i].result, ncclSuccess);
  }
  bootstrap_id_over(id->nonce);
  return shared;
}

static void watchers_end(struct joiner *shared, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    kill(shared[i].pid, SIGKILL);
    reap(&shared[i]);
  }
  munmap(shared, count * sizeof *shared);
}

static void assert_lost(struct joiner *process, const struct joiner *lost, const char *what) {
  char who[32];
  snprintf(who, sizeof who, "process %d on host ", lost->pid);
  assert_true(joiner_wait_lost(process, 10000));
  assert_int_equal(process->lost_process, lost->process_index);
  assert_int_equal(process->lost_code, ncclRemoteError);
  if (!strstr(process->lost_text, who) || !strstr(process->lost_text, what))
    fail_msg("\"%s\" has no %s or %s", process->lost_text, who, what);
  assert_int_equal(process->lost_count, 1);
}

static void test_watch_kill(void **state) {
  (void)state;
  SKIP_FORK();
  struct bootstrap_id id;
  struct joiner *shared = watchers_start(7, &id);
  kill(shared[3].pid, SIGKILL);
  for (uint32_t i = 0; i < 7; i++) {
    if (i != 3) assert_lost(&shared[i], &shared[3], "closed its connection without goodbye");
  }
  watchers_end(shared, 7);
}

static void test_watch_stop(void **state) {
  (void)state;
  SKIP_FORK();
  struct bootstrap_id id;
  joiner_environment("TUTTI_PEER_TIMEOUT_SECONDS", "1", NULL);
  struct joiner *shared = watchers_start(4, &id);
  kill(shared[2].pid, SIGSTOP);
  for (uint32_t i = 0; i < 4; i++) {
    if (i != 2) assert_lost(&shared[i], &shared[2], "was silent for 1 seconds");
  }
  watchers_end(shared, 4);
}

/* A short stop is not reported to anybody; nor is a goodbye. */
static void test_watch_patience(void **state) {
  (void)state;
  SKIP_FORK();
  struct bootstrap_id id;
  joiner_environment("TUTTI_PEER_TIMEOUT_SECONDS", "2", NULL);
  struct joiner *shared = watchers_start(4, &id);
  kill(shared[2].pid, SIGSTOP);
  os_sleep_ms(500);
  kill(shared[2].pid, SIGCONT);
  __atomic_store_n(&shared[1].die_at, UINT32_MAX, __ATOMIC_RELEASE); /* leaves */
  os_sleep_ms(2500);
  for (uint32_t i = 0; i < 4; i++) assert_int_equal(shared[i].lost_count, 0);
  watchers_end(shared, 4);
}

static void test_watch_fail(void **state) {
  (void)state;
  const struct bootstrap_id id = joiner_id();
  joiner_fill(processes, 6, 1, &id);
  for (uint32_t i = 0; i < 6; i++) processes[i].stays = true;
  run(6);
  assert_all(6, ncclSuccess, "");
  bootstrap_id_over(id.nonce);
  watch_fail(processes[4].watch, 99, ncclInvalidUsage, "rank 4 was aborted");
  for (uint32_t i = 0; i < 6; i++) {
    if (i == 4) continue;
    assert_true(joiner_wait_lost(&processes[i], 10000));
    assert_int_equal(processes[i].lost_code, ncclInvalidUsage);
    assert_int_equal(processes[i].lost_process, 4);
    assert_int_equal(processes[i].lost_key, 99);
    assert_string_equal(processes[i].lost_text, "rank 4 was aborted");
  }
  for (uint32_t i = 0; i < 6; i++) watch_leave(processes[i].watch);
  assert_int_equal(processes[4].lost_count, 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(test_meets),           TEST(test_missing),      TEST(test_contradictions), TEST(test_late),
      TEST(test_ranks_come_late), TEST(test_texts),        TEST(test_version),        TEST(test_agreement),
      TEST(test_cancel),          TEST(test_cancel_early), TEST(test_child),          TEST(test_killed),
      TEST(test_watch_kill),      TEST(test_watch_stop),   TEST(test_watch_patience), TEST(test_watch_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
