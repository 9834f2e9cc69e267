/* test_base.c: settings, log and memory of lib/base. Each test sets the environment that it needs, and checks
 * what a user would see: values, the log file, the last error. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/vgpu.h"

static char folder[256]; /* of this program's files */
static char log_path[300];
static char conf_path[300];

static void file_write(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  fclose(file);
}

/* The current contents of the log file; valid until the next call. */
static const char *log_text(void) {
  static char text[65536];
  FILE *file = fopen(log_path, "r");
  size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
  if (file) fclose(file);
  text[length] = '\0';
  return text;
}

/* True when a line of `text` matches the extended regular expression. */
static bool matches(const char *text, const char *pattern) {
  regex_t regex;
  assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NEWLINE | REG_NOSUB), 0);
  bool found = regexec(&regex, text, 0, NULL, 0) == 0;
  regfree(&regex);
  return found;
}

static void assert_logged(const char *pattern) {
  if (!matches(log_text(), pattern)) fail_msg("no line matches %s in:\n%s", pattern, log_text());
}

static void assert_not_logged(const char *pattern) {
  if (matches(log_text(), pattern)) fail_msg("a line matches %s in:\n%s", pattern, log_text());
}

static void assert_last_error(const char *pattern) {
  if (!matches(log_last_error(), pattern)) fail_msg("\"%s\" does not match %s", log_last_error(), pattern);
}

/* The next call reads the environment again. */
static void start_anew(void) {
  param_reset();
  log_reset();
}

/* Each test begins without settings, without a settings file in the home, and with all warnings unprinted. */
static int set_up(void **state) {
  char name[128];
  (void)state;
  for (const char *const *entry = os_environ(); *entry;) {
    size_t length = strcspn(*entry, "=");
    bool ours = strncmp(*entry, "NCCL_", 5) == 0 || strncmp(*entry, "TUTTI_", 6) == 0;
    if (!ours || length >= sizeof name) {
      entry++;
      continue;
    }
    memcpy(name, *entry, length);
    name[length] = '\0';
    unsetenv(name);
    entry = os_environ();
  }
  setenv("HOME", folder, 1);
  unlink(log_path);
  unlink(conf_path);
  start_anew();
  return 0;
}

static int tear_down(void **state) {
  os_alloc_fail_at(0);
  return set_up(state);
}

/* Logs to the file at this level. */
static void log_to_file(const char *level) {
  setenv("NCCL_DEBUG", level, 1);
  setenv("NCCL_DEBUG_FILE", log_path, 1);
  start_anew();
}

/* Test vectors of RFC 9923, and of splitmix64 from 0. */
static void test_hash(void **state) {
  uint64_t stream = 0;
  (void)state;
  assert_true(hash_text(HASH_SEED, "") == HASH_SEED);
  assert_true(hash_text(HASH_SEED, "a") == UINT64_C(0xaf63dc4c8601ec8c));
  assert_true(hash_bytes(hash_text(HASH_SEED, "foo"), "bar", 3) == UINT64_C(0x85944171f73967e8));
  assert_true(hash_draw(&stream) == UINT64_C(0xe220a8397b1dcdaf));
  assert_true(hash_draw(&stream) == UINT64_C(0x6e789e6aa1b965f4));
  assert_true(hash_mix(hash_mix(1, 0), 1) != hash_mix(hash_mix(1, 1), 0));
}

static void test_param_defaults(void **state) {
  (void)state;
  assert_int_equal(param_int(PARAM_BUFFSIZE), 4194304);
  assert_string_equal(param_text(PARAM_TUTTI_SEED), "1");
  assert_string_equal(param_text(PARAM_TUTTI_BACKEND), "");
  assert_false(param_is_set(PARAM_BUFFSIZE));
  assert_string_equal(param_source(PARAM_BUFFSIZE), "default");
  assert_string_equal(param_name(PARAM_BUFFSIZE), "NCCL_BUFFSIZE");
}

