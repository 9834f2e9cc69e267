/* memcpy.c: the yardstick of the emulator's threads mode: THREADS threads copy BYTES each, ROUNDS times,
 * from pages of their own to pages of their own. Prints the median time of a round in microseconds, from
 * the moment when all threads may start to the moment when the last has ended.
 *
 *   memcpy THREADS BYTES ROUNDS */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS_MAX = 64, ROUNDS_MAX = 1000 };

static pthread_barrier_t barrier;
static size_t bytes;
static int rounds;

static void *copy(void *argument) {
  char *from = (char *)malloc(bytes), *to = (char *)malloc(bytes);
  (void)argument;
  if (from == NULL || to == NULL) {
    fprintf(stderr, "memcpy: no memory for 2 * %zu bytes\n", bytes);
    exit(3);
  }
  memset(from, 1, bytes);
  memset(to, 2, bytes);
  for (int round = 0; round < rounds; round++) {
    pthread_barrier_wait(&barrier);
    memcpy(to, from, bytes);
    __asm__ volatile("" : : "r"(to) : "memory"); /* keeps the copy from being optimized away */
    pthread_barrier_wait(&barrier);
  }
  free(from);
  free(to);
  return NULL;
}

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int double_compare(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return a < b ? -1 : a > b;
}

int main(int argc, char **argv) {
  static double times_us[ROUNDS_MAX];
  pthread_t threads[THREADS_MAX];
  const int thread_count = argc == 4 ? atoi(argv[1]) : 0;
  bytes = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
  rounds = argc == 4 ? atoi(argv[3]) : 0;
  if (thread_count < 1 || thread_count > THREADS_MAX || bytes == 0 || rounds < 1 || rounds > ROUNDS_MAX) {
    fprintf(stderr, "usage: memcpy THREADS BYTES ROUNDS (at most %d threads, %d rounds)\n", THREADS_MAX,
            ROUNDS_MAX);
    return 2;
  }
  pthread_barrier_init(&barrier, NULL, (unsigned)thread_count + 1);
  for (int i = 0; i < thread_count; i++) {
    if (pthread_create(&threads[i], NULL, copy, NULL) != 0) return 3;
  }
  for (int round = 0; round < rounds; round++) {
    pthread_barrier_wait(&barrier);
    const double begin_us = now_us();
    pthread_barrier_wait(&barrier);
    times_us[round] = now_us() - begin_us;
  }
  for (int i = 0; i < thread_count; i++) pthread_join(threads[i], NULL);
  qsort(times_us, (size_t)rounds, sizeof times_us[0], double_compare);
  printf("%.1f\n", times_us[rounds / 2]);
  return 0;
}
