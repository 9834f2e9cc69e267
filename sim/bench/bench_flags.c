/* bench_flags.c: the flags of `tutti bench`: nccl-tests' own, by the same letters and names, then ours. */
#include <string.h>

#include "base/param.h"
#include "bench/bench.h"

#define AT(member) offsetof(struct bench_flags, member)
#define MANY ((int64_t)1 << 40)

static const struct option_row rows[] = {
    {'b', "minbytes", "BYTES", OPTION_BYTES, AT(min_bytes), 0, MANY,
     "smallest size (default 8); K, M and G are of 1024"},
    {'e', "maxbytes", "BYTES", OPTION_BYTES, AT(max_bytes), 0, MANY,
     "largest size (default 1M, or the smallest size if that is larger)"},
    {'i', "stepbytes", "BYTES", OPTION_BYTES, AT(step_bytes), 1, MANY, "sizes grow by this many bytes"},
    {'f', "stepfactor", "FACTOR", OPTION_INT, AT(step_factor), 2, 1 << 20,
     "sizes grow by this factor (default 2)"},
    {'g', "ngpus", "N", OPTION_INT, AT(ranks_per_thread), 1, 4096,
     "ranks that one thread drives, each on its own emulated GPU (default 8, with --gpu all GPUs of the "
     "machine; 1 with -t, or if a launcher has started several processes)"},
    {'t', "nthreads", "N", OPTION_INT, AT(thread_count), 1, 1024,
     "host threads, each driving -g ranks (default 1)"},
    {'n', "iters", "N", OPTION_INT, AT(iteration_count), 0, 1 << 30,
     "timed calls of each size (default 20; guarded: 0, as times are modelled, and the checked call runs "
     "anyway)"},
    {'w', "warmup_iters", "N", OPTION_INT, AT(warmup_count), 0, 1 << 30,
     "calls before the timed ones, at each size (default 5; guarded: 0)"},
    {'m', "agg_iters", "N", OPTION_INT, AT(aggregate_count), 1, 4096,
     "calls in one group, in each iteration (default 1)"},
    {'N', "run_cycles", "N", OPTION_INT, AT(cycle_count), 1, 1 << 20, "runs of the whole table (default 1)"},
    {'p', "parallel_init", "0/1", OPTION_INT, AT(parallel_init), 0, 1,
     "accepted for compatibility with nccl-tests: each thread always makes the communicators of its own "
     "ranks"},
    {'c', "check", "N", OPTION_INT, AT(check_count), 0, 1 << 20,
     "calls of each size, with new data, whose results are checked (default 1); 0 checks nothing"},
    {'o', "op", "sum|prod|max|min|avg|mulsum|all", OPTION_TEXT, AT(op), 0, 0,
     "operator (default sum); mulsum is a pre-multiplied sum, each rank with its own factor"},
    {'d', "datatype", "TYPE", OPTION_TEXT, AT(type), 0, 0,
     "int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2 or all "
     "(default float)"},
    {'r', "root", "RANK", OPTION_TEXT, AT(root), 0, 0, "root of rooted collectives, or all (default 0)"},
    {'z', "blocking", "0/1", OPTION_INT, AT(is_blocking), 0, 1,
     "wait for each iteration before the next (default 0)"},
    {'G', "cudagraph", "N", OPTION_INT, AT(graph_launches), 0, 1 << 20,
     "capture the iterations as a graph and launch it this many times (default 0: no graph)"},
    {'R', "local_register", "0/1/2", OPTION_INT, AT(registration), 0, 2,
     "register the buffers: 1 ncclCommRegister, 2 symmetric windows (default 0)"},
    {'a', "average", "0..3", OPTION_INT, AT(average), 0, 3,
     "time of a row over threads: 0 the first one's, 1 the mean, 2 the least, 3 the most (default 1); over "
     "processes always the most"},
    {'T', "timeout", "SECONDS", OPTION_INT, AT(timeout_seconds), 0, 86400,
     "fail when an iteration takes longer than this; 0 waits for ever (default 0)"},
    {'C', "report_cputime", "0/1", OPTION_INT, AT(is_cpu_time), 0, 1,
     "report the host's time in the calls instead of the time to completion; needs --threads (default 0)"},
    {'J', "output_file", "FILE", OPTION_TEXT, AT(json_path), 0, 0,
     "also write the results as JSON, with nccl-tests' keys (version 3) and tutti's own beside them"},
    {0, "ranks", "N", OPTION_INT, AT(rank_count), 1, 4096,
     "number of ranks, in each process; the same as -g N with -t 1"},
    {0, "threads", NULL, OPTION_FLAG, AT(threads), 0, 0,
     "let the emulator run on free threads and measure wall-clock times, instead of one seeded event at a "
     "time (guarded)"},
    {0, "gpu", NULL, OPTION_FLAG, AT(gpu), 0, 0,
     "run and measure on the GPUs of this machine, with the libnccl.so.2 beside this command and the "
     "system's CUDA runtime"},
    {0, "nccl", "FILE", OPTION_TEXT, AT(nccl_path), 0, 0,
     "as --gpu, with this libnccl.so.2, which may be NVIDIA's (2.28 or newer)"},
    {0, "cudart", "FILE", OPTION_TEXT, AT(cudart_path), 0, 0,
     "as --gpu, with this libcudart.so (CUDA 12 or newer)"},
    {0, "seed", "SEED", OPTION_SEED, AT(seed), 0, 0,
     "of the guarded scheduler and of the data: decimal, 0x hexadecimal or a commit id (default TUTTI_SEED "
     "or 1)"},
    {0, "trace", "FILE", OPTION_TEXT, AT(trace_path), 0, 0, "write the trace of every event (guarded)"},
    {0, "slots", "N", OPTION_INT, AT(slots), 1, 8, "FIFO slots of a connection (default 8)"},
    {0, "chunk", "BYTES", OPTION_BYTES, AT(chunk_bytes), 1, 1ll << 31,
     "largest chunk (default what the slots hold)"},
    {0, "channels", "N", OPTION_INT, AT(channel_count), 1, 64,
     "channels of a collective (default 2; with --gpu the library's own number)"},
    {0, "proto", "PROTO,...", OPTION_TEXT, AT(proto), 0, 0, "sets NCCL_PROTO: LL, LL128, Simple"},
    {0, "algo", "ALGO,...", OPTION_TEXT, AT(algo), 0, 0, "sets NCCL_ALGO: ring, tree, ..."},
    {0, "tune", "FILE", OPTION_TEXT, AT(tune_path), 0, 0,
     "time every algorithm and protocol for each size, and write the fastest into this tuning file; implies "
     "--threads"},
    {0, "flag-bits", "N", OPTION_INT, AT(flag_bits), 5, 32,
     "bits of an LL line's flag (default 32); with few bits flags wrap around soon, as after days of use"},
    {0, "depth", "N", OPTION_INT, AT(depth), 1, 4, "slices in flight in a lane (default 1)"},
    {0, "lag", "PERCENT", OPTION_INT, AT(lag_percent), 0, 100,
     "how often data is copied at the end of a move instead of at its beginning (default 0)"},
    {0, "in-place", NULL, OPTION_FLAG, AT(in_place), 0, 0,
     "run the in-place half of each row alone, which takes one buffer a rank"},
    {0, "rate", NULL, OPTION_FLAG, AT(rate), 0, 0,
     "after the table, print how many events and steps the guarded emulator ran, and how many a second"},
    {0, "json", NULL, OPTION_FLAG, AT(json), 0, 0,
     "print the results as JSON on standard output instead of the table"},
    {'q', "quiet", NULL, OPTION_FLAG, AT(quiet), 0, 0, "print the rows alone, without comment lines"},
    {'v', "verbose", NULL, OPTION_FLAG, AT(verbose), 0, 0, "report each phase of the run on standard error"},
};
const struct option_set bench_options = {"bench", rows, sizeof rows / sizeof rows[0], false, false, true};