static void test_param_environment(void **state) {
  (void)state;
  setenv("NCCL_BUFFSIZE", "64k", 1);
  setenv("NCCL_LL_BUFFSIZE", "0x1000", 1);
  setenv("NCCL_NTHREADS", "256", 1);
  setenv("NCCL_ALGO", "ring,tree", 1);
  setenv("NCCL_PROTO", "", 1); /* an empty value counts as unset */
  assert_int_equal(param_int(PARAM_BUFFSIZE), 65536);
  assert_int_equal(param_int(PARAM_LL_BUFFSIZE), 4096);
  assert_int_equal(param_int(PARAM_NTHREADS), 256);
  assert_string_equal(param_text(PARAM_ALGO), "ring,tree");
  assert_true(param_is_set(PARAM_ALGO));
  assert_false(param_is_set(PARAM_PROTO));
  assert_string_equal(param_source(PARAM_ALGO), "environment");
}

static void test_param_read_once(void **state) {
  (void)state;
  assert_int_equal(param_int(PARAM_NTHREADS), 512);
  setenv("NCCL_NTHREADS", "64", 1);
  assert_int_equal(param_int(PARAM_NTHREADS), 512);
  param_reset();
  assert_int_equal(param_int(PARAM_NTHREADS), 64);
}

/* The value is refused, the default is kept, and the warning names the setting and its valid values. */
static void assert_refused(const char *value, enum param_id id, const char *pattern) {
  setenv(param_name(id), value, 1);
  start_anew();
  assert_int_equal(param_int(id), param_row(id)->initial);
  assert_false(param_is_set(id));
  assert_last_error(pattern);
  unsetenv(param_name(id));
}

static void test_param_refuses(void **state) {
  (void)state;
  assert_refused("9999", PARAM_NTHREADS, "NCCL_NTHREADS=9999 is outside 32\\.\\.512.* 512 stays");
  assert_refused("-1", PARAM_NTHREADS, "NCCL_NTHREADS=-1 is outside");
  assert_refused("many", PARAM_NTHREADS, "NCCL_NTHREADS=many is no whole number");
  assert_refused("64k", PARAM_NTHREADS, "is no whole number");
  assert_refused("4 MB", PARAM_BUFFSIZE, "NCCL_BUFFSIZE=4 MB is no size");
  assert_refused("99999999999999999999", PARAM_BUFFSIZE, "is no size");
  assert_refused("9223372036854775807G", PARAM_BUFFSIZE, "is no size");
  assert_refused("3", PARAM_CHECK_POINTERS, "NCCL_CHECK_POINTERS=3 is outside -1\\.\\.1");
}

static void test_param_file(void **state) {
  (void)state;
  file_write(conf_path,
             "# a comment\n\n  NCCL_NTHREADS = 128 \r\nNCCL_ALGO=tree\nNCCL_ALGO=ring\nNCCL_BUFFSIZE=1M");
  setenv("NCCL_CONF_FILE", conf_path, 1);
  setenv("NCCL_BUFFSIZE", "2M", 1);
  assert_int_equal(param_int(PARAM_NTHREADS), 128);
  assert_string_equal(param_source(PARAM_NTHREADS), conf_path);
  assert_string_equal(param_text(PARAM_ALGO), "tree");  /* the first line wins */
  assert_int_equal(param_int(PARAM_BUFFSIZE), 2 << 20); /* the environment wins */
  assert_string_equal(param_source(PARAM_BUFFSIZE), "environment");
  assert_string_equal(log_last_error(), "");
}

static void test_param_file_at_home(void **state) {
  char path[300];
  (void)state;
  snprintf(path, sizeof path, "%s/.nccl.conf", folder);
  file_write(path, "NCCL_NTHREADS=96\n");
  assert_int_equal(param_int(PARAM_NTHREADS), 96);
  assert_string_equal(param_source(PARAM_NTHREADS), path);

  file_write(conf_path, "NCCL_BUFFSIZE=1M\n");
  setenv("NCCL_CONF_FILE", conf_path, 1); /* named by a variable, so the file in the home is not read */
  start_anew();
  assert_int_equal(param_int(PARAM_NTHREADS), 512);
  assert_int_equal(param_int(PARAM_BUFFSIZE), 1 << 20);
  unlink(path);
}

/* If the environment's value is refused, the file's value applies. */
static void test_param_refused_falls_back(void **state) {
  (void)state;
  file_write(conf_path, "NCCL_NTHREADS=128\n");
  setenv("NCCL_CONF_FILE", conf_path, 1);
  setenv("NCCL_NTHREADS", "lots", 1);
  assert_int_equal(param_int(PARAM_NTHREADS), 128);
}

