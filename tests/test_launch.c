/* test_launch.c: reads the variables of each launcher: ranks, contradictions, malformed numbers, and
 * rendezvous addresses. Nothing is started here; test_launch.sh does that. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/child.h"
#include "base/launch.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/sock.h"
#include "tutti.h"

/* The prefixes of launchers' variables. */
static bool is_launchers(const char *entry) {
  static const char *const names[] = {"TUTTI_R",      "TUTTI_S",    "TUTTI_L", "TUTTI_J", "RANK=",
                                      "WORLD_SIZE=",  "LOCAL_",     "MASTER_", "OMPI_",   "PMI_",
                                      "PMIX_",        "MPI_LOCAL",  "SLURM_",  "NCCL_",   "TORCHELASTIC_",
                                      "ENVIRONMENT=", "GROUP_RANK="};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strncmp(entry, names[i], strlen(names[i])) == 0) return true;
  return false;
}

static void environment_clear(void) {
  for (const char *const *entry = os_environ(); *entry;) {
    char name[256];
    if (!is_launchers(*entry)) {
      entry++;
      continue;
    }
    snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
    unsetenv(name);
    entry = os_environ();
  }
}

static int set_up(void **state) {
  (void)state;
  environment_clear();
  setenv("NCCL_CONF_FILE", "/dev/null", 1);
  setenv("NCCL_DEBUG", "NONE", 1);
  param_reset();
  log_reset();
  return 0;
}

/* Sets the environment from "A=1 B=two", and no other launcher variables. */
static void environment(const char *text) {
  char copy[1024], *rest = NULL;
  set_up(NULL);
  snprintf(copy, sizeof copy, "%s", text);
  for (char *item = strtok_r(copy, " ", &rest); item; item = strtok_r(NULL, " ", &rest)) {
    char *equals = strchr(item, '=');
    assert_non_null(equals);
    *equals = '\0';
    setenv(item, equals + 1, 1);
  }
  param_reset();
}

static tutti_launch_t launch_of(const char *text) {
  tutti_launch_t launch;
  memset(&launch, 0xee, sizeof launch);
  launch.size = sizeof launch;
  environment(text);
  if (tutti_launch_read(&launch) != ncclSuccess) fail_msg("%s: %s", text, log_last_error());
  return launch;
}

static void expect(const char *text, const char *launcher, int rank, int rank_count, int local_rank,
                   int local_count) {
  const tutti_launch_t launch = launch_of(text);
  if (strcmp(launch.launcher, launcher) != 0 || launch.rank != rank || launch.rank_count != rank_count ||
      launch.local_rank != local_rank || launch.local_count != local_count)
    fail_msg("%s: read as %s rank %d of %d, %d of %d here", text, launch.launcher, launch.rank,
             launch.rank_count, launch.local_rank, launch.local_count);
}

/* Refused with a message that has `part`; and nothing is written. */
static void refuse(const char *text, const char *part) {
  tutti_launch_t launch;
  memset(&launch, 0, sizeof launch);
  launch.size = sizeof launch;
  launch.rank = 77;
  environment(text);
  if (tutti_launch_read(&launch) != ncclInvalidUsage) fail_msg("%s: not refused", text);
  assert_int_equal(launch.rank, 77);
  if (!strstr(log_last_error(), part)) fail_msg("%s: \"%s\" lacks \"%s\"", text, log_last_error(), part);
}

#define TUTTI "TUTTI_RANK=3 TUTTI_SIZE=8"
#define TORCH "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1"
#define OMPI "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8"
#define SLURM "SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NTASKS=6 SLURM_STEP_ID=0 SLURM_JOB_ID=77"

