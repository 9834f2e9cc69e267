/* skip.h: skips with a reason: the test runner prints the line before CMocka's own. */
#ifndef TUTTI_TESTS_SKIP_H
#define TUTTI_TESTS_SKIP_H

#define SKIP(reason)                     \
  do {                                   \
    print_message("skip: %s\n", reason); \
    skip();                              \
  } while (0)

#ifdef __SANITIZE_THREAD__
#define SKIP_FORK() SKIP("ThreadSanitizer follows no fork of a process with threads")
#else
#define SKIP_FORK() (void)0
#endif

/* Threads of a program that has started none: ThreadSanitizer has one of its own. */
#if defined(__SANITIZE_THREAD__)
#define THREADS_AT_REST 2u
#else
#define THREADS_AT_REST 1u
#endif

#endif