static void test_param_file_faults(void **state) {
  (void)state;
  file_write(conf_path, "NCCL_ALGO=ring\nno equals sign\n=4\nNCCL_NTHREDS=64\nNCCL_NTHREADS=7\n");
  setenv("NCCL_CONF_FILE", conf_path, 1);
  log_to_file("WARN");
  assert_string_equal(param_text(PARAM_ALGO), "ring");
  assert_logged("NCCL WARN .*/nccl\\.conf:2: \"no equals sign\" is not of the form NAME=value");
  assert_logged("NCCL WARN .*/nccl\\.conf:3: \"=4\" is not");
  assert_logged("NCCL WARN .*/nccl\\.conf:4: NCCL_NTHREDS is no known .*did you mean NCCL_NTHREADS\\?");
  assert_logged("NCCL WARN .*/nccl\\.conf:5: NCCL_NTHREADS=7 is outside");

  setenv("NCCL_CONF_FILE", "/nowhere/at/all", 1);
  start_anew();
  param_int(PARAM_NTHREADS);
  assert_last_error("cannot read the settings file /nowhere/at/all: No such file");
}

static void test_param_unknown_names(void **state) {
  static const char *const pairs[][2] = {{"NCCL_AGLO", "NCCL_ALGO"},
                                         {"NCCL_BUFFERSIZE", "NCCL_BUFFSIZE"},
                                         {"NCCL_IB_GID_INDX", "NCCL_IB_GID_INDEX"}};
  char expected[200];
  (void)state;
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    setenv(pairs[i][0], "1", 1);
    start_anew();
    param_int(PARAM_BUFFSIZE);
    unsetenv(pairs[i][0]);
    snprintf(expected, sizeof expected, "^environment: %s is no .*did you mean %s\\?", pairs[i][0],
             pairs[i][1]);
    assert_last_error(expected);
  }
  setenv("NCCL_TESTS_DEVICE", "1", 1); /* a variable of another program */
  setenv("NCCL_VERSION", "2.28.9-1", 1);
  start_anew();
  param_int(PARAM_BUFFSIZE);
  assert_string_equal(log_last_error(), "");
}

/* Settings of tutti's own that are unknown or wrong are refused; what NCCL ignores is not. */
static void test_param_check(void **state) {
  static const char *const refused[][3] = {
      {"TUTTI_SEEDS", "1", "TUTTI_SEEDS is no known setting; did you mean TUTTI_SEED\\?"},
      {"TUTTI_SEED", "banana", "TUTTI_SEED=banana is no seed; give a number"},
      {"TUTTI_SEED", "-1", "is no seed"},
      {"TUTTI_SEED", " 1", "is no seed"},
      {"TUTTI_SEED", "1x", "is no seed"},
      {"TUTTI_SEED", "18446744073709551616", "is no seed"},
      {"TUTTI_BACKEND", "emo", "TUTTI_BACKEND=emo is none of emu and cuda; did you mean emu\\?"},
      {"TUTTI_STALL_SECONDS", "0", "TUTTI_STALL_SECONDS=0 is outside 1\\.\\.86400"},
      {"TUTTI_STALL_SECONDS", "soon", "is no whole number from 1 to 86400"},
      {"TUTTI_TRACE_BYTES", "1Q", "is no size .* from 65536 to 4294967296"},
      {"TUTTI_EVENTS", "/nowhere/at/all", "=/nowhere/at/all cannot be written: /nowhere/at/: No such file"},
      {"TUTTI_EVENTS", "/tmp", "TUTTI_EVENTS=/tmp is a folder; name a file"}};
  static const char *const accepted[][2] = {{"TUTTI_SEED", "0x1f"},
                                            {"TUTTI_SEED", "18446744073709551615"},
                                            {"TUTTI_SEED", ""},
                                            {"TUTTI_BACKEND", "EMU"},
                                            {"TUTTI_TRACE", "off"},
                                            {"TUTTI_TRACE", "/nowhere/%r/"},
                                            {"TUTTI_EVENTS", "/dev/null"},
                                            {"TUTTI_HOME", "/opt/tutti"},
                                            {"TUTTI_TEST_THING", "1"},
                                            {"NCCL_BUFFSIZE", "big"},
                                            {"NCCL_AGLO", "ring"}};
  (void)state;
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    setenv(refused[i][0], refused[i][1], 1);
    start_anew();
    assert_int_equal(param_check(), ncclInvalidUsage);
    assert_last_error(refused[i][2]);
    assert_int_equal(param_check(), ncclInvalidUsage); /* each call is refused */
    unsetenv(refused[i][0]);
  }
  for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
    setenv(accepted[i][0], accepted[i][1], 1);
    start_anew();
    assert_int_equal(param_check(), ncclSuccess);
    unsetenv(accepted[i][0]);
  }
}