static void test_launchers(void **state) {
  (void)state;
  expect("", "none", 0, 1, 0, 1);
  expect(TUTTI, "tutti", 3, 8, 3, 8);
  expect(TUTTI " TUTTI_LOCAL_RANK=1 TUTTI_LOCAL_SIZE=2", "tutti", 3, 8, 1, 2);
  expect(TORCH " LOCAL_WORLD_SIZE=2", "torchrun", 3, 8, 1, 2);
  expect(TORCH, "torchrun", 3, 8, 1, 0);
  expect("RANK=0 WORLD_SIZE=1 MASTER_ADDR=here MASTER_PORT=1", "torchrun", 0, 1, 0, 1);
  expect(OMPI " OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_RANK=3", "openmpi", 3, 8, 1,
         4);
  expect("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", "hydra", 1, 2, 0, 1);
  expect("PMI_RANK=1 PMI_SIZE=2", "pmi", 1, 2, 1, 2);
  expect(SLURM " SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=4,2", "slurm", 5, 6, 1, 2);
  expect(SLURM " SLURM_STEP_NUM_TASKS=12 SLURM_NNODES=1", "slurm", 5, 12, 1, 12);
  expect("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0", "slurm", 1, 2, 0, 0);
}

/* Variables that exist although this process was not launched with them. */
static void test_not_launched(void **state) {
  (void)state;
  expect("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 ENVIRONMENT=BATCH", "none", 0, 1, 0, 1);
  expect("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_ID=4294967291", "none", 0, 1, 0, 1);
  expect("SLURM_NTASKS=4 SLURM_JOB_ID=7", "none", 0, 1, 0, 1);
  expect("RANK=3", "none", 0, 1, 0, 1);
  expect("RANK=3 WORLD_SIZE=8", "none", 0, 1, 0, 1);
  expect("WORLD_SIZE=8 LOCAL_RANK=0", "none", 0, 1, 0, 1);
  expect("PMIX_RANK=3", "none", 0, 1, 0, 1);
  expect("TUTTI_RANK= TUTTI_SIZE=", "none", 0, 1, 0, 1);
}

static void test_precedence(void **state) {
  (void)state;
  expect(TUTTI " RANK=1 WORLD_SIZE=2 LOCAL_RANK=0", "tutti", 3, 8, 3, 8);
  assert_non_null(strstr(log_last_error(), "RANK=1"));
  assert_non_null(strstr(log_last_error(), "TUTTI_RANK=3"));
  expect(TORCH " OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2", "torchrun", 3, 8, 1, 0);
  assert_non_null(strstr(log_last_error(), "OMPI_COMM_WORLD_RANK=0 of OMPI_COMM_WORLD_SIZE=2"));
  expect(OMPI " " SLURM, "openmpi", 3, 8, 3, 8);
  expect("ENVIRONMENT=BATCH " SLURM " SLURM_NNODES=1", "slurm", 5, 6, 1, 6);
}

static void test_contradictions(void **state) {
  (void)state;
  refuse("TUTTI_RANK=8 TUTTI_SIZE=8", "TUTTI_RANK=8: must be a number from 0 to 7");
  refuse("TUTTI_RANK=0", "TUTTI_SIZE is not set");
  refuse("TUTTI_SIZE=2", "TUTTI_RANK is not set");
  refuse("TUTTI_RANK=0 TUTTI_SIZE=0", "TUTTI_SIZE=0: must be a number from 1");
  refuse(TUTTI " TUTTI_LOCAL_RANK=2 TUTTI_LOCAL_SIZE=2", "TUTTI_LOCAL_RANK=2: must be a number from 0 to 1");
  refuse(TUTTI " TUTTI_LOCAL_RANK=0 TUTTI_LOCAL_SIZE=9", "TUTTI_LOCAL_SIZE=9");
  refuse(TUTTI " TUTTI_LOCAL_SIZE=2", "set TUTTI_LOCAL_RANK");
  refuse("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE is not set");
  refuse("RANK=9 WORLD_SIZE=8 LOCAL_RANK=0", "RANK=9");
  refuse("SLURM_PROCID=1 SLURM_STEP_ID=0", "SLURM_NTASKS is not set");
}

