/* test_reach.c: which processes exchange data over shared memory, and which over the network, if some of them
 * cannot map the memory of others. Processes are threads; a table says which can map which. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "core/remote/remote.h"
#include "core/remote/reach.h"
#include "joiner.h"

#define MANY 21

static struct process {
  struct joiner joiner;
  struct peer_info info;
  struct reach reach;
  ncclResult_t result;
  char reason[COMM_REASON_BYTES];
} processes[MANY];
static bool broken[MANY][MANY];      /* [own][peer]: memory of the peer's device cannot be mapped */
static bool broken_host[MANY][MANY]; /* the same of memory of the host */
static bool disabled[MANY][MANY];    /* [own][peer]: links join their devices, and may not be used */
static uint32_t tries, host_tries;
static uint32_t count;

static ncclResult_t reach_by_table(struct device_comm *model, uint32_t peer,
                                   const struct device_comm_handle *info, bool *reached) {
  const struct process *process = (const struct process *)(void *)model;
  (void)info;
  __atomic_add_fetch(&tries, 1, __ATOMIC_RELAXED);
  *reached = !broken[process - processes][peer];
  return *reached ? ncclSuccess : log_fail(ncclSuccess, "no space");
}

static ncclResult_t reach_host_by_table(struct device_comm *model, uint32_t peer,
                                        const struct device_comm_handle *info, bool *reached) {
  const struct process *process = (const struct process *)(void *)model;
  (void)info;
  __atomic_add_fetch(&host_tries, 1, __ATOMIC_RELAXED);
  *reached = !broken_host[process - processes][peer];
  return *reached ? ncclSuccess : log_fail(ncclSuccess, "no pages");
}

static ncclResult_t check_by_table(struct device_comm *model, uint32_t peer,
                                   const struct device_comm_handle *info) {
  const struct process *process = (const struct process *)(void *)model;
  (void)info;
  assert_true(process - processes != peer);
  return disabled[process - processes][peer] ? log_fail(ncclSystemError, "links are off") : ncclSuccess;
}

static void *process_body(void *argument) {
  struct process *process = (struct process *)argument;
  static const struct process_ops table = {.size = sizeof table,
                                           .comm_reach = reach_by_table,
                                           .comm_reach_shm = reach_host_by_table,
                                           .comm_check = check_by_table};
  static const struct backend ops = {.size = sizeof ops, .name = "fake", .process = &table};
  struct gather_call call = process->joiner.call;
  struct gather *gather = NULL;
  call.roots = process->joiner.roots;
  process->result = gather_open(&call, &gather);
  if (process->result == ncclSuccess)
    process->result = gather_check_in(gather, process->joiner.ranks[0], &process->info, sizeof process->info);
  if (process->result == ncclSuccess)
    process->result = gather_wait(gather, process->reason, sizeof process->reason);
  if (process->result == ncclSuccess)
    process->result = reach_try(gather, "test", &ops, (struct device_comm *)(void *)process, count,
                                &process->reach, process->reason, sizeof process->reason);
  if (process->result == ncclSuccess)
    process->result = gather_agree(gather, ncclSuccess, process->reason, sizeof process->reason);
  gather_close(gather);
  return NULL;
}

static void fill(uint32_t wanted) {
  memset(processes, 0, sizeof processes);
  memset(broken, 0, sizeof broken);
  memset(broken_host, 0, sizeof broken_host);
  memset(disabled, 0, sizeof disabled);
  tries = host_tries = 0;
  count = wanted;
  for (uint32_t i = 0; i < count; i++) {
    processes[i].info.present = processes[i].info.offers = 1;
    processes[i].info.host = 1;
    processes[i].info.process = 1000 + (int)i;
  }
}

static void all_run(void) {
  const struct bootstrap_id id = joiner_id();
  struct joiner joiners[MANY];
  joiner_fill(joiners, count, 1, &id);
  for (uint32_t i = 0; i < count; i++) processes[i].joiner = joiners[i];
  for (uint32_t i = 0; i < count; i++)
    if (!os_thread_start(&processes[i].joiner.thread, process_body, &processes[i])) abort();
  for (uint32_t i = 0; i < count; i++) os_thread_join(processes[i].joiner.thread);
  bootstrap_id_over(id.nonce);
}