void bench_flags_initial(struct bench_flags *flags) {
  memset(flags, 0, sizeof *flags);
  flags->min_bytes = 8;
  flags->max_bytes = flags->step_bytes = flags->step_factor = FLAG_UNSET;
  flags->thread_count = flags->ranks_per_thread = flags->rank_count = FLAG_UNSET;
  flags->iteration_count = flags->warmup_count = FLAG_UNSET;
  flags->aggregate_count = flags->cycle_count = flags->check_count = flags->average = 1;
  flags->op = "sum";
  flags->type = "float";
  flags->root = "0";
}

static bool ranks_complete(struct bench_flags *flags, int process_count, int device_count) {
  bool is_split = flags->thread_count != FLAG_UNSET || flags->ranks_per_thread != FLAG_UNSET;
  if (flags->rank_count != FLAG_UNSET && is_split) {
    fprintf(stderr, "tutti bench: --ranks says the same as -g with -t 1; give one of them\n");
    return false;
  }
  if (flags->ranks_per_thread == FLAG_UNSET) {
    flags->ranks_per_thread = flags->rank_count != FLAG_UNSET ? flags->rank_count
                              : is_split || process_count > 1 ? 1
                                                              : device_count;
  }
  if (flags->thread_count == FLAG_UNSET) flags->thread_count = 1;
  flags->rank_count = flags->ranks_per_thread * flags->thread_count * process_count;
  if (flags->rank_count <= 4096) return true;
  fprintf(stderr, "tutti bench: -t %lld -g %lld in each of %d processes: %lld ranks, more than 4096\n",
          (long long)flags->thread_count, (long long)flags->ranks_per_thread, process_count,
          (long long)flags->rank_count);
  return false;
}

bool bench_flags_complete(struct bench_flags *flags, int process_count, int device_count) {
  if (!ranks_complete(flags, process_count, device_count)) return false;
  if (flags->max_bytes == FLAG_UNSET)
    flags->max_bytes = flags->min_bytes > 1 << 20 ? flags->min_bytes : 1 << 20;
  if (flags->max_bytes < flags->min_bytes) {
    fprintf(stderr, "tutti bench: -e %lld is below -b %lld; no size is left\n", (long long)flags->max_bytes,
            (long long)flags->min_bytes);
    return false;
  }
  if (flags->step_bytes != FLAG_UNSET && flags->step_factor != FLAG_UNSET) {
    fprintf(stderr, "tutti bench: -i and -f both say how sizes grow; give one of them\n");
    return false;
  }
  if (flags->step_bytes == FLAG_UNSET && flags->step_factor == FLAG_UNSET) flags->step_factor = 2;
  if (strstr(param_text_silent(PARAM_TUTTI_EMU), "mode=threads")) flags->threads = true;
  if (flags->tune_path || flags->gpu) flags->threads = true;
  bool is_guarded = !flags->threads;
  if (flags->is_cpu_time && is_guarded) {
    fprintf(stderr, "tutti bench: -C measures time and so needs --threads; guarded times are modelled\n");
    return false;
  }
  if ((flags->trace_path || flags->rate) && !is_guarded) {
    fprintf(stderr, "tutti bench: --%s needs the guarded mode; leave --threads out\n",
            flags->trace_path ? "trace" : "rate");
    return false;
  }
  if (flags->warmup_count == FLAG_UNSET) flags->warmup_count = is_guarded ? 0 : 5;
  if (flags->iteration_count == FLAG_UNSET)
    flags->iteration_count = !is_guarded ? 20 : flags->check_count == 0;
  return true;
}