static void test_garbage(void **state) {
  static const char *const numbers[] = {"-1",  "+1",  "1x", "0x1", "1.0",         "one",        "1,2",
                                        "\t1", "1\n", "",   "٣",   "99999999999", "4294967297", "1048577"};
  (void)state;
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    tutti_launch_t launch = {sizeof launch, 0, 0, 0, 0, NULL};
    environment("");
    setenv("TUTTI_RANK", "0", 1);
    setenv("TUTTI_SIZE", numbers[i], 1);
    assert_int_equal(tutti_launch_read(&launch), ncclInvalidUsage);
    setenv("TUTTI_SIZE", "1048576", 1);
    setenv("TUTTI_RANK", numbers[i], 1);
    assert_int_equal(tutti_launch_read(&launch), ncclInvalidUsage);
  }
  expect("TUTTI_RANK=1048575 TUTTI_SIZE=1048576", "tutti", 1048575, 1048576, 1048575, 1048576);
  tutti_launch_t beyond = {sizeof beyond, 0, 0, 0, 0, NULL};
  environment("TUTTI_RANK=8 TUTTI_SIZE=8");
  assert_int_equal(tutti_launch_read(&beyond), ncclInvalidUsage);
  assert_int_equal(tutti_launch_read(NULL), ncclInvalidArgument);
  tutti_launch_t small = {1, 0, 0, 0, 0, NULL};
  assert_int_equal(tutti_launch_read(&small), ncclInvalidArgument);
}

static void test_lists(void **state) {
  char host[32];
  (void)state;
  assert_int_equal(launch_tasks_of_node("4(x2),3", 0), 4);
  assert_int_equal(launch_tasks_of_node("4(x2),3", 1), 4);
  assert_int_equal(launch_tasks_of_node("4(x2),3", 2), 3);
  assert_int_equal(launch_tasks_of_node("4(x2),3", 3), 0);
  static const char *const bad[] = {"",       "x", "4(",         "4(x", "4(x2", "(x2)",
                                    "4(x2)3", "0", "9999999999", ",",   "-1"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_int_equal(launch_tasks_of_node(bad[i], 5), 0);
  static const char *const lists[][2] = {{"node1", "node1"},
                                         {"node[07-12,20],other", "node07"},
                                         {"a,b[1-2]", "a"},
                                         {"gpu-a[3]", "gpu-a3"},
                                         {"[1-2]", "1"},
                                         {"", NULL},
                                         {"node[", NULL},
                                         {"node[]", NULL},
                                         {"node[a-b]", NULL},
                                         {"node[1-2]x[3-4]", NULL},
                                         {"node[1-2", NULL},
                                         {",a", NULL},
                                         {"0123456789012345678901234567890123", NULL}};
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
    const bool found = launch_first_host(lists[i][0], host, sizeof host);
    assert_int_equal(found, lists[i][1] != NULL);
    if (found) assert_string_equal(host, lists[i][1]);
  }
}

static struct launch_rendezvous rendezvous_of(const char *text) {
  struct launch launch;
  struct launch_rendezvous where;
  environment(text);
  assert_int_equal(launch_read(&launch), ncclSuccess);
  if (launch_rendezvous(&launch, &where) != ncclSuccess) fail_msg("%s: %s", text, log_last_error());
  return where;
}

static void expect_at(const char *text, const char *address) {
  const struct launch_rendezvous where = rendezvous_of(text);
  assert_int_equal(where.place, LAUNCH_AT_ADDRESS);
  if (strcmp(where.address, address) != 0) fail_msg("%s: meet at %s", text, where.address);
}

/* A port derived from the job, on this host. */
static void expect_host(const char *text, const char *host) {
  const struct launch_rendezvous where = rendezvous_of(text);
  const size_t bytes = strlen(host);
  assert_int_equal(where.place, LAUNCH_AT_ADDRESS);
  if (strncmp(where.address, host, bytes) != 0 || where.address[bytes] != ':')
    fail_msg("%s: meet at %s", text, where.address);
  assert_in_range(atoi(where.address + bytes + 1), 20000, 31999);
}

