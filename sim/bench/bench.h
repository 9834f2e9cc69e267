/* bench.h: what the files of the verb `bench` share: its flags, the rows of its table, and the state of one
 * run. bench.c reads flags and starts threads; bench_flags.c is the option table; bench_rank.c owns buffers
 * and calls NCCL; bench_gpu.c goes to GPUs; bench_table.c and bench_json.c print. */
#ifndef TUTTI_SIM_BENCH_H
#define TUTTI_SIM_BENCH_H

#include <stdbool.h>
#include <stdio.h>
#include <stdint.h>

#include "api.h"
#include "base/os.h"
#include "collective.h"
#include "option.h"
#include "progress.h"
#include "tutti.h"
#include "verb.h"

enum { FLAG_UNSET = -1 };

struct bench_flags {
  /* nccl-tests' own */
  int64_t min_bytes, max_bytes, step_bytes, step_factor;
  int64_t thread_count, ranks_per_thread;
  int64_t iteration_count, warmup_count, aggregate_count, cycle_count;
  int64_t check_count, is_blocking, graph_launches, registration, average, timeout_seconds, is_cpu_time,
      parallel_init;
  const char *op, *type, *root, *json_path;
  /* ours */
  int64_t rank_count, slots, chunk_bytes, channel_count, flag_bits, depth, lag_percent;
  uint64_t seed;
  const char *proto, *algo, *trace_path, *tune_path, *nccl_path, *cudart_path;
  bool gpu, threads, in_place, json, rate, quiet, verbose;
};
extern const struct option_set bench_options;
void bench_flags_initial(struct bench_flags *flags);
/* Sets the flags that were not given, for this number of processes and devices per process; false after one
 * sentence on stderr. */
bool bench_flags_complete(struct bench_flags *flags, int process_count, int device_count);

/* The out-of-place or in-place half of a line of the table. */
struct bench_half {
  bool is_run;    /* false if the operation has no in-place form */
  double time_us; /* combined over threads as --average says; NAN: the model has no time */
  double time_total, time_least, time_most, time_first;
  uint64_t wrong, out_of_bounds;
};
struct bench_row {
  ncclDataType_t type;
  enum oracle_op op;
  int root;
  size_t count, bytes; /* as collective_count() and collective_bytes() */
  struct bench_half halves[2];
  int64_t reported; /* threads that have reported their part */
};

/* Where a rank runs; processes exchange it. */
struct bench_place {
  int32_t pid, device;
  char host[56];
};

struct bench {
  struct bench_flags flags;
  tutti_launch_t launch;      /* this process's place among several */
  struct bench_place *places; /* by rank; NULL until they are known */
  const struct collective *collective;
  bool is_modelled;                    /* guarded: times are the cost model's predictions */
  char model[200];                     /* the machine that they are predicted for */
  int gpu_count;                       /* GPUs that this process sees; 0: the ranks run on emulated ones */
  tutti_tuning_options_t *options;     /* if set, bench only stores the options of the collective there */
  const tutti_tuning_option_t *forced; /* the option that the library must choose, or NULL */
  struct bench_row *rows;
  size_t row_count, send_bytes, receive_bytes; /* of the largest buffers of any row */
  ncclUniqueId id;
  char start_time[32], *command;
  /* below: shared by the threads, protected by `mutex` */
  os_mutex mutex;
  os_cond changed;
  uint64_t wrong, out_of_bounds;
  double busbw_total;
  size_t busbw_count;
  uint64_t moving_ns; /* first thread: time inside calls and waits, without data and checks */
  int64_t barrier_arrived;
  uint64_t barrier_round;
  struct progress progress; /* of this pass, of the first thread's ranks */
  uint64_t work_done;
  bool failed, is_environment; /* is_environment: the failure is a lack of memory or devices */
  char failure[4096];
};

const char *bench_type_name(ncclDataType_t type);
const char *bench_op_name(const struct bench *bench, enum oracle_op op);
double bench_algbw(const struct bench_row *row, const struct bench_half *half); /* GB/s */
double bench_busbw(const struct bench *bench, const struct bench_row *row, const struct bench_half *half);
double bench_average_busbw(const struct bench *bench);

/* Ranks that each process drives, the number of the first one, and the device of its rank `index`. */
uint32_t bench_own_count(const struct bench *bench);
uint32_t bench_own_first(const struct bench *bench);
uint32_t bench_own_device(const struct bench *bench, uint32_t index);
/* True in the one of several processes that prints. */
bool bench_is_speaker(const struct bench *bench);

/* With --gpu: checks the flags, loads the library and the CUDA runtime, counts the GPUs. EXIT_GOOD, also
 * without --gpu, else a code after one sentence. */
enum exit_code bench_gpu_begin(struct bench *bench);
/* False after one sentence if this process drives more ranks than it sees GPUs. */
bool bench_gpu_ranks_fit(const struct bench *bench);
/* Sets the number of channels of new communicators; 0 leaves it unchanged. */
void bench_channels_set(int64_t channels);
/* A unique id for all processes, from the library in use; false after one sentence. */
bool bench_id_make(struct bench *bench);

/* Which halves of a row the run has. */
bool bench_has_out_of_place(const struct bench *bench);
bool bench_has_in_place(const struct bench *bench);

/* The table. Nothing is printed with --json; comment lines are omitted with --quiet. */
void bench_table_begin(const struct bench *bench);
void bench_table_row(const struct bench *bench, const struct bench_row *row);
void bench_table_end(const struct bench *bench);
void bench_json_print(FILE *out, const struct bench *bench, const char *end_time);

/* Runs all rows on the ranks of one thread, and makes and frees their communicators and buffers. Failures are
 * reported to bench_fail(). */
void bench_ranks_run(struct bench *bench, int thread_index);

/* Records the run's first failure and wakes threads that wait for others. */
void bench_fail(struct bench *bench, bool is_environment, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool bench_has_failed(struct bench *bench);
/* Only on free threads: waits for all threads; false once the run has failed. */
bool bench_barrier(struct bench *bench);
/* Called when the first thread has made this many calls of the row; reports the progress of the pass. */
void bench_progress(struct bench *bench, const struct bench_row *row, int64_t call_count);
/* One pass over all rows by all threads, on communicators of its own. EXIT_GOOD, or a code after one
 * sentence.
 */
enum exit_code bench_pass(struct bench *bench);
/* The next size in the table, in bytes. */
int64_t bench_next_size(const struct bench_flags *flags, int64_t size);
/* Times every algorithm and protocol for each size instead of printing the table, and writes the tuning file.
 */
enum exit_code bench_tune(struct bench *bench);

/* Reports one thread's part of a row: times and wrong counts of both halves; the last thread prints the row.
 */
void bench_row_report(struct bench *bench, struct bench_row *row, const struct bench_half *parts,
                      bool is_first_thread);

#endif