/* A refused setting is found behind any number of others. */
static void test_param_check_last(void **state) {
  char name[32];
  (void)state;
  for (int i = 0; i < 40; i++) {
    snprintf(name, sizeof name, "NCCL_UNKNOWN_%d", i);
    setenv(name, "1", 1);
  }
  setenv("TUTTI_SED", "1", 1);
  start_anew();
  assert_int_equal(param_check(), ncclInvalidUsage);
  assert_last_error("TUTTI_SED is no known setting");
}

/* Each error of a settings file is logged once, not at each call, and their number is bounded. */
static void test_param_faults_once(void **state) {
  char name[32];
  (void)state;
  for (int i = 0; i < 40; i++) {
    snprintf(name, sizeof name, "NCCL_UNKNOWN_%d", i);
    setenv(name, "1", 1);
  }
  log_to_file("WARN");
  param_int(PARAM_BUFFSIZE);
  size_t bytes = strlen(log_text());
  param_int(PARAM_BUFFSIZE);
  log_info(LOG_INIT, "not at this level");
  assert_int_equal(strlen(log_text()), bytes);
  assert_logged("NCCL WARN 16 more faults");
}

/* Neither log of the settings shows a secret; the name of a file that has it is none. */
static void test_param_secret(void **state) {
  (void)state;
  setenv("NCCL_BUFFSIZE", "1M", 1);
  setenv("TUTTI_SECRET", "mellon-mellon", 1);
  setenv("NCCL_PARAM_DUMP_ALL", "true", 1);
  log_to_file("INFO");
  ncclParamDumpAll();
  assert_logged("NCCL INFO NCCL_BUFFSIZE=1048576 \\(environment\\)$");
  assert_logged("NCCL INFO TUTTI_SECRET set by environment to \\.\\.\\.$");
  assert_logged("NCCL INFO TUTTI_SECRET=\\.\\.\\. \\(environment\\)$");
  assert_not_logged("mellon");
  setenv("TUTTI_SECRET", "@/a/file", 1);
  param_reset();
  assert_false(param_is_hidden(PARAM_TUTTI_SECRET));
}

static void test_param_report(void **state) {
  (void)state;
  setenv("NCCL_BUFFSIZE", "1M", 1);
  setenv("NCCL_SET_STACK_SIZE", "1", 1);
  log_to_file("INFO");
  param_int(PARAM_BUFFSIZE);
  assert_logged("NCCL INFO NCCL_BUFFSIZE set by environment to 1M$");
  assert_logged(
      "NCCL INFO NCCL_SET_STACK_SIZE is accepted and has no effect in tutti: the stack size of kernels is "
      "never changed$");
}

static unsigned count_of(const char *text, const char *word) {
  unsigned count = 0;
  for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) count++;
  return count;
}

/* Every accepted name logs once that it has no effect, however often settings are read and wherever it is
 * set; unset, it logs nothing. */
static void test_param_accepted(void **state) {
  char file[] = "/tmp/tutti_accepted_XXXXXX", sentence[400];
  const struct param_accepted *row;
  (void)state;
  const int descriptor = mkstemp(file);
  assert_true(descriptor >= 0);
  for (size_t i = 0; (row = param_accepted(i)) != NULL; i++) {
    setenv(row->name, "1", 1);
    dprintf(descriptor, "%s=2\n", row->name);
  }
  close(descriptor);
  setenv("NCCL_CONF_FILE", file, 1);
  log_to_file("INFO");
  param_int(PARAM_BUFFSIZE);
  param_int(PARAM_NTHREADS);
  assert_null(strstr(log_text(), " WARN "));
  for (size_t i = 0; (row = param_accepted(i)) != NULL; i++) {
    snprintf(sentence, sizeof sentence, " %s is accepted and has no effect in tutti: %s\n", row->name,
             row->why);
    assert_int_equal(count_of(log_text(), sentence), 1);
    assert_string_equal(param_accepted_source(i), "environment");
    unsetenv(row->name);
  }
  unsetenv("NCCL_CONF_FILE");
  unlink(file);
  log_to_file("INFO");
  param_int(PARAM_BUFFSIZE);
  assert_null(strstr(log_text(), "has no effect"));
}