#define OMPI_HOSTS OMPI " OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4"

static void test_places(void **state) {
  (void)state;
  expect_at(TUTTI " TUTTI_RENDEZVOUS=h:1 NCCL_COMM_ID=g:2", "g:2");
  expect_at(TUTTI " TUTTI_RENDEZVOUS=h:1 MASTER_ADDR=x MASTER_PORT=5", "h:1");
  expect_at(TORCH " MASTER_ADDR=head MASTER_PORT=29500", "head:30500");
  expect_at(TORCH " MASTER_ADDR=head MASTER_PORT=65000", "head:64000");
  expect_at(TORCH " MASTER_ADDR=fd00::1 MASTER_PORT=29500", "[fd00::1]:30500");
  expect_host(OMPI " PMIX_NAMESPACE=7 PMIX_RANK=3", "127.0.0.1");
  expect_host("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", "127.0.0.1");
  expect_host(SLURM " SLURM_STEP_NODELIST=n[3-4]", "n3");
  expect_host(SLURM " SLURM_NNODES=1", "127.0.0.1");
  assert_int_equal(rendezvous_of(SLURM).place, LAUNCH_UNKNOWN);
  assert_int_equal(rendezvous_of(OMPI_HOSTS).place, LAUNCH_UNKNOWN);
  assert_int_equal(rendezvous_of(OMPI_HOSTS " PMIX_RANK=3 PMIX_NAMESPACE=7").place, LAUNCH_BY_PMIX);
  struct launch launch;
  struct launch_rendezvous where;
  environment(TORCH " MASTER_ADDR=head MASTER_PORT=none");
  assert_int_equal(launch_read(&launch), ncclSuccess);
  assert_int_equal(launch_rendezvous(&launch, &where), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "MASTER_PORT=none"));
}

static bool is_local(const char *text) {
  environment(text);
  return launch_is_local();
}

/* All ranks are on this host if a launcher says so, and nothing says otherwise. */
static void test_local(void **state) {
  (void)state;
  assert_false(is_local(""));
  assert_true(is_local("TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_LOCAL_RANK=0 TUTTI_LOCAL_SIZE=2"));
  assert_true(is_local("TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_LOCAL_SIZE=2 NCCL_COMM_ID=127.0.0.1:4711"));
  assert_false(is_local("TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_LOCAL_SIZE=2 NCCL_COMM_ID=10.0.0.1:4711"));
  assert_false(is_local("TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_LOCAL_SIZE=2 TUTTI_RENDEZVOUS=head:4711"));
  assert_false(is_local("TUTTI_RANK=0 TUTTI_SIZE=2"));
  assert_false(is_local("TUTTI_RANK=0 TUTTI_SIZE=1 TUTTI_LOCAL_RANK=0 TUTTI_LOCAL_SIZE=1"));
  assert_false(is_local("TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_LOCAL_SIZE=x"));
  assert_true(is_local("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4"));
  assert_false(is_local("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2"));
  assert_true(is_local("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_NNODES=1"));
  assert_false(is_local("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_NNODES=2"));
  assert_false(is_local("PMI_RANK=1 PMI_SIZE=2"));
#define TORCH_HERE "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2"
  assert_true(is_local(TORCH_HERE " MASTER_ADDR=localhost MASTER_PORT=29500"));
  assert_true(is_local(TORCH_HERE " MASTER_ADDR=::1 MASTER_PORT=29500"));
  assert_false(is_local(TORCH_HERE " MASTER_ADDR=head MASTER_PORT=29500"));
  assert_false(is_local(TORCH_HERE));
}

