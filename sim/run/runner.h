/* runner.h: runs of a program as child processes, some at a time: each in a process group and with a folder
 * for its records of its own, with a time limit, nothing to read, and what it prints kept to a bounded
 * extent. */
#ifndef TUTTI_SIM_RUN_RUNNER_H
#define TUTTI_SIM_RUN_RUNNER_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "run/draw.h"

enum { RUN_HEAD_BYTES = 16384, RUN_TAIL_BYTES = 49152, RUN_SENTENCE_BYTES = 1024 };

/* What a run printed, on both of its outputs: the begin, and the end as a ring. */
struct run_output {
  uint64_t bytes; /* printed in all */
  char head[RUN_HEAD_BYTES], tail[RUN_TAIL_BYTES];
};

/* How a run ended. */
struct run_end {
  struct draw draw;
  uint64_t ns;
  int status;                        /* as of waitpid */
  bool timed_out, recorded;          /* recorded: a record was made */
  char sentence[RUN_SENTENCE_BYTES]; /* of `tutti explain` on its records, for runs that fail */
  char folder[PATH_MAX];             /* of its records, for runs that fail; else removed */
  struct run_output output;
};
bool run_passed(const struct run_end *end);
/* "exit status 3", "signal 11, Segmentation fault", "no end within 60 s". */
void run_end_text(const struct run_end *end, uint64_t timeout_ns, char *out, size_t out_bytes);
/* The first warning of the library that the run printed, else its last line; numbers as #. Equal texts mean
 * the same failure. */
void run_report_line(const struct run_output *output, char *out, size_t out_bytes);
/* The last lines that the run printed, at most `lines`, as one text without control characters. */
void run_last_lines(const struct run_output *output, uint32_t lines, char *out, size_t out_bytes);

struct run_child {
  int pid, output_fd; /* pid 0: this place is free */
  uint64_t index, begin_ns;
  bool dropped; /* it was ended because its result is not needed */
  struct run_end *end;
};

struct runner {
  char **arguments;    /* the program's */
  uint32_t rank_count; /* 0: one process, without `tutti launch` */
  uint64_t timeout_ns;
  const char *own_emu;   /* the user's TUTTI_EMU, or "" */
  char folder[PATH_MAX]; /* of all runs */
  struct run_child *children;
  uint32_t child_count, running;
  uint64_t begun;        /* runs so far: they number the folders */
  int signals, ended_by; /* ended_by: a signal that this process got, 0: none */
  sigset_t mask;
};

/* False after a sentence on stderr. `jobs` is the number of children at a time. */
bool runner_open(struct runner *runner, uint32_t jobs);
/* Ends all children, and removes the folder if no run's records are kept. */
void runner_close(struct runner *runner);
/* Starts a run. False after a sentence on stderr if the program cannot be executed. */
bool runner_start(struct runner *runner, const struct draw *draw, uint64_t index);
/* Waits until a run has ended, and passes it to the caller, who frees it; *index as at the start. NULL: no
 * run is under way, or a signal wants this process to end. Runs that were dropped are not reported. `idle` is
 * called about ten times a second while nothing happens. */
struct run_end *runner_wait(struct runner *runner, uint64_t *index, void (*idle)(void *), void *argument);
/* Ends the runs whose index is above this one. */
void runner_drop_above(struct runner *runner, uint64_t index);
/* One run alone. NULL as for runner_wait. */
struct run_end *runner_once(struct runner *runner, const struct draw *draw);
/* Removes the folder of a run's records. */
void run_forget_records(struct run_end *end);

#endif