static void test_param_table(void **state) {
  (void)state;
  for (int id = 0; id < PARAM_COUNT; id++) {
    const struct param_row *row = param_row((enum param_id)id);
    assert_true(strncmp(row->name, "NCCL_", 5) == 0 || strncmp(row->name, "TUTTI_", 6) == 0);
    assert_true(strlen(row->name) < 64);
    assert_true(row->help[0] != '\0');
    assert_true(row->kind == PARAM_TEXT || row->lowest <= row->highest);
    for (int other = 0; other < id; other++) {
      assert_string_not_equal(row->name, param_row((enum param_id)other)->name);
    }
    const struct param_accepted *accepted;
    for (size_t i = 0; (accepted = param_accepted(i)) != NULL; i++)
      assert_string_not_equal(row->name, accepted->name);
  }
}

static void test_log_shapes(void **state) {
  char expected[64];
  (void)state;
  setenv("NCCL_DEBUG_SUBSYS", "ALL", 1);
  log_to_file("TRACE");
  log_version();
  log_version();
  log_info(LOG_INIT, "rank %d of %d", 3, 8);
  log_set_device(5);
  log_trace(LOG_COLL, "step");
  log_call("ncclSend(%d)", 7);
  assert_int_equal(log_fail(ncclInvalidArgument, "root %d is out of range", 9), ncclInvalidArgument);
  log_set_device(-1);
  assert_logged("^NCCL version 2\\.30\\.7 \\(tutti [0-9.]+\\)$");
  assert_false(matches(strstr(log_text(), "NCCL version") + 5, "NCCL version")); /* once */
  snprintf(expected, sizeof expected, "^[^ :.]+:%d:%ld ", os_pid(), os_tid());
  assert_logged(expected);
  assert_logged("^[^ :.]+:[0-9]+:[0-9]+ \\[-1\\] NCCL INFO rank 3 of 8$");
  assert_logged("^[^ :.]+:[0-9]+:[0-9]+ \\[5\\] NCCL TRACE step$");
  assert_logged("^[^ :.]+:[0-9]+:[0-9]+ NCCL CALL ncclSend\\(7\\)$");
  assert_logged(
      "^\\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\\] [^ :.]+:[0-9]+:[0-9]+ \\[5\\] "
      "test_base\\.c:[0-9]+ NCCL WARN root 9 is out of range$");
}

static void test_log_levels(void **state) {
  (void)state;
  log_to_file("WARN");
  log_info(LOG_INIT, "hidden");
  log_warn("shown");
  assert_not_logged("hidden");
  assert_logged("NCCL WARN shown");
  assert_true(log_enabled(LOG_WARN, 0));
  assert_false(log_enabled(LOG_INFO, LOG_INIT));

  log_to_file("info"); /* any case */
  assert_true(log_enabled(LOG_INFO, LOG_INIT));
  assert_true(log_enabled(LOG_INFO, LOG_ENV));
  assert_false(log_enabled(LOG_INFO, LOG_COLL));
  assert_false(log_enabled(LOG_TRACE, LOG_INIT));

  log_to_file("LOUD");
  assert_false(log_enabled(LOG_WARN, 0));
  assert_last_error("NCCL_DEBUG=LOUD is none of NONE, VERSION, WARN, INFO, ABORT and TRACE; it is ignored");
}

static void test_log_subsystems(void **state) {
  (void)state;
  setenv("NCCL_DEBUG_SUBSYS", "coll,P2P", 1);
  log_to_file("INFO");
  assert_true(log_enabled(LOG_INFO, LOG_COLL));
  assert_true(log_enabled(LOG_INFO, LOG_P2P | LOG_NET));
  assert_false(log_enabled(LOG_INFO, LOG_INIT));
  setenv("NCCL_DEBUG_SUBSYS", "^COLL,P2P", 1);
  start_anew();
  assert_false(log_enabled(LOG_INFO, LOG_COLL));
  assert_true(log_enabled(LOG_INFO, LOG_INIT));
  setenv("NCCL_DEBUG_SUBSYS", "INIT,COL", 1);
  start_anew();
  assert_true(log_enabled(LOG_INFO, LOG_INIT));
  assert_last_error("NCCL_DEBUG_SUBSYS has an unknown name at \"COL\"");
}