static void all_try(void) {
  all_run();
  for (uint32_t i = 0; i < count; i++)
    if (processes[i].result != ncclSuccess) fail_msg("process %u: %s", i, processes[i].reason);
}

/* The result on all processes: "apart" has one letter per process. */
static void assert_apart(const char *apart) {
  all_try();
  for (uint32_t i = 0; i < count; i++) {
    char text[MANY + 1] = "";
    for (uint32_t k = 0; k < count; k++)
      text[k] = processes[i].reach.processes[k].denied[REACH_DEVICE] == UINT64_MAX ? 'x' : '-';
    assert_string_equal(text, apart);
    os_free(processes[i].reach.processes);
  }
}

static char shared_letter(const struct reach *reach, uint32_t a, uint32_t b) {
  const uint8_t offers = processes[a].info.offers & processes[b].info.offers;
  if (a == b) return '.';
  for (int memory = REACH_DEVICE; memory <= REACH_HOST; memory++)
    if ((offers >> memory & 1) != 0 &&
        reach_allows(&reach->processes[a], &reach->processes[b], (enum reach_memory)memory))
      return "DH"[memory];
  return '-';
}

/* What each pair shares, on all processes: rows of D (memory of devices), H (of the host) and - (none). */
static void assert_pairs(const char *pairs) {
  all_try();
  for (uint32_t i = 0; i < count; i++) {
    char text[MANY * (MANY + 1)] = "";
    size_t length = 0;
    for (uint32_t a = 0; a < count; a++) {
      for (uint32_t b = 0; b < count; b++) text[length++] = shared_letter(&processes[i].reach, a, b);
      text[length++] = ' ';
    }
    text[length - 1] = '\0';
    assert_string_equal(text, pairs);
    os_free(processes[i].reach.processes);
  }
}

static int set_up(void **state) {
  (void)state;
  joiner_environment(NULL);
  return 0;
}

static void test_all_reached(void **state) {
  (void)state;
  fill(5);
  assert_apart("-----");
  assert_int_equal(tries, 20);
  assert_string_equal(processes[3].reach.why, "");
  fill(1);
  assert_apart("-");
  fill(4); /* each on its own host, or with nothing to share: none tries */
  processes[1].info.host = 2;
  processes[2].info.offers = 0;
  processes[3].info.host = 3;
  assert_apart("----");
  assert_int_equal(tries, 0);
}

static void test_one_apart(void **state) {
  (void)state;
  fill(4); /* a process that can map no other */
  for (uint32_t i = 0; i < 4; i++) broken[2][i] = true;
  assert_apart("--x-");
  for (uint32_t i = 0; i < 4; i++)
    assert_string_equal(processes[i].reach.why,
                        "rank 2 (process 1002) cannot map memory of rank 3 (process 1003) on its host: no "
                        "space");
  fill(4); /* a process that no other can map */
  for (uint32_t i = 0; i < 4; i++) broken[i][2] = true;
  assert_apart("--x-");
  assert_string_equal(
      processes[3].reach.why,
      "rank 0 (process 1000) cannot map memory of rank 2 (process 1002) on its host: no space");
  fill(2);
  broken[1][0] = true;
  assert_apart("-x");
}

/* Failures on other hosts do not matter. */
static void test_hosts(void **state) {
  (void)state;
  fill(6);
  for (uint32_t i = 0; i < 6; i++) processes[i].info.host = i % 2;
  broken[0][1] = broken[1][0] = broken[3][5] = true; /* the first two are on different hosts */
  assert_apart("-----x");
  fill(12);
  for (uint32_t i = 0; i < 12; i++) processes[i].info.host = i < 3;
  for (uint32_t i = 3; i < 12; i++)
    for (uint32_t k = 3; k < 12; k++) broken[i][k] = true;
  assert_apart("---xxxxxxxxx"); /* four of them one by one, then all */
}

