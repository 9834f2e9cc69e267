/* test_groups.c: random programs of groups (program.h): mixed collectives, messages and uneven all-to-alls
 * over several communicators and streams, with random emulator settings. Every byte of every device must
 * equal that of a naive run; the same program must give the same trace twice. A failing program is shrunk and
 * printed. TUTTI_TEST_SEED=N runs only the guarded program of that seed. Outside of sanitizer builds a
 * quarter of the seeds runs, another one each day (part.h). */
/* sanitizers: address thread */
/* runner: 14 s */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "part.h"
#include "program.h"

#if defined(__SANITIZE_THREAD__)
enum { GUARDED_PROGRAMS = 40, THREADS_PROGRAMS = 20, REPEATED_PROGRAMS = 20, PARTS = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { GUARDED_PROGRAMS = 150, THREADS_PROGRAMS = 20, REPEATED_PROGRAMS = 50, PARTS = 1 };
#else
enum { GUARDED_PROGRAMS = 2000, THREADS_PROGRAMS = 200, REPEATED_PROGRAMS = 500, PARTS = 4 };
#endif
enum { SHRINK_TRIES = 1000, HANG_SECONDS = 60, LISTING_BYTES = 1 << 16 };

static struct part part; /* of the seeds */

/* The running program, printed on a crash or a hang, which cannot be shrunk. */
static struct program current;
static char listing[LISTING_BYTES];

static void on_signal(int number) {
  const char *said = number == SIGALRM ? "no end of this program:\n" : "a crash in this program:\n";
  const size_t length = program_print(&current, listing, sizeof listing);
  ssize_t ignored = write(2, said, strlen(said));
  ignored = write(2, listing, length < sizeof listing ? length : sizeof listing - 1);
  (void)ignored;
  _exit(1);
}

static bool run_watched(const struct program *program, uint64_t *trace_hash, char *text) {
  current = *program;
  alarm(HANG_SECONDS);
  const bool good = program_run(program, trace_hash, text);
  alarm(0);
  return good;
}

static bool run_fails(const struct program *program, void *argument) {
  (void)argument;
  char text[PROGRAM_TEXT_BYTES];
  return !run_watched(program, NULL, text);
}

/* Prints the smallest failing program and its failure; a failure that does not repeat is printed unshrunk. */
static void report(struct program *program, const char *first_text) {
  char text[PROGRAM_TEXT_BYTES];
  print_error("seed %llu: %s\n", (unsigned long long)program->seed, first_text);
  program_shrink(program, run_fails, NULL, SHRINK_TRIES);
  const bool gone = run_watched(program, NULL, text);
  program_print(program, listing, sizeof listing);
  fprintf(stderr, "%s: %s\n%s\n", gone ? "it does not fail every time" : "the smallest that fails",
          gone ? first_text : text, listing);
  fail();
}

static void run_seed(uint64_t seed, bool free_threads) {
  struct program program;
  char text[PROGRAM_TEXT_BYTES];
  program_generate(&program, seed);
  program.free_threads = free_threads;
  if (!run_watched(&program, NULL, text)) report(&program, text);
}

static void test_guarded(void **state) {
  (void)state;
  const char *only = getenv("TUTTI_TEST_SEED");
  if (only) run_seed(strtoull(only, NULL, 0), false);
  for (uint64_t seed = 1; seed <= GUARDED_PROGRAMS && !only; seed++)
    if (part_has(part, seed)) run_seed(seed, false);
}

static void test_threads(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= THREADS_PROGRAMS; seed++)
    if (part_has(part, seed)) run_seed(1000000 + seed, true);
}

/* True if two runs of a program differ in their events. */
static bool hashes_differ(const struct program *program, void *argument) {
  (void)argument;
  char text[PROGRAM_TEXT_BYTES];
  uint64_t first = 0, second = 0;
  const bool good = run_watched(program, &first, text) && run_watched(program, &second, text);
  return good && first != second;
}

static void test_same_trace_twice(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= REPEATED_PROGRAMS; seed++) {
    struct program program;
    if (!part_has(part, seed)) continue;
    program_generate(&program, 2000000 + seed);
    if (!hashes_differ(&program, NULL)) continue;
    program_shrink(&program, hashes_differ, NULL, SHRINK_TRIES);
    program_print(&program, listing, sizeof listing);
    fprintf(stderr, "two runs of one program make different moves:\n%s\n", listing);
    fail();
  }
}

/* ---- that a failing program is shrunk: with an artificial failure ---- */

/* Fails if a broadcast of more than 8 elements follows, in a later group, any message. */
static bool invented_fault(const struct program *program, void *argument) {
  bool exchanged = false;
  *(uint32_t *)argument += 1;
  for (uint32_t g = 0; g < program->group_count; g++) {
    bool exchanges = false;
    for (uint32_t i = 0; i < program->groups[g].op_count; i++) {
      const struct program_op *op = &program->groups[g].ops[i];
      if (exchanged && op->kind == COLLECTIVE_BROADCAST && op->count > 8) return true;
      exchanges = exchanges || op->kind == PROGRAM_ALL_TO_ALL_V;
    }
    exchanged = exchanged || exchanges;
  }
  return false;
}

static void test_shrinks(void **state) {
  (void)state;
  struct program program;
  uint32_t tries = 0;
  uint64_t seed = 1;
  for (program_generate(&program, seed); !invented_fault(&program, &tries);
       program_generate(&program, ++seed)) {}
  program_shrink(&program, invented_fault, &tries, SHRINK_TRIES);
  assert_true(invented_fault(&program, &tries));
  assert_int_equal(program.group_count, 2);
  assert_int_equal(program.groups[0].op_count + program.groups[1].op_count, 2);
  assert_int_equal(program.groups[1].ops[0].count, 9);
  assert_int_equal(program.rank_count, 1);
  assert_false(program.thread_per_rank);
  program_print(&program, listing, sizeof listing);
  assert_non_null(strstr(listing, "ncclBroadcast(r"));
  assert_non_null(strstr(listing, ", 9, ncclInt8, root 0, world, stream[0]);"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_guarded), cmocka_unit_test(test_threads),
                                     cmocka_unit_test(test_same_trace_twice), cmocka_unit_test(test_shrinks)};
  part = part_of(PARTS);
  signal(SIGALRM, on_signal);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  signal(SIGSEGV, on_signal);
  signal(SIGABRT, on_signal);
#endif
  return cmocka_run_group_tests(tests, NULL, NULL);
}