/* The job's number is the same for all its ranks, and differs from other jobs'. */
static void test_jobs(void **state) {
  (void)state;
  const uint64_t one =
      rendezvous_of("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_JOB_ID=7").job;
  assert_true(
      one ==
      rendezvous_of("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_JOB_ID=7").job);
  assert_true(
      one !=
      rendezvous_of("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_STEP_ID=1 SLURM_JOB_ID=7").job);
  assert_true(
      one !=
      rendezvous_of("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_JOB_ID=8").job);
  assert_true(
      rendezvous_of("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_STEP_ID=23 SLURM_JOB_ID=1").job !=
      rendezvous_of("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_STEP_ID=3 SLURM_JOB_ID=12").job);
  assert_true(rendezvous_of(TORCH " MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_RESTART_COUNT=0").job !=
              rendezvous_of(TORCH " MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_RESTART_COUNT=1").job);
}

/* Hydra does not name its job; the ranks' sockets lead to the process that started them. */
static void test_hydra_job(void **state) {
  int ends[2];
  char text[128];
  (void)state;
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  snprintf(text, sizeof text, "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 PMI_FD=%d", ends[0]);
  const uint64_t job = rendezvous_of(text).job;
  snprintf(text, sizeof text, "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=%d", ends[1]);
  assert_true(job == rendezvous_of(text).job);
  close(ends[0]);
  close(ends[1]);
  rendezvous_of("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 PMI_FD=999");
  rendezvous_of("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 PMI_FD=x");
}

static void test_ids(void **state) {
  ncclUniqueId first, second;
  (void)state;
  tutti_launch_t launch = launch_of(TUTTI " TUTTI_RENDEZVOUS=127.0.0.1:9");
  assert_int_equal(tutti_launch_id(&launch, &first), ncclSuccess);
  assert_int_equal(tutti_launch_id(&launch, &second), ncclSuccess);
  assert_memory_not_equal(&first, &second, sizeof first);
  launch = launch_of("");
  assert_int_equal(tutti_launch_id(&launch, &first), ncclSuccess);
  assert_int_equal(tutti_launch_id(&launch, NULL), ncclInvalidArgument);
  assert_int_equal(tutti_launch_id(NULL, &first), ncclInvalidArgument);
  launch.rank = 1;
  assert_int_equal(tutti_launch_id(&launch, &first), ncclInvalidArgument);
  launch = launch_of(OMPI_HOSTS);
  assert_int_equal(tutti_launch_id(&launch, &first), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "set TUTTI_RENDEZVOUS=host:port"));
  launch = launch_of(TUTTI " TUTTI_RENDEZVOUS=nonsense");
  assert_int_equal(tutti_launch_id(&launch, &first), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "TUTTI_RENDEZVOUS: \"nonsense\""));
}

/* A held port is given to no other process, but its holder can listen on it. */
static void test_port(void **state) {
  unsigned port = 0;
  int held = -1, fd = -1;
  (void)state;
  assert_int_equal(child_port_hold(&held, &port), 0);
  assert_in_range(port, 1, 65535);
  struct sock_address at = {4, (uint16_t)port, 0, {127, 0, 0, 1}}, bound;
  assert_int_equal(sock_listen(&at, &fd, &bound), ncclSuccess);
  assert_int_equal(bound.port, port);
  sock_close(fd);
  close(held);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_launchers, set_up),  cmocka_unit_test_setup(test_not_launched, set_up),
      cmocka_unit_test_setup(test_precedence, set_up), cmocka_unit_test_setup(test_contradictions, set_up),
      cmocka_unit_test_setup(test_garbage, set_up),    cmocka_unit_test_setup(test_lists, set_up),
      cmocka_unit_test_setup(test_places, set_up),     cmocka_unit_test_setup(test_jobs, set_up),
      cmocka_unit_test_setup(test_hydra_job, set_up),  cmocka_unit_test_setup(test_ids, set_up),
      cmocka_unit_test_setup(test_port, set_up),       cmocka_unit_test_setup(test_local, set_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