static void test_log_time_stamps(void **state) {
  (void)state;
  setenv("NCCL_DEBUG_TIMESTAMP_LEVELS", "ALL", 1);
  setenv("NCCL_DEBUG_TIMESTAMP_FORMAT", "<%Y %3f %%3f> ", 1);
  log_to_file("INFO");
  log_info(LOG_INIT, "hello");
  assert_logged("^<[0-9]{4} [0-9]{3} %3f> [^ ]+ \\[-1\\] NCCL INFO hello$");
  setenv("NCCL_DEBUG_TIMESTAMP_LEVELS", "^WARN", 1);
  start_anew();
  log_warn("bare");
  assert_logged("^[^ <]+ \\[-1\\] test_base\\.c:[0-9]+ NCCL WARN bare$");
}

static void test_log_file_name(void **state) {
  char pattern[400], path[800], host[256];
  (void)state;
  os_host_name(host, sizeof host);
  host[strcspn(host, ".")] = '\0';
  snprintf(pattern, sizeof pattern, "%s/log.%%h.%%p.%%%%", folder);
  snprintf(path, sizeof path, "%s/log.%s.%d.%%", folder, host, os_pid());
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_FILE", pattern, 1);
  start_anew();
  log_info(LOG_INIT, "hello");
  assert_int_equal(access(path, R_OK), 0);
  unlink(path);

  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", "/nowhere/at/all", 1);
  start_anew();
  log_enabled(LOG_WARN, 0);
  assert_last_error("cannot open NCCL_DEBUG_FILE /nowhere/at/all: No such file");
}

/* The default prints nothing, but ncclGetLastError still returns the message. */
static void test_log_last_error(void **state) {
  static char longer[100000];
  (void)state;
  setenv("NCCL_DEBUG_FILE", log_path, 1);
  start_anew();
  assert_string_equal(log_last_error(), "");
  assert_int_equal(log_fail(ncclSystemError, "no %s", "memory"), ncclSystemError);
  assert_string_equal(log_last_error(), "no memory");
  assert_string_equal(log_text(), "");
  memset(longer, 'x', sizeof longer);
  longer[sizeof longer - 1] = '\0';
  log_warn("%s", longer); /* truncated without an overrun */
  assert_true(strlen(log_last_error()) > 500 && strlen(log_last_error()) < sizeof longer - 1);
}

/* A consequence of a failure is logged, but does not replace the last error that names its cause. */
static void test_log_evidence(void **state) {
  (void)state;
  log_to_file("WARN");
  log_evidence(true);
  log_warn("the connection closed");
  assert_string_equal(log_last_error(), "the connection closed");
  log_urgent("rank 2 is lost");
  log_warn("another connection closed");
  assert_string_equal(log_last_error(), "rank 2 is lost");
  assert_string_equal(log_own_error(), "another connection closed");
  log_urgent("rank 3 is lost");
  assert_string_equal(log_last_error(), "rank 3 is lost");
  log_evidence(false);
  log_warn("count is odd"); /* an error of the caller */
  assert_string_equal(log_last_error(), "count is odd");
  log_evidence(true);
  log_warn("a third connection closed");
  log_evidence(false);
  assert_string_equal(log_last_error(), "a third connection closed");
  assert_logged("NCCL WARN another connection closed"); /* logged all the same */
}

static void test_err_text(void **state) {
  (void)state;
  assert_string_equal(err_text(ncclSuccess), "no error");
  assert_string_equal(err_text(ncclSystemError),
                      "unhandled system error (run with NCCL_DEBUG=INFO for details)");
  assert_string_equal(err_text((ncclResult_t)ncclNumResults), "unknown result code");
  assert_string_equal(err_text((ncclResult_t)-1), "unknown result code");
}

static void test_os_memory(void **state) {
  (void)state;
  uint64_t live = os_alloc_live(), count = os_alloc_count();
  char *block = (char *)os_alloc(100);
  void *empty = os_alloc(0);
  char *pages = (char *)os_pages_map(1 << 20);
  char *copy = os_strdup("text");
  assert_true(block && empty && pages && copy);
  assert_int_equal((uintptr_t)block % 16, 0);
  for (int i = 0; i < 100; i++) assert_int_equal(block[i], 0);
  assert_int_equal(pages[0] | pages[(1 << 20) - 1], 0);
  block[99] = 'z';
  block = (char *)os_realloc(block, 5000);
  assert_non_null(block);
  assert_int_equal(block[99], 'z');
  assert_int_equal(os_alloc_live() - live, 4);
  assert_int_equal(os_alloc_count() - count, 5);
  os_free(block);
  os_free(empty);
  os_free(copy);
  os_free(NULL);
  os_pages_unmap(pages, 1 << 20);
  os_pages_unmap(NULL, 1);
  assert_int_equal(os_alloc_live(), live);
  assert_null(os_pages_map(SIZE_MAX / 2));
  assert_int_equal(os_alloc_live(), live);
}