/* Of many processes, each tries neighbours and some others; any failure ends with the same list on all. */
static void test_many(void **state) {
  (void)state;
  fill(MANY);
  assert_apart("---------------------");
  assert_int_equal(tries, MANY * 6); /* distances 1, 2, 4, 8, 16 and 20 */
  fill(MANY);
  broken[20][0] = broken[7][8] = broken[7][9] = true;
  assert_apart("x------x-------------");
}

static void fill_both(uint32_t wanted) {
  fill(wanted);
  for (uint32_t i = 0; i < count; i++) processes[i].info.offers = 3;
}

/* Two pairs of devices that reach each other: memory of the host is for the others, and tried for them alone.
 */
static void test_pairs(void **state) {
  (void)state;
  fill_both(4);
  for (uint32_t a = 0; a < 4; a++)
    for (uint32_t b = 0; b < 4; b++) broken[a][b] = a / 2 != b / 2;
  assert_pairs(".DHH D.HH HH.D HHD.");
  assert_int_equal(host_tries, 8);
  assert_string_equal(processes[2].reach.why, "");
  fill_both(3); /* one pair that fails in one direction */
  broken[2][0] = true;
  assert_pairs(".DH D.D HD.");
  assert_int_equal(host_tries, 2);
  fill_both(3);
  assert_pairs(".DD D.D DD.");
  assert_int_equal(host_tries, 0);
}

/* No device's memory is offered, or not by one; where memory of the host fails too, there is none. */
static void test_no_pages(void **state) {
  (void)state;
  fill_both(3);
  for (uint32_t i = 0; i < 3; i++) processes[i].info.offers = 2;
  assert_pairs(".HH H.H HH.");
  assert_int_equal(tries, 0);
  fill_both(4);
  for (uint32_t a = 0; a < 4; a++)
    for (uint32_t b = 0; b < 4; b++) broken[a][b] = a / 2 != b / 2;
  for (uint32_t i = 0; i < 4; i++) broken_host[3][i] = true;
  assert_pairs(".DH- D.H- HH.D --D.");
  assert_string_equal(
      processes[0].reach.why,
      "rank 3 (process 1003) cannot map memory of rank 1 (process 1001) on its host: no pages");
  fill_both(3);
  processes[0].info.offers = 1; /* nothing replaces what it cannot map */
  broken[0][1] = true;
  assert_pairs(".-D -.H DH."); /* 1 is set apart */
  fill_both(2);
  processes[1].info.host = 2;
  assert_pairs(".D D."); /* of different hosts: nobody tried */
  assert_int_equal(tries, 0);
}

/* After enough turns about pairs a host's devices share nothing. */
static void test_many_pairs(void **state) {
  (void)state;
  fill_both(17);
  for (uint32_t a = 0; a < 17; a++)
    for (uint32_t b = 0; b < 17; b++) broken[a][b] = true;
  all_try();
  for (uint32_t i = 0; i < count; i++) {
    for (uint32_t k = 1; k < count; k++) assert_int_equal(shared_letter(&processes[i].reach, 0, k), 'H');
    os_free(processes[i].reach.processes);
  }
}

/* One process finds it, all end; on another host it does not matter. */
static void test_links_disabled(void **state) {
  (void)state;
  fill(3);
  disabled[1][2] = true;
  all_run();
  for (uint32_t i = 0; i < count; i++) {
    assert_int_equal(processes[i].result, ncclSystemError);
    assert_non_null(strstr(processes[i].reason, "links are off"));
    os_free(processes[i].reach.processes);
  }
  fill(3);
  disabled[1][2] = true;
  processes[2].info.host = 2;
  assert_apart("---");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_all_reached, set_up), cmocka_unit_test_setup(test_one_apart, set_up),
      cmocka_unit_test_setup(test_hosts, set_up),       cmocka_unit_test_setup(test_many, set_up),
      cmocka_unit_test_setup(test_pairs, set_up),       cmocka_unit_test_setup(test_no_pages, set_up),
      cmocka_unit_test_setup(test_many_pairs, set_up),  cmocka_unit_test_setup(test_links_disabled, set_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