/* An array keeps its items while it grows, and is unchanged if memory is exhausted. */
static void test_array_grows(void **state) {
  uint32_t *items = NULL, capacity = 0;
  (void)state;
  for (uint32_t i = 0; i < 1000; i++) {
    assert_int_equal(array_reserve(&items, &capacity, i + 1, sizeof *items, "numbers"), ncclSuccess);
    items[i] = i;
  }
  for (uint32_t i = 0; i < 1000; i++) assert_int_equal(items[i], i);
  const uint32_t before = capacity;
  uint32_t *const place = items;
  os_alloc_fail_at(1);
  assert_int_equal(array_reserve(&items, &capacity, before + 1, sizeof *items, "numbers"), ncclSystemError);
  assert_last_error("^numbers: out of memory \\([0-9]+ bytes\\); free some and try again$");
  assert_int_equal(array_reserve(&items, &capacity, UINT64_MAX, sizeof *items, "numbers"), ncclSystemError);
  assert_last_error("^numbers: out of memory; free some and try again$");
  assert_true(items == place && capacity == before);
  size_t wide = 0;
  void *rows = NULL;
  assert_false(array_grow_long(&rows, &wide, SIZE_MAX / 2, 16)); /* bytes that overflow */
  assert_true(!rows && wide == 0);
  os_free(items);
}

static void test_os_alloc_fails_at(void **state) {
  (void)state;
  os_alloc_fail_at(2);
  void *first = os_alloc(1), *second = os_pages_map(1), *third = os_alloc(1);
  assert_true(first && !second && third);
  os_alloc_fail_at(1);
  assert_null(os_realloc(first, 10)); /* the old block is unchanged */
  os_alloc_fail_at(1);
  os_alloc_fail_at(0);
  void *fourth = os_strdup("x");
  assert_non_null(fourth);
  os_free(first);
  os_free(third);
  os_free(fourth);
}

#define THREADS 4
#define ALLOCATIONS 2000

static void *allocate_often(void *argument) {
  uint64_t *failures = (uint64_t *)argument;
  for (int i = 0; i < ALLOCATIONS; i++) {
    void *block = os_alloc(8);
    *failures += !block;
    os_free(block);
  }
  return NULL;
}

/* Of all allocations of all threads exactly one fails, and the counters are exact. */
static void test_os_alloc_threads(void **state) {
  os_thread threads[THREADS];
  uint64_t failures[THREADS] = {0}, failed = 0;
  (void)state;
  uint64_t live = os_alloc_live(), count = os_alloc_count();
  os_alloc_fail_at(THREADS * ALLOCATIONS / 2);
  for (int i = 0; i < THREADS; i++) assert_true(os_thread_start(&threads[i], allocate_often, &failures[i]));
  for (int i = 0; i < THREADS; i++) os_thread_join(threads[i]);
  for (int i = 0; i < THREADS; i++) failed += failures[i];
  assert_int_equal(failed, 1);
  assert_int_equal(os_alloc_live(), live);
  assert_int_equal(os_alloc_count() - count, THREADS * ALLOCATIONS);
}

static void *log_often(void *argument) {
  for (int i = 0; i < 50; i++) {
    log_info(LOG_INIT, "thread %d line %d", *(int *)argument, i);
    if (i % 10 == 0) log_warn("thread %d", *(int *)argument);
    assert_true(strncmp(log_last_error(), "thread ", 7) == 0);
    param_int(PARAM_BUFFSIZE);
  }
  return NULL;
}

/* The first use by several threads at once; every thread's lines are complete. */
static void test_log_threads(void **state) {
  os_thread threads[THREADS];
  int numbers[THREADS];
  (void)state;
  log_to_file("INFO");
  for (int i = 0; i < THREADS; i++) {
    numbers[i] = i;
    assert_true(os_thread_start(&threads[i], log_often, &numbers[i]));
  }
  for (int i = 0; i < THREADS; i++) os_thread_join(threads[i]);
  unsigned whole = 0;
  for (const char *at = log_text(); (at = strstr(at, "NCCL INFO thread ")); at++) whole++;
  assert_int_equal(whole, THREADS * 50);
}

static void test_os_files(void **state) {
  static char big[20001];
  size_t bytes = 0;
  (void)state;
  memset(big, 'b', sizeof big - 1);
  file_write(conf_path, big);
  char *text = os_file_read(conf_path, &bytes);
  assert_non_null(text);
  assert_int_equal(bytes, sizeof big - 1);
  assert_string_equal(text, big);
  os_free(text);
  text = os_file_read("/proc/self/status", NULL); /* a file whose size is reported as 0 */
  assert_non_null(text);
  assert_non_null(strstr(text, "Pid:"));
  os_free(text);
  assert_null(os_file_read("/nowhere/at/all", NULL));
  assert_int_equal(errno, ENOENT);
  assert_null(os_file_read(folder, NULL)); /* a folder can be opened but not read */

  uint64_t live = os_alloc_live();
  os_alloc_fail_at(1);
  assert_null(os_file_read(conf_path, NULL));
  assert_int_equal(os_alloc_live(), live);
}

static void test_os_time(void **state) {
  os_mutex mutex = OS_MUTEX_INITIALIZER;
  os_cond cond;
  (void)state;
  os_cond_init(&cond);
  os_mutex_lock(&mutex);
  uint64_t begin = os_time_ns();
  while (os_cond_wait_until(&cond, &mutex, begin + 2000000)) {}
  os_mutex_unlock(&mutex);
  assert_true(os_time_ns() - begin >= 2000000);
  os_sleep_ms(1);
  assert_true(os_time_ns() - begin >= 3000000);
  os_cond_destroy(&cond);
  assert_true(os_entropy() != os_entropy());
}

static void test_virtual_gpus(void **state) {
  (void)state;
  assert_true(vgpu_is_named("GRID T4-16Q"));
  assert_true(vgpu_is_named("GRID V100"));
  assert_true(vgpu_is_named("NVIDIA A40-48Q"));
  assert_true(vgpu_is_named("NVIDIA A100-3-20C"));
  assert_false(vgpu_is_named("NVIDIA H100 80GB HBM3"));
  assert_false(vgpu_is_named("Tesla V100-SXM2-16GB"));
  assert_false(vgpu_is_named("NVIDIA A100-40"));
  assert_false(vgpu_is_named("NVIDIA A100-16CG"));
  assert_false(vgpu_is_named("NVIDIA A100-C"));
  assert_false(vgpu_is_named(""));
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_hash),
                                     TEST(test_param_defaults),
                                     TEST(test_param_environment),
                                     TEST(test_param_read_once),
                                     TEST(test_param_refuses),
                                     TEST(test_param_file),
                                     TEST(test_param_file_at_home),
                                     TEST(test_param_refused_falls_back),
                                     TEST(test_param_file_faults),
                                     TEST(test_param_unknown_names),
                                     TEST(test_param_check),
                                     TEST(test_param_check_last),
                                     TEST(test_param_faults_once),
                                     TEST(test_param_secret),
                                     TEST(test_param_report),
                                     TEST(test_param_accepted),
                                     TEST(test_param_table),
                                     TEST(test_log_shapes),
                                     TEST(test_log_levels),
                                     TEST(test_log_subsystems),
                                     TEST(test_log_time_stamps),
                                     TEST(test_log_file_name),
                                     TEST(test_log_last_error),
                                     TEST(test_log_evidence),
                                     TEST(test_log_threads),
                                     TEST(test_err_text),
                                     TEST(test_os_memory),
                                     TEST(test_array_grows),
                                     TEST(test_os_alloc_fails_at),
                                     TEST(test_os_alloc_threads),
                                     TEST(test_os_files),
                                     TEST(test_os_time),
                                     TEST(test_virtual_gpus)};
  const char *place = os_env("TMPDIR");
  snprintf(folder, sizeof folder, "%s/test_base.XXXXXX", place ? place : "/tmp");
  if (!mkdtemp(folder)) return 1;
  snprintf(log_path, sizeof log_path, "%s/log", folder);
  snprintf(conf_path, sizeof conf_path, "%s/nccl.conf", folder);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(log_path);
  unlink(conf_path);
  rmdir(folder);
  return failed;
}
